"""Distributions over devices. Draws are keyed by counters, so that each is the same in any order."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from math import exp, inf
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
_GOLDEN, _FIRST, _SECOND = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def uniforms(seed: int, *counters: ArrayLike) -> Floats:
    """Numbers in (0, 1), one for each element of the broadcast ``counters``, non-negative integers.

    Each is a hash of the seed and its counters with the mixing function of SplitMix64 (Steele, Lea and Flood, Fast
    Splittable Pseudorandom Number Generators, OOPSLA 2014, Figure 17), so that a draw needs no state.
    """
    mixed = np.atleast_1d(np.asarray(seed % 2**64, np.uint64))
    with np.errstate(over="ignore"):
        for counter in counters:
            mixed = mixed + _GOLDEN * (np.atleast_1d(np.asarray(counter)).astype(np.uint64) + np.uint64(1))
            mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
            mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
            mixed = mixed ^ (mixed >> np.uint64(31))
    return ((mixed >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


class Distribution(ABC):
    """A distribution of positive numbers. Its fields are the parameters that a run config can set."""

    name: ClassVar[str]

    @abstractmethod
    def draw(self, seed: int, *counters: ArrayLike) -> Floats:
        """One number > 0 for each element of the broadcast ``counters``; see :func:`uniforms`."""

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            if not 0 <= (value := getattr(self, field.name)) < inf:
                raise ValueError(f"{field.name} = {value:g}: must be at least 0 and finite")


@dataclass(frozen=True)
class Constant(Distribution):
    """The same ``value`` > 0 for all."""

    name = "constant"
    value: float

    def __post_init__(self) -> None:
        if not 0 < self.value < inf:
            raise ValueError(f"value = {self.value:g}: must be above 0 and finite")

    def draw(self, seed: int, *counters: ArrayLike) -> Floats:
        return np.full(uniforms(seed, *counters).shape, self.value)


@dataclass(frozen=True)
class Uniform(Distribution):
    """Uniform between ``low`` > 0 and ``high`` ≥ ``low``."""

    name = "uniform"
    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high < inf:
            raise ValueError(f"low = {self.low:g}, high = {self.high:g}: must be 0 < low <= high")

    def draw(self, seed: int, *counters: ArrayLike) -> Floats:
        return self.low + (self.high - self.low) * uniforms(seed, *counters)


@dataclass(frozen=True)
class LogNormal(Distribution):
    """``median`` > 0 times exp(``sigma`` z) with a standard normal z; a large ``sigma`` gives a heavy tail."""

    name = "lognormal"
    median: float
    sigma: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.median == 0:
            raise ValueError("median = 0: must be above 0")

    def draw(self, seed: int, *counters: ArrayLike) -> Floats:
        radius = np.sqrt(-2.0 * np.log(uniforms(seed, *counters, 0)))  # Box and Muller 1958
        return self.median * np.exp(self.sigma * radius * np.cos(2 * np.pi * uniforms(seed, *counters, 1)))


@dataclass(frozen=True)
class FedScale(Distribution):
    """Seconds of a step on ``examples`` examples as in FedScale: each takes 0.005 s times log-normal(μ = 1, σ = 0.6).

    The parameters are the defaults of ``ClientMetadata.get_completion_time_lognormal`` in the code of FedScale
    (Lai et al., ICML 2022; fedscale/cloud/internal/client_metadata.py). FedScale draws anew for each task, this class
    once for each device.
    """

    name = "fedscale"
    examples: float

    def draw(self, seed: int, *counters: ArrayLike) -> Floats:
        return LogNormal(0.005 * exp(1.0) * self.examples, 0.6).draw(seed, *counters)

    def __post_init__(self) -> None:
        if not 0 < self.examples < inf:
            raise ValueError(f"examples = {self.examples:g}: must be above 0 and finite")


#: The distributions by the names that a run config uses.
DISTRIBUTIONS: dict[str, type[Distribution]] = {kind.name: kind for kind in (Constant, Uniform, LogNormal, FedScale)}
