"""IFCA: several shared models, of which each node trains the one that fits its data best.

Ghosh et al., An Efficient Framework for Clustered Federated Learning, NeurIPS 2020, Algorithm 1,
https://arxiv.org/abs/2006.04088.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isnan
from typing import Self

from flwr.app import RecordDict
from torch import nn

from fedapps.base.options import Choices, option
from fedapps.clients.arrays import Arrays
from fedapps.clients.local_part import LocalPart, NodeRound
from fedapps.clients.settings import read_arrays
from fedapps.clients.training import mean_loss
from fedapps.config.run_config import RunConfig
from fedapps.strategies import BaseStrategy, IteratedClusters
from fedapps.strategies.wire import IFCA_CHOICE, IFCA_MODEL_PREFIX
from fedapps.tasks.base import Metrics, Task

from .base import Conflict, Method, StrategyParts, required


@dataclass(frozen=True)
class IfcaOptions:
    """The options of IFCA."""

    clusters: int = option(2, "models among which nodes choose; 1 = FedAvg", minimum=1, search=Choices((1, 2, 3, 4)))
    spread: float = option(
        1.0,
        "how much the first models differ: 1 = independent draws, 0 = not at all; small for a pretrained model",
        minimum=0,
        maximum=1,
    )


class Ifca(Method):
    """Each node receives all models, and trains and evaluates that with the smallest loss on its training data."""

    name = "ifca"
    summary = "IFCA: several models; each node chooses the one with the smallest loss on its data"
    citation = (
        "Ghosh et al., An Efficient Framework for Clustered Federated Learning, NeurIPS 2020, "
        "https://arxiv.org/abs/2006.04088"
    )
    sends = "all models down"
    message_sizes = (2.0, 1.0)
    work = "+ loss of k models"
    good_for = "unknown groups of nodes"
    needs = ("examples",)
    Options = IfcaOptions
    Strategy = IteratedClusters

    def strategy(self, parts: StrategyParts) -> BaseStrategy:
        return parts.build(
            self.Strategy, clusters=self.options.clusters, spread=self.options.spread, seed=parts.run.seed
        )

    def conflicts(self, run: RunConfig, task: Task) -> Iterator[Conflict]:
        yield from required(run, self.name, "a server optimizer has moments of one model", server_optimizer="sgd")
        if self.options.clusters > run.participants:
            yield (
                {"methods", "num_nodes"},
                f"ifca.clusters = {self.options.clusters}: must be at most the {run.participants} nodes that take part",
            )

    def local_parts(self) -> Sequence[LocalPart]:
        return [IfcaPart()]


@dataclass(frozen=True)
class IfcaPart(LocalPart):
    """Train and evaluate the received model with the smallest mean loss on the training data, the first of equal ones.

    The loss is measured on all training examples, also before an evaluation: the choice does not use test labels. A
    node without training data measures it on its validation data, and without both takes the first model.

    Parameters
    ----------
    others : tuple of dicts of arrays
        The models after the first one, which are the records ``ifca.model.1``, ``ifca.model.2`` and so on; the first
        one is ``arrays``.
    """

    others: tuple[Arrays, ...] = field(default=(), compare=False)

    def read(self, config: Mapping[str, object], content: RecordDict) -> Self:
        records = content.array_records
        count = sum(name.startswith(IFCA_MODEL_PREFIX) for name in records)
        names = [f"{IFCA_MODEL_PREFIX}{index}" for index in range(1, count + 1)]
        if missing := [name for name in names if name not in records]:
            raise ValueError(f"the message has {count} records {IFCA_MODEL_PREFIX}*, but no {missing[0]}")
        return replace(self, others=tuple(read_arrays(name, records[name]) for name in names))

    def begin(self, node_round: NodeRound) -> NodeRound:
        models = [node_round.received, *self.others]
        for index, model in enumerate(models):
            if model.keys() != node_round.received.keys():
                differing = sorted(model.keys() ^ node_round.received.keys())
                raise ValueError(f"{IFCA_MODEL_PREFIX}{index}: other names than arrays: {', '.join(differing[:5])}")
        splits = [split for split in ("train", "validation") if node_round.data.count(split)]
        best = 0
        if splits and len(models) > 1:
            losses = [_loss(node_round, model, splits[0]) for model in models]
            # Algorithm 1: the estimate of the node's cluster is argmin_j F_i(θ_j)
            best = losses.index(min(losses))
        return replace(node_round, received=models[best], measured={**node_round.measured, IFCA_CHOICE: best})

    def metrics(self, model: nn.Module, node_round: NodeRound) -> Metrics:
        return {IFCA_CHOICE: float(node_round.measured[IFCA_CHOICE])}


def _loss(node_round: NodeRound, received: Arrays, split: str) -> float:
    """The mean loss of a received model; infinite where it is not a number."""
    model = node_round.model_of(received).to(node_round.device)
    loss = mean_loss(node_round.task, model, node_round.data, split, node_round.device)
    return inf if isnan(loss) else loss
