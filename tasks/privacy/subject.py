"""What a task offers an audit: sentences of a node, and its model as a victim."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fedapps.tasks.base import Batch, NodeData
from fedapps.tasks.profiles import PrivateParameters
from torch import Tensor, nn

from .sharing import Sharing, Victim


@dataclass(frozen=True)
class Sentence:
    """The words of a sentence, including special tokens, and what the loss needs besides (:meth:`.Victim.loss`)."""

    words: tuple[str, ...]
    label: int


class AuditSubject(ABC):
    """What an audit needs of a task. It holds no data; ``task`` is an instance of the task, with its options."""

    #: What each method shares.
    sharings: ClassVar[Mapping[str, Sharing]]
    #: The methods that are attacked unless others are named.
    methods: ClassVar[tuple[str, ...]]
    #: The attacks that are run unless others are named.
    attacks: ClassVar[tuple[str, ...]]
    #: Attacks that do not work on the task's model, each with the reason and what to use.
    refused: ClassVar[Mapping[str, str]] = {}
    #: What papers say about an attacker of a method, by (method, attacker).
    paper: ClassVar[Mapping[tuple[str, str], str]] = {}
    #: What the attacked node keeps private for all methods, so that they differ only in which gradients are shared.
    private: ClassVar[PrivateParameters] = PrivateParameters()

    @abstractmethod
    def choose(
        self, task: Any, data: NodeData, folder: Path, count: int, seed: int
    ) -> tuple[NodeData, Sequence[Sentence]]:
        """Draw ``count`` sentences, and return them with the data of a node that trains on them.

        Parameters
        ----------
        task : Task
            The task under :attr:`private`.
        data : NodeData
            The data of the node.
        folder : Path
            The folder that they were read from.
        count : int
            The number of sentences.
        seed : int
            The seed.

        Raises
        ------
        ValueError
            Too few sentences qualify.
        """

    @abstractmethod
    def victim(self, task: Any, model: nn.Module, data: NodeData) -> Victim:
        """Return the node with the current weights of its ``model``, which may change afterwards."""

    @abstractmethod
    def batch(self, data: NodeData, rows: Tensor, lengths: Tensor, labels: Tensor) -> Batch:
        """Return training examples of some sentences: ``rows [B, T]``, ``lengths [B]`` and ``labels [B]`` as in
        :meth:`.Victim.loss`.
        """

    @abstractmethod
    def special_tokens(self, data: NodeData) -> frozenset[str]:
        """Return the tokens that every sentence has, or that stand for no word. They do not count as words."""

    def frequencies(self, task: Any, data: NodeData, folder: Path) -> Mapping[str, int]:
        """Return how often words occur in public text of the same kind; see :meth:`choose` for the parameters.

        Raises
        ------
        ValueError
            There is no such text.
        """
        raise ValueError("the task has no public text")

    def is_private(self, word: str) -> bool:
        """Return whether a word is a private token, whose recovery the private token leakage ratio counts."""
        return False
