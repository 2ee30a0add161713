"""The private vocabulary of a node with a transformer: the pieces of words that its training texts use.

A tokenizer can spell any text, so nodes with a private embedding need no words of their own. But a node's texts use a
small part of all pieces, and no other row of its embedding is ever trained. The node therefore trains and keeps these
rows alone; all others stay what they are at the start. Under an optimizer without weight decay, it computes what it
would with the whole table.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from .vocabulary import TokenizerVocabulary

#: The rows that are never trained. They are built like the rest of the model, and neither sent nor stored.
PUBLIC = "embedding.word_embeddings.public"


class PieceVocabulary(TokenizerVocabulary):
    """The tokens of a tokenizer, of which a node uses ``own``, numbers in ascending order."""

    def __init__(self, base: TokenizerVocabulary, own: tuple[int, ...]) -> None:
        super().__init__(base.tokenizer)
        self.words = base.words  # splits no text, and is computed once for all nodes
        self.own = own

    @classmethod
    def of(cls, base: TokenizerVocabulary, ids: Tensor, length: Tensor) -> "PieceVocabulary":
        """The vocabulary of a node with the texts ``ids [n, L]`` of ``length [n]``."""
        used = ids[torch.arange(ids.shape[1]) < length[:, None]]
        return cls(base, tuple(used.unique().tolist()))


class OwnRows(nn.Module):
    """An embedding with the values of :class:`torch.nn.Embedding`, of which some rows can be trained.

    The parameter ``weight`` [own rows, d] has the vectors of a node's pieces, the buffer ``public`` [numbers, d] the
    initial vectors of all.

    Parameters
    ----------
    table : Tensor [numbers, d]
        The initial vectors.
    own : sequence of int
        The rows to train, in ascending order.
    """

    public: Tensor
    places: Tensor

    def __init__(self, table: Tensor, own: tuple[int, ...]) -> None:
        super().__init__()
        rows = torch.tensor(own, dtype=torch.int64)
        self.weight = nn.Parameter(table[rows].clone())
        places = torch.full((len(table),), -1)
        places[rows] = torch.arange(len(rows))
        self.register_buffer("public", table)
        self.register_buffer("places", places, persistent=False)  # determined by the pieces, which are never sent

    @property
    def embedding_dim(self) -> int:
        """Numbers per vector."""
        return self.public.shape[1]

    def forward(self, ids: Tensor) -> Tensor:
        """Return the vectors ``[*ids.shape, d]`` of ``ids`` of any shape."""
        row = self.places[ids.long()]
        own = embedding(row.clamp(min=0), self.weight)
        return torch.where((row >= 0)[..., None], own, embedding(ids.long(), self.public))

    def whole(self) -> Tensor:
        """Return all vectors ``[numbers, d]`` as one new table."""
        rows = (self.places >= 0).nonzero().flatten()
        return self.public.index_copy(0, rows, self.weight.detach())


def keep_own_rows(module: Any, own: tuple[int, ...]) -> None:
    """Let the embeddings of an encoder train the rows ``own`` of their words alone, if they have such a table."""
    table = getattr(module, "word_embeddings", None)
    if isinstance(table, nn.Embedding):
        module.word_embeddings = OwnRows(table.weight.detach(), tuple(row for row in own if row < len(table.weight)))
