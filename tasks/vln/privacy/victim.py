"""An agent without its word embedding, whose gradients can be taken with respect to any table of word vectors."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from fedapps.sim.seeding import torch_seed
from fedapps.tasks.base import Batch
from fedapps.tasks.privacy.sharing import Victim
from fedapps.tasks.vln.agent import Agent
from fedapps.tasks.vln.episodes import chosen
from torch import Tensor, nn
from torch.func import functional_call

_TABLE = "encoder.embedding.weight"


@dataclass(frozen=True, eq=False)
class AgentVictim(Victim):
    """An agent in its house.

    Attributes
    ----------
    episodes : Batch
        The instructions of the house with their paths (:mod:`fedapps.tasks.vln.episodes`); the label of a sentence is
        its row.
    loss_of : callable
        ``loss_of(agent, batch)`` is the loss that the agent is trained with. Where it walks by chance, the walks of a
        batch are always the same.
    """

    episodes: Batch
    loss_of: Callable[[nn.Module, Batch], Tensor]

    def loss(self, vectors: Tensor, rows: Tensor, lengths: Tensor, labels: Sequence[int]) -> Tensor:
        """Return the loss on the episodes ``labels``, whose words the agent looks up in ``vectors [V, d]``."""
        batch = chosen(self.episodes, torch.tensor(list(labels)))
        batch = {name: tensor.to(vectors.device) for name, tensor in batch.items()}
        batch |= {"tokens": rows[:, : batch["tokens"].shape[1]], "length": lengths}
        # cuDNN's LSTM has no gradients in evaluation mode.
        with torch_seed(0, "audit", "walks"), torch.backends.cudnn.flags(enabled=False):
            loss: Tensor = functional_call(_Loss(self.body, self.loss_of), {f"agent.{_TABLE}": vectors}, (batch,))
        return loss


class _Loss(nn.Module):
    def __init__(self, agent: nn.Module, loss_of: Callable[[nn.Module, Batch], Tensor]) -> None:
        super().__init__()
        self.agent, self.loss_of = agent, loss_of

    def forward(self, batch: Batch) -> Tensor:
        return self.loss_of(self.agent, batch)


def above_words(agent: Agent) -> nn.Module:
    """Return a copy of an agent in evaluation mode. The word vectors are a buffer in it, and no parameter."""
    body = deepcopy(agent).eval()
    embedding = body.encoder.embedding
    vectors = embedding.weight.detach()
    del embedding.weight
    embedding.register_buffer("weight", vectors)
    return body
