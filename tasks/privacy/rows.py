"""The exact leak: the non-zero rows of an embedding's gradient are the tokens of the batch.

A row contributes to the loss only if its token occurs. Sharing rows therefore reveals which of their tokens were
written, without order or counts, at no cost to the attacker (Melis et al., Exploiting Unintended Feature Leakage in
Collaborative Learning, S&P 2019, Section 4.1, https://arxiv.org/abs/1805.04049; Boenisch et al., When the Curious
Abandon Honesty, 2021, https://arxiv.org/abs/2112.02918). The same holds for the update after any number of local steps,
unless something else moves the rows, such as weight decay. Under noise, the rows that are longer than noise can be are
read.
"""

import math

from scipy.stats import chi2

from .sharing import Observation
from .tokens import TokenTable


def leaked_tokens(observation: Observation, table: TokenTable) -> list[list[str]]:
    """Return the words of the batch among the shared rows, as one text of distinct words in the order of the rows.

    ``table`` is the attacker's and only identifies the padding. Without shared rows there are no words.
    """
    touched = (observation.rows.norm(dim=1) > longest_noise(observation)).tolist()
    pairs = zip(observation.row_words, touched, strict=True)
    return [[word for word, used in pairs if used and word != table.padding]]


def longest_noise(observation: Observation) -> float:
    """Return the norm that the longest of R rows of Gaussian noise of the observation's deviation has.

    In half of all observations, one row of pure noise is longer: the squared norm of a row [d], divided by the
    variance, has a χ² distribution with d degrees of freedom, and the result is its quantile 1 - 1/(2R).
    """
    rows, width = observation.rows.shape
    if not rows or not observation.noise:
        return 0.0
    quantile = float(chi2.isf(0.5 / rows, width))
    return observation.noise * math.sqrt(quantile)
