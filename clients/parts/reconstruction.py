"""Private parameters that are not kept: a node starts from the initial ones in every round, and may reconstruct them.

Singhal et al., Federated Reconstruction: Partially Local Federated Learning, NeurIPS 2021, Section 3 and Algorithm 1
(FedRecon), https://arxiv.org/abs/2102.03448.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from fedapps.clients.arrays import Arrays, kept_arrays, memory_of
from fedapps.clients.local_part import EARLIER_STAGES, PHASES, LocalPart, NodeRound, Prepared
from fedapps.clients.training import Phase, run_plan
from fedapps.tasks.base import NodeData
from torch import nn

from fedapps.base.options import option
from fedapps.base.seeding import generator

_SUPPORT = "support"


@dataclass(frozen=True)
class Stateless(LocalPart):
    """Forget the trained private parameters after each round. The memory of other parts is kept."""

    def kept(self, kept: Arrays) -> Arrays:
        return kept_arrays({}, memory_of(kept))

    def private(self, model: nn.Module, node_round: NodeRound) -> Arrays:
        return {}


@dataclass(frozen=True)
class Reconstruction(Stateless):
    """Start the private parameters from the initial model in every round and train them on a support set.

    The training examples are split in two by node and round. On the support set the node trains the private parameters
    with the received ones frozen; on the query set it trains the received ones with the private ones frozen. Its
    example count is that of the query set. Before an evaluation it reconstructs on the same support set. It keeps
    no private parameters between rounds, so a node that never trained can be evaluated, too. If all parameters are
    shared, this is plain training on the query set.

    Parameters
    ----------
    reconstruct_epochs : int
        Epochs on the support set, at least 1.
    support_share : float
        Share of the examples in the support set, between 0 and 1, both excluded; neither set is ever empty.
    """

    exclusive: ClassVar[frozenset[str]] = frozenset({PHASES, EARLIER_STAGES})

    reconstruct_epochs: int = option(1, "epochs on the support set", minimum=1)
    support_share: float = option(0.5, "share of the examples in the support set", above=0, maximum=1)

    def validate(self) -> None:
        if self.support_share == 1:
            raise ValueError(f"config support-share = {self.support_share}: must be between 0 and 1, both excluded")

    def check(self, node_round: NodeRound) -> None:
        """Raise ``ValueError`` if the learning rate follows the validation loss of earlier rounds."""
        if patience := node_round.settings.training.plateau_patience:
            raise ValueError(
                f"plateau-patience = {patience}: must be 0 with reconstruction, because the private parameters are not "
                "those of the last round"
            )

    def draw(self, data: NodeData, node_round: NodeRound) -> NodeData:
        draw = generator(node_round.seed, _SUPPORT, node_round.settings.server_round, data.key)
        return _split(data, self.support_share, draw)

    def plan(self, plan: Sequence[Phase], model: nn.Module, data: NodeData, node_round: NodeRound) -> Sequence[Phase]:
        received = [name for name, _ in model.named_parameters() if name in node_round.received]
        return [*plan[:-1], *self._reconstruct(model, data, node_round), replace(plan[-1], trainable=received)]

    def before_evaluation(self, model: nn.Module, node_round: NodeRound) -> Prepared:
        """Reconstruct the private parameters of ``model``."""
        with node_round.torch_seed("reconstruct"):
            split = self.draw(node_round.data, node_round)
            plan = self._reconstruct(model, split, node_round)
            trained = run_plan(model, plan, node_round.epochs(model, split), node_round.task.loss)
        return Prepared(trained.steps)

    def _reconstruct(self, model: nn.Module, data: NodeData, node_round: NodeRound) -> list[Phase]:
        """The phase on the support set; none where no parameter is private."""
        private = [name for name, _ in model.named_parameters() if name not in node_round.received]
        if not private:
            return []
        training = node_round.settings.training.for_epochs(self.reconstruct_epochs)
        support = node_round.epochs(model, replace(data, splits={"train": data.splits[_SUPPORT]}))
        return [Phase(training, trainable=private, epoch=support)]


def _split(data: NodeData, share: float, draw: np.random.Generator) -> NodeData:
    """The training examples as two splits, ``support`` and ``train`` (the query set), neither of them empty."""
    count = data.count("train")
    if count < 2:
        raise ValueError(
            f"node {data.key} has {count} training examples: reconstruction needs at least 2, or leave it out"
        )
    order = torch.from_numpy(draw.permutation(count))
    border = min(max(round(share * count), 1), count - 1)
    train = data.splits["train"]
    support = {name: tensor[order[:border]] for name, tensor in train.items()}
    query = {name: tensor[order[border:]] for name, tensor in train.items()}
    return replace(data, splits={**data.splits, _SUPPORT: support, "train": query})
