"""The subspace attack: which words have their vectors in the row space of the first layer's gradient.

The gradient of a linear layer's weights W [m, d] is the sum Σ_t δ_t x_tᵀ over its inputs x_t [d], so its rows are
combinations of the inputs. The inputs of an LSTM's first layer are the word vectors of the batch; those of a
transformer's first query, key and value projections are the word vectors with their positions. One singular value
decomposition gives the span of the inputs, and a word of a known table occurs in the batch if its vector lies in the
span. There is no search, and no starting point to choose.

Petrov et al., DAGER: Exact Gradient Inversion for Large Language Models, NeurIPS 2024,
https://arxiv.org/abs/2405.15586, for transformers. This module reads the set of words, not their order.
"""

import math
from collections.abc import Iterator
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from .inputs import first_inputs
from .sharing import Observation
from .tokens import TokenTable

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
    found = [gradient for name, gradient in observation.gradients.items() if _is_first(name)]
    if not found:
        known = ", ".join(observation.gradients)
        raise ValueError(f"no first layer among {known}: must be an LSTM, BERT or DistilBERT that shares its encoder")
    return torch.cat(found)


def first_noise(observation: Observation) -> float:
    """Return the standard deviation of noise and rounding together in the first layer's shared weights."""
    rounding = max((value for name, value in observation.rounding.items() if _is_first(name)), default=0.0)
    return math.hypot(observation.noise, rounding)


def _is_first(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in FIRST_LAYERS)


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
