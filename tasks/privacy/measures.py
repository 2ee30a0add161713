"""Measures of how much of the targets an attack recovered.

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
from statistics import fmean

import numpy as np
from scipy.optimize import linear_sum_assignment

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
    return [table[row][column] for row, column in zip(*linear_sum_assignment(gains, maximize=True), strict=True)]


def _share_found(words: Text, among: Text) -> float:
    return sum(word in among for word in words) / len(words) if words else 0.0
