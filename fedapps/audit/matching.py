"""Gradient matching: search the examples of which the simulated update points where the observed one does.

The objective is the cosine distance plus total variation of Geiping et al., Inverting Gradients, NeurIPS 2020,
Equation 4, https://arxiv.org/abs/2003.14053, minimised by Adam with the signs of the gradients; several steps are
simulated as in their Section 5. L-BFGS then minimises the distance alone.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import scipy
import torch
from torch import Tensor

from fedapps.tasks.base import Batch, Secret

#: Weight of the total variation, and the first step of Adam as a share of the range of values.
_SMOOTH, _STEP = 1e-4, 0.1
_HISTORY = 20

#: The simulated update of some batches, as one vector.
Simulate = Callable[[Sequence[Batch]], Tensor]


@dataclass(frozen=True)
class Search:
    """How long to search: steps of Adam, at most as many of L-BFGS, and random starts of which the nearest counts."""

    steps: int = 400
    polish: int = 200
    restarts: int = 1


def matched(
    simulate: Simulate,
    target: Tensor,
    templates: Sequence[Batch],
    secrets: Sequence[Secret],
    search: Search,
    generator: torch.Generator,
    *,
    parts: bool = False,
) -> tuple[list[Batch], float]:
    """Search the secrets of batches.

    Parameters
    ----------
    simulate : callable
        Differentiable in the batches, in float64.
    target : Tensor [P]
        The observed update, float64.
    templates : sequence of mappings
        Batches with what the attacker knows, and any values in place of the unknown.
    secrets : sequence of Secret
    search : Search
    generator : Generator
        Draws the starts.
    parts : bool
        Whether compression left values out, so that zeros say nothing.

    Returns
    -------
    list of mappings and float
        The batches, and their cosine distance to the target.
    """
    counted = target != 0 if parts else torch.ones_like(target, dtype=torch.bool)
    aim = target[counted] / target[counted].norm()
    best: tuple[list[Batch], float] | None = None
    for _ in range(search.restarts):
        unknown = [
            torch.rand(batch[one.tensor].shape, generator=generator, dtype=torch.float64).requires_grad_()
            for batch in templates
            for one in secrets
        ]
        batches, distance = _descend(simulate, counted, aim, templates, secrets, search, unknown)
        if best is None or distance < best[1]:
            best = batches, distance
    assert best is not None
    return best


def _descend(
    simulate: Simulate,
    counted: Tensor,
    aim: Tensor,
    templates: Sequence[Batch],
    secrets: Sequence[Secret],
    search: Search,
    unknown: list[Tensor],
) -> tuple[list[Batch], float]:
    def distance() -> Tensor:
        update = simulate(_filled(templates, secrets, unknown))[counted]
        similarity: Tensor = update @ aim / update.norm().clamp(min=torch.finfo(update.dtype).tiny)
        return 1 - similarity

    adam = torch.optim.Adam(unknown, lr=_STEP)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(adam, search.steps)
    for _ in range(search.steps):
        value = distance() + _SMOOTH * sum((total_variation(one) for one in unknown), torch.zeros(()))
        for one, gradient in zip(unknown, torch.autograd.grad(value, unknown, materialize_grads=True), strict=True):
            one.grad = gradient.sign()
        adam.step()
        rates.step()
        with torch.no_grad():
            for one in unknown:
                one.clamp_(0, 1)
    kept = [one.detach().clone() for one in unknown]
    before = float(distance().detach())
    newton = torch.optim.LBFGS(
        unknown,
        max_iter=search.polish,
        history_size=_HISTORY,
        line_search_fn="strong_wolfe",
        tolerance_grad=0,
        tolerance_change=0,
    )

    def closure() -> float:
        newton.zero_grad()
        value = distance()
        value.backward()
        return float(value.detach())

    newton.step(closure)
    after = float(distance().detach())
    if not after < before:  # also where it is not finite
        unknown, after = kept, before
    return [
        {name: tensor.detach() for name, tensor in batch.items()} for batch in _filled(templates, secrets, unknown)
    ], after


def _filled(templates: Sequence[Batch], secrets: Sequence[Secret], unknown: Sequence[Tensor]) -> list[Batch]:
    """The batches with the values of each secret."""
    values = iter(unknown)
    return [{**batch, **{one.tensor: next(values) for one in secrets}} for batch in templates]


def total_variation(images: Tensor) -> Tensor:
    """The mean absolute difference of neighbouring pixels of ``images [..., H, W]``, down and across."""
    return images.diff(dim=-1).abs().mean() + images.diff(dim=-2).abs().mean()


def errors(true: Tensor, read: Tensor) -> Tensor:
    """The root mean squared error of each of n true examples beside the one of m >= n read that is assigned to it.

    The assignment has the least sum of mean squared errors.

    Parameters
    ----------
    true, read : Tensor [n, ...], [m, ...]
        Pixels, uint8 or in [0, 1].

    Returns
    -------
    Tensor [n]
    """
    rows = [_rows(true), _rows(read.clamp(0, 1))]
    squares = torch.cdist(rows[0], rows[1]).square() / rows[0].shape[1]
    first, second = scipy.optimize.linear_sum_assignment(squares.numpy())
    result = torch.empty(len(rows[0]), dtype=torch.float64)
    result[torch.from_numpy(first)] = squares[torch.from_numpy(first), torch.from_numpy(second)].sqrt()
    return result


def _rows(values: Tensor) -> Tensor:
    """Pixels in [0, 1], ``[examples, values]``; whole numbers are pixels up to 255."""
    numbers = values.double() if values.is_floating_point() else values.double() / 255
    return numbers.flatten(1)


def decibels(error: float) -> float:
    """The peak signal-to-noise ratio of pixels in [0, 1] with this root mean squared error, at most 200."""
    return -20 * math.log10(max(error, 1e-10))


def vector(changes: Mapping[str, Tensor]) -> Tensor:
    """The values of all arrays, float64 ``[P]``."""
    return torch.cat([one.flatten() for one in changes.values()]).double()
