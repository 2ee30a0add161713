"""Attacks that name words by how well they explain the gradient, and the guess that they are compared with.

Sparse Bayesian learning (:func:`word_powers`) finds which few words of a table explain the first layer's gradient,
although it is inexact. The rows of the gradient are combinations Σ_w a_w x_w of the inputs x_w of the batch's words
(:mod:`.leaks`). After the rounding of compressed updates, after several steps of Adam, or under noise, the rows span
the whole space, and no word lies in it exactly. Their covariance is still that of the words: C ≈ Σ_w γ_w x_w x_wᵀ +
σ² I, with γ_w > 0 only for words of the batch. A table has more words than C has numbers, but few of them occur, and
the γ that makes the rows most likely is sparse.

Wipf and Rao, An Empirical Bayesian Strategy for Solving the Simultaneous Sparse Approximation Problem, IEEE
Transactions on Signal Processing 55(7), 2007, https://doi.org/10.1109/TSP.2007.894265 (M-SBL). It can find more words
than a vector has numbers: Balkan, Kreutz-Delgado and Makeig, Localization of More Sources Than Sensors via
Jointly-Sparse Bayesian Learning, IEEE Signal Processing Letters 21(2), 2014,
https://doi.org/10.1109/LSP.2013.2294862.

The guess (:func:`most_frequent`) names the most frequent words of public text of the same kind, without a look at what
is shared. Every attack that names frequent words is compared with it, at the same number of words.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from .leaks import first_gradient, first_noise, table_inputs
from .sharing import Observation
from .tokens import TokenTable

#: The share of the rows' energy that no words explain besides noise: Adam's division by |g| is no linear map.
MISFIT = 0.03
_ITERATIONS = 30
_TINY = torch.finfo(torch.float32).tiny


def most_named(observation: Observation, table: TokenTable) -> int:
    """Return how many words an attack names at most: one per token, and one per number of a vector."""
    return min(int(observation.lengths.sum()), table.width)


def word_frequencies(counts: Mapping[str, int], table: TokenTable) -> Tensor:
    """Return the share [V] of each word of the table in public text, where each of them is counted once more.

    The padding has 0. ``counts`` are the occurrences of words in public text.
    """
    frequencies = torch.tensor([counts.get(word, 0) + 1.0 for word in table.words], device=table.vectors.device)
    if table.padding is not None:
        frequencies[table.index[table.padding]] = 0
    return frequencies / frequencies.sum()


def occurrence(frequencies: Tensor, tokens: int) -> Tensor:
    """Return the probability of each word to occur at least once among independent ``tokens``: 1 - (1 - f)^tokens."""
    return 1 - (1 - frequencies) ** tokens


def most_frequent(observation: Observation, table: TokenTable, frequencies: Tensor) -> list[str]:
    """Return the words with the highest ``frequencies`` [V], as many as an attack names at most."""
    order = frequencies.argsort(descending=True, stable=True)[: most_named(observation, table)].tolist()
    return [table.words[row] for row in order if frequencies[row] > 0]


def words_by_power(
    observation: Observation, body: nn.Module, table: TokenTable, start: Tensor | None = None
) -> list[str]:
    """Return the words with the largest γ, the largest first, as many as :func:`.most_named` says.

    Inputs that depend on the position, as those of a transformer, count with their mean over all positions.

    Parameters
    ----------
    observation : Observation
        What the attacker sees.
    body : Module
        The model above the table, with the attacker's positions.
    table : TokenTable
        The attacker's table.
    start : Tensor [V], optional
        See :func:`word_powers`.
    """
    length = int(observation.lengths.max())
    inputs = torch.cat([part.mean(1) for part in table_inputs(body, table, length)])
    powers = word_powers(first_gradient(observation), inputs, first_noise(observation), start)
    if table.padding is not None:
        powers[table.index[table.padding]] = 0
    strongest = powers.argsort(descending=True)[: most_named(observation, table)].tolist()
    return [table.words[row] for row in strongest if powers[row] > 0]


def words_by_power_and_frequency(
    observation: Observation, body: nn.Module, table: TokenTable, frequencies: Tensor
) -> list[str]:
    """Return the same words if γ starts at the probability of each word to occur in the batch.

    ``frequencies`` [V] are those of public text.
    """
    return words_by_power(observation, body, table, occurrence(frequencies, int(observation.lengths.sum())))


def word_powers(rows: Tensor, inputs: Tensor, noise: float = 0.0, start: Tensor | None = None) -> Tensor:
    """Return γ [V] >= 0, float32: the mean square of each word's coefficient a_w, for inputs of norm 1.

    Every iteration makes the rows more likely under N(0, Σ_w γ_w x_w x_wᵀ + σ² I). It takes about 3 V d² operations.

    Parameters
    ----------
    rows : Tensor [m, d]
        The gradient, up to a factor for each row: rows are divided by their norms. Rows of 0 are left out.
    inputs : Tensor [V, d]
        What the first layer reads for each word. Vectors of 0 have γ = 0.
    noise : float
        Standard deviation of the noise in each number of ``rows``, >= 0.
    start : Tensor [V], optional
        The first γ, >= 0, up to a factor. By default all words have the same.
    """
    norms, sizes = rows.double().norm(dim=1), inputs.norm(dim=1)
    powers = (torch.ones_like(sizes) if start is None else start.to(sizes)).float() * (sizes > 0)
    if not norms.any() or not powers.any():
        return torch.zeros_like(powers)
    unit = (inputs / sizes.clamp(min=_TINY)[:, None]).float()
    scaled = rows.double()[norms > 0] / norms[norms > 0, None]
    covariance = (scaled.T @ scaled / len(scaled)).float()
    width = rows.shape[1]
    noise_share = min(1.0, width * noise**2 * float(norms[norms > 0].pow(-2).mean()))
    variance = (MISFIT + noise_share) / width
    powers = powers / powers.sum()
    identity = torch.eye(width, device=unit.device)
    for _ in range(_ITERATIONS):
        filtered = unit @ torch.linalg.inv(variance * identity + (unit.T * powers) @ unit)
        observed = (filtered @ covariance * filtered).sum(1).clamp(min=0)  # rounding can make it negative
        expected = (filtered * unit).sum(1)
        powers = powers * (observed / expected.clamp(min=_TINY)).sqrt()
    result: Tensor = powers
    return result
