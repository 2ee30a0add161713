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
of the gradient span the whole space, and no word lies in it exactly. Their covariance is still that of the words: C ≈
Σ_w γ_w x_w x_wᵀ + σ² I, with γ_w > 0 only for words of the batch. A table has more words than C has numbers, but few of
them occur, and the γ that makes the rows most likely is sparse. Wipf and Rao, An Empirical Bayesian Strategy for
Solving the Simultaneous Sparse Approximation Problem, IEEE Transactions on Signal Processing 55(7), 2007,
https://doi.org/10.1109/TSP.2007.894265 (M-SBL). It can find more words than a vector has numbers: Balkan,
Kreutz-Delgado and Makeig, Localization of More Sources Than Sensors via Jointly-Sparse Bayesian Learning, IEEE Signal
Processing Letters 21(2), 2014, https://doi.org/10.1109/LSP.2013.2294862. A sparse γ does not say which word is likely:
of two similar words it can keep the rare one. The words are therefore ranked by how often each is expected in the
batch, from its frequency and the evidence for it (:func:`word_evidence`). Without evidence, this is the order of the
frequencies.

The guess (:func:`most_frequent`) names the most frequent words of public text of the same kind, without a look at what
is shared. Every attack that names frequent words is compared with it, at the same number of words.
"""

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
#: The rows of a gradient count as this share of as many independent ones, because the gates of a unit are related.
_INDEPENDENT = 0.3
#: The γ that a written word can have, as shares of what noise leaves of the rows' energy: in the middle of a long
#: sentence a word changes nothing.
_POWERS = (0.0, 0.001, 0.01, 0.1)
#: The mean squares of the change of a word's shared row, as multiples of the variance of the noise.
_ROW_POWERS = (0.0, 0.1, 1.0, 10.0)
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
    basis: Tensor, body: nn.Module, table: TokenTable, lengths: Tensor, *, tolerance: float = TOLERANCE
) -> list[str]:
    """Return the words nearest to the span of the inputs, the nearest first.

    They are at most as many as the span has dimensions, or as there are tokens if these may exceed the dimensions.

    Parameters
    ----------
    basis : Tensor [r, d]
        An orthonormal basis of the span (:func:`span_of_inputs`).
    body : Module
        The model above the table, with the attacker's positions.
    table : TokenTable
        The attacker's table.
    lengths : Tensor [B]
        The numbers of tokens.
    tolerance : float
        Largest residual of a word, relative to that of a random direction, in (0, 1).
    """
    inputs_of = table_inputs(body, table, int(lengths.max()))
    residuals = torch.cat([residual(basis, inputs).amin(1) for inputs in inputs_of])
    if table.padding is not None:
        residuals[table.index[table.padding]] = torch.inf
    most = int(lengths.sum()) if len(basis) >= int(_STRONGEST * table.width) else len(basis)
    nearest = residuals.argsort()[:most].tolist()
    return [table.words[row] for row in nearest if residuals[row] < tolerance]


def first_gradients(observation: Observation) -> dict[str, Tensor]:
    """Return the gradients of the first layer's shared weights: [m, d] each.

    Raises
    ------
    ValueError
        None of them is shared.
    """
    first = {name: gradient for name, gradient in observation.gradients.items() if matches(name, FIRST_LAYERS)}
    if not first:
        known = ", ".join(observation.gradients)
        raise ValueError(f"no first layer among {known}: must be an LSTM, BERT or DistilBERT that shares its encoder")
    return first


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
    """Return a norm that noise rarely reaches: of the R rows, an expected 1/2 would be longer if all were pure noise.

    The squared norm of a row [d], divided by the variance, has a χ² distribution with d degrees of freedom, and the
    result is its quantile 1 - 1/(2R).
    """
    rows, width = observation.rows.shape
    if not rows or not observation.noise:
        return 0.0
    quantile = float(scipy.special.chdtri(width, 0.5 / rows))
    return observation.noise * math.sqrt(quantile)


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
    """Return the words with the highest ``frequencies`` [V], one per token, as every attack names at most."""
    order = frequencies.argsort(descending=True, stable=True)[: int(observation.lengths.sum())].tolist()
    return [table.words[row] for row in order if frequencies[row] > 0]


def words_by_evidence(
    observation: Observation, body: nn.Module, table: TokenTable, frequencies: Tensor | None = None
) -> list[str]:
    """Return the words that are expected most often, at most one per token.

    With f the frequency of a word, and p its probability to occur, it is expected f / (p + (1 - p) exp(-e)) times per
    token, where e is the evidence from all layers (:func:`word_evidence`) and, under noise, from its shared row
    (:func:`row_evidence`). Inputs that depend on the position, as those of a transformer, count with their mean over
    all positions.

    Parameters
    ----------
    observation : Observation
        What the attacker sees.
    body : Module
        The model above the table, with the attacker's positions.
    table : TokenTable
        The attacker's table.
    frequencies : Tensor [V], optional
        Those of public text. By default all words have the same; then no word is returned if e = 0 for all.
    """
    length = int(observation.lengths.max())
    inputs = torch.cat([part.mean(1) for part in table_inputs(body, table, length)])
    shares = word_frequencies({}, table) if frequencies is None else frequencies
    prior = occurrence(shares, int(observation.lengths.sum()))
    evidence = row_evidence(observation, table)
    for name, gradient in first_gradients(observation).items():
        noise = math.hypot(observation.noise, observation.rounding.get(name, 0.0), observation.errors.get(name, 0.0))
        evidence += word_evidence(gradient, inputs, noise, prior)
    if frequencies is not None:
        return most_frequent(observation, table, shares / (prior + (1 - prior) * (-evidence).exp()))
    ranks = evidence.argsort().argsort() * (shares > 0)  # the order of the expected numbers, which many words share
    return most_frequent(observation, table, ranks) if evidence.any() else []


def row_evidence(observation: Observation, table: TokenTable) -> Tensor:
    """Return the logarithm [V] of how much likelier noise and a change make the shared row of a word than noise alone.

    It is 0 for words whose row is not shared, and without noise, where :func:`leaked_tokens` reads all.
    """
    evidence = torch.zeros(len(table.words), device=table.vectors.device)
    if observation.noise and len(observation.rows):
        known = [number for number, word in enumerate(observation.row_words) if word in table.index]
        squares = observation.rows[known].square().mean(1).to(evidence) / observation.noise**2
        ratio = _log_ratio(squares, torch.ones_like(squares), observation.rows.shape[1], _ROW_POWERS)
        evidence[[table.index[observation.row_words[number]] for number in known]] = ratio
    return evidence


def word_evidence(rows: Tensor, inputs: Tensor, noise: float, prior: Tensor) -> Tensor:
    """Return the logarithm [V] of how much likelier rows [m, d] are if a word was written than if it was not.

    The other words have the γ of :func:`word_powers`, which starts at the ``prior`` [V]; that of the written word has
    the values :data:`_POWERS`, equally likely. The likelihoods follow from x C⁻¹ x and x C⁻¹ S C⁻¹ x, where C is the
    covariance without the word, and S that of the rows: Tipping and Faul, Fast Marginal Likelihood Maximisation for
    Sparse Bayesian Models, AISTATS 2003, Section 3.
    """
    powers = word_powers(rows, inputs, noise, prior)
    if not powers.any():
        return powers
    seen = _Rows.of(rows, noise)
    observed, expected = seen.filtered(_unit(inputs), powers)
    others = (1 - powers * expected).clamp(min=1e-4)
    possible = [share * max(MISFIT, 1 - seen.noise) for share in _POWERS]
    return _log_ratio(observed / others**2, expected / others, _INDEPENDENT * seen.count, possible)


def _log_ratio(observed: Tensor, expected: Tensor, count: float, powers: Sequence[float]) -> Tensor:
    """The mean over ``powers`` of the likelihood of ``count`` numbers, relative to that of power 0; its logarithm."""
    possible = torch.tensor(powers, device=observed.device)
    wider = 1 + expected[:, None] * possible
    ratios = count / 2 * (observed[:, None] * possible / wider - wider.log())
    mean: Tensor = ratios.logsumexp(1) - math.log(len(powers))
    return mean


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows of norm 1, weighted by their precision: their covariance [d, d], effective number and share of noise."""

    covariance: Tensor
    count: float
    noise: float

    @classmethod
    def of(cls, rows: Tensor, noise: float) -> "_Rows":
        rows = rows.double()[rows.norm(dim=1) > 0]
        norms, width = rows.norm(dim=1), rows.shape[1]
        share = (width * (noise / norms) ** 2).clamp(max=1)
        weights = (MISFIT + share) ** -2
        weights = weights / weights.sum()
        rows = rows / norms[:, None]
        covariance = ((rows.T * weights) @ rows).float()
        return cls(covariance, float(1 / weights.square().sum()), float((weights * share).sum()))

    def filtered(self, unit: Tensor, powers: Tensor) -> tuple[Tensor, Tensor]:
        """x C⁻¹ S C⁻¹ x and x C⁻¹ x for inputs [V, d] of norm 1, where C follows from the powers [V], and S is seen."""
        width = unit.shape[1]
        noise = (MISFIT + self.noise) / width * torch.eye(width, device=unit.device)
        inverse = torch.linalg.inv(noise + (unit.T * powers) @ unit)
        observed = ((unit @ (inverse @ self.covariance @ inverse)) * unit).sum(1).clamp(min=0)  # against rounding
        return observed, ((unit @ inverse) * unit).sum(1)


