"""Reads and writes sessions in the schema of the recorded human-robot trials of Schmerling et al. (ICRA 2018).

There is one row per step: ``trial, trial_name, block, time_of_day_s, human_ahead_at_end, step, t``, then ``x y vx vy ax
ay`` of the robot (suffix ``r``) and the human (``h``), in m, m/s and m/s². In files **x runs along the road and y
across it**, as in the recordings; everywhere else in this package it is the reverse. ``block`` is the node: a driver.
Simulated files add ``split`` (train, test), ``session``, ``lane_change_start`` (a step, or -1), ``throttle_r steer_r
throttle_h steer_h`` and, with a gray car, its six columns (``g``). The controls and accelerations of a row are those
that led to its state, zero in row 0; a heading is ``atan2(vy, vx)``.

``world.json`` beside the files holds what a node needs to simulate its driver again.
"""

import json
import lzma
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from .drivers import Driver
from .dynamics import DT, velocity
from .scenarios import SCENARIOS, Scenario
from .sessions import HUMAN, ROBOT, Sessions

WORLD_FILE = "world.json"


def read_styles(folder: Path) -> dict[int, float]:
    """Return the risk tolerance gamma of each block's driver; empty without the file, as for recorded trials.

    Raises
    ------
    ValueError
        The file is malformed.
    """
    path = folder / WORLD_FILE
    if not path.exists():
        return {}
    try:
        blocks = json.loads(path.read_bytes())["blocks"]
        return {int(block): float(driver["gamma"]) for block, driver in blocks.items()}
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{path}: expected blocks of drivers, each with its gamma: {error!r}") from error


@dataclass(frozen=True)
class World:
    """The content of ``world.json``: scenario, seed of initial states and noise, and the driver of each block."""

    scenario: Scenario
    seed: int
    drivers: Mapping[int, Driver]


def write_sessions(folder: Path, block: int, sessions: Sessions, split: Sequence[str] | None = None) -> Path:
    """Write ``folder/driver-<block>.csv.xz``, replacing an existing file, and return its path.

    Trials are numbered from ``1000 * block``.

    Parameters
    ----------
    folder : Path
        The folder.
    block : int
        The block of the driver.
    sessions : Sessions
        The sessions.
    split : sequence of str, optional
        The split of each session. By default held-out sessions are ``"test"`` and the others ``"train"``.

    Raises
    ------
    ValueError
        ``split`` has another length than ``sessions``.
    """
    if split is None:
        split = ["test" if held_out else "train" for held_out in sessions.held_out.tolist()]
    if len(split) != len(sessions):
        raise ValueError(f"split names {len(split)} sessions: must name {len(sessions)}")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"driver-{block:02d}.csv.xz"
    lines = [",".join(_header(sessions.scenario.cars))]
    for index in range(len(sessions)):
        lines.extend(_rows(sessions, index, block, split[index]))
    with lzma.open(path, "wt", encoding="utf-8", newline="\n") as file:
        file.write("\n".join(lines) + "\n")
    return path


def write_world(folder: Path, world: World) -> Path:
    """Write ``folder/world.json`` and return its path. Raise ``ValueError`` for an unknown scenario."""
    if SCENARIOS.get(world.scenario.name) != world.scenario:
        raise ValueError(f"scenario {world.scenario.name!r}: must be one of {', '.join(SCENARIOS)}, unchanged")
    folder.mkdir(parents=True, exist_ok=True)
    blocks = {str(block): asdict(driver) for block, driver in world.drivers.items()}
    text = json.dumps({"scenario": world.scenario.name, "seed": world.seed, "blocks": blocks}, indent=2)
    path = folder / WORLD_FILE
    path.write_text(text + "\n", encoding="utf-8")
    return path


def read_world(folder: Path) -> World | None:
    """Read ``world.json`` in ``folder``; return ``None`` if there is no such file (recorded trials).

    Raises
    ------
    ValueError
        The file is malformed.
    """
    path = folder / WORLD_FILE
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_bytes())
        drivers = {int(block): Driver(**taste) for block, taste in content["blocks"].items()}
        return World(SCENARIOS[content["scenario"]], int(content["seed"]), drivers)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(
            f"{path}: expected a scenario ({', '.join(SCENARIOS)}), a seed and blocks of drivers: {error!r}"
        ) from error


def _header(cars: int) -> list[str]:
    motion = [f"{name}{car}" for car in "rhg"[:cars] for name in ("x", "y", "vx", "vy", "ax", "ay")]
    recorded = ["trial", "trial_name", "block", "time_of_day_s", "human_ahead_at_end", "step", "t"]
    added = ["split", "session", "lane_change_start", "throttle_r", "steer_r", "throttle_h", "steer_h"]
    return [*recorded, *motion[:12], *added, *motion[12:]]


def _rows(sessions: Sessions, index: int, block: int, split: str) -> list[str]:
    length, session = int(sessions.length[index]), int(sessions.session[index])
    states, controls = sessions.states[index, :length], sessions.controls[index, :length]
    human_ahead = int(states[-1, HUMAN, 1] > states[-1, ROBOT, 1])
    start = int(sessions.lane_change_start[index])
    name = f"{sessions.scenario.name}-{block:02d}-{session:03d}"
    trial = f"{1000 * block + session},{name},{block},-1,{human_ahead}"
    motion = _motion(states)
    lines = []
    for step in range(length):
        cars = [",".join(f"{value:.4f}" for value in car) for car in motion[step]]
        pedals = ",".join(f"{value:.2f}" for value in controls[step, :2].flatten().tolist())
        row = [trial, f"{step},{step * DT:.1f}", *cars[:2], f"{split},{session},{start}", pedals, *cars[2:]]
        lines.append(",".join(row))
    return lines


def _motion(states: Tensor) -> list[list[list[float]]]:
    """``[T][cars][6]``: x, y, vx, vy, ax, ay in the order of the file, from ``states [T, cars, 4]``."""
    speeds = velocity(states)
    accelerations = torch.zeros_like(speeds)
    accelerations[1:] = (speeds[1:] - speeds[:-1]) / DT
    values = torch.cat((states[..., :2].flip(-1), speeds.flip(-1), accelerations.flip(-1)), dim=-1)
    rows: list[list[list[float]]] = values.tolist()
    return rows
