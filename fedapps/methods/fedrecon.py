"""FedRecon: the private parameters are reconstructed in every round.

Singhal et al., Federated Reconstruction: Partially Local Federated Learning, NeurIPS 2021, Section 3 and Algorithm 1
(FedRecon), https://arxiv.org/abs/2102.03448.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from fedapps.base.options import Range, option
from fedapps.base.seeding import generator
from fedapps.clients.local_part import EARLIER_STAGES, PHASES, LocalPart, NodeRound, Prepared
from fedapps.clients.training import Phase, run_plan
from fedapps.tasks.base import NodeData

from .partial import PartialMethod, Stateless

_SUPPORT = "support"


@dataclass(frozen=True)
class FedReconOptions:
    """The options of FedRecon."""

    epochs: int = option(1, "epochs in which nodes train their private parameters", minimum=1)
    support_share: float = option(
        0.5,
        "share of a node's examples for that; the rest trains the shared parameters",
        above=0,
        maximum=0.99,
        search=Range(0.2, 0.8),
    )


class FedRecon(PartialMethod):
    """The embeddings of digit words stay private; the nodes keep nothing between rounds."""

    name = "fedrecon"
    summary = "FedRecon: the embeddings of digit words stay private, reconstructed in every round"
    citation = (
        "Singhal et al., Federated Reconstruction: Partially Local Federated Learning, NeurIPS 2021, "
        "https://arxiv.org/abs/2102.03448"
    )
    work = "+ reconstruction"
    good_for = "nodes without memory; own words"
    task = "text"
    patterns = ("embedding*private",)
    Options = FedReconOptions

    def local_parts(self) -> Sequence[LocalPart]:
        return [FedReconPart(self.options)]


@dataclass(frozen=True)
class FedReconPart(Stateless):
    """Start the private parameters from the initial model in every round and train them on a support set.

    The training examples are split in two by node and round. On the support set the node trains the private parameters
    with the received ones frozen; on the query set it trains the received ones with the private ones frozen. Its
    example count is that of the query set. Before an evaluation it reconstructs on the same support set. It keeps
    no private parameters between rounds, so a node that never trained can be evaluated, too. If all parameters are
    shared, this is plain training on the query set.
    """

    exclusive: ClassVar[frozenset[str]] = frozenset({PHASES, EARLIER_STAGES})

    options: FedReconOptions = FedReconOptions()

    def check(self, node_round: NodeRound) -> None:
        """Raise ``ValueError`` if the learning rate follows the validation loss of earlier rounds."""
        if patience := node_round.settings.training.plateau_patience:
            raise ValueError(
                f"plateau-patience = {patience}: must be 0 with reconstruction, because the private parameters are not "
                "those of the last round"
            )

    def draw(self, data: NodeData, node_round: NodeRound) -> NodeData:
        draw = generator(node_round.seed, _SUPPORT, node_round.settings.server_round, data.key)
        return _split(data, self.options.support_share, draw)

    def plan(self, plan: Sequence[Phase], model: nn.Module, data: NodeData, node_round: NodeRound) -> Sequence[Phase]:
        # Algorithm 1: reconstruct the local parameters on the support set, then update the global ones on the query set
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
        training = node_round.settings.training.for_epochs(self.options.epochs)
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
