"""Similarity of nodes: a short feature vector per node, independent of the size of the model."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from .arrays import Arrays, is_float, select
from .parameter_checks import require_integer
from .profiles import Profile

Vector = NDArray[np.float64]
_CHUNK = 1 << 16


class Similarity(ABC):
    """Maps nodes to float64 vectors of equal length; similar nodes have a small Euclidean distance."""

    @abstractmethod
    def of_profile(self, profile: Profile) -> Vector | None:
        """The vector of a node that has not trained yet; ``None`` if its profile does not determine one."""

    @abstractmethod
    def of_update(self, profile: Profile, before: Arrays, after: Arrays) -> Vector | None:
        """The vector of a node that received ``before`` and returned ``after``, with the same names and shapes."""


@dataclass(frozen=True)
class UpdateSketch(Similarity):
    """The direction of a node's latest update, hashed to a vector of fixed length.

    Feature hashing (Weinberger et al., ICML 2009, https://arxiv.org/abs/0902.2206): every parameter is added, with a
    random sign, to one of ``dimension`` sums, and the sums are scaled to length 1. For updates scaled to length 1, the
    inner product of two sketches has the cosine of the updates as its expectation and a standard deviation of about
    dimension^(−1/2); the squared distance is 2 (1 − cosine). An update of zero gives the zero vector. The hash depends
    only on seed, name and position and is not stored: memory is ``dimension`` numbers per node.

    Parameters
    ----------
    dimension : int
        ≥ 1. 256 distinguishes cosines that differ by about 0.2.
    seed : int
        ≥ 0.
    parameters : sequence of str
        Glob patterns of the parameters to compare, for example those of the last layer. Integer arrays are ignored.
    """

    dimension: int = 256
    seed: int = 0
    parameters: Sequence[str] = ("*",)

    def __post_init__(self) -> None:
        require_integer("dimension", self.dimension, least=1)
        require_integer("seed", self.seed, least=0)
        if isinstance(self.parameters, str):
            raise ValueError(f"parameters = {self.parameters!r}: must be a list of patterns")

    def of_profile(self, profile: Profile) -> Vector | None:
        return None

    def of_update(self, profile: Profile, before: Arrays, after: Arrays) -> Vector | None:
        sketch = np.zeros(self.dimension)
        for name in select(before, self.parameters):
            if not is_float(before[name]):
                continue
            old, new = before[name].ravel(), after[name].ravel()
            generator = np.random.default_rng([self.seed, crc32(name.encode())])
            for start in range(0, old.size, _CHUNK):
                part = slice(start, start + _CHUNK)
                change = new[part].astype(np.float64) - old[part]
                code = generator.integers(2 * self.dimension, size=change.size)
                signed = np.where(code & 1, change, -change)
                sketch += np.bincount(code >> 1, weights=signed, minlength=self.dimension)
        length = float(np.linalg.norm(sketch))
        return sketch / length if length else sketch


@dataclass(frozen=True)
class ProfileFeatures(Similarity):
    """Numbers from the nodes' profiles, such as positions. They are not rescaled, so all should have the same scale.

    Parameters
    ----------
    groups : sequence of str
        The kinds of groups whose labels are numbers, at least one. A node has no vector if one of these labels is
        missing or is not a finite number.
    """

    groups: Sequence[str]

    def __post_init__(self) -> None:
        if isinstance(self.groups, str) or not self.groups:
            raise ValueError(f"groups = {self.groups!r}: must be a list of kinds of groups whose labels are numbers")

    def of_profile(self, profile: Profile) -> Vector | None:
        try:
            values = [float(profile.groups[group]) for group in self.groups]
        except (KeyError, ValueError):  # missing, or not a number
            return None
        return np.array(values) if all(map(isfinite, values)) else None

    def of_update(self, profile: Profile, before: Arrays, after: Arrays) -> Vector | None:
        return self.of_profile(profile)
