"""What a node shares of one batch of sentences under each method, and therefore what an attacker sees."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from .tokens import TokenTable


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
        shared = [name for name in named if any(fnmatchcase(name, pattern) for pattern in self.body)]
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
        changes (:class:`~.updates.UpdatedVictim`).
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
    """

    gradients: Mapping[str, Tensor]
    row_words: tuple[str, ...]
    rows: Tensor
    lengths: Tensor
    noise: float = 0.0
    rounding: Mapping[str, float] = field(default_factory=dict)


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
