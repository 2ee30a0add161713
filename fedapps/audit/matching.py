"""Gradient matching: search the examples of which the simulated update points where the observed one does.

The objective for pixels is the cosine distance plus total variation of Geiping et al., Inverting Gradients, NeurIPS
2020, Equation 4, https://arxiv.org/abs/2003.14053, minimised by Adam with the signs of the gradients; several steps are
simulated as in their Section 5. L-BFGS then minimises the distance alone. Of other secrets the length of a gradient
tells the scale, so that their distance is the squared one of Zhu et al., Deep Leakage from Gradients, NeurIPS 2019,
Equation 4, https://arxiv.org/abs/1906.08935, relative to the observed update.
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
#: Where a row lies that nothing was read of.
_ABSENT = 1e6
#: The unit of the secrets that are pixels.
PIXELS = "dB"

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
        The batches, and their distance to the target.
    """
    counted = target != 0 if parts else torch.ones_like(target, dtype=torch.bool)
    aim = target[counted]
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
    pixels = any(one.unit == PIXELS for one in secrets)
    tiny = torch.finfo(aim.dtype).tiny

    def distance() -> Tensor:
        update = simulate(_filled(templates, secrets, unknown))[counted]
        if not pixels:
            return (update - aim).square().sum() / aim.square().sum().clamp(min=tiny)
        similarity: Tensor = update @ aim / (update.norm() * aim.norm()).clamp(min=tiny)
        return 1 - similarity

    adam = torch.optim.Adam(unknown, lr=_STEP)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(adam, search.steps)
    for _ in range(search.steps):
        value = distance()
        if pixels:
            value = value + _SMOOTH * sum((total_variation(one) for one in unknown), torch.zeros(()))
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
    filled = []
    for batch in templates:
        for one in secrets:
            batch = one.fill(batch, next(values))
        filled.append(batch)
    return filled


def total_variation(images: Tensor) -> Tensor:
    """The mean absolute difference of neighbouring pixels of ``images [..., H, W]``, down and across."""
    return images.diff(dim=-1).abs().mean() + images.diff(dim=-2).abs().mean()


def errors(secret: Secret, true: Tensor, read: Tensor) -> Tensor:
    """The root mean squared error of each of n true examples beside the one of m >= n read that is assigned to it.

    The assignment has the least sum of mean squared errors.

    Parameters
    ----------
    secret : Secret
    true, read : Tensor [n, ...], [m, ...]
        Its views; values that are not numbers in ``true`` do not count.

    Returns
    -------
    Tensor [n]
        Not a number where no value counts.
    """
    squares = _squares(secret, true, read)
    if secret.either_sign:
        squares = torch.minimum(squares, _squares(secret, true, -read))
    first, second = map(torch.from_numpy, scipy.optimize.linear_sum_assignment(squares.nan_to_num()))
    result = torch.empty(len(squares), dtype=torch.float64)
    result[first] = squares[first, second].sqrt()
    return result


def _squares(secret: Secret, true: Tensor, read: Tensor) -> Tensor:
    """The mean squared error of each pair ``[n, m]``."""
    if secret.unordered:
        return torch.stack([torch.stack([_of_set(one, other) for other in read]) for one in true])
    first, second = (values.double().reshape(len(values), -1) for values in (true, read))
    gaps = first[:, None] - second.nan_to_num()
    return gaps.square().nanmean(2)


def _of_set(true: Tensor, read: Tensor) -> Tensor:
    """The mean squared error of the rows of one example, each beside the row read that is assigned to it."""
    gaps = true[~true.isnan().any(1), None].double() - read.nan_to_num(_ABSENT)
    costs = gaps.square().mean(2)
    return costs[scipy.optimize.linear_sum_assignment(costs)].mean()


def decibels(error: float) -> float:
    """The peak signal-to-noise ratio of pixels in [0, 1] with this root mean squared error, at most 200."""
    return -20 * math.log10(max(error, 1e-10))


def vector(changes: Mapping[str, Tensor]) -> Tensor:
    """The values of all arrays, float64 ``[P]``."""
    return torch.cat([one.flatten() for one in changes.values()]).double()
