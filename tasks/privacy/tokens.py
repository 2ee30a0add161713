"""A table of tokens, words and the vectors that a model or an attacker assigns to them, and the words recovered.

The paper (Zhang et al., FedVocab, EMNLP 2022, Section 4.2) defines precision as "the average percentage of recovered
words in the target texts" and recall as "the average percentage of words in the target texts [that] are predicted".
Both count *occurrences* anywhere in the sentence and check only whether the other text contains the word. A word
written twice and recovered once therefore counts twice, as in the authors' released code for recall. Their precision
divides the same count by the number of recovered words, which may exceed 1, and is not used here. Sets and multisets
are unsuitable: with sets, a sentence that repeats one word counts as one word, and with multisets precision and recall
are equal for every attack that knows the length.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

import numpy as np
import scipy
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


Text = Sequence[str]


@dataclass(frozen=True)
class Recovery:
    """The words of a text and those that an attack recovered."""

    target: tuple[str, ...]
    recovered: tuple[str, ...]

    @property
    def precision(self) -> float:
        """The share of recovered words that occur in the target, in [0, 1]; 0 if nothing was recovered."""
        return _share_found(self.recovered, self.target)

    @property
    def recall(self) -> float:
        """The share of the target's words that were recovered, in [0, 1]."""
        return _share_found(self.target, self.recovered)


@dataclass(frozen=True)
class Scores:
    """Means over texts of precision and recall, the F1 score of these means, and the private token leakage ratio.

    All are in [0, 1]. ``ptlr`` is pooled: the recovered private tokens of all targets divided by all their private
    tokens; NaN without private tokens.
    """

    precision: float
    recall: float
    f1: float
    ptlr: float


def score(recoveries: Sequence[Recovery], private: Callable[[str], bool] = lambda word: False) -> Scores:
    """Compute the measures of the paper's Table 2. Raise ``ValueError`` without recoveries.

    ``private`` says which words are private tokens, whose recovery the private token leakage ratio counts.
    """
    if not recoveries:
        raise ValueError("there are no texts to score")
    precision = fmean(one.precision for one in recoveries)
    recall = fmean(one.recall for one in recoveries)
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    leaked = [word in one.recovered for one in recoveries for word in one.target if private(word)]
    return Scores(precision, recall, f1, fmean(leaked) if leaked else float("nan"))


def pair(targets: Sequence[Text], recovered: Sequence[Text]) -> list[Recovery]:
    """Assign recovered texts to targets.

    The gradient of a batch does not depend on the order of its sentences, so neither may the score: the pairs maximise
    the sum of precisions and recalls. An attack that cannot separate the sentences returns one text, which is compared
    with all words of the batch.

    Raises
    ------
    ValueError
        The number of recovered texts is neither 1 nor that of targets.
    """
    if len(recovered) == 1:
        return [Recovery(tuple(word for text in targets for word in text), tuple(recovered[0]))]
    if len(recovered) != len(targets):
        raise ValueError(f"{len(recovered)} recovered texts for {len(targets)} targets: must be 1 or the same number")
    table = [[Recovery(tuple(target), tuple(text)) for text in recovered] for target in targets]
    gains = np.array([[one.precision + one.recall for one in row] for row in table])
    return [
        table[row][column]
        for row, column in zip(*scipy.optimize.linear_sum_assignment(gains, maximize=True), strict=True)
    ]


def _share_found(words: Text, among: Text) -> float:
    return sum(word in among for word in words) / len(words) if words else 0.0