def _unit(inputs: Tensor) -> Tensor:
    unit: Tensor = (inputs / inputs.norm(dim=1).clamp(min=_TINY)[:, None]).float()
    return unit


def word_powers(rows: Tensor, inputs: Tensor, noise: float = 0.0, start: Tensor | None = None) -> Tensor:
    """Return γ [V] >= 0, float32: the mean square of each word's coefficient a_w, for inputs of norm 1.

    Every iteration makes the rows more likely under N(0, Σ_w γ_w x_w x_wᵀ + σ² I). It takes about 3 V d² operations.

    Parameters
    ----------
    rows : Tensor [m, d]
        The gradient, up to a factor for each row: rows are divided by their norms, and those with little noise count
        more. Rows of 0 are left out.
    inputs : Tensor [V, d]
        What the first layer reads for each word. Vectors of 0 have γ = 0.
    noise : float
        Standard deviation of the noise in each number of ``rows``, >= 0.
    start : Tensor [V], optional
        The first γ, >= 0, up to a factor. By default all words have the same.
    """
    sizes = inputs.norm(dim=1)
    powers = (torch.ones_like(sizes) if start is None else start.to(sizes)).float() * (sizes > 0)
    if not rows.any() or not powers.any():
        return torch.zeros_like(powers)
    seen, unit = _Rows.of(rows, noise), _unit(inputs)
    powers = powers / powers.sum()
    for _ in range(_ITERATIONS):
        observed, expected = seen.filtered(unit, powers)
        powers = powers * (observed / expected.clamp(min=_TINY)).sqrt()
    result: Tensor = powers
    return result
