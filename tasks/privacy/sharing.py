"""What a node shares of a batch of sentences under each method, and therefore what an attacker sees.

A task gives an audit the sentences of a node, and its model as a victim (:class:`AuditSubject`).

A victim shares the gradient of the mean loss (:class:`Victim`), or, after local training, the change of its weights
(:class:`UpdatedVictim`). Under SGD the change is the sum of the gradients of all steps, times the learning rate, so the
row space of the first layer's change is spanned by the inputs of all steps (:mod:`.leaks`). Adam scales every element
separately, and its steps mix: after several steps, no gradient can be computed from the change. Its first step is
η g / (|g| + ε), from which g follows, with a precision that is limited by the rounding of the weights
(:func:`first_adam_gradient`).

Under local differential privacy the node clips the change and adds noise (:class:`ClippedNoise`). Clipping alone
multiplies all numbers by one factor, which the largest of them tells. A node that compresses its updates does so after
the noise. Rounding hides the gradient behind a first step of Adam, but no row that did not change.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from fedapps.tasks.base import Batch, NodeData
from fedapps.tasks.profiles import PrivateParameters
from torch import Tensor, nn

from fedapps.base.options import matches

from .tokens import TokenTable

_ADAM_EPSILON = 1e-8  # torch's default
_ROWS = "rows of the embedding table"
_ROUNDED = 12**-0.5  # the standard deviation of a rounding to a multiple of 1


@dataclass(frozen=True)
class Sharing:
    """The gradients that a method shares.

    Attributes
    ----------
    method : str
        The method's name.
    body : tuple of str
        Glob patterns of the shared parameters above the embedding table.
    row : callable
        Whether the row of a word in the embedding table is shared.
    first_layer : bool
        Whether the parameters of the layer above the embedding table are shared.
    """

    method: str
    body: tuple[str, ...]
    row: Callable[[str], bool]
    first_layer: bool = True

    def names(self, body: nn.Module) -> list[str]:
        """Return the shared parameters of ``body``, in its order. Raise ``ValueError`` if no parameter is shared."""
        named = [name for name, _ in body.named_parameters()]
        shared = [name for name in named if matches(name, self.body)]
        if not shared:
            raise ValueError(f"no parameter matches {', '.join(self.body)}: the body has {', '.join(named)}")
        return shared


@dataclass(frozen=True, eq=False)
class Observation:
    """What an attacker sees of one batch of B sentences, besides the shared weights.

    Attributes
    ----------
    gradients : mapping of str to Tensor
        Gradients of the *mean loss* with respect to the shared parameters of the body; after local training, their
        changes (:class:`UpdatedVictim`).
    row_words : tuple of str
        The words of the shared rows of the embedding table.
    rows : Tensor [R, d]
        Gradients with respect to these rows, or their changes; R = 0 if none is shared.
    lengths : Tensor [B]
        The numbers of tokens, which the attacker knows, as in DLG and TAG.
    noise : float
        Standard deviation of the noise in each number, which the attacker knows; 0: none.
    rounding : mapping of str to float
        Standard deviation of what compression changed in some of the ``gradients``, which the attacker knows; it
        changes no zero.
    errors : mapping of str to float
        Standard deviation of the errors in those of the ``gradients`` that follow from a step of Adam.
    """

    gradients: Mapping[str, Tensor]
    row_words: tuple[str, ...]
    rows: Tensor
    lengths: Tensor
    noise: float = 0.0
    rounding: Mapping[str, float] = field(default_factory=dict)
    errors: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Victim:
    """The model of a node: its embedding table and the ``body`` above it.

    By default it is a classifier: ``body(embedded [B, T, d], lengths [B])`` returns logits [B, C] and must ignore
    positions beyond the lengths. Other models override :meth:`loss`. The body's mode is not changed; evaluation mode,
    without dropout, is the attacker's best case.
    """

    body: nn.Module
    table: TokenTable

    @property
    def rows_affect_body(self) -> bool:
        """Whether what is shared of the body depends on which rows of the table are shared."""
        return False

    def share(self, sentences: Sequence[Sequence[str]], labels: Sequence[int], sharing: Sharing) -> Observation:
        """Return the gradients of the mean loss over B ``sentences`` with ``labels``.

        Raises
        ------
        ValueError
            A sentence cannot be encoded (:meth:`.TokenTable.encode`), or nothing is shared (:meth:`Sharing.names`).
        """
        rows, lengths = self.table.encode(sentences)
        shared = sharing.names(self.body)
        named = dict(self.body.named_parameters())
        table = self.table.vectors.detach().requires_grad_()
        loss = self.loss(table, rows, lengths, labels)
        inputs = [*(named[name] for name in shared), table]
        *gradients, by_row = torch.autograd.grad(loss, inputs, materialize_grads=True)
        words = tuple(word for word in self.table.words if sharing.row(word))
        return Observation(
            gradients=dict(zip(shared, gradients, strict=True)),
            row_words=words,
            rows=by_row[[self.table.index[word] for word in words]],
            lengths=lengths,
        )

    def loss(self, vectors: Tensor, rows: Tensor, lengths: Tensor, labels: Sequence[int]) -> Tensor:
        """Return the mean loss of a batch, a scalar that is differentiable in ``vectors`` and the body.

        Parameters
        ----------
        vectors : Tensor [V, d]
            The embedding table.
        rows : Tensor [B, T]
            The rows of the words in the table, padded.
        lengths : Tensor [B]
            The numbers of words.
        labels : sequence of int
            What the loss needs of each sentence besides its words: here its class.
        """
        logits = self.body(vectors[rows], lengths)
        targets = torch.eye(logits.shape[1], dtype=logits.dtype, device=logits.device)[list(labels)]
        return cross_entropy(logits, targets)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over B examples of -Σ_c targets_c log softmax(logits)_c; both [B, C], targets are soft labels."""
    return -(targets * logits.log_softmax(1)).sum(1).mean()


