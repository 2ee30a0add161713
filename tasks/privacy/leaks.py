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
"""

import inspect
import math
from collections.abc import Iterator
from typing import Any

import torch
from scipy.stats import chi2
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
    quantile = float(chi2.isf(0.5 / rows, width))
    return observation.noise * math.sqrt(quantile)
