"""What an audit attacks in a house: instructions of its training split, and the agent that follows them."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

from fedapps.tasks.base import Batch, NodeData
from fedapps.tasks.privacy.sharing import Sharing, Victim
from fedapps.tasks.privacy.subject import AuditSubject, Sentence
from fedapps.tasks.privacy.tokens import TokenTable
from fedapps.tasks.vln.agent import Agent
from fedapps.tasks.vln.episodes import chosen
from fedapps.tasks.vln.vocabulary import PAD, RESERVED, UNKNOWN, Vocabulary
from torch import Tensor, nn

from .victim import AgentVictim, above_words

if TYPE_CHECKING:
    from fedapps.tasks.vln.task import VlnTask

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
        self, task: "VlnTask", data: NodeData, folder: Path, count: int, seed: int
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

    def victim(self, task: "VlnTask", model: nn.Module, data: NodeData) -> Victim:
        agent, words = cast(Agent, model), _words(data)
        vectors = agent.encoder.embedding.weight.detach()[: len(words)].clone()
        table = TokenTable(words, vectors, RESERVED[PAD])
        return AgentVictim(above_words(agent), table, data.splits["train"], task.loss)

    def batch(self, data: NodeData, rows: Tensor, lengths: Tensor, labels: Tensor) -> Batch:
        return chosen(data.splits["train"], labels.cpu())

    def special_tokens(self, data: NodeData) -> frozenset[str]:
        return frozenset(RESERVED)


def _words(data: NodeData) -> tuple[str, ...]:
    """The words of the rows of the embedding; rows beyond them are never used."""
    return (*RESERVED, *cast(Vocabulary, data.extra["vocabulary"]).words)


def _texts(episodes: Batch) -> list[list[int]]:
    lengths = episodes["length"].tolist()
    return [tokens[:length] for tokens, length in zip(episodes["tokens"].tolist(), lengths, strict=True)]
