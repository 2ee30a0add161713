"""FedAvg and SCAFFOLD of FedLab in one process."""

import logging
import random

from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.contrib.algorithm.scaffold import ScaffoldSerialClientTrainer, ScaffoldServerHandler
from fedlab.core.standalone import StandalonePipeline
from job import Job, network
from torch.utils.data import DataLoader, TensorDataset


class Nodes:
    """The data of the nodes, as trainers of FedLab ask for them."""

    def get_dataloader(self, node: int, batch_size: int) -> DataLoader[tuple[object, ...]]:
        """Return the batches of a node."""
        return DataLoader(TensorDataset(*job.nodes[node]), batch_size=batch_size, shuffle=True)


class Pipeline(StandalonePipeline):  # type: ignore[misc]  # Any where FedLab is not installed
    """Rounds without an evaluation."""

    def evaluate(self) -> None:
        """Do nothing."""


job = Job.read()
random.seed(job.seed)  # FedLab draws nodes from the standard library's generator
logging.disable(logging.INFO)
model, share = network(), job.drawn / len(job.nodes)
if job.method == "scaffold":
    handler = ScaffoldServerHandler(model, job.rounds, share)
    handler.setup_optim(1.0)
    trainer = ScaffoldSerialClientTrainer(model, len(job.nodes))
else:
    handler = SyncServerHandler(model, job.rounds, share)
    trainer = SGDSerialClientTrainer(model, len(job.nodes))
trainer.setup_dataset(Nodes())
trainer.setup_optim(job.epochs, job.batch, job.rate)
Pipeline(handler, trainer).main()
job.finish(handler.model)
