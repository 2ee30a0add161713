"""Updates from an older version of the shared parameters: what they weigh, and how they apply to the current version.

Xie, Koyejo and Gupta, Asynchronous Federated Optimization (FedAsync), 2019, https://arxiv.org/abs/1903.03934, Section
5.2.
Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation (FedBuff), AISTATS 2022,
https://arxiv.org/abs/2106.06639, Algorithm 1.
"""

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from .arrays import Arrays, Buffers, is_float
from .checks import require_integer, require_positive

StalenessName = Literal["polynomial", "constant", "hinge"]


@dataclass(frozen=True)
class Staleness:
    """The weight s(τ) in (0, 1] of an update, where τ is the number of server steps since its node's start version.

    Parameters
    ----------
    kind : "polynomial", "constant" or "hinge"
        (1 + τ)^-a; 1; or 1 up to τ = b and 1 / (a (τ - b) + 1) beyond.
    a : float
        > 0. FedBuff and FedAsync use 0.5 for "polynomial"; FedAsync uses 10 for "hinge".
    b : int
        ≥ 0, for "hinge"; FedAsync uses 4.

    Raises
    ------
    ValueError
        A parameter is out of range.
    """

    kind: StalenessName = "polynomial"
    a: float = 0.5
    b: int = 4

    def __post_init__(self) -> None:
        if self.kind not in get_args(StalenessName):
            raise ValueError(f"kind = {self.kind!r}: must be one of {', '.join(get_args(StalenessName))}")
        require_positive("a", self.a)
        require_integer("b", self.b, least=0)

    def __call__(self, steps: int) -> float:
        """The weight of an update that is ``steps`` ≥ 0 server steps old."""
        if self.kind == "polynomial":
            return float((1.0 + steps) ** -self.a)
        return 1.0 if self.kind == "constant" or steps <= self.b else 1.0 / (self.a * (steps - self.b) + 1.0)


def brought_forward(
    trained: Arrays,
    start: Arrays,
    current: Arrays,
    weight: float,
    buffers: Buffers = Buffers(),  # noqa: B008 - immutable
    *,
    mixing: bool = False,
) -> Arrays:
    """The current version with the update of a node, weighted by its staleness: w + s (y - x).

    The mean of such arrays over K nodes is w + 1/K Σ s_k (y_k - x_k): FedBuff divides by K, not by the sum of s_k.

    Parameters
    ----------
    trained, start, current : dict of arrays
        What the node returned (y), the version that it started from (x), and the current one (w): the same names,
        shapes and dtypes.
    weight : float
        s in (0, 1].
    buffers : Buffers
        Arrays that are not trained. They are mixed, (1 - s) w + s y, because a variance that takes a difference can
        become negative.
    mixing : bool
        Whether parameters are mixed, too, as in FedAsync.

    Returns
    -------
    dict of arrays
        In the names, shapes and dtypes of ``current``; ``trained`` itself if nothing has changed since its start.
        Integers and booleans are those of ``trained``.
    """
    if weight == 1.0 and (mixing or start is current):
        return trained
    moved: Arrays = {}
    for name, now in current.items():
        value = trained[name]
        origin = now if mixing or name in buffers else start[name]
        moved[name] = _step(now, value, origin, weight) if is_float(now) else value
    return moved


def _step(now: NDArray[Any], value: NDArray[Any], origin: NDArray[Any], weight: float) -> NDArray[Any]:
    change = np.subtract(value, origin, dtype=np.float64)
    change *= weight
    return np.asarray(np.add(change, now)).astype(now.dtype)
