"""Interface of server optimizers: one step per round, and moments that checkpoints store."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from .arrays import Arrays, check_alike, is_float
from .parameter_checks import require_positive

_STEPS = "steps"


@dataclass
class _State:
    steps: int = 0
    moments: dict[str, Arrays] = field(default_factory=dict)


@dataclass(frozen=True)
class ServerOptimizer(ABC):
    """Takes one step per round. Its parameters are frozen; its moments are a state that can be saved.

    Parameters
    ----------
    learning_rate : float
        η > 0, the server's learning rate.

    Raises
    ------
    ValueError
        A parameter is out of range.
    """

    learning_rate: float
    _state: _State = field(default_factory=_State, init=False, repr=False, compare=False)

    # Names of the moments that a saved state can contain.
    _moments: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        require_positive("learning_rate", self.learning_rate)

    def step(self, current: Arrays, mean: Arrays) -> Arrays:
        """Compute the next parameters.

        Parameters
        ----------
        current : dict of arrays
            θ, the parameters that the nodes received.
        mean : dict of arrays
            The weighted mean of their replies, with the same names, shapes and dtypes.

        Returns
        -------
        dict of arrays
            New arrays in the order, shapes and dtypes of ``current``. Integer and boolean arrays are those of ``mean``,
            because they have no gradient.

        Raises
        ------
        ValueError
            Names, shapes or dtypes of the two differ.
        """
        check_alike(current, mean)
        self._state.steps += 1
        return {name: self._next(name, array, mean[name]) for name, array in current.items()}

    def _next(self, name: str, current: NDArray[Any], mean: NDArray[Any]) -> NDArray[Any]:
        if not is_float(current):
            return mean.copy()
        working = np.result_type(current.dtype, np.float32)
        parameter = current.astype(working)
        gradient = np.asarray(parameter - mean.astype(working))
        # Arithmetic turns 0-d arrays into scalars, and NumPy 1 combines float32 scalars and Python floats to float64.
        change = np.asarray(self._change(name, gradient), dtype=working)
        return np.asarray(parameter - change).astype(current.dtype)

    @abstractmethod
    def _change(self, name: str, gradient: NDArray[Any]) -> NDArray[Any]:
        """The change to subtract from a parameter; also updates the moments of that name."""

    def _moment(self, moment: str, name: str, like: NDArray[Any], initial: float = 0.0) -> NDArray[Any]:
        arrays = self._state.moments.setdefault(moment, {})
        if name not in arrays:
            arrays[name] = np.full(like.shape, initial, like.dtype)
        return arrays[name]

    def _keep(self, moment: str, name: str, value: NDArray[Any], like: NDArray[Any]) -> NDArray[Any]:
        kept = np.asarray(value, dtype=like.dtype)
        self._state.moments[moment][name] = kept
        return kept

    def state(self) -> Arrays:
        """Copies of the arrays for a checkpoint: ``steps`` (0-d) and ``<moment>.<parameter>``.

        Empty before the first step, and always for an optimizer without moments.
        """
        if not self._moments or not self._state.steps:
            return {}
        kept: Arrays = {_STEPS: np.array(self._state.steps, dtype=np.int64)}
        for moment, arrays in self._state.moments.items():
            kept.update({f"{moment}.{name}": array.copy() for name, array in arrays.items()})
        return kept

    def load_state(self, state: Arrays) -> None:
        """Restore a state that :meth:`state` returned.

        Raises
        ------
        ValueError
            The state belongs to another kind of optimizer; the current state does not change.
        """
        moments: dict[str, Arrays] = {}
        for name, array in state.items():
            moment, dot, parameter = name.partition(".")
            if name == _STEPS and self._moments:
                continue
            if not dot or moment not in self._moments:
                raise ValueError(f"state has {name!r}, unknown to {type(self).__name__}: another optimizer saved it")
            moments.setdefault(moment, {})[parameter] = array.copy()
        if moments and _STEPS not in state:
            raise ValueError(f"state has moments but no {_STEPS!r}")
        self._state.steps = int(state[_STEPS]) if _STEPS in state else 0
        self._state.moments = moments
