"""BLEU-4 of a corpus against several references, over the counts of sacreBLEU (Papineni et al., ACL 2002).

The convention is that of the Envdrop speaker and FedVLN's Table 4: words as the tokenizer of the agents gives them, no
smoothing, and in the brevity penalty the *shortest* reference of each sentence. sacreBLEU's own score takes the
reference of the closest length, and is never higher.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from fedapps.tasks.base import PooledMetric

from fedapps.base.errors import need

MAX_NGRAM = 4
#: Matching n-grams for n = 1 to 4, all n-grams of the sentences, words of the sentences, words of the references.
STATISTICS = 2 * MAX_NGRAM + 2


class CorpusCounts:
    """Counts n-grams of sentences, also several times, against the same references.

    Parameters
    ----------
    references : sequence of sequences of sequences of str
        For each of n sentences the words of its references, at least one; their number may differ.
    """

    def __init__(self, references: Sequence[Sequence[Sequence[str]]]) -> None:
        need("sacrebleu", "vln", "the BLEU of a speaker")
        from sacrebleu.metrics.bleu import BLEU

        most = max(map(len, references))
        columns: list[Any] = [
            [" ".join(of[place]) if place < len(of) else None for of in references] for place in range(most)
        ]
        self._counter = BLEU(tokenize="none", smooth_method="none", force=True, references=columns)
        self._shortest = sum(min(map(len, of)) for of in references)

    def statistics(self, sentences: Sequence[Sequence[str]]) -> np.ndarray:
        """The :data:`STATISTICS` of the words of n sentences, float64 ``[10]``."""
        counted = self._counter.corpus_score([" ".join(sentence) for sentence in sentences], None)
        return np.array([*counted.counts, *counted.totals, counted.sys_len, self._shortest], dtype=np.float64)


def bleu_statistics(sentences: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]) -> np.ndarray:
    """What BLEU is made of: sums over sentences, so that those of several nodes add up.

    Parameters
    ----------
    sentences : sequence of sequences of str
        The words of n sentences.
    references : sequence of sequences of sequences of str
        As those of :class:`CorpusCounts`.

    Returns
    -------
    float64 ndarray [10]
        See :data:`STATISTICS`.
    """
    return CorpusCounts(references).statistics(sentences)


def bleu(statistics: np.ndarray) -> float:
    """BLEU-4 in [0, 100] of :func:`bleu_statistics` or of a multiple of them; 0 where no 4-gram matches."""
    matches, totals = statistics[:MAX_NGRAM], statistics[MAX_NGRAM : 2 * MAX_NGRAM]
    said, wanted = statistics[-2:]
    if (matches <= 0).any() or (totals < matches).any() or said <= 0:  # the last two: statistics that cannot be
        return 0.0
    brevity = min(0.0, 1.0 - wanted / said)
    return float(100 * np.exp(np.log(matches / totals).mean() + brevity))


#: BLEU-4 of the paths of several nodes; a mean of the nodes' BLEU is another number.
CORPUS_BLEU = PooledMetric(STATISTICS, bleu)
