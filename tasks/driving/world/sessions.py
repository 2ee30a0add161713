"""Closed-loop sessions of a robot's policy with a human driver, all sessions at once, and their outcomes.

Row ``t`` of a history holds the state ``S_t`` and the control ``C_t`` that led to it, so both are known at time ``t``
and ``S_{t+1} = step(S_t, C_{t+1})``. The controls of row 0 are zero. Outcomes are the quantities of APFL, Figures 8 and
9, and collisions.

Files have the schema of the recorded human-robot trials of Schmerling et al. (ICRA 2018). There is one row per step:
``trial, trial_name, block, time_of_day_s, human_ahead_at_end, step, t``, then ``x y vx vy ax ay`` of the robot (suffix
``r``) and the human (``h``), in m, m/s and m/s². In files **x runs along the road and y across it**, as in the
recordings; everywhere else in this package it is the reverse. ``block`` is the node: a driver. Simulated files add
``split`` (train, test), ``session``, ``lane_change_start`` (a step, or -1), ``throttle_r steer_r throttle_h steer_h``
and, with a gray car, its six columns (``g``). The controls and accelerations of a row are those that led to its state,
zero in row 0; a heading is ``atan2(vy, vx)``.

``world.json`` beside the files holds what a node needs to simulate its driver again.
"""

import json
import lzma
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedapps.base.errors import DataError
from fedapps.base.seeding import generator

from . import traffic

ROBOT, HUMAN, GRAY = 0, 1, 2
"""Indices of the cars."""
IN_LANE = 0.35
"""Maximum distance in metres from the target lane of a car that has completed its lane change."""
STRAIGHT = 0.03
"""Maximum heading in radians of a car that has completed its lane change."""


@dataclass(frozen=True)
class Observation:
    """What the robot has observed: ``states [S, t, cars, 4]`` and ``controls [S, t, cars, 2]``, ``t >= 1``.

    The last row is the present: ``controls[:, -1]`` are the current controls, zero before the first step. The tensors
    are views into the simulation and must not be modified.
    """

    states: Tensor
    controls: Tensor


class Policy(Protocol):
    """Controls the robot in all sessions at once."""

    def __call__(self, observation: Observation) -> Tensor:
        """Return the robot's next controls ``[S, tau, 2] = (throttle, steer)``, which are rounded to allowed values."""


@dataclass(frozen=True)
class Sessions:
    """``S`` finished sessions of at most ``T`` rows; row ``t`` is time ``0.1 t`` seconds, row 0 the initial state.

    Attributes
    ----------
    scenario : Scenario
        The scenario.
    driver : Driver
        The driver.
    session, held_out : Tensor [S]
        Those of the initial states.
    states : Tensor [S, T, cars, 4]
        Car states. After the end of a session the last state repeats.
    controls : Tensor [S, T, cars, 2]
        The controls that led to each row; zero after the end of a session.
    cost : Tensor [S, T]
        The stage cost of each row; zero after the end of a session.
    length : Tensor [S]
        The number of valid rows.
    lane_change_start : Tensor [S]
        The first row with a sufficient gap, or -1.
    """

    scenario: traffic.Scenario
    driver: traffic.Driver
    session: Tensor
    held_out: Tensor
    states: Tensor
    controls: Tensor
    cost: Tensor
    length: Tensor
    lane_change_start: Tensor

    def __len__(self) -> int:
        return len(self.session)

    @property
    def valid(self) -> Tensor:
        """The rows before a session's end, bool ``[S, T]``."""
        return torch.arange(self.states.shape[1], device=self.length.device) < self.length[:, None]


