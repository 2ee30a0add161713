"""An embedding table in two parameters, so that some words' vectors can stay on the node.

Zhang et al., FedVocab, 2022, Appendix A.2: of FedRecon the embeddings of digit tokens are local, all else is global.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding


class SplitEmbedding(nn.Module):
    """Says what :class:`torch.nn.Embedding` would of the table that ``public`` and ``private`` make together.

    Its parameters are ``weight`` [public rows, d] and ``private`` [private rows, d]. A part without rows gets one of
    zeros that no number points at, as an empty parameter could not travel.

    Parameters
    ----------
    public, private : Tensor [rows, d]
        The vectors to start from. Rows that no number points at are allowed.
    places : Tensor int64 [numbers]
        Where each number's vector is: row ``place`` of the public part, or row ``-1 - place`` of the private one.
    """

    places: Tensor

    def __init__(self, public: Tensor, private: Tensor, places: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(_any_rows(public))
        self.private = nn.Parameter(_any_rows(private))
        self.register_buffer("places", places, persistent=False)  # follows from the words, which never travel

    @classmethod
    def of(cls, table: Tensor, private: Sequence[bool]) -> "SplitEmbedding":
        """The rows of ``table`` [numbers, d], of which ``private`` says for each whether it is."""
        mask = torch.tensor(private)
        return cls(table[~mask].clone(), table[mask].clone(), places_of(private))

    @property
    def embedding_dim(self) -> int:
        """Numbers per vector."""
        return self.weight.shape[1]

    def forward(self, ids: Tensor) -> Tensor:
        """Vectors ``[*ids.shape, d]`` of the numbers ``ids`` of any shape."""
        place = self.places[ids.long()]
        public = embedding(place.clamp(min=0), self.weight)
        private = embedding((-1 - place).clamp(min=0), self.private)
        return torch.where((place >= 0)[..., None], public, private)


def places_of(private: Sequence[bool]) -> Tensor:
    """Where numbers' vectors are, in the sense of :class:`SplitEmbedding`, when each part keeps the numbers' order."""
    mask = torch.tensor(private, dtype=torch.bool)
    return torch.where(mask, -mask.cumsum(0), (~mask).cumsum(0) - 1)


def _any_rows(table: Tensor) -> Tensor:
    return table if len(table) else table.new_zeros(1, table.shape[1])
