"""Attacks without a search: words are read from the first layer's gradient or from the rows of a shared embedding.

The subspace attack finds which words have their vectors in the row space of the first layer's gradient
(:func:`words_in_span`). The gradient of a linear layer's weights W [m, d] is the sum Σ_t δ_t x_tᵀ over its inputs
x_t [d], so its rows are combinations of the inputs. The inputs of an LSTM's first layer are the word vectors of the
batch; those of a transformer's first query, key and value projections are the word vectors with their positions. One
singular value decomposition gives the span of the inputs, and a word of a known table occurs in the batch if its vector
lies in the span. There is no starting point to choose. Petrov et al., DAGER: Exact Gradient Inversion for Large
Language Models, NeurIPS 2024, https://arxiv.org/abs/2405.15586, for transformers. This module reads the set of words,
not their order.

The exact leak (:func:`leaked_tokens`): the non-zero rows of an embedding's gradient are the tokens of the batch. A row
contributes to the loss only if its token occurs. Sharing rows therefore reveals which of their tokens were written,
without order or counts, at no cost to the attacker (Melis et al., Exploiting Unintended Feature Leakage in
Collaborative Learning, S&P 2019, Section 4.1, https://arxiv.org/abs/1805.04049; Boenisch et al., When the Curious
Abandon Honesty, 2021, https://arxiv.org/abs/2112.02918). The same holds for the update after any number of local steps,
unless something else moves the rows, such as weight decay. Under noise, the rows that are longer than noise can be are
read.

Sparse Bayesian learning (:func:`word_powers`) finds which few words of a table explain the first layer's gradient,
although it is inexact. After the rounding of compressed updates, after several steps of Adam, or under noise, the rows
of the gradient span the whole space, and no word lies in it exactly. Their covariance is still that of the words:
C ≈ Σ_w γ_w x_w x_wᵀ + σ² I, with γ_w > 0 only for words of the batch. A table has more words than C has numbers, but
few of them occur, and the γ that makes the rows most likely is sparse. Wipf and Rao, An Empirical Bayesian Strategy for
Solving the Simultaneous Sparse Approximation Problem, IEEE Transactions on Signal Processing 55(7), 2007,
https://doi.org/10.1109/TSP.2007.894265 (M-SBL). It can find more words than a vector has numbers: Balkan,
Kreutz-Delgado and Makeig, Localization of More Sources Than Sensors via Jointly-Sparse Bayesian Learning, IEEE Signal
Processing Letters 21(2), 2014, https://doi.org/10.1109/LSP.2013.2294862.

The guess (:func:`most_frequent`) names the most frequent words of public text of the same kind, without a look at what
is shared. Every attack that names frequent words is compared with it, at the same number of words.
"""

import inspect
import math
from collections.abc import Iterator, Mapping
from typing import Any

import scipy
import torch
from torch import Tensor, nn

from fedapps.base.options import matches

from .sharing import Observation
from .tokens import TokenTable

# The name of the argument depends on the version of transformers.
_ARGUMENTS = ("inputs_embeds", "input_embeds")
#: Parameters whose inputs are the words: of an LSTM, of BERT and of DistilBERT.
FIRST_LAYERS = (
    "*weight_ih_l0",
    "*weight_ih_l0_reverse",
    *(f"*layer.0.attention.self.{name}.weight" for name in ("query", "key", "value")),
    *(f"*layer.0.attention.{name}_lin.weight" for name in "qkv"),
)
#: A word is read if its residual is below this share of that of a vector in a random direction. With the victim's table
#: the residuals of its words are rounding errors, around 1e-6; training that has moved the table, and dropout, raise
#: them to a few tenths.
TOLERANCE = 0.5
#: Singular values below this multiple of the precision of the numbers, relative to the largest, are rounding errors.
_ROUNDING = 8
#: The share of directions used if the gradient has all of them. The strongest come from the words that influence the
#: loss most.
_STRONGEST = 0.8
_CHUNK = 256  # words per step, which bounds the memory
#: The share of the rows' energy that no words explain besides noise: Adam's division by |g| is no linear map.
MISFIT = 0.03
_ITERATIONS = 30
_TINY = torch.finfo(torch.float32).tiny


def first_inputs(body: nn.Module, vectors: Tensor, length: int) -> Tensor:
    """Return what the first layer of a body reads for each of V words at each of P positions: [V, P, d].

    P is ``length`` for a transformer, whose inputs depend on the position, and 1 otherwise; ``vectors`` are [V, d].
    """
    above = getattr(body, "embedding", None)
    if not isinstance(above, AboveWords):
        return vectors[:, None]
    inputs: Tensor = above(vectors[:, None].expand(-1, length, -1))
    return inputs


