"""A weighted mean of replies that bring only some units of each array.

Yoon et al., Federated Continual Learning with Weighted Inter-client Transfer, ICML 2021, Section 3.2
(https://arxiv.org/abs/2003.03196): nodes send the part of their base parameters that their masks let through.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .aggregation import IntegerPolicy, StreamingMean
from .arrays import Arrays, check_alike, is_float

#: Name -> which units of a floating-point array were sent: booleans of as many dimensions as the array, of length 1
#: where a dimension is not told apart ([8, 1] for the rows of an [8, 3] matrix). Arrays without one were sent whole.
Masks = Mapping[str, NDArray[np.bool_]]
_WHOLE = np.ones((), dtype=np.bool_)


class MaskedMean:
    """Σ_k w_k M_k θ_k / Σ_k w_k M_k, unit by unit, over replies k of weight w_k with masks M_k of zeros and ones.

    The running form of :class:`StreamingMean`, with a total weight for every unit: where all masks are one, or there
    are none, the result is the same bit for bit. A unit that nobody sent is 0. Integer and boolean arrays have
    no masks; ``integers`` says what becomes of them.
    """

    def __init__(self, integers: IntegerPolicy = "newest") -> None:
        self._discrete = StreamingMean(integers)
        self._means: Arrays = {}
        self._weights: dict[str, NDArray[np.float64]] = {}
        self._template: Arrays = {}

    @property
    def count(self) -> int:
        """How many replies were added."""
        return self._discrete.count

    def add(self, arrays: Arrays, weight: float, masks: Masks) -> None:
        """Fold one reply into the mean; it is not kept and not changed.

        Parameters
        ----------
        arrays : dict of arrays
            Finite values, those of unsent units included, which count for nothing. The first reply decides
            names, shapes and dtypes.
        weight : float
            Finite and above 0.
        masks : mapping of names to arrays of booleans
            See :data:`Masks`.

        Raises
        ------
        ValueError
            The weight is out of range, names, shapes or dtypes differ from the first reply's, or a mask does not fit.
        """
        if reason := misfit(masks, arrays):
            raise ValueError(f"mask {reason}")
        if self.count == 0:
            self._template = {name: np.broadcast_to(np.zeros((), a.dtype), a.shape) for name, a in arrays.items()}
        check_alike(self._template, arrays)
        self._discrete.add({name: array for name, array in arrays.items() if not is_float(array)}, weight)
        for name, array in arrays.items():
            if is_float(array):
                self._fold(name, array.astype(np.float64), float(weight), masks.get(name, _WHOLE))

    def result(self) -> Arrays:
        """The mean as fresh arrays in the dtypes of the replies. Raises ``ValueError`` if there were none."""
        discrete = self._discrete.result()
        return {
            name: discrete[name] if name in discrete else self._means[name].astype(outline.dtype)
            for name, outline in self._template.items()
        }

    def sent(self) -> dict[str, NDArray[np.bool_]]:
        """For every floating-point array which units some reply brought, in the form of a mask, or 0-d for all."""
        return {name: np.asarray(total > 0) for name, total in self._weights.items()}

    def taking(self, masks: Masks) -> StreamingMean:
        """A mean whose ``add`` adds to this one under ``masks``; that is all it can do."""
        return _Taking(self, masks)

    def _fold(self, name: str, value: NDArray[np.float64], weight: float, mask: NDArray[np.bool_]) -> None:
        before = self._weights.get(name, np.zeros(()))
        total = np.asarray(before + weight * mask)
        mean = self._means.setdefault(name, np.zeros(value.shape))
        np.copyto(mean, value, where=mask & (before == 0))  # the sum 0 + 1 · −0 would lose the sign
        share = np.divide(weight * mask, total, out=np.zeros_like(total), where=total > 0)
        step = np.asarray(share * (value - mean))
        np.add(mean, step, out=mean, where=mask & (step != 0))
        self._weights[name] = total


class _Taking(StreamingMean):
    def __init__(self, total: MaskedMean, masks: Masks) -> None:
        super().__init__()
        self._total = total
        self._masks = masks

    def add(self, arrays: Arrays, weight: float) -> None:
        self._total.add(arrays, weight, self._masks)


def misfit(masks: Mapping[str, NDArray[Any]], arrays: Arrays) -> str | None:
    """Why the masks do not fit the arrays, in words fit for a log; ``None`` if they do.

    Masks may also be of integers 0 and 1, as from nodes that have no booleans to send.
    """
    for name, mask in masks.items():
        if name not in arrays or not is_float(arrays[name]):
            return f"{name!r} is of no shared floating-point array"
        shape = arrays[name].shape
        if mask.ndim != len(shape) or any(own not in (1, whole) for own, whole in zip(mask.shape, shape, strict=True)):
            return f"{name!r} is {list(mask.shape)}: must be {list(shape)}, or 1 where units are not told apart"
        if not (mask.dtype == np.bool_ or np.issubdtype(mask.dtype, np.integer)) or not np.isin(mask, (0, 1)).all():
            return f"{name!r}: must hold booleans, or the integers 0 and 1"
    return None
