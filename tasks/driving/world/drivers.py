"""The synthetic human driver of APFL, Section IV-C, which overtakes or yields according to its risk tolerance.

In phase 2 a static LQR steers a car into its target lane and keeps its speed (Section IV-B). People hardly differ once
a lane change has begun, so the human car uses the same controller as the robot.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from scipy.linalg import solve_discrete_are
from torch import Tensor

from .dynamics import DT, FRICTION, REAR_AXLE, quantise

NOMINAL_SPEED = 20.0
"""Speed in m/s about which the bicycle is linearised."""
LARGEST_ERROR = 1.2
"""Metres at which the lateral error saturates, which limits the heading while a car changes lanes."""
STYLES = ("threshold", "literal")


@cache
def gains() -> tuple[tuple[float, float], float]:
    """Return ``((k_lateral, k_heading), k_speed)``: ``steer = -k_lateral e - k_heading heading``, throttle likewise.

    The gains solve the discrete Riccati equation for the bicycle linearised at :data:`NOMINAL_SPEED`: lateral error and
    heading (metres, radians) under steer, and speed error (m/s) under throttle. Weights follow Bryson's rule: 0.5 m,
    0.1 rad and 0.04 rad of steer; 1 m/s and 1.5 m/s² of throttle.
    """
    travel = NOMINAL_SPEED * DT
    turn = 0.5 * travel / REAR_AXLE  # change of heading in a step, per radian of steer
    A = np.array([[1.0, travel], [0.0, 1.0]])
    B = np.array([[travel * (0.5 + 0.5 * turn)], [turn]])
    lateral = _lqr(A, B, np.diag([1 / 0.5**2, 1 / 0.1**2]), np.array([[1 / 0.04**2]]))
    speed = _lqr(np.eye(1), np.array([[DT]]), np.eye(1), np.array([[1 / 1.5**2]]))
    return (float(lateral[0, 0]), float(lateral[0, 1])), float(speed[0, 0])


def steer_to_lane(car: Tensor, lane: float | Tensor) -> Tensor:
    """Return the unquantised steer ``[...]`` in radians that takes ``car [..., 4]`` to the lane at ``x = lane``."""
    (k_lateral, k_heading), _ = gains()
    error = (car[..., 0] - lane).clamp(-LARGEST_ERROR, LARGEST_ERROR)
    return -k_lateral * error - k_heading * car[..., 2]


def lane_change_control(car: Tensor, lane: float | Tensor, speed: Tensor) -> Tensor:
    """Return allowed controls ``[..., 2]`` that take ``car [..., 4]`` to ``x = lane`` at ``speed [...]`` (m/s)."""
    _, k_speed = gains()
    throttle = FRICTION - k_speed * (car[..., 3] - speed)
    return quantise(torch.stack((throttle, steer_to_lane(car, lane)), dim=-1))


def _lqr(
    A: np.ndarray[tuple[int, int], np.dtype[np.float64]],
    B: np.ndarray[tuple[int, int], np.dtype[np.float64]],
    Q: np.ndarray[tuple[int, int], np.dtype[np.float64]],
    R: np.ndarray[tuple[int, int], np.dtype[np.float64]],
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    P = solve_discrete_are(A, B, Q, R)
    gain: np.ndarray[tuple[int, int], np.dtype[np.float64]] = np.linalg.solve(R + B.T @ P @ B, B.T @ P @ A)
    return gain


@dataclass(frozen=True)
class Driver:
    """The parameters of a driver. Speeds are in m/s, distances in metres.

    The driver aims for ``v_high`` if it wants to overtake and the gray car, if any, is at least ``d_safe`` away along
    the road; otherwise for ``v_low``. With ``D_rel = (y_h - y_r) + (vy_h - vy_r)`` (one second of look-ahead), it wants
    to overtake when

    * style ``"threshold"``: ``D_rel + gamma * d0 >= 0``, a graded style. ``gamma = 1`` overtakes from ``d0`` behind,
      ``gamma = -1`` only when already ``d0`` ahead, ``gamma = 0`` when ahead;
    * style ``"literal"``: ``gamma * D_rel >= 0``, the printed formula, in which only the sign of ``gamma`` matters: 0.5
      drives like 1, -0.5 like -1, 0 is always fast, and a negative driver speeds up when *behind*.

    ``name`` keys the driver's noise; ``speed_noise`` is the standard deviation of its reading of its own speed in each
    step. ``kp``, ``ki``, ``kd`` are the gains of the speed controller (m/s² per m/s, per m and per m/s per step);
    ``patience`` bounds its integral, in m.
    """

    name: str
    gamma: float
    style: str = "threshold"
    v_high: float = 23.0
    v_low: float = 17.0
    d_safe: float = 15.0
    d0: float = 10.0
    speed_noise: float = 0.2
    kp: float = 1.5
    ki: float = 0.1
    kd: float = 0.1
    patience: float = 2.0

    def __post_init__(self) -> None:
        if self.style not in STYLES:
            raise ValueError(f"style = {self.style!r}: must be one of {', '.join(map(repr, STYLES))}")
        if not -1.0 <= self.gamma <= 1.0:
            raise ValueError(f"gamma = {self.gamma}: must be between -1 and 1")

    def wants_fast(self, human: Tensor, robot: Tensor, gray: Tensor | None = None) -> Tensor:
        """Return whether the target speed is ``v_high``, bool ``[...]``, for car states ``[..., 4]``."""
        human_vy, robot_vy = (car[..., 3] * torch.cos(car[..., 2]) for car in (human, robot))
        lead = (human[..., 1] - robot[..., 1]) + (human_vy - robot_vy)
        fast = lead + self.gamma * self.d0 >= 0 if self.style == "threshold" else self.gamma * lead >= 0
        if gray is not None:
            fast = fast & ((human[..., 1] - gray[..., 1]).abs() >= self.d_safe)
        return fast

    def memory(self, human: Tensor) -> Tensor:
        """Return the initial state ``[..., 2] = (integral, last error)`` of the speed controller."""
        return torch.zeros_like(human[..., :2])

    def control(
        self,
        human: Tensor,
        robot: Tensor,
        gray: Tensor | None,
        memory: Tensor,
        noise: Tensor,
        lane: float,
    ) -> tuple[Tensor, Tensor]:
        """Return the human's control ``[..., 2]`` for one step of phase 1, and the controller's next state.

        Parameters
        ----------
        human, robot, gray : Tensor [..., 4]
            Car states; ``gray`` may be None.
        memory : Tensor [..., 2]
            The state of the speed controller.
        noise : Tensor [...]
            Standard normal numbers, drawn by the caller so that they can be keyed by session.
        lane : float
            The ``x`` of the driver's lane.
        """
        reading = torch.cat((human[..., :3], (human[..., 3] + self.speed_noise * noise).unsqueeze(-1)), dim=-1)
        target = torch.where(self.wants_fast(reading, robot, gray), self.v_high, self.v_low)
        error = target - reading[..., 3]
        integral = (memory[..., 0] + DT * error).clamp(-self.patience, self.patience)
        throttle = self.kp * error + self.ki * integral + self.kd * (error - memory[..., 1])
        control = quantise(torch.stack((throttle, steer_to_lane(human, lane)), dim=-1))
        return control, torch.stack((integral, error), dim=-1)


def lane_swap_drivers(count: int = 7, style: str = "threshold") -> tuple[Driver, ...]:
    """Return ``count`` drivers with ``gamma`` evenly spaced over [-1, 1], from cautious to aggressive.

    Seven of them stand in for the seven people of APFL, Section IV-B, whose recordings were not published; five are the
    drivers of Section IV-C. A single driver has ``gamma = 0``.
    """
    if count < 1:
        raise ValueError(f"count = {count}: must be at least 1")
    gammas = [2.0 * i / (count - 1) - 1.0 for i in range(count)] if count > 1 else [0.0]
    return tuple(Driver(f"driver-{i:02d}", gamma, style) for i, gamma in enumerate(gammas))