@torch.no_grad()
def simulate(
    scenario: traffic.Scenario,
    driver: traffic.Driver,
    initial: traffic.InitialStates,
    policy: Policy,
    seed: int,
    tau: int = 3,
) -> Sessions:
    """Simulate all initial states against ``driver``.

    Phase 1 lasts until robot and human are ``gap_enough`` apart along the road. Then, if the scenario's robot swaps
    lanes, the lane-change controller drives both cars until both have swapped. Sessions end there or after
    ``max_steps`` steps. Cars that collide drive on (:func:`fedapps.tasks.driving.world.sessions.collided`).

    Parameters
    ----------
    scenario : Scenario
        The scenario.
    driver : Driver
        The driver.
    initial : InitialStates
        The initial states.
    policy : Policy
        Controls the robot. It is called every ``tau`` steps for all sessions together; its answers for sessions in
        phase 2 are ignored.
    seed : int
        The driver's noise is keyed by (seed, driver's name, session), so it does not depend on the robot or on the
        other sessions.
    tau : int
        Steps between calls of the policy (APFL: 3).
    """
    count, rows = len(initial), scenario.max_steps + 1
    states = initial.states.new_zeros(count, rows, scenario.cars, 4)
    controls = initial.states.new_zeros(count, rows, scenario.cars, 2)
    if scenario.gray_car:
        controls[:, 1:, GRAY, 0] = traffic.FRICTION  # its throttle compensates friction
    states[:, 0] = initial.states
    noise = _noise(driver, initial, scenario.max_steps, seed)
    memory = driver.memory(states[:, 0, HUMAN])
    start = initial.session.new_full((count,), -1)
    length = initial.session.new_full((count,), rows)
    held_speed = states[:, 0, :, 3]
    lanes = states.new_tensor((scenario.human_lane, scenario.robot_lane))
    plan = states.new_zeros(count, tau, 2)
    for t in range(rows):
        now = states[:, t]
        gap = (now[:, ROBOT, 1] - now[:, HUMAN, 1]).abs()
        opens = (start < 0) & (gap >= scenario.gap_enough)
        start = torch.where(opens, t, start)
        held_speed = torch.where(opens[:, None], now[..., 3], held_speed)
        swapping = (start >= 0) & scenario.robot_swaps
        settled = ((now[:, :2, 0] - lanes).abs() < IN_LANE) & (now[:, :2, 2].abs() < STRAIGHT)
        length = torch.where(swapping & settled.all(dim=1), length.clamp_max(t + 1), length)
        if t == rows - 1 or bool((length <= t + 1).all()):
            break
        if t % tau == 0:
            plan = traffic.quantise(policy(Observation(states[:, : t + 1], controls[:, : t + 1])))
        gray = now[:, GRAY] if scenario.gray_car else None
        human, memory = driver.control(now[:, HUMAN], now[:, ROBOT], gray, memory, noise[:, t], scenario.human_lane)
        phase_1 = torch.stack((plan[:, t % tau].to(now), human), dim=1)
        phase_2 = traffic.lane_change_control(now[:, :2], lanes, held_speed[:, :2])
        going = (length > t + 1)[:, None, None]
        controls[:, t + 1, :2] = torch.where(swapping[:, None, None], phase_2, phase_1)
        controls[:, t + 1] *= going
        states[:, t + 1] = torch.where(going, traffic.step(now, controls[:, t + 1]), now)
    used = int(length.max()) if count else 1
    states, controls = states[:, :used], controls[:, :used]
    cost = traffic.stage_cost(states[:, :, ROBOT], states[:, :, HUMAN], scenario.cost_floor)
    cost = cost * (torch.arange(used, device=length.device) < length[:, None])
    return Sessions(scenario, driver, initial.session, initial.held_out, states, controls, cost, length, start)


def _noise(driver: traffic.Driver, initial: traffic.InitialStates, steps: int, seed: int) -> Tensor:
    """Standard normal numbers ``[S, steps]``."""
    draws = [
        generator(seed, "traffic.noise", driver.name, session).standard_normal(steps, dtype=np.float32)
        for session in initial.session.tolist()
    ]
    array = np.array(draws, dtype=np.float32).reshape(len(draws), steps)
    return torch.from_numpy(array).to(initial.states)


CAR_LENGTH, CAR_WIDTH = 4.0, 2.0
"""Metres."""


def row_of_start(sessions: Sessions) -> Tensor:
    """Return the row ``[S]`` at which the lane change could start; a session's last one if it never could."""
    return torch.where(sessions.lane_change_start >= 0, sessions.lane_change_start, sessions.length - 1)


def mean_cost(sessions: Sessions) -> Tensor:
    """Return the mean stage cost ``[S]`` over the rows in which the policy drives, including the first row.

    The rows end with the start of the lane change, or with the session if there was none or if the scenario's robot
    never leaves its planner.
    """
    last = row_of_start(sessions) if sessions.scenario.robot_swaps else sessions.length - 1
    counted = torch.arange(sessions.cost.shape[1], device=last.device) <= last[:, None]
    return (sessions.cost * counted).sum(dim=1) / (last + 1)


