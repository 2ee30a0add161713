"""The job that every peer does, for programs that run in separate environments: it imports nothing of this repository.

``benchmarks.peers`` writes it. The first argument of a program is the file; see :class:`Job`.
"""

import json
import sys
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

torch.set_num_threads(1)

Examples = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Job:
    """What is trained.

    Attributes
    ----------
    nodes : list of pairs
        For each node its images ``[n, 64]``, normalised, and their labels ``[n]``.
    test : pair
        The images and labels on which the shared model is evaluated once, after the last round.
    method : str
        ``fedavg``, ``scaffold``, ``ditto``.
    rounds, drawn, epochs, batch, seed : int
        ``drawn`` nodes train in a round.
    rate : float
        The learning rate of plain SGD.
    """

    nodes: list[Examples]
    test: Examples
    method: str
    rounds: int
    drawn: int
    epochs: int
    batch: int
    rate: float
    seed: int

    @staticmethod
    def read() -> "Job":
        """Read the file that the first argument names, and seed torch's global generator."""
        with np.load(sys.argv[1]) as arrays:
            parts = {name: torch.from_numpy(arrays[name]) for name in arrays.files if name != "settings"}
            settings = json.loads(str(arrays["settings"]))
        nodes = [(parts[f"x{node}"], parts[f"y{node}"]) for node in range(len(parts) // 2 - 1)]
        torch.manual_seed(settings["seed"])
        return Job(nodes, (parts["x"], parts["y"]), **settings)

    def finish(self, model: nn.Module) -> None:
        """Print one line: the accuracy of the shared model on the test images."""
        images, labels = self.test
        with torch.no_grad():
            correct = (model(images).argmax(dim=1) == labels).float().mean()
        print(json.dumps({"accuracy": float(correct)}))


def network() -> nn.Sequential:
    """The perceptron of McMahan et al., 2017, with 200 units in each of two layers, for 64 inputs."""
    return nn.Sequential(nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10))
