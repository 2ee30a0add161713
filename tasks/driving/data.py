"""Reads recorded or simulated driving sessions from CSV files: one row per step, one block per driver; cuts
them into training windows of a history and the future that followed.

The format is that of the recorded human-in-the-loop weaving trials [1]_: columns ``trial, block, step, t`` and, for the
robot (``r``) and the human (``h``), position ``x y``, velocity ``vx vy`` and acceleration ``ax ay`` in metres and
seconds, with x along the road. :class:`~fedapps.tasks.driving.options.Road` has what these files do not say. Simulated
files add ``split``, the controls ``throttle_r steer_r throttle_h steer_h``, ``session`` (the number of the initial
state), the gray car (``g``) if there is one, and a file ``world.json`` (:mod:`~fedapps.tasks.driving.world.sessions`).
In this package, as in the paper, x is lateral and y longitudinal.

.. [1] E. Schmerling, K. Leung et al., StanfordASL/TrafficWeavingCVAE, 2017.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from fedapps.tasks.driving.world.sessions import World, read_world
from torch import Tensor

from fedapps.base.errors import DataError
from fedapps.base.tables import CSV_ENDINGS, Table, read_table
from fedapps.base.text_files import found_in, refuse_copies

from .options import Options, Road, Setting

STEP = 0.1  # seconds
SPLITS = ("train", "validation", "test")
_NAMES_OF_SPLITS = frozenset([*SPLITS, "training", "val", "valid", "testing", "dev", "eval"])
COUNTERS = ("trial", "block", "step", "t")
ACCELERATIONS = ("ayr", "axr", "ayh", "axh")
_WAY, _UNIT = 10.0, 2.0  # metres of way, and the ratio of ways, from which units are checked and wrong
_OFF_MIDDLE = 1.0  # metres that the middle between the cars' lanes may lie from the line between them
PEDALS = ("throttle_r", "steer_r", "throttle_h", "steer_h")


@dataclass(frozen=True)
class Session:
    """One encounter of T steps. The cars are the robot, the human and, if there is one, the gray car.

    Attributes
    ----------
    number : int
        The initial state of a simulated session (the same for all drivers), or the recorded trial.
    split : str
        "train", "validation" or "test".
    states : ndarray [T, cars, 4]
        x, y, vx, vy in metres and m/s; x is lateral.
    controls : ndarray [T, cars, 2]
        The controls that led to each row: throttle and steering of a bicycle, or the accelerations (ax, ay) of a point
        mass. Those of the gray car are 0.
    """

    number: int
    split: str
    states: np.ndarray
    controls: np.ndarray


@dataclass(frozen=True)
class Recording:
    """All sessions of a folder.

    Attributes
    ----------
    dynamics : str
        "bicycle" or "point".
    blocks : mapping of int to tuple of Session
        The sessions of each block (driver), in the order of the files.
    world : World or None
        How to simulate the drivers again; None for recorded trials.
    names : mapping of int to str
        The names of blocks that have one.
    """

    dynamics: str
    blocks: Mapping[int, tuple[Session, ...]]
    world: "World | None" = None
    names: Mapping[int, str] = field(default_factory=dict)

    @property
    def cars(self) -> int:
        """The number of cars."""
        return int(next(iter(self.blocks.values()))[0].states.shape[1])


_File = tuple[tuple[str, int, bool], dict[int, tuple[Session, ...]], list[tuple[int, int]]]


def with_validation(recording: Recording, share: float) -> Recording:
    """Hold out a share of the training sessions of each block for validation.

    They are its last ones, rounded down. A block that has validation sessions stays as it is.
    """

    def held_out(sessions: tuple[Session, ...]) -> tuple[Session, ...]:
        training = [session for session in sessions if session.split == "train"]
        last = training[len(training) - int(share * len(training)) :]
        if not last or any(session.split == "validation" for session in sessions):
            return sessions
        last_sessions = {id(session) for session in last}
        return tuple(replace(s, split="validation") if id(s) in last_sessions else s for s in sessions)

    return replace(recording, blocks={block: held_out(sessions) for block, sessions in recording.blocks.items()})


def read_folder(folder: Path, road: Road = Road()) -> Recording:  # noqa: B008 - immutable
    """Read the sessions of a folder (:func:`read_sessions`) and, if they are simulated, the world.

    Raises
    ------
    DataError
        As :func:`read_sessions`, or ``world.json`` is malformed.
    """
    return replace(read_sessions(folder, road), world=read_world(folder))


def read_sessions(folder: Path, road: Road = Road()) -> Recording:  # noqa: B008 - immutable
    """Read the sessions in all files ``*.csv``, ``*.csv.gz`` and ``*.csv.xz`` of a folder, in the order of their names.

    Raises
    ------
    DataError
        There is no such file, a file is malformed or does not fit the road, or the files are of different kinds.
    """
    paths = found_in(folder, *(f"*{ending}" for ending in CSV_ENDINGS))
    if not paths:
        raise DataError(f"{folder}: no driving sessions; expected files *.csv, *.csv.gz or *.csv.xz")
    refuse_copies(paths)
    return _joined(folder, paths, road)


def read_file(path: Path, road: Road = Road()) -> Recording:  # noqa: B008 - immutable
    """Read the sessions of one file, as :func:`read_sessions` does."""
    return _joined(path, [path], road)


def files_of(folder: Path, block: int, road: Road) -> list[Path]:
    """Return the files of a folder with the sessions of a block; none if one of them also has those of others."""
    paths = found_in(folder, *(f"*{ending}" for ending in CSV_ENDINGS))
    blocks_of = {path: set(read) for path, (_, read, _) in zip(paths, _read_files(paths, road), strict=True)}
    of_block = [path for path, blocks in blocks_of.items() if block in blocks]
    return of_block if all(blocks_of[path] == {block} for path in of_block) else []


def _joined(source: Path, paths: Sequence[Path], road: Road) -> Recording:
    """The sessions of some files."""
    blocks: dict[int, tuple[Session, ...]] = {}
    kinds = set()
    files: dict[tuple[int, int], Path] = {}
    for path, (kind, read, trials) in zip(paths, _read_files(paths, road), strict=True):
        kinds.add(kind)
        if len(kinds) > 1:
            raise DataError(
                f"{source}: mixes files with and without throttle columns, with and without a gray car, or with and "
                "without a column split; expected files of one kind"
            )
        if not kind[2] and path.name.split(".", 1)[0].lower() in _NAMES_OF_SPLITS:
            raise DataError(
                f"{path}: is named like a split, but has no column split, without which the last fifth of each block "
                "is the test; add the column (train, validation, test), or rename the file"
            )
        for block, trial in trials:
            if (other := files.setdefault((block, trial), path)) != path:
                raise DataError(f"{path}: trial {trial} of block {block} is also in {other}; keep one of the two")
        for block, sessions in read.items():
            blocks[block] = blocks.get(block, ()) + sessions
    if not blocks:
        blocks_left_out = ", ".join(map(str, sorted(road.demonstrations)))
        raise DataError(
            f"{source}: holds only demonstration trials, which are left out (driving.demonstrations = "
            f"{blocks_left_out!r})"
        )
    return Recording(kinds.pop()[0], {block: _with_splits(blocks[block]) for block in sorted(blocks)})


def _read_files(paths: Sequence[Path], road: Road) -> tuple[_File, ...]:
    """The content of files, kept until one of them changes: every node of a simulation reads the same ones."""
    return _read_stamped(tuple((path, path.stat().st_mtime_ns if path.exists() else 0) for path in paths), road)


@lru_cache(maxsize=8)
def _read_stamped(stamped: tuple[tuple[Path, int], ...], road: Road) -> tuple[_File, ...]:
    return tuple(_read_file(path, road) for path, _ in stamped)


def _read_file(path: Path, road: Road) -> _File:
    """The dynamics and number of cars of a file, whether it names splits, its sessions by block, and the block and
    number of each trial.

    Without a column ``split`` that of the sessions is "".
    """
    optional = [*_motion("g"), *ACCELERATIONS, *PEDALS, "session", "split"]
    table = read_table(path, [*COUNTERS, *_motion("rh")], optional)
    cars = "rhg" if "xg" in table else "rh"
    simulated = "throttle_r" in table
    number, actions = ("session", PEDALS) if simulated else ("trial", ACCELERATIONS)
    table.require([*_motion(cars), number, *actions])
    numbers = table.integers(number)
    states = _numbers(table, _motion(cars)).reshape(len(table), len(cars), 4)
    controls = np.zeros((len(table), len(cars), 2))
    controls[:, :2] = _numbers(table, actions).reshape(len(table), 2, 2)
    split = table.words("split", {name: name for name in SPLITS}).tolist() if "split" in table else [""] * len(table)
    block_of, trial_of = table.integers("block"), table.integers("trial")
    blocks: dict[int, list[Session]] = {}
    begun: dict[tuple[int, int], int] = {}
    trials = _sessions(table)
    _check_units(table, states, trials, cars)
    if not simulated:
        firsts = [first for first, _ in trials if int(block_of[first]) not in road.demonstrations]
        _check_lanes(table, states, firsts, road)
    for first, last in trials:
        key = int(block_of[first]), int(trial_of[first])
        if (row := begun.setdefault(key, first)) != first:
            raise DataError(
                f"{table.location(first, 'trial')}: trial {key[1]} of block {key[0]} begins for the second time (first "
                f"in line {table.lines[row]}); keep one of the two"
            )
        block, session = int(block_of[first]), (states[first:last], controls[first:last])
        if block in road.demonstrations and not simulated:
            continue
        if not simulated:
            session = _face_the_same_way(*session, road.lane_line)
        blocks.setdefault(block, []).append(Session(int(numbers[first]), split[first], *session))
    done = {block: tuple(sessions) for block, sessions in blocks.items()}
    return ("bicycle" if simulated else "point", len(cars), "split" in table), done, list(begun)


def _check_units(table: Table, states: np.ndarray, sessions: Sequence[tuple[int, int]], cars: str) -> None:
    """Raise :class:`DataError` if velocities do not fit positions, as in km/h beside metres, or x is not the way."""
    steps = np.concatenate([np.arange(first + 1, last) for first, last in sessions])
    driven = np.linalg.norm(states[steps, :, :2] - states[steps - 1, :, :2], axis=-1).sum(axis=0)
    expected = STEP * np.linalg.norm(states[steps, :, 2:], axis=-1).sum(axis=0)
    for car, way, meant in zip(cars, driven, expected, strict=True):
        if max(way, meant) > _WAY and not 1 / _UNIT <= (way + 1) / (meant + 1) <= _UNIT:
            raise DataError(
                f"{table.path}: by the columns x{car} and y{car} the car drives {way:.4g} m, by vx{car} and vy{car} "
                f"{meant:.4g} m; expected metres, and metres per second"
            )
    across, along = np.abs(states[..., 2:]).sum(axis=(0, 1)).tolist()
    if across > along:
        raise DataError(
            f"{table.path}: the cars drive faster along y than along x; expected x along the road, and y across it"
        )


def _check_lanes(table: Table, states: np.ndarray, firsts: Sequence[int], road: Road) -> None:
    """Raise :class:`DataError` unless robot and human start in the lanes on both sides of the line between them."""
    if not firsts:
        return
    robot, human = states[firsts, :2, 0].T
    middle = float(np.median((robot + human) / 2))
    advice = f"set driving.lane-line to the y of the line between the lanes, in metres (here {road.lane_line:g})"
    if abs(middle - road.lane_line) > _OFF_MIDDLE:
        raise DataError(
            f"{table.path}: robot and human start at y = {np.median(robot):.3g} and {np.median(human):.3g} (medians), "
            f"with their middle at {middle:.3g}; {advice}"
        )
    wrong = np.flatnonzero((robot - road.lane_line) * (human - road.lane_line) >= 0)
    if len(wrong):
        row = firsts[wrong[0]]
        raise DataError(
            f"{table.location(row, 'yr')}: in {len(wrong)} of {len(firsts)} trials robot and human start on the same "
            f"side of the line between the lanes, here at y = {robot[wrong[0]]:.3g} and {human[wrong[0]]:.3g}; correct "
            f"or remove these trials, or {advice}"
        )


def _face_the_same_way(states: np.ndarray, controls: np.ndarray, lane_line: float) -> tuple[np.ndarray, np.ndarray]:
    """Measure lateral positions from the lane line, mirrored so that the human starts on the positive side."""
    side = 1.0 if states[0, 1, 0] >= lane_line else -1.0
    states, controls = states.copy(), controls.copy()
    states[..., 0] -= lane_line
    states[..., [0, 2]] *= side
    controls[..., 0] *= side
    return states, controls


def _with_splits(sessions: Sequence[Session]) -> tuple[Session, ...]:
    """Assign the last fifth of a block's trials to the test split if the files name no splits.

    Their order is that of the names of the files, and in a file of the rows. In folders of imported logs it is that of
    time.
    """
    train = len(sessions) - int(len(sessions) / 5 + 0.5)
    return tuple(
        session if session.split else replace(session, split=SPLITS[2 * (i >= train)])
        for i, session in enumerate(sessions)
    )


def _sessions(table: Table) -> list[tuple[int, int]]:
    """First and past-the-last row of every trial. Steps must count up from 0 and lie 0.1 s apart."""
    trial, block, step, time = (table.numbers(name) for name in COUNTERS)
    starts = np.flatnonzero(np.r_[True, (np.diff(trial) != 0) | (np.diff(block) != 0)])
    ends = np.r_[starts[1:], len(table)]
    expected = np.arange(len(table)) - np.repeat(starts, ends - starts)
    begins = np.repeat(time[starts], ends - starts)
    wrong = np.flatnonzero((step != expected) | (np.abs(time - begins - STEP * expected) > 0.01))
    if len(wrong):
        row = wrong[0]
        raise DataError(
            f"{table.path}, line {table.lines[row]}, columns step and t: {step[row]:g} and {time[row]:g}; expected "
            f"step {expected[row]} of trial {trial[row]:g} at {begins[row] + STEP * expected[row]:.1f} s"
        )
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


def _motion(cars: str) -> list[str]:
    """The columns of the cars' motions in the order of a session's states: x and y change places."""
    return [f"{quantity}{car}" for car in cars for quantity in ("y", "x", "vy", "vx")]


def _numbers(table: Table, columns: Sequence[str]) -> np.ndarray:
    """Some columns as numbers, float64 ``[rows, len(columns)]``."""
    return np.stack([table.numbers(name) for name in columns], axis=1)


def past(setting: Setting, motions: Tensor, controls: Tensor, length: int) -> Tensor:
    """Return the history ``[N, length, features]`` of the last rows of ``motions [N, t, cars, 4]``.

    ``controls [N, t, cars, 2]`` are those that led to the motions of the same row. If ``t`` is less than ``length``,
    the history is padded with zeros at the front, including the mask.
    """
    seen = setting.describe(motions[:, -length:], controls[:, -length:])
    return torch.nn.functional.pad(seen, (0, 0, length - seen.shape[1], 0))


def cut(setting: Setting, options: Options, sessions: Iterable[Session]) -> dict[str, Tensor]:
    """Return all windows of ``sessions``, every ``window_stride`` steps, as float32 tensors of N windows.

    Sessions shorter than ``min_history + horizon`` have no window.

    Returns
    -------
    dict of str to Tensor
        ``history [N, history, features]``: zero before the session starts, for at most ``history - min_history`` steps.
        ``robot_future`` and ``human_future [N, H, 2]``: standardised controls of the next H steps.
        ``human_path [N, H, 2]``: the human's positions relative to the current one, in metres.
        ``current [N, cars, 4]``: current motions, with longitudinal positions relative to the human.
    """
    pieces = [_cut_one(setting, options, session) for session in sessions]
    return (
        {name: torch.cat([piece[name] for piece in pieces]) for name in _shapes(setting, options)}
        if pieces
        else {name: torch.zeros(0, *shape) for name, shape in _shapes(setting, options).items()}
    )


def _cut_one(setting: Setting, options: Options, session: Session) -> dict[str, Tensor]:
    now = np.array(options.moments(len(session.states)), dtype=np.int64)
    rows = now[:, None] + np.arange(1 - options.history, 1)
    ahead = now[:, None] + np.arange(1, options.horizon + 1)
    described = setting.describe(torch.from_numpy(session.states), torch.from_numpy(session.controls))
    history = described[np.maximum(rows, 0)] * torch.from_numpy(rows >= 0)[..., None]
    futures = session.controls[ahead] / np.asarray(setting.control)
    origin = session.states[now, 1, :2]
    current = session.states[now].copy()
    current[..., 1] -= origin[:, None, 1]
    arrays = {
        "history": history,
        "robot_future": torch.from_numpy(futures[:, :, 0]),
        "human_future": torch.from_numpy(futures[:, :, 1]),
        "human_path": torch.from_numpy(session.states[ahead, 1, :2] - origin[:, None]),
        "current": torch.from_numpy(current),
    }
    return {name: array.float() for name, array in arrays.items()}


def _shapes(setting: Setting, options: Options) -> dict[str, tuple[int, ...]]:
    future = (options.horizon, 2)
    return {
        "history": (options.history, setting.features),
        "robot_future": future,
        "human_future": future,
        "human_path": future,
        "current": (setting.cars, 4),
    }