class AboveWords(nn.Module):
    """A transformer's ``embeddings`` without the word vectors."""

    def __init__(self, embeddings: Any) -> None:
        super().__init__()
        known = inspect.signature(embeddings.forward).parameters
        names = [name for name in _ARGUMENTS if name in known]
        if not names or not hasattr(embeddings, "word_embeddings"):
            kind = type(embeddings).__name__
            raise ValueError(f"{kind} accepts no word vectors; expected an argument {' or '.join(_ARGUMENTS)}")
        self.argument = names[0]
        self.embeddings = embeddings
        embeddings.word_embeddings = nn.Identity()

    def forward(self, embedded: Tensor) -> Tensor:
        above: Tensor = self.embeddings(input_ids=None, **{self.argument: embedded})
        return above


def words_in_span(
    basis: Tensor, body: nn.Module, table: TokenTable, length: int, *, tolerance: float = TOLERANCE
) -> list[str]:
    """Return the words nearest to the span of the inputs, the nearest first; at most one for each of its dimensions.

    Parameters
    ----------
    basis : Tensor [r, d]
        An orthonormal basis of the span (:func:`span_of_inputs`).
    body : Module
        The model above the table, with the attacker's positions.
    table : TokenTable
        The attacker's table.
    length : int
        The length of the longest sentence.
    tolerance : float
        Largest residual of a word, relative to that of a random direction, in (0, 1).
    """
    residuals = torch.cat([residual(basis, inputs).amin(1) for inputs in table_inputs(body, table, length)])
    if table.padding is not None:
        residuals[table.index[table.padding]] = torch.inf
    nearest = residuals.argsort()[: len(basis)].tolist()
    return [table.words[row] for row in nearest if residuals[row] < tolerance]


def first_gradient(observation: Observation) -> Tensor:
    """Return the gradients of the first layer's shared weights, stacked: [m, d].

    Raises
    ------
    ValueError
        None of them is shared.
    """
    first = [gradient for name, gradient in observation.gradients.items() if matches(name, FIRST_LAYERS)]
    if not first:
        known = ", ".join(observation.gradients)
        raise ValueError(f"no first layer among {known}: must be an LSTM, BERT or DistilBERT that shares its encoder")
    return torch.cat(first)


def first_noise(observation: Observation) -> float:
    """Return the standard deviation of noise and rounding together in the first layer's shared weights."""
    rounding = max((value for name, value in observation.rounding.items() if matches(name, FIRST_LAYERS)), default=0.0)
    return math.hypot(observation.noise, rounding)


def span_of_inputs(gradient: Tensor, tokens: int, noise: float = 0.0) -> Tensor:
    """Return an orthonormal basis [r, d], float64, of the span of the inputs behind a ``gradient`` [m, d].

    Directions whose singular values noise of this standard deviation can have, σ(√m + √d), do not count.

    r is the rank of the gradient, but at most the number of ``tokens``. If the rank is at least d - 1 (normalised
    inputs span no more), every vector is in the span, and the basis has only the 0.8 d strongest directions. They still
    tell the words with large influence on the loss from others. A zero gradient has an empty basis.
    """
    _, values, directions = torch.linalg.svd(gradient.double(), full_matrices=False)
    rounding = _ROUNDING * torch.finfo(gradient.dtype).eps * float(values[0])
    height, width = gradient.shape
    cutoff = max(rounding, noise * (height**0.5 + width**0.5))
    rank = min(int((values > cutoff).sum()), tokens)
    kept: Tensor = directions[: rank if rank < width - 1 else int(_STRONGEST * width)]
    return kept


def residual(basis: Tensor, vectors: Tensor) -> Tensor:
    """Return how far ``vectors`` [..., d] are from the span of ``basis`` [r, d]: [...].

    0 is in the span, 1 is as far as a random direction, whose squared residual is 1 - r / d of its squared norm. A zero
    vector is in no span.
    """
    vectors = vectors.double()
    norm = vectors.norm(dim=-1)
    outside = (vectors - vectors @ basis.T @ basis).norm(dim=-1)
    random = (1 - len(basis) / vectors.shape[-1]) ** 0.5
    return torch.where(norm > 0, outside / (norm * random), torch.inf)


@torch.no_grad()
def table_inputs(body: nn.Module, table: TokenTable, length: int) -> Iterator[Tensor]:
    """Yield what the first layer reads for the words of a table, some words at a time (:func:`.first_inputs`)."""
    for vectors in torch.split(table.vectors, _CHUNK):
        yield first_inputs(body, vectors, length)


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
    quantile = float(scipy.special.chdtri(width, 0.5 / rows))
    return observation.noise * math.sqrt(quantile)


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
