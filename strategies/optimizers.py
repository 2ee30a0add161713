"""Server optimizers: update the shared parameters from the mean of the replies.

Reddi et al., Adaptive Federated Optimization, ICLR 2021 (https://arxiv.org/abs/2003.00295), Algorithms 1 (FedOpt) and
2. The pseudo-gradient Δ = θ − mean θ_k replaces the gradient (the paper uses −Δ and adds it), so a step of SGD
with learning rate 1 yields the mean: FedAvg.

Moments have the dtype of their parameters, but at least float32, and are computed in PyTorch's order of operations, so
the results agree with ``torch.optim`` up to rounding in that dtype. Float64 moments would not improve the steps: Δ is
computed from parameters that are rounded to float32 after each step.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from .arrays import Arrays, Buffers, check_alike
from .checks import require_one_of, require_positive

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

    def step(self, current: Arrays, mean: Arrays, buffers: Buffers = Buffers()) -> Arrays:  # noqa: B008 - immutable
        """Compute the next parameters.

        Parameters
        ----------
        current : dict of arrays
            θ, the parameters that the nodes received.
        mean : dict of arrays
            The weighted mean of their replies, with the same names, shapes and dtypes.
        buffers : Buffers
            Which arrays are not trained.

        Returns
        -------
        dict of arrays
            New arrays in the order, shapes and dtypes of ``current``. Buffers, integer and boolean arrays are those of
            ``mean``, because they have no gradient: a step beyond the mean could make a variance negative.

        Raises
        ------
        ValueError
            Names, shapes or dtypes of the two differ.
        """
        check_alike(current, mean)
        self._state.steps += 1
        trained = buffers.parameters(current)
        return {
            name: self._next(name, array, mean[name]) if name in trained else mean[name].copy()
            for name, array in current.items()
        }

    def _next(self, name: str, current: NDArray[Any], mean: NDArray[Any]) -> NDArray[Any]:
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


@dataclass(frozen=True)
class SGD(ServerOptimizer):
    """θ ← θ − η Δ. A learning rate of 1 is FedAvg: the mean itself, bit for bit.

    Parameters
    ----------
    learning_rate : float
        η > 0; below 1 stops short of the mean, above 1 overshoots it.
    """

    learning_rate: float = 1.0

    def _next(self, name: str, current: NDArray[Any], mean: NDArray[Any]) -> NDArray[Any]:
        # θ − (θ − mean) would be rounded twice.
        return mean.copy() if self.learning_rate == 1 else super()._next(name, current, mean)

    def _change(self, name: str, gradient: NDArray[Any]) -> NDArray[Any]:
        return self.learning_rate * gradient


@dataclass(frozen=True)
class Momentum(ServerOptimizer):
    """v ← m v + Δ; θ ← θ − η v, or θ − η (Δ + m v) with Nesterov's correction (FedAvgM).

    The velocity is that of ``torch.optim.SGD`` without dampening. m = 0 is :class:`SGD` (up to rounding if η = 1).

    Parameters
    ----------
    learning_rate : float
        η > 0.
    momentum : float
        m in [0, 1).
    nesterov : bool
        Whether to apply Nesterov's correction.
    """

    learning_rate: float = 1.0
    momentum: float = 0.9
    nesterov: bool = False
    _moments: ClassVar[tuple[str, ...]] = ("velocity",)

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_decay("momentum", self.momentum)

    def _change(self, name: str, gradient: NDArray[Any]) -> NDArray[Any]:
        velocity = self._moment("velocity", name, gradient)
        # FedAvgM: v ← m v + Δ
        velocity = self._keep("velocity", name, self.momentum * velocity + gradient, gradient)
        return self.learning_rate * (gradient + self.momentum * velocity if self.nesterov else velocity)


@dataclass(frozen=True)
class AdaGrad(ServerOptimizer):
    """v ← v + Δ²; θ ← θ − η Δ / (√v + τ) (FedAdagrad without momentum).

    τ is added outside the root. With ``initial_accumulator`` 0 this is ``torch.optim.Adagrad`` with ``eps`` = τ.

    Parameters
    ----------
    learning_rate : float
        η > 0.
    tau : float
        τ > 0, the degree of adaptivity: a smaller τ makes the steps of all parameters more equal.
    initial_accumulator : float or None
        v before the first step, ≥ 0; ``None`` uses τ², the smallest value that the paper allows.
    """

    learning_rate: float = 0.1
    tau: float = 1e-3
    initial_accumulator: float | None = None
    _moments: ClassVar[tuple[str, ...]] = ("second",)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("tau", self.tau)
        if self.initial_accumulator is not None and not (
            np.isfinite(self.initial_accumulator) and self.initial_accumulator >= 0
        ):
            raise ValueError(
                f"initial_accumulator = {self.initial_accumulator!r}: must be at least 0, or None for tau²"
            )

    def _change(self, name: str, gradient: NDArray[Any]) -> NDArray[Any]:
        initial = self.tau**2 if self.initial_accumulator is None else self.initial_accumulator
        second = self._moment("second", name, gradient, initial)
        # Algorithm 2, FedAdagrad: v ← v + Δ²
        second = self._keep("second", name, second + gradient * gradient, gradient)
        return np.asarray(self.learning_rate * gradient / (np.sqrt(second) + self.tau))


@dataclass(frozen=True)
class _TwoMoments(ServerOptimizer):
    learning_rate: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    _moments: ClassVar[tuple[str, ...]] = ("first", "second")

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_decay("beta1", self.beta1)
        _require_decay("beta2", self.beta2)
        require_positive("tau", self.tau)

    def _change(self, name: str, gradient: NDArray[Any]) -> NDArray[Any]:
        first = self._moment("first", name, gradient)
        # Algorithm 2: m ← β₁ m + (1 − β₁) Δ, as m + (1 − β₁) (Δ − m), which keeps equal values
        first = self._keep("first", name, first + (1 - self.beta1) * (gradient - first), gradient)
        second = self._moment("second", name, gradient, self._initial())
        second = self._keep("second", name, self._second(second, gradient * gradient), gradient)
        return np.asarray(self._quotient(first, second))

    def _initial(self) -> float:
        return self.tau**2

    @abstractmethod
    def _second(self, second: NDArray[Any], square: NDArray[Any]) -> NDArray[Any]:
        """The second moment after a squared gradient."""

    def _quotient(self, first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
        # Algorithm 2, the last line: x ← x − η m / (√v + τ), with Δ as the gradient
        return np.asarray(self.learning_rate * first / (np.sqrt(second) + self.tau))


@dataclass(frozen=True)
class Adam(_TwoMoments):
    """m ← β₁ m + (1 − β₁) Δ; v ← β₂ v + (1 − β₂) Δ²; θ ← θ − η m / (√v + τ) (FedAdam).

    τ is added outside the root. Without bias correction m starts at 0 and v at τ², as in the paper. With bias
    correction v starts at 0 too, and after t steps m is divided by 1 − β₁ᵗ and v by 1 − β₂ᵗ: ``torch.optim.Adam`` with
    ``eps`` = τ.

    Parameters
    ----------
    learning_rate : float
        η > 0.
    beta1, beta2 : float
        Decay of the first and the second moment, in [0, 1).
    tau : float
        τ > 0, the degree of adaptivity: a smaller τ makes the steps of all parameters more equal.
    bias_correction : bool
        Whether to correct the bias of the moments; see above.
    """

    bias_correction: bool = False

    def _initial(self) -> float:
        return 0.0 if self.bias_correction else super()._initial()

    def _second(self, second: NDArray[Any], square: NDArray[Any]) -> NDArray[Any]:
        # Algorithm 2, FedAdam: v ← β₂ v + (1 − β₂) Δ²
        return self.beta2 * second + (1 - self.beta2) * square

    def _quotient(self, first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
        if not self.bias_correction:
            return super()._quotient(first, second)
        steps = self._state.steps
        rate = self.learning_rate / (1 - self.beta1**steps)
        return np.asarray(rate * first / (np.sqrt(second) / (1 - self.beta2**steps) ** 0.5 + self.tau))


@dataclass(frozen=True)
class Yogi(_TwoMoments):
    """v ← v − (1 − β₂) Δ² sign(v − Δ²), otherwise :class:`Adam` without bias correction (FedYogi).

    Zaheer et al., Adaptive Methods for Nonconvex Optimization, NeurIPS 2018, Algorithm 2: v moves towards Δ² by
    (1 − β₂) Δ², independently of their distance, so that v decreases slowly after large gradients.

    Parameters
    ----------
    learning_rate : float
        η > 0.
    beta1, beta2 : float
        Decay of the first and the second moment, in [0, 1).
    tau : float
        τ > 0, the degree of adaptivity, as in :class:`Adam`.
    """

    def _second(self, second: NDArray[Any], square: NDArray[Any]) -> NDArray[Any]:
        # Algorithm 2, FedYogi: v ← v − (1 − β₂) Δ² sign(v − Δ²)
        return np.asarray(second - (1 - self.beta2) * square * np.sign(second - square))


#: Makes an optimizer from a learning rate η > 0 and the degree of adaptivity τ > 0.
_BY_NAME: dict[str, Callable[[float, float], ServerOptimizer]] = {
    "sgd": lambda rate, tau: SGD(rate),
    "momentum": lambda rate, tau: Momentum(rate),
    "adagrad": lambda rate, tau: AdaGrad(rate, tau=tau),
    "adam": lambda rate, tau: Adam(rate, tau=tau),
    "yogi": lambda rate, tau: Yogi(rate, tau=tau),
}
#: The names that :func:`optimizer_by_name` knows.
OPTIMIZER_NAMES = tuple(_BY_NAME)


def optimizer_by_name(name: str, learning_rate: float, *, tau: float = 1e-3) -> ServerOptimizer:
    """Make a new server optimizer with the default momentum and decay rates.

    Parameters
    ----------
    name : str
        One of :data:`OPTIMIZER_NAMES`.
    learning_rate : float
        η > 0.
    tau : float
        τ > 0, the degree of adaptivity of "adagrad", "adam" and "yogi"; "sgd" and "momentum" do not use it.

    Raises
    ------
    ValueError
        The name is unknown, or a number is out of range.
    """
    require_one_of("server optimizer", name, OPTIMIZER_NAMES)
    return _BY_NAME[name](learning_rate, tau)


def _require_decay(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ValueError(f"{name} = {value!r}: must be at least 0 and below 1")
