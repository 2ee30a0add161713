"""FedAvg of BlazeFL with its trainer in one thread."""

from blazefl.contrib.fedavg import FedAvgBaseClientTrainer, FedAvgBaseServerHandler
from blazefl.reproducibility import setup_reproducibility
from job import Job, network
from torch import Generator, nn
from torch.utils.data import DataLoader, TensorDataset


class Selector:
    """The one network."""

    def select_model(self, name: str) -> nn.Module:
        """Return a new network."""
        model: nn.Module = network()
        return model


class Nodes:
    """The data of the nodes, as BlazeFL asks for them."""

    def get_dataloader(
        self, type_: str, cid: int, batch_size: int, generator: Generator
    ) -> DataLoader[tuple[object, ...]]:
        """Return the batches of a node."""
        return DataLoader(TensorDataset(*job.nodes[cid]), batch_size=batch_size, shuffle=True, generator=generator)


job = Job.read()
setup_reproducibility(job.seed)
number, share = len(job.nodes), job.drawn / len(job.nodes)
handler = FedAvgBaseServerHandler(Selector(), "", Nodes(), job.rounds, number, share, "cpu", job.batch, job.seed)
trainer = FedAvgBaseClientTrainer(
    Selector(), "", Nodes(), "cpu", number, job.epochs, job.batch, job.rate, job.seed
)  # fmt: skip
while not handler.if_stop():
    drawn = handler.sample_clients()
    trainer.local_process(handler.downlink_package(), drawn)
    for package in trainer.uplink_package():
        handler.load(package)
job.finish(handler.model)
