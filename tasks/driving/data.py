"""Reads driving sessions from CSV files, recorded or simulated: one row per step, one block per driver.

The format is that of the recorded human-in-the-loop weaving trials [1]_: columns ``trial, block, step, t``
and, for the robot (``r``) and the human (``h``), position ``x y``, velocity ``vx vy`` and acceleration
``ax ay``, in metres and seconds, x along the road. Simulated files add ``split``, the controls
``throttle_r steer_r throttle_h steer_h``, ``session`` (which start a trial had), for three cars the gray
car (``g``), and a ``world.json`` (:mod:`sim.traffic.files`). Here, as in the paper, x is lateral and y
longitudinal.

.. [1] E. Schmerling, K. Leung et al., StanfordASL/TrafficWeavingCVAE, 2017.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tasks.profiles import DataError

from .table import SUFFIXES, read_header, read_table

if TYPE_CHECKING:
    from sim.traffic.files import World

STEP = 0.1  # seconds
LANE_MIDDLE = -4.0  # file's y of the line between the two lanes of the recorded trials
DEMONSTRATIONS = 99  # block of the recorded demonstration trials, which belong to no driver
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Session:
    """One encounter of T steps.

    ``states`` [T, cars, 4]: x, y, vx, vy (x lateral, metres and m/s). ``controls`` [T, cars, 2]: what
    brought about a row; throttle and steering of a bicycle, or the accelerations (ax, ay) of a point.
    Cars: robot, human, gray car (whose control is 0). ``number`` names the start of a simulated session
    (the same for all drivers), or the recorded trial.
    """

    number: int
    split: str
    states: np.ndarray
    controls: np.ndarray


@dataclass(frozen=True)
class Recording:
    """All sessions of a folder by block (driver), in the order of the files."""

    dynamics: str  # "bicycle" or "point"
    blocks: Mapping[int, tuple[Session, ...]]
    world: "World | None" = None  # how to simulate the drivers again; None for recorded trials

    @property
    def cars(self) -> int:
        return int(next(iter(self.blocks.values()))[0].states.shape[1])


def read_folder(folder: Path) -> Recording:
    """Everything in ``folder``: sessions (:func:`read_sessions`), and the world where they are simulated."""
    from sim.traffic.files import read_world  # not above, as it needs torch

    recording = read_sessions(folder)
    try:
        return replace(recording, world=read_world(folder))
    except ValueError as error:
        raise DataError(str(error)) from error


def read_sessions(folder: Path) -> Recording:
    """The sessions in ``folder`` alone: its ``*.csv``, ``*.csv.gz`` and ``*.csv.xz`` files in order of their names.

    Raises :class:`DataError` when there is no such file, or one is malformed or of another kind.
    """
    paths = sorted(path for path in folder.glob("*.csv*") if path.name.endswith(SUFFIXES))
    if not paths:
        raise DataError(f"{folder}: no driving sessions; expected files *.csv, *.csv.gz or *.csv.xz")
    blocks: dict[int, tuple[Session, ...]] = {}
    kinds = set()
    for path in paths:
        kind, read = _read_file(path, path.stat().st_mtime_ns)
        kinds.add(kind)
        for block, sessions in read.items():
            blocks[block] = blocks.get(block, ()) + sessions
    if len(kinds) > 1:
        raise DataError(f"{folder}: files with and without throttle columns, or with and without a gray car")
    if not blocks:
        raise DataError(f"{folder}: holds only demonstration trials (block {DEMONSTRATIONS}), which are left out")
    return Recording(kinds.pop()[0], dict(sorted(blocks.items())))


@lru_cache(maxsize=64)
def _read_file(path: Path, mtime: int) -> tuple[tuple[str, int], dict[int, tuple[Session, ...]]]:
    header = read_header(path)
    cars = "rhg" if "xg" in header else "rh"
    simulated = "throttle_r" in header
    names = [f"{quantity}{car}" for car in cars for quantity in ("y", "x", "vy", "vx")]
    if simulated:
        control_names = [f"{control}_{car}" for car in "rh" for control in ("throttle", "steer")]
    else:
        control_names = [f"{quantity}{car}" for car in "rh" for quantity in ("ay", "ax")]
    number = "session" if simulated else "trial"
    columns = ["trial", "block", "step", "t", number, *names, *control_names]
    table, splits = read_table(path, columns, ("split", SPLITS))
    states = table[:, 5 : 5 + len(names)].reshape(len(table), len(cars), 4)
    controls = np.zeros((len(table), len(cars), 2))
    controls[:, :2] = table[:, 5 + len(names) :].reshape(len(table), 2, 2)
    blocks: dict[int, list[Session]] = {}
    for first, last in _sessions(path, table):
        block, session = int(table[first, 1]), (states[first:last], controls[first:last])
        if block == DEMONSTRATIONS and not simulated:
            continue
        if not simulated:
            session = _face_the_same_way(*session)
        split = SPLITS[splits[first]] if splits is not None else ""
        blocks.setdefault(block, []).append(Session(int(table[first, 4]), split, *session))
    done = {block: _with_splits(sessions) for block, sessions in blocks.items()}
    return ("bicycle" if simulated else "point", len(cars)), done


def _face_the_same_way(states: np.ndarray, controls: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lateral positions from the lane line, mirrored so that the human starts on the positive side."""
    side = 1.0 if states[0, 1, 0] >= LANE_MIDDLE else -1.0
    states, controls = states.copy(), controls.copy()
    states[..., 0] -= LANE_MIDDLE
    states[..., [0, 2]] *= side
    controls[..., 0] *= side
    return states, controls


def _with_splits(sessions: list[Session]) -> tuple[Session, ...]:
    """Where the file names no split, the last fifth of a block's trials is the test split."""
    train = len(sessions) - int(len(sessions) / 5 + 0.5)
    return tuple(
        session if session.split else replace(session, split=SPLITS[2 * (i >= train)])
        for i, session in enumerate(sessions)
    )


def _sessions(path: Path, table: np.ndarray) -> list[tuple[int, int]]:
    """First and past-the-last row of every trial; checks that its steps count up from 0, 0.1 s apart."""
    trial, block, step, time = table[:, :4].T
    starts = np.flatnonzero(np.r_[True, (np.diff(trial) != 0) | (np.diff(block) != 0)])
    ends = np.r_[starts[1:], len(table)]
    expected = np.arange(len(table)) - np.repeat(starts, ends - starts)
    begins = np.repeat(time[starts], ends - starts)
    wrong = np.flatnonzero((step != expected) | (np.abs(time - begins - STEP * expected) > 0.01))
    if len(wrong):
        row = wrong[0]
        raise DataError(
            f"{path}, line {row + 2}, columns step and t: {step[row]:g} and {time[row]:g}; expected step "
            f"{expected[row]} of trial {trial[row]:g} at {begins[row] + STEP * expected[row]:.1f} s"
        )
    return list(zip(starts.tolist(), ends.tolist(), strict=True))
