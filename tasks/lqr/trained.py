"""Use a trained model of the task "lqr": its gain, its dynamics, and the closed loop."""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar, TextIO, cast

import numpy as np
import torch
from fedapps.tasks.answers import finite_answer, finite_numbers
from fedapps.tasks.base import NodeData
from fedapps.tasks.network import Network
from fedapps.tasks.trained import TrainedModel
from numpy.typing import ArrayLike, NDArray

from fedapps.base.errors import DataError
from fedapps.base.tables import stream_rows

from .task import LqrModel

FloatArray = NDArray[np.float64]


class LqrTrained(TrainedModel):
    """A robot's linear controller ``u = -K x`` with the shared dynamics ``x' = A x + B u``; ``x = (y, v)``.

    The unit of the position ``y`` is that of the robot's files, the velocity ``v`` is per control step, and ``u``
    changes the velocity in one step.
    """

    pipeline_tag: ClassVar[str] = "robotics"

    #: The columns that :meth:`rows` reads.
    columns: ClassVar[tuple[str, ...]] = ("y", "v")

    @property
    def _model(self) -> LqrModel:
        return cast(LqrModel, self.module)

    @property
    def gain(self) -> FloatArray:
        """``K``, float64 ``[1, 2]``."""
        return _array(self._model.policy.K)

    @property
    def dynamics(self) -> tuple[FloatArray, FloatArray]:
        """``A`` ``[2, 2]`` and ``B`` ``[2, 1]``, float64."""
        return _array(self._model.dynamics.A), _array(self._model.dynamics.B)

    def control(self, state: ArrayLike) -> FloatArray:
        """Return the control ``-K x``.

        Parameters
        ----------
        state : array [2] or [n, 2]
            Position and velocity, of one or of several robots.

        Returns
        -------
        ndarray float64 [1] or [n, 1]

        Raises
        ------
        DataError
            A shape is wrong, or a number of the state or of the control is not finite.
        """
        return self._control(_state(state))

    def step(self, state: ArrayLike) -> FloatArray:
        """Return the state after one step of the closed loop, ``(A - B K) x``, with the learned dynamics.

        Parameters
        ----------
        state : array [2] or [n, 2]
            As in :meth:`control`.

        Returns
        -------
        ndarray float64 [2] or [n, 2]

        Raises
        ------
        DataError
            As :meth:`control`.
        """
        A, B = self.dynamics
        current = _state(state)
        with np.errstate(over="ignore", invalid="ignore"):  # reported as an error
            following = current @ A.T + self._control(current) @ B.T
        return finite_answer(following, "state")

    def _control(self, state: FloatArray) -> FloatArray:
        with np.errstate(over="ignore", invalid="ignore"):  # reported as an error
            control = -state @ self.gain.T
        return finite_answer(control, "control")

    def rows(self, inputs: Sequence[Path | TextIO], batch_size: int = 128) -> Iterator[dict[str, Any]]:
        """Yield ``u``, ``next_y`` and ``next_v`` for each state, whose columns are ``y`` and ``v``, in CSV or JSON
        lines.
        """
        for source in inputs:
            for row in stream_rows(source, self.columns):
                state = np.array([row.number(name) for name in self.columns])
                (u,), (y, v) = self.control(state), self.step(state)
                yield {"y": state[0], "v": state[1], "u": u, "next_y": y, "next_v": v}

    def network(self, example: NodeData | None = None) -> Network:
        """Map ``inputs`` ``[n, 3] = (y, v, u)`` to ``next_state`` ``[n, 2]`` and ``control`` ``[n, 1]``."""
        inputs = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
        return Network(
            deepcopy(self.module).cpu(), (inputs,), ("inputs",), ("next_state", "control"), {"inputs": {0: "batch"}}
        )


def _array(parameter: torch.Tensor) -> FloatArray:
    return parameter.detach().cpu().numpy().astype(np.float64)


def _state(values: ArrayLike) -> FloatArray:
    state = finite_numbers(values, "state").astype(np.float64)
    if state.shape[-1:] != (2,) or state.ndim > 2:
        raise DataError(f"state: must have the shape [2] or [n, 2], not {list(state.shape)}")
    return state
