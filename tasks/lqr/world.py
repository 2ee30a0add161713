"""The files of robots, point masses on a line under optimal linear control: simulated, written and read.

Each robot has its own cost function (APFL, Section IV-A). All share the dynamics ``x' = A x + B u`` with ``x = (y,
v)``, position and velocity. Robot ``k`` regulates to the origin with ``u = -K x``, which is optimal for the cost
``sum x'Qx + R_k u^2`` with ``Q = I``. The larger ``R_k``, the gentler the control.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import scipy
from fedapps.tasks.profiles import check_partition
from numpy.typing import NDArray

from fedapps.base.errors import DataError
from fedapps.base.seeding import generator
from fedapps.base.tables import CSV_ENDINGS, read_table, write_table
from fedapps.base.text_files import found_in, refuse_copies

FloatArray = NDArray[np.float64]

A: FloatArray = np.array([[1.0, 1.0], [0.0, 1.0]])
B: FloatArray = np.array([[0.0], [1.0]])
PAPER_WEIGHTS = (1.0, 50.0, 100.0)
"""``R`` of the paper's three robots."""
SPLITS = ("train", "validation", "test")
#: The columns of :attr:`Rollouts.tables`.
VALUES = ("y", "v", "u", "next_y", "next_v", "control_weight")
#: The columns of the files.
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
    P = scipy.linalg.solve_discrete_are(A, B, np.eye(2), np.array([[control_weight]]))
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
        rows = (
            [robot, f"{weight:.9g}", "test" if index >= count - held_out else "train", index, step]
            + [f"{value:.9g}" for value in values]
            for index, rollout in enumerate(rollouts)
            for step, values in enumerate(rollout)
        )
        write_table(path, COLUMNS, rows)
        paths.append(path)
    return paths


@dataclass(frozen=True)
class Rollouts:
    """The pooled rows of one or more files.

    Attributes
    ----------
    key : str
        The file name up to ``.csv``; the keys of several files are joined by ``+``.
    tables : mapping of str to ndarray
        The rows of each split that has any, float64 ``[N, 6]``, with the columns :data:`VALUES`.
    """

    key: str
    tables: Mapping[str, np.ndarray]

    @property
    def groups(self) -> dict[str, str]:
        """The label ``control-weight``, if it is the same in all rows."""
        cost = VALUES.index("control_weight")
        distinct = np.unique(np.concatenate([table[:, cost] for table in self.tables.values()]))
        return {"control-weight": f"{distinct[0]:g}"} if len(distinct) == 1 else {}


def robot_files(folder: Path) -> list[Path]:
    """Return the files ``robot-*.csv``, ``.csv.gz`` and ``.csv.xz`` of a folder, sorted by name.

    Raises
    ------
    DataError
        There is no such file, or one is there plain and compressed.
    """
    files = found_in(folder, *(f"robot-*{ending}" for ending in CSV_ENDINGS))
    if not files:
        raise DataError(f"{folder}: expected files robot-*.csv, .csv.gz or .csv.xz, found none")
    refuse_copies(files)
    return files


def read_rollouts(paths: Iterable[Path], validation_share: float = 0.0) -> Rollouts:
    """Read files of robots and pool their rows.

    Parameters
    ----------
    paths : iterable of Path
        The files.
    validation_share : float
        The share of the training rows of a file that are its validation split if it has none: the last rows, rounded
        down. The noise of each step is independent of all others, so that it does not matter where rollouts end.

    Raises
    ------
    DataError
        A file is malformed, or no row belongs to the split train or test.
    """
    paths = list(paths)
    parts = [_with_validation(*_read(path), validation_share) for path in paths]
    pooled = {
        split: np.concatenate([table[number == index] for number, table in parts]) for index, split in enumerate(SPLITS)
    }
    tables = {split: table for split, table in pooled.items() if len(table)}
    if "train" not in tables and "test" not in tables:
        raise DataError(f"{', '.join(map(str, paths))}: expected rows of split train or test, found none")
    return Rollouts("+".join(path.name.rsplit(".csv", 1)[0] for path in paths), tables)


def _with_validation(split: np.ndarray, values: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
    """The index of the split and the values of each row, the last training rows for validation where there are none."""
    training, validation = (np.flatnonzero(split == SPLITS.index(name)) for name in ("train", "validation"))
    held_out = training[len(training) - int(share * len(training)) :]
    if len(validation) or not len(held_out):
        return split, values
    split = split.copy()
    split[held_out] = SPLITS.index("validation")
    return split, values


def _read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The index of the split ``[N]`` and the values ``[N, 6]`` of each row of a file."""
    table = read_table(path, ["split", *VALUES])
    split = table.words("split", {name: index for index, name in enumerate(SPLITS)})
    values = np.stack([table.numbers(name) for name in VALUES], axis=1)
    if len(wrong := np.flatnonzero(values[:, VALUES.index("control_weight")] <= 0)):
        raise table.fault("control_weight", wrong, "expected a number above 0")
    return split, values


def robot_file(folder: Path, partition: int, num_partitions: int) -> Path:
    """Return the file of node ``partition``. Raise :class:`DataError` if there is no such node, or none for each."""
    check_partition(partition, num_partitions)
    files = robot_files(folder)
    if len(files) < num_partitions:
        raise DataError(
            f"{folder}: holds {len(files)} files robot-*.csv, one for a node, but num-nodes is {num_partitions}; set "
            f"num-nodes = {len(files)} or fewer"
        )
    return files[partition]
