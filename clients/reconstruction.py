"""A node without memory: it reconstructs its private parameters in every round, and forgets them (FedRecon).

Singhal et al., Federated Reconstruction: Partially Local Federated Learning, NeurIPS 2021, Section 3 and Algorithm 1,
https://arxiv.org/abs/2102.03448.
"""

from dataclasses import replace

import numpy as np
import torch
from torch import nn

from sim.seeding import generator, torch_seed
from tasks.base import NodeData

from .base import FederatedClient, RoundResult
from .named_arrays import Arrays
from .round_settings import RoundSettings
from .training import Phase, run_plan

_SUPPORT = "support"


class ReconstructingClient(FederatedClient):
    """A :class:`FederatedClient` whose private parameters start from the initial model in every round.

    Its training examples are split in two, drawn by node and round. On the support part it trains the private
    parameters for ``reconstruct_epochs`` with the received ones frozen, then on the query part the received ones with
    the private ones frozen; the query examples are those that it counts. To be evaluated it reconstructs them on the
    same support part. It keeps nothing from round to round, so any node can be evaluated, whether it ever trained or
    not. Where everything is shared this is plain training on the query part.

    The parameters are those of :class:`FederatedClient`.
    """

    def train_round(self, received: Arrays, settings: RoundSettings) -> RoundResult:
        """As in the parent.

        Raises ``ValueError`` for settings that need a memory, for a node with fewer than two training examples, and
        where no parameter is shared.
        """
        if settings.reconstruct_epochs < 1:
            raise ValueError(f"reconstruct-epochs = {settings.reconstruct_epochs}: must be at least 1 to reconstruct")
        if settings.ewc or settings.l2_transfer or settings.plateau_patience:
            raise ValueError(
                f"ewc = {settings.ewc}, l2-transfer = {settings.l2_transfer}, plateau-patience = "
                f"{settings.plateau_patience}: must be 0 with reconstruct-epochs = {settings.reconstruct_epochs}, "
                "because they go on from what a node kept"
            )
        return super().train_round(received, settings)

    # -- what the parent asks --------------------------------------------------------------------------------

    def _kept(self, before: int, settings: RoundSettings) -> Arrays:
        return {}

    def _private(self, model: nn.Module, received: Arrays) -> Arrays:
        return {}

    def _drawn(self, data: NodeData, settings: RoundSettings) -> NodeData:
        drawn = super()._drawn(data, settings)
        draw = generator(self.seed, _SUPPORT, settings.server_round, data.key)
        return _split(drawn, settings.support_share, draw)

    def _plan(
        self, joint: Phase, model: nn.Module, received: Arrays, data: NodeData, settings: RoundSettings
    ) -> list[Phase]:
        query = replace(joint, trainable=[name for name, _ in model.named_parameters() if name in received])
        return [*self._reconstruction(model, received, data, settings), query]

    def _whole(self, received: Arrays, data: NodeData, settings: RoundSettings) -> nn.Module:
        model = self._model(received, {})
        with torch_seed(self.seed, "reconstruct", settings.server_round, data.key):
            split = self._drawn(data, settings)
            plan = self._reconstruction(model, received, split, settings)
            run_plan(model, plan, self._epochs(model, split), self._loss)
        return model

    # -- the machinery ---------------------------------------------------------------------------------------

    def _reconstruction(
        self, model: nn.Module, received: Arrays, data: NodeData, settings: RoundSettings
    ) -> list[Phase]:
        """The phase on the support part; none where no parameter is private."""
        private = [name for name, _ in model.named_parameters() if name not in received]
        if not private:
            return []
        phase = settings.phase(settings.reconstruct_epochs)
        support = self._epochs(model, replace(data, splits={"train": data.splits[_SUPPORT]}))
        return [replace(phase, trainable=private, epoch=support)]


def _split(data: NodeData, share: float, draw: np.random.Generator) -> NodeData:
    """The training examples as two splits, ``support`` and ``train`` (the query part), neither of them empty."""
    if not 0 < share < 1:
        raise ValueError(f"support-share = {share}: must be between 0 and 1, both excluded")
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