#: Gives changes as the server restores them after compression.
Compress = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]


@dataclass(frozen=True, eq=False)
class ClippedNoise:
    """Local differential privacy, as a node applies it to the shared arrays of a reply.

    Attributes
    ----------
    clip : float
        Largest norm of a change, > 0.
    deviation : float
        Standard deviation of the noise, >= 0.
    generator : Generator
        Draws the noise.
    """

    clip: float
    deviation: float
    generator: torch.Generator

    def __call__(self, changes: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the changes, scaled to a joint norm of at most ``clip``, plus noise."""
        norm = float(torch.stack([change.square().sum() for change in changes.values()]).sum().sqrt())
        scale = min(1.0, self.clip / norm) if norm else 1.0
        return {
            name: change * scale
            + self.deviation * torch.randn(change.shape, generator=self.generator).to(change.device)
            for name, change in changes.items()
        }


@dataclass(frozen=True, eq=False)
class UpdatedVictim(Victim):
    """A victim that trains on a batch and shares the change of its weights.

    Attributes
    ----------
    train : callable
        ``train(rows [B, T], lengths [B], labels [B])`` returns the victim after local training on these sentences, and
        the number of optimizer steps.
    adam_rate : float
        The learning rate if the optimizer is Adam without weight decay, which the attacker knows; otherwise 0.
    privacy : ClippedNoise, optional
        What the node does to the change before it sends it.
    compress : callable, optional
        What is left of the changes, noise included, after they were compressed and restored.
    """

    train: Callable[[Tensor, Tensor, Tensor], tuple[Victim, int]]
    adam_rate: float
    privacy: ClippedNoise | None = None
    compress: Compress | None = None

    @property
    def rows_affect_body(self) -> bool:
        """The joint norm, by which a change is clipped, includes the shared rows."""
        return self.privacy is not None

    def share(self, sentences: Sequence[Sequence[str]], labels: Sequence[int], sharing: Sharing) -> Observation:
        """Return the weights before minus those after local training, as they are sent, in place of gradients.

        After a single step of Adam, the matrices among them are gradients, up to factors for their rows.

        Raises
        ------
        ValueError
            As :meth:`.Victim.share`.
        """
        rows, lengths = self.table.encode(sentences)
        after, steps = self.train(rows, lengths, torch.tensor(list(labels), device=rows.device))
        names = sharing.names(self.body)
        changes = {
            name: self.body.get_parameter(name).detach() - after.body.get_parameter(name).detach() for name in names
        }
        words = tuple(word for word in self.table.words if sharing.row(word))
        shared = [self.table.index[word] for word in words]
        changes[_ROWS] = (self.table.vectors - after.table.vectors)[shared]
        noise, rate = 0.0, self.adam_rate
        if self.privacy:
            changes = self.privacy(changes)
            noise = self.privacy.deviation
            rate = max(float(changes[name].abs().max()) for name in names) if rate else rate
        rounding: dict[str, float] = {}
        if self.compress:
            restored = dict(self.compress(changes))
            rounding = {name: float((restored[name] - changes[name]).square().mean().sqrt()) for name in names}
            changes = restored
        errors: dict[str, float] = {}
        if steps == 1 and rate and not noise and not self.compress:
            for name in names:
                weights = self.body.get_parameter(name).detach()
                if weights.ndim == 2:
                    changes[name] = first_adam_gradient(changes[name], weights, rate)
                    errors[name] = _ROUNDED
        rows = changes.pop(_ROWS)
        return Observation(changes, words, rows, lengths, noise, rounding, errors)


def first_adam_gradient(change: Tensor, weights: Tensor, learning_rate: float) -> Tensor:
    """Compute the gradient from the change of ``weights`` [m, n] in Adam's first step, each row divided by its error.

    The change is η g / (|g| + ε), which hardly depends on |g| ≫ ε. The rounding of the weights therefore limits the
    precision, and rows with small gradients are the most precise. Division by the errors keeps the row space and
    prevents imprecise rows from dominating it.
    """
    precision = torch.finfo(change.dtype).eps
    ratio = change.double() / learning_rate
    room = (1 - ratio.abs()).clamp(min=precision)
    gradient = _ADAM_EPSILON * ratio / room
    rounding = precision * (weights.double().abs() / learning_rate + 1)
    error = _ADAM_EPSILON * rounding / room.square()
    return (gradient / error.square().mean(1, keepdim=True).sqrt()).to(change)


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
