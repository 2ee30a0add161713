"""An embedding table in two parameters, so that the vectors of some words can stay on the node.

Zhang et al., FedVocab, 2022, Appendix A.2: under FedRecon the embeddings of digit tokens are local, everything else is
global.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding


class SplitEmbedding(nn.Module):
    """An embedding with the values of :class:`torch.nn.Embedding`, whose table consists of a public and a private part.

    The parameters are ``weight`` [public rows, d] and ``private`` [private rows, d]. A part without rows gets one
    unused row of zeros, because an empty parameter cannot be sent.

    Parameters
    ----------
    public, private : Tensor [rows, d]
        The initial vectors. Unused rows are allowed.
    places : Tensor int64 [numbers]
        The place of each number's vector: row ``place`` of the public part, or row ``-1 - place`` of the private part.
    """

    places: Tensor

    def __init__(self, public: Tensor, private: Tensor, places: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(_any_rows(public))
        self.private = nn.Parameter(_any_rows(private))
        self.register_buffer("places", places, persistent=False)  # determined by the words, which are never sent

    @classmethod
    def of(cls, table: Tensor, private: Sequence[bool]) -> "SplitEmbedding":
        """Split the rows of ``table`` [numbers, d]; ``private`` tells for each row whether it is private."""
        mask = torch.tensor(private)
        return cls(table[~mask].clone(), table[mask].clone(), places_of(private))

    @property
    def embedding_dim(self) -> int:
        """Numbers per vector."""
        return self.weight.shape[1]

    def forward(self, ids: Tensor) -> Tensor:
        """Return the vectors ``[*ids.shape, d]`` of ``ids`` of any shape."""
        place = self.places[ids.long()]
        public = embedding(place.clamp(min=0), self.weight)
        private = embedding((-1 - place).clamp(min=0), self.private)
        return torch.where((place >= 0)[..., None], public, private)


def places_of(private: Sequence[bool]) -> Tensor:
    """Return the places of vectors (:class:`SplitEmbedding`) if each part keeps the order of the numbers."""
    mask = torch.tensor(private, dtype=torch.bool)
    return torch.where(mask, -mask.cumsum(0), (~mask).cumsum(0) - 1)


def _any_rows(table: Tensor) -> Tensor:
    return table if len(table) else table.new_zeros(1, table.shape[1])
