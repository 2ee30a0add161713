"""The exact leak: the non-zero rows of an embedding's gradient are the tokens of the batch.

A row contributes to the loss only if its token occurs. Sharing rows therefore reveals which of their tokens were
written, without order or counts, at no cost to the attacker (Melis et al., Exploiting Unintended Feature Leakage in
Collaborative Learning, S&P 2019, Section 4.1, https://arxiv.org/abs/1805.04049; Boenisch et al., When the Curious
Abandon Honesty, 2021, https://arxiv.org/abs/2112.02918). The same holds for the update after any number of local steps,
unless something else moves the rows, such as weight decay.
"""

from .sharing import Observation
from .tokens import TokenTable


def leaked_tokens(observation: Observation, table: TokenTable) -> list[list[str]]:
    """Return the words of the batch among the shared rows, as one text of distinct words in the order of the rows.

    ``table`` is the attacker's and only identifies the padding. Without shared rows there are no words.
    """
    touched = observation.rows.ne(0).any(1).tolist()
    pairs = zip(observation.row_words, touched, strict=True)
    return [[word for word, used in pairs if used and word != table.padding]]
