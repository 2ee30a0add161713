"""A table of tokens: words and the vectors that a model, or an attacker, assigns to them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class TokenTable:
    """V distinct words and their embeddings.

    Attributes
    ----------
    words : tuple of str
        The words.
    vectors : Tensor [V, d]
        Their embeddings.
    padding : str or None
        The word that pads short sentences. It is never recovered.

    Raises
    ------
    ValueError
        Words and rows differ in number, a word occurs twice, or the padding is not among the words.
    """

    words: tuple[str, ...]
    vectors: Tensor
    padding: str | None = None

    def __post_init__(self) -> None:
        if self.vectors.ndim != 2 or len(self.words) != len(self.vectors):
            raise ValueError(f"{len(self.words)} words need one row each, not vectors {tuple(self.vectors.shape)}")
        if len(self.index) != len(self.words):
            raise ValueError("the words of a token table must be distinct")
        if self.padding is not None and self.padding not in self.index:
            raise ValueError(f"padding = {self.padding!r}: must be one of the words of the table, or None")

    @cached_property
    def index(self) -> dict[str, int]:
        """The row of every word."""
        return {word: row for row, word in enumerate(self.words)}

    @property
    def width(self) -> int:
        """The dimension d of the embeddings."""
        return self.vectors.shape[1]

    def encode(self, sentences: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        """Return padded rows [B, T] and lengths [B], both int64.

        Raises
        ------
        ValueError
            A word has no row, a sentence is empty, or sentences differ in length and there is no padding.
        """
        lengths = [len(sentence) for sentence in sentences]
        unknown = sorted({word for sentence in sentences for word in sentence if word not in self.index})
        if unknown:
            raise ValueError(f"words without a row in the table: {', '.join(map(repr, unknown[:5]))}")
        if not lengths or not min(lengths):
            raise ValueError("a batch needs at least one sentence, and a sentence at least one word")
        if self.padding is None and min(lengths) < max(lengths):
            raise ValueError("sentences of several lengths need a padding: give the table one")
        filler = self.index[self.padding] if self.padding is not None else 0
        rows = torch.full((len(lengths), max(lengths)), filler)
        for row, sentence in zip(rows, sentences, strict=True):
            row[: len(sentence)] = torch.tensor([self.index[word] for word in sentence])
        return rows.to(self.vectors.device), torch.tensor(lengths, device=self.vectors.device)

    def nearest(self, embedded: Tensor) -> list[str]:
        """Return the words whose vectors are nearest (L2) to ``embedded`` [n, d], except the padding."""
        distances = torch.cdist(embedded, self.vectors.to(embedded))
        if self.padding is not None:
            distances[:, self.index[self.padding]] = torch.inf
        return [self.words[row] for row in distances.argmin(1).tolist()]

    def without(self, private: Callable[[str], bool], generator: torch.Generator) -> "TokenTable":
        """Return the table as known to an attacker without the rows of ``private`` words.

        These rows are drawn from a normal distribution with the mean and standard deviation of the table.
        """
        rows = torch.tensor([private(word) for word in self.words], device=self.vectors.device)
        drawn = self.draw((len(self.words),), generator)
        return TokenTable(self.words, torch.where(rows[:, None], drawn, self.vectors), self.padding)

    def draw(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draw embeddings [*shape, d] from a normal distribution with the mean and standard deviation of the table.

        ``generator`` belongs to the CPU, so that draws are the same on every device.
        """
        noise = torch.randn((*shape, self.width), generator=generator, dtype=self.vectors.dtype)
        return noise.to(self.vectors.device) * self.vectors.std() + self.vectors.mean()
