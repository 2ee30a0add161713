"""Phase 2: a static LQR steers a car into its target lane and keeps its speed (APFL, Section IV-B).

People hardly differ once a lane change has begun, so the human car uses the same controller.
"""

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
