"""What a guess reads: the most frequent words of public text of the same kind, without a look at what is shared.

Every attack that names frequent words is compared with it, at the same number of words.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from .sharing import Observation
from .tokens import TokenTable


def most_named(observation: Observation, table: TokenTable) -> int:
    """Return how many words an attack names at most: one per token, and one per number of a vector."""
    return min(int(observation.lengths.sum()), table.width)


def word_frequencies(counts: Mapping[str, int], table: TokenTable) -> Tensor:
    """Return the share [V] of each word of the table in public text, where each of them is counted once more.

    The padding has 0. ``counts`` are the occurrences of words in public text.
    """
    found = torch.tensor([counts.get(word, 0) + 1.0 for word in table.words], device=table.vectors.device)
    if table.padding is not None:
        found[table.index[table.padding]] = 0
    return found / found.sum()


def occurrence(frequencies: Tensor, tokens: int) -> Tensor:
    """Return the probability of each word to occur at least once among independent ``tokens``: 1 - (1 - f)^tokens."""
    return 1 - (1 - frequencies) ** tokens


def most_frequent(observation: Observation, table: TokenTable, frequencies: Tensor) -> list[str]:
    """Return the words with the highest ``frequencies`` [V], as many as an attack names at most."""
    order = frequencies.argsort(descending=True, stable=True)[: most_named(observation, table)].tolist()
    return [table.words[row] for row in order if frequencies[row] > 0]
