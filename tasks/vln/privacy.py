"""What an audit attacks in a house (:mod:`fedapps.tasks.privacy`): its instructions and the agent that follows them.

The victim is the agent without its word embedding, so that gradients can be taken with respect to any table of word
vectors.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, cast

import torch
from fedapps.tasks.base import Batch, NodeData
from fedapps.tasks.privacy.sharing import AuditSubject, Sentence, Sharing, Victim
from fedapps.tasks.privacy.tokens import TokenTable
from fedapps.tasks.vln.agent import Agent
from fedapps.tasks.vln.instructions import PAD, RESERVED, UNKNOWN, Vocabulary
from fedapps.tasks.vln.nodes import selected
from fedapps.tasks.vln.task import VlnTask
from torch import Tensor, nn
from torch.func import functional_call

from fedapps.base.seeding import torch_seed

_TABLE = "encoder.embedding.weight"
#: What each method shares of an agent. Both share the word embedding, which is a part of the language encoder.
SHARINGS: Mapping[str, Sharing] = {
    "fedavg": Sharing("fedavg", ("*",), lambda word: True),
    "fedvln": Sharing("fedvln", ("encoder.*",), lambda word: True),
}
_NO_MATCHING = (
    "matches gradients, which needs second derivatives through the agent's walks; add --attack subspace or rows, which "
    "read the gradient itself"
)
_NO_PUBLIC_TEXT = "needs public text of the same kind, and no instructions count as public; add --attack sparse"


@dataclass(frozen=True, eq=False)
class AgentVictim(Victim):
    """An agent in its house.

    Attributes
    ----------
    episodes : Batch
        The instructions of the house with their paths (:mod:`fedapps.tasks.vln.nodes`); the label of a sentence is
        its row.
    loss_of : callable
        ``loss_of(agent, batch)`` is the loss that the agent is trained with. Where it walks by chance, the walks of a
        batch are always the same.
    """

    episodes: Batch
    loss_of: Callable[[nn.Module, Batch], Tensor]

    def loss(self, vectors: Tensor, rows: Tensor, lengths: Tensor, labels: Sequence[int]) -> Tensor:
        """Return the loss on the episodes ``labels``, whose words the agent looks up in ``vectors [V, d]``."""
        batch = selected(self.episodes, torch.tensor(list(labels)))
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
    embedding = cast(nn.Embedding, body.encoder.embedding)
    vectors = embedding.weight.detach()
    del embedding.weight
    embedding.register_buffer("weight", vectors)
    return body


class VlnSubject(AuditSubject):
    """An agent, whose encoder reads instructions. No word is more private than another."""

    sharings = SHARINGS
    methods = ("fedavg", "fedvln")
    attacks = ("subspace", "sparse", "rows")
    refused: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("dlg", "tag"), _NO_MATCHING),
        **dict.fromkeys(("sparse-prior", "frequency"), _NO_PUBLIC_TEXT),
    }

    def choose(
        self, task: VlnTask, data: NodeData, folder: Path, count: int, seed: int
    ) -> tuple[NodeData, Sequence[Sentence]]:
        """Draw instructions that the house trains on and whose words all have a number.

        Raises
        ------
        ValueError
            Too few instructions qualify, or the stage trains no agent.
        """
        if task.options.speaks:
            raise ValueError(
                "vln.stage = 'speaker': must be 'agent', 'augmented' or 'pre-exploration', because an audit reads the "
                "instructions that an agent follows"
            )
        if task.options.language_model:
            raise ValueError(
                f"vln.language-model = {task.options.language_model!r}: must be '', because the attacks read updates "
                "of a word embedding, which such an agent does not have"
            )
        longest, words = task.options.max_length, _words(data)
        texts = _texts(data.splits["train"]) if "train" in data.splits else []
        # An instruction of the largest length may have been cut, and one of two tokens has no word.
        fit = [row for row, text in enumerate(texts) if 2 < len(text) < longest and UNKNOWN not in text]
        if len(fit) < count:
            raise ValueError(
                f"only {len(fit)} of {len(texts)} training instructions of the house {data.key} have words that are "
                f"all in the vocabulary, and fewer than {longest} tokens; use at most {len(fit)}, or another house"
            )
        rows = random.Random(seed).sample(fit, count)
        return data, [Sentence(tuple(words[number] for number in texts[row]), row) for row in rows]

    def victim(self, task: VlnTask, model: nn.Module, data: NodeData) -> Victim:
        agent, words = cast(Agent, model), _words(data)
        vectors = cast(nn.Embedding, agent.encoder.embedding).weight.detach()[: len(words)].clone()
        table = TokenTable(words, vectors, RESERVED[PAD])
        return AgentVictim(above_words(agent), table, data.splits["train"], task.loss)

    def batch(self, data: NodeData, rows: Tensor, lengths: Tensor, labels: Tensor) -> Batch:
        return selected(data.splits["train"], labels.cpu())

    def special_tokens(self, data: NodeData) -> frozenset[str]:
        return frozenset(RESERVED)


def _words(data: NodeData) -> tuple[str, ...]:
    """The words of the rows of the embedding; rows beyond them are never used."""
    return (*RESERVED, *cast(Vocabulary, data.extra["vocabulary"]).words)


def _texts(episodes: Batch) -> list[list[int]]:
    lengths = episodes["length"].tolist()
    return [tokens[:length] for tokens, length in zip(episodes["tokens"].tolist(), lengths, strict=True)]
