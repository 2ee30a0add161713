"""Bounds on the size of what one node sends, relative to what the nodes of recent rounds have sent.

A mean takes over any finite value, so one reply that is large enough moves the shared parameters anywhere. Honest
updates are of similar size: Sun et al., Can You Really Backdoor Federated Learning?, 2019
(https://arxiv.org/abs/1911.07963), bound their norms for this reason. Here a larger reply is refused, because a reply
that is scaled down still counts, and methods with state on the nodes need to know what was counted.
"""

from collections.abc import Mapping
from math import isfinite, sqrt
from numbers import Real
from typing import ClassVar

import numpy as np
from flwr.app import ArrayRecord, RecordDict
from numpy.typing import NDArray

from . import wire
from .arrays import Arrays, Buffers, is_float, views, without
from .records import Stateful

UPDATE = "the update"
_ROUNDS = 5  # whose sizes give the median
_ENOUGH = 3  # sizes without which a median says nothing
Sizes = NDArray[np.float64]
_NONE: Sizes = np.empty(0)


class SizeBound(Stateful):
    """Refuses a reply of which a part is larger than ``factor`` times the median of this part over recent rounds.

    The median is over the replies of the last five rounds before this one, refused ones included, so that it follows
    if all nodes begin to send larger updates. A new stage of the data begins anew, because its updates may have any
    size. Where these rounds have fewer than three sizes, as in the first of a stage, the median is over the replies of
    the round that were accepted before. If these are fewer than three, too, the norm of an update must be at most
    ``factor`` · (norm of the parameters + √(number of parameters)) and that of another record at most
    ``factor``² · √(number of values).

    Parameters
    ----------
    factor : float
        Above 1, or 0 for no bound.

    Raises
    ------
    ValueError
        ``factor`` is neither.
    """

    kept: ClassVar[tuple[str, ...]] = ("_rounds", "_stage")

    def __init__(self, factor: float = 0.0) -> None:
        if factor and not (isinstance(factor, Real) and isfinite(factor) and factor > 1):
            raise ValueError(f"size_bound = {factor!r}: must be a number above 1, or 0 for no bound")
        self.factor = factor
        self._rounds: list[dict[str, Sizes]] = [{}]  # sizes by the names of parts; the last is this round
        self._accepted: dict[str, Sizes] = {}  # those of this round
        self._medians: dict[str, float] = {}  # over the rounds before this one
        self._stage = 0

    def begin_round(self, stage: int = 0) -> None:
        """Begin a round of a stage of the data."""
        self._rounds = [*(self._rounds[-_ROUNDS:] if stage == self._stage else []), {}]
        self._stage = stage
        self._accepted, self._medians = {}, {}

    def median(self, part: str) -> float | None:
        """The median of the sizes of a part, ``None`` if fewer than three are known."""
        if part not in self._medians:
            sizes = np.concatenate([each.get(part, _NONE) for each in self._rounds[:-1]] or [_NONE])
            if len(sizes) < _ENOUGH:
                sizes = self._accepted.get(part, _NONE)
                return float(np.median(sizes)) if len(sizes) >= _ENOUGH else None
            self._medians[part] = float(np.median(sizes))
        return self._medians[part]

    def note(self, part: str, size: float) -> None:
        """Note the size of a part of a reply that is accepted."""
        for sizes in (self._rounds[-1], self._accepted):
            sizes[part] = np.append(sizes.get(part, _NONE), size)

    def refusal_reason(self, sizes: Mapping[str, float], first_limits: Mapping[str, float]) -> str | None:
        """Why a reply must be refused, ``None`` if it is accepted; notes its sizes.

        Parameters
        ----------
        sizes : mapping of names of parts to numbers ≥ 0
        first_limits : mapping of names of parts to numbers > 0
            The largest sizes while no median is known; a part that is not listed has none.
        """
        reason, before = None, self._accepted
        self._accepted = dict(before)
        for part, size in sizes.items():
            median = self.median(part)
            limit = self.factor * median if median else first_limits.get(part, size)
            if size > limit:
                usual = "there are no others to compare" if median is None else f"the recent median is {median:.3g}"
                reason = (
                    reason
                    or f"the size of {part} is {size:.3g}: at most {limit:.3g} is accepted ({usual}; key size-bound)"
                )
            self.note(part, size)
        if reason:
            self._accepted = before
        return reason

    def first_limits(
        self, start: Arrays, content: RecordDict, buffers: Buffers, update: str = UPDATE
    ) -> dict[str, float]:
        """The limits of the norms that :func:`norms_of` returns, for a reply to which no other can be compared."""
        trained = buffers.parameters(start)
        parts = {update: trained, "the buffers": without(start, trained)}
        limits = {
            name: self.factor * (norm(arrays) + sqrt(_values(arrays))) for name, arrays in parts.items() if arrays
        }
        further = {name: self.factor**2 * sqrt(_values(arrays)) for name, arrays in _further(content).items()}
        return {**limits, **further}


def norms_of(
    arrays: Arrays, start: Arrays, content: RecordDict, buffers: Buffers, update: str = UPDATE
) -> dict[str, float]:
    """Euclidean norms of the update, of the change of buffers, and of each further ArrayRecord of a reply.

    ``update`` is the name of the first: updates of different arrays are not compared with each other.
    """
    trained = buffers.parameters(start)
    parts = {update: list(trained), "the buffers": list(without(start, trained))}
    with np.errstate(over="ignore"):
        sizes = {
            part: norm({n: arrays[n] - start[n] for n in names if n in arrays and is_float(start[n])})
            for part, names in parts.items()
            if names
        }
        return {**sizes, **{name: norm(record) for name, record in _further(content).items()}}


def norm(arrays: Arrays) -> float:
    """The Euclidean norm of all floating-point values, summed in the dtype of each array, but at least in float32."""
    floats = [array.reshape(-1) for array in arrays.values() if is_float(array)]
    flat = [array.astype(np.result_type(array, np.float32), copy=False) for array in floats]  # squares overflow float16
    return sqrt(sum(float(array.dot(array)) for array in flat))


def _values(arrays: Arrays) -> int:
    return sum(array.size for array in arrays.values() if is_float(array))


def _further(content: RecordDict) -> dict[str, Arrays]:
    """The arrays of the records beside that of the parameters; names with a dot, as everywhere."""
    return {
        name: views(record)
        for name, record in content.items()
        if isinstance(record, ArrayRecord) and "." in name and not name.startswith(wire.COMPRESSED_PREFIX)
    }
