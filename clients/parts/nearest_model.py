"""A node of IFCA: choose among the received models the one with the smallest loss.

Ghosh et al., An Efficient Framework for Clustered Federated Learning, NeurIPS 2020, Algorithm 1,
https://arxiv.org/abs/2006.04088.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf, isnan
from typing import Self

from fedapps.clients.arrays import Arrays
from fedapps.clients.local_part import LocalPart, NodeRound
from fedapps.clients.messages import read_arrays
from fedapps.clients.training import mean_loss
from fedapps.strategies.wire import IFCA_CHOICE, IFCA_MODEL_PREFIX
from fedapps.tasks.base import Metrics
from flwr.app import RecordDict
from torch import nn


@dataclass(frozen=True)
class NearestModel(LocalPart):
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
            best = losses.index(min(losses))
        return replace(node_round, received=models[best], found={**node_round.found, IFCA_CHOICE: best})

    def metrics(self, model: nn.Module, node_round: NodeRound) -> Metrics:
        return {IFCA_CHOICE: float(node_round.found[IFCA_CHOICE])}


def _loss(node_round: NodeRound, received: Arrays, split: str) -> float:
    """The mean loss of a received model; infinite where it is not a number."""
    model = node_round.model_of(received).to(node_round.device)
    loss = mean_loss(node_round.task, model, node_round.data, split, node_round.device)
    return inf if isnan(loss) else loss
