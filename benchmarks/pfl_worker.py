"""The side of pfl-research in the benchmark of the engine: a program for an environment with ``pfl``.

It imports nothing of this repository. For each line that it reads, it trains one round of FedAvg with one SGD step per
client and answers with a line: the CPU milliseconds per client, or, to the line ``memory``, by how many megabytes the
round raised the resident set at most.

    python pfl_worker.py WIDTH CLIENTS BATCH
"""

import itertools
import os
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel


class Reconstruction(torch.nn.Linear):
    """A layer that learns to return its input, in the form that pfl expects."""

    def loss(self, batch: torch.Tensor) -> torch.Tensor:
        """The mean squared error."""
        error: torch.Tensor = self(batch) - batch
        return (error**2).mean()

    def metrics(self, batch: torch.Tensor) -> Metrics:
        """No metrics: the benchmark does not evaluate."""
        return Metrics()


class Training(FederatedAveraging):  # type: ignore[misc]  # Any where pfl is not installed
    """FedAvg that begins with its second round, because pfl evaluates every client before and after the first."""

    def __init__(self) -> None:
        super().__init__()
        self._current_central_iteration = 1


def main() -> None:
    """Answer the lines of stdin."""
    width, clients, size = map(int, sys.argv[1:])
    torch.set_num_threads(1)
    layer = Reconstruction(width, width)
    model = PyTorchModel(layer, torch.optim.SGD, torch.optim.SGD(layer.parameters(), lr=1.0))
    user = PyTorchTensorDataset([torch.randn(size, width)])
    data = FederatedDataset(lambda _: user, itertools.count().__next__)
    work = partial(_round, model, data, clients, size)
    answers = sys.stdout
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):  # pfl prints its metrics
        for line in sys.stdin:
            memory = line.strip() == "memory"
            measured = _megabytes(work) if memory else _milliseconds(work) / clients
            print(measured, file=answers, flush=True)


def _round(model: PyTorchModel, data: FederatedDataset, clients: int, size: int) -> None:
    rounds = NNAlgorithmParams(2, evaluation_frequency=2, train_cohort_size=clients, val_cohort_size=0)
    steps = NNTrainHyperParams(local_batch_size=size, local_num_epochs=1, local_learning_rate=0.01)
    Training().run(rounds, SimulatedBackend(training_data=data, val_data=data), model, steps)


def _milliseconds(work: Callable[[], None]) -> float:
    begun = time.process_time()
    work()
    return (time.process_time() - begun) * 1000


def _megabytes(work: Callable[[], None]) -> float:
    """As ``peak_megabytes`` of this repository, in this process."""
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    work()
    return (_status("VmHWM") - before) * 1024 / 1e6


def _status(name: str) -> int:
    """A value of the status of the process in KiB."""
    return int(Path("/proc/self/status").read_text(encoding="utf-8").partition(f"\n{name}:")[2].split()[0])


if __name__ == "__main__":
    main()
