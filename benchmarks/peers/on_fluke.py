"""FedAvg, SCAFFOLD and Ditto of fluke."""

from fluke import DDict, FlukeENV
from fluke.algorithms.ditto import Ditto
from fluke.algorithms.fedavg import FedAVG
from fluke.algorithms.scaffold import SCAFFOLD
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from job import Job, network

job = Job.read()
FlukeENV().set_seed(job.seed)
FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
loaders = [FastDataLoader(*node, num_labels=10, batch_size=job.batch, shuffle=True) for node in job.nodes]
splitter = DataSplitter(DummyDataContainer(loaders, [None] * len(loaders), None, 10))
client = {
    "batch_size": job.batch,
    "local_epochs": job.epochs,
    "loss": "CrossEntropyLoss",
    "optimizer": {"name": "SGD", "lr": job.rate},
    "scheduler": {"name": "StepLR", "step_size": 1, "gamma": 1},
}
if job.method == "ditto":
    client |= {"model": network(), "tau": job.epochs, "lam": 0.1}
server = {"weighted": True} | ({"lr": 1.0} if job.method == "scaffold" else {})
algorithm_class = {"fedavg": FedAVG, "scaffold": SCAFFOLD, "ditto": Ditto}[job.method]
settings = DDict(client=client, server=server, model=network())
algorithm = algorithm_class(len(loaders), splitter, settings)
algorithm.run(job.rounds, job.drawn / len(loaders), finalize=False)
job.finish(algorithm.server.model)