def collided(sessions: Sessions) -> Tensor:
    """Return whether the robot ever overlapped another car, bool ``[S]``, as boxes of 4 m x 2 m, ignoring headings."""
    offset = (sessions.states[:, :, ROBOT + 1 :, :2] - sessions.states[:, :, None, ROBOT, :2]).abs()
    touching = (offset[..., 0] < CAR_WIDTH) & (offset[..., 1] < CAR_LENGTH)
    return (touching.any(dim=2) & sessions.valid).any(dim=1)


WORLD_FILE = "world.json"


@dataclass(frozen=True)
class World:
    """The content of ``world.json``: scenario, seed of initial states and noise, and the driver of each block."""

    scenario: traffic.Scenario
    seed: int
    drivers: Mapping[int, traffic.Driver]


def write_sessions(folder: Path, block: int, sessions: Sessions) -> Path:
    """Write the sessions of a ``block``'s driver, replacing an existing file, and return its path.

    It is ``folder/driver-<block>.csv.xz``. Trials are numbered from ``1000 * block``; held-out sessions are the test.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"driver-{block:02d}.csv.xz"
    lines = [",".join(_header(sessions.scenario.cars))]
    for index in range(len(sessions)):
        lines.extend(_rows(sessions, index, block))
    with lzma.open(path, "wt", encoding="utf-8", newline="\n") as file:
        file.write("\n".join(lines) + "\n")
    return path


def write_world(folder: Path, world: World) -> Path:
    """Write ``folder/world.json`` and return its path."""
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
    DataError
        The file is malformed.
    """
    path = folder / WORLD_FILE
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_bytes())
        drivers = {int(block): traffic.Driver(**taste) for block, taste in content["blocks"].items()}
        return World(traffic.SCENARIOS[content["scenario"]], int(content["seed"]), drivers)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise DataError(
            f"{path}: expected a scenario ({', '.join(traffic.SCENARIOS)}), a seed and blocks of drivers: {error!r}"
        ) from error


def _header(cars: int) -> list[str]:
    motion = [f"{name}{car}" for car in "rhg"[:cars] for name in ("x", "y", "vx", "vy", "ax", "ay")]
    recorded = ["trial", "trial_name", "block", "time_of_day_s", "human_ahead_at_end", "step", "t"]
    added = ["split", "session", "lane_change_start", "throttle_r", "steer_r", "throttle_h", "steer_h"]
    return [*recorded, *motion[:12], *added, *motion[12:]]


def _rows(sessions: Sessions, index: int, block: int) -> list[str]:
    split = "test" if sessions.held_out[index] else "train"
    length, session = int(sessions.length[index]), int(sessions.session[index])
    states, controls = sessions.states[index, :length], sessions.controls[index, :length]
    human_ahead = int(states[-1, HUMAN, 1] > states[-1, ROBOT, 1])
    start = int(sessions.lane_change_start[index])
    name = f"{sessions.scenario.name}-{block:02d}-{session:03d}"
    trial = f"{1000 * block + session},{name},{block},-1,{human_ahead}"
    motion = _motion(states)
    lines = []
    for row_number in range(length):
        cars = [",".join(f"{value:.4f}" for value in car) for car in motion[row_number]]
        pedals = ",".join(f"{value:.2f}" for value in controls[row_number, :2].flatten().tolist())
        row = [
            trial,
            f"{row_number},{row_number * traffic.DT:.1f}",
            *cars[:2],
            f"{split},{session},{start}",
            pedals,
            *cars[2:],
        ]
        lines.append(",".join(row))
    return lines


def _motion(states: Tensor) -> list[list[list[float]]]:
    """``[T][cars][6]``: x, y, vx, vy, ax, ay in the order of the file, from ``states [T, cars, 4]``."""
    speeds = traffic.velocity(states)
    accelerations = torch.zeros_like(speeds)
    accelerations[1:] = (speeds[1:] - speeds[:-1]) / traffic.DT
    values = torch.cat((states[..., :2].flip(-1), speeds.flip(-1), accelerations.flip(-1)), dim=-1)
    rows: list[list[list[float]]] = values.tolist()
    return rows
