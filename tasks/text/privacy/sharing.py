"""What a node shares about one batch of sentences, under each method, and so what an attacker sees."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from tasks.text.vocabulary import is_digits

from .tokens import TokenTable


@dataclass(frozen=True)
class Sharing:
    """Which gradients a method of federated learning shares.

    ``body`` are glob patterns of the parameters above the embedding table; ``row`` says whether the row of a word in
    the embedding table is shared: all under FedAvg, none under FedVocab, all but those of private words under
    FedRecon.
    """

    method: str
    body: tuple[str, ...]
    row: Callable[[str], bool]

    def names(self, body: nn.Module) -> list[str]:
        """The shared parameters of ``body``, in its order. Raises ``ValueError`` when no parameter is shared."""
        named = [name for name, _ in body.named_parameters()]
        shared = [name for name in named if any(fnmatchcase(name, pattern) for pattern in self.body)]
        if not shared:
            raise ValueError(f"no parameter matches {', '.join(self.body)}: the body has {', '.join(named)}")
        return shared


#: Each method with what it shares; the private words of FedRecon are digit tokens, as in the paper (Appendix A.2).
SHARINGS: Mapping[str, Sharing] = {
    "fedavg": Sharing("fedavg", ("*",), lambda word: True),
    "fedrecon": Sharing("fedrecon", ("*",), lambda word: not is_digits(word)),
    "fedvocab": Sharing("fedvocab", ("encoder.*", "*classifier.*"), lambda word: False),
}


@dataclass(frozen=True, eq=False)
class Observation:
    """All that an attacker sees of one batch of B sentences, beside the shared weights.

    ``gradients`` are those of the *mean loss* by the shared parameters of the body, in their shapes.
    ``rows`` [R, d] is the gradient by the shared rows of the embedding table and ``row_words`` are their words, R = 0
    where none is shared. ``lengths`` [B], the numbers of tokens, are granted to the attacker, as in DLG and TAG.
    """

    gradients: Mapping[str, Tensor]
    row_words: tuple[str, ...]
    rows: Tensor
    lengths: Tensor


@dataclass(frozen=True, eq=False)
class Victim:
    """The model of a node: its embedding table and the ``body`` above it.

    ``body(embedded [B, T, d], lengths [B])`` gives logits [B, C] and must ignore positions past the lengths. It is
    taken in the mode it is in; in evaluation mode there is no dropout, which is the attacker's best case.
    """

    body: nn.Module
    table: TokenTable

    def share(self, sentences: Sequence[Sequence[str]], labels: Sequence[int], sharing: Sharing) -> Observation:
        """The gradients of the mean cross-entropy over B ``sentences`` with class indices ``labels``.

        Raises ``ValueError`` as :meth:`.TokenTable.encode` and :meth:`Sharing.names` do.
        """
        rows, lengths = self.table.encode(sentences)
        shared = sharing.names(self.body)
        named = dict(self.body.named_parameters())
        table = self.table.vectors.detach().requires_grad_()
        logits = self.body(table[rows], lengths)
        targets = torch.eye(logits.shape[1], dtype=logits.dtype, device=logits.device)[list(labels)]
        loss = cross_entropy(logits, targets)
        inputs = [*(named[name] for name in shared), table]
        *gradients, by_row = torch.autograd.grad(loss, inputs, materialize_grads=True)
        words = tuple(word for word in self.table.words if sharing.row(word))
        return Observation(
            gradients=dict(zip(shared, gradients, strict=True)),
            row_words=words,
            rows=by_row[[self.table.index[word] for word in words]],
            lengths=lengths,
        )


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean over B examples of -Σ_c targets_c log softmax(logits)_c; both are [B, C], the targets soft labels."""
    return -(targets * logits.log_softmax(1)).sum(1).mean()
