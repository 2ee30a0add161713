"""Simulates a point mass on a line under optimal linear control, with one cost function per robot (APFL, Section IV-A).

All robots share the dynamics ``x' = A x + B u`` with ``x = (y, v)``, position and velocity. Robot ``k`` regulates to
the origin with ``u = -K x``, which is optimal for the cost ``sum x'Qx + R_k u^2`` with ``Q = I``. The larger ``R_k``,
the gentler the control.
"""

import csv
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedapps.base.seeding import generator

FloatArray = NDArray[np.float64]

A: FloatArray = np.array([[1.0, 1.0], [0.0, 1.0]])
B: FloatArray = np.array([[0.0], [1.0]])
PAPER_WEIGHTS = (1.0, 50.0, 100.0)
"""``R`` of the paper's three robots."""
COLUMNS = ("robot", "control_weight", "split", "trajectory", "step", "y", "v", "u", "next_y", "next_v")


def control_weights(num_robots: int) -> tuple[float, ...]:
    """Return ``R`` of each robot: the paper's for three robots, otherwise spaced logarithmically over [1, 100]."""
    if num_robots < 1:
        raise ValueError(f"num_robots = {num_robots}: must be at least 1")
    if num_robots == len(PAPER_WEIGHTS):
        return PAPER_WEIGHTS
    return tuple(float(weight) for weight in np.geomspace(1.0, 100.0, num_robots))


@cache
def optimal_gain(control_weight: float) -> tuple[float, float]:
    """Return ``K`` of the optimal ``u = -K x`` for ``R = control_weight > 0``, by the discrete Riccati equation.

    R = 1, 50 and 100 give (0.422, 1.244), (0.107, 0.532) and (0.079, 0.448).
    """
    from scipy.linalg import solve_discrete_are  # slow to import, and a profile needs no gain

    P = solve_discrete_are(A, B, np.eye(2), np.array([[control_weight]]))
    gain = np.linalg.solve(control_weight + B.T @ P @ B, B.T @ P @ A)
    return float(gain[0, 0]), float(gain[0, 1])


def trajectories(
    control_weight: float,
    count: int,
    horizon: int,
    *,
    start_range: float,
    noise_variance: float,
    rng: np.random.Generator,
) -> FloatArray:
    """Simulate noisy rollouts of an expert.

    Parameters
    ----------
    control_weight : float
        The cost ``R`` > 0.
    count, horizon : int
        The numbers of rollouts and of steps.
    start_range : float
        Initial states are uniform in ``[-start_range, start_range]^2``.
    noise_variance : float
        Variance of the Gaussian noise on the control and on each component of the next state, independent at every
        step.
    rng : Generator
        The generator.

    Returns
    -------
    ndarray [count, horizon, 5]
        Rows ``y, v, u, y', v'``, where ``u`` is the control including its noise.
    """
    deviation = noise_variance**0.5
    gain = np.array([optimal_gain(control_weight)])
    state = rng.uniform(-start_range, start_range, size=(count, 2))
    rows = np.empty((count, horizon, 5))
    for step in range(horizon):
        control = -state @ gain.T + deviation * rng.standard_normal((count, 1))
        following = state @ A.T + control @ B.T + deviation * rng.standard_normal((count, 2))
        rows[:, step] = np.concatenate((state, control, following), axis=1)
        state = following
    return rows


def write_world(
    folder: Path,
    num_robots: int,
    seed: int,
    *,
    count: int = 40,
    horizon: int = 30,
    test_fraction: float = 0.1,
    start_range: float = 10.0,
    noise_variance: float = 0.01,
) -> list[Path]:
    """Write ``robot-00.csv``, ``robot-01.csv`` and so on into ``folder`` and return their paths.

    The columns are :data:`COLUMNS`, with one row per step. The last ``test_fraction`` of the ``count`` trajectories (at
    least one, and not all) belong to the split ``test``, the others to ``train``. The other parameters are those of
    :func:`trajectories`.

    Raises
    ------
    ValueError
        ``count < 2`` or ``num_robots < 1``.
    """
    if count < 2:
        raise ValueError(f"count = {count}: must be at least 2, one trajectory for training and one for testing")
    folder.mkdir(parents=True, exist_ok=True)
    held_out = min(max(round(count * test_fraction), 1), count - 1)
    paths = []
    for robot, weight in enumerate(control_weights(num_robots)):
        rng = generator(seed, "lqr.world", robot)
        rollouts = trajectories(weight, count, horizon, start_range=start_range, noise_variance=noise_variance, rng=rng)
        path = folder / f"robot-{robot:02d}.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            for index, rollout in enumerate(rollouts):
                split = "test" if index >= count - held_out else "train"
                for step, values in enumerate(rollout):
                    numbers = [f"{value:.9g}" for value in values]
                    writer.writerow([robot, f"{weight:.9g}", split, index, step, *numbers])
        paths.append(path)
    return paths
