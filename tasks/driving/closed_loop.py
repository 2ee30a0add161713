"""Closed-loop sessions of a planning robot with a node's driver, and their outcomes (APFL, Figures 8 and 9)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from fedapps.tasks.base import DataError, Metrics
from fedapps.tasks.driving.world.drivers import Driver, lane_swap_drivers
from fedapps.tasks.driving.world.files import World, write_sessions, write_world
from fedapps.tasks.driving.world.scenarios import InitialStates, Scenario, initial_states
from fedapps.tasks.driving.world.sessions import (
    HUMAN,
    ROBOT,
    Sessions,
    censored,
    collided,
    lane_change_time,
    mean_cost,
    simulate,
    start_distance,
)

from .data import Session
from .options import Options
from .planner import TAU, Forecast, HoldLastControl, Predictor, mpc_policy
from .setting import SETTINGS, Setting, to_bicycle, to_motion


@dataclass(frozen=True)
class Encounters:
    """A simulated driver and the initial states of its sessions.

    Attributes
    ----------
    driver : Driver
        The driver.
    seed : int
        Seed of the driver's noise, which does not depend on the robot.
    train, test : InitialStates
        The initial states of the training and the held-out sessions.
    """

    driver: Driver
    seed: int
    train: InitialStates
    test: InitialStates


def encounters(driver: Driver, seed: int, sessions: Sequence[Session]) -> Encounters:
    """Return the driver with the initial states of recorded sessions."""

    def starts(split: str) -> InitialStates:
        chosen = [session for session in sessions if session.split == split]
        cars = sessions[0].states.shape[1]
        motions = np.array([session.states[0] for session in chosen], dtype=np.float32).reshape(-1, cars, 4)
        numbers = torch.tensor([session.number for session in chosen], dtype=torch.int64)
        return InitialStates(
            to_bicycle(torch.from_numpy(motions)), numbers, torch.full_like(numbers, split == "test") > 0
        )

    return Encounters(driver, seed, starts("train"), starts("test"))


def drive(setting: Setting, options: Options, predictor: Predictor, who: Encounters, starts: InitialStates) -> Sessions:
    """Simulate sessions from ``starts`` in which the robot plans with ``predictor``."""
    assert setting.scenario is not None
    policy = mpc_policy(predictor, setting, options)
    return simulate(setting.scenario, who.driver, starts, policy, who.seed, TAU)


def simulate_world(folder: Path, options: Options, num_drivers: int, seed: int) -> None:
    """Write sessions whose robot expects the human to keep its control. All drivers meet the same initial states.

    Raises
    ------
    DataError
        The scenario is "trials", which is recorded.
    """
    setting = SETTINGS[options.scenario]
    scenario = setting.scenario
    if scenario is None:
        raise DataError("scenario = 'trials' is recorded, not simulated: set data-dir to the folder of its files")
    drivers = lane_swap_drivers(num_drivers, options.driver_style)
    starts = _starts(scenario, *options.sessions(), seed)
    predictor = HoldLastControl(setting)
    for block, driver in enumerate(drivers):
        who = Encounters(driver, seed, starts, starts)
        write_sessions(folder, block, drive(setting, options, predictor, who, starts))
    write_world(folder, World(scenario, seed, dict(enumerate(drivers))))


def _starts(scenario: Scenario, train: int, test: int, seed: int) -> InitialStates:
    """``train`` training and ``test`` held-out initial states, whatever share the scenario holds out."""
    count = train + test
    while True:
        starts = initial_states(scenario, count, seed)
        held_out = starts.held_out
        if int(held_out.sum()) >= test and int((~held_out).sum()) >= train:
            break
        count += 1
    training = torch.nonzero(~held_out)[:train, 0]
    return starts[torch.cat((training, torch.nonzero(held_out)[:test, 0]))]


def as_sessions(simulated: Sessions, split: str) -> list[Session]:
    """Convert simulated sessions to the form in which files are read."""
    motions, controls = to_motion(simulated.states).double().numpy(), simulated.controls.double().numpy()
    return [
        Session(int(number), split, motions[i, :length], controls[i, :length])
        for i, (number, length) in enumerate(zip(simulated.session, simulated.length.tolist(), strict=True))
    ]


def session_metrics(prefix: str, batches: Sequence[Sessions]) -> Metrics:
    """Return ``<prefix>.<quantity>`` as lists with one number per session, and the means of the lists.

    The quantities are ``cost`` (mean J until the lane change starts), ``time_to_lane_change`` (s; the length of the
    session if it never starts), ``started`` (0 or 1), ``distance_at_start`` (m between the cars; at the end of the
    session if the lane change never starts) and ``collided`` (0 or 1). The means are ``mean_cost``, ``start_rate`` and
    so on.
    """
    lists: dict[str, list[float]] = {
        "cost": [],
        "time_to_lane_change": [],
        "started": [],
        "distance_at_start": [],
        "collided": [],
    }
    for sessions in batches:
        last = sessions.states[torch.arange(len(sessions)), sessions.length - 1]
        at_end = torch.linalg.vector_norm(last[:, ROBOT, :2] - last[:, HUMAN, :2], dim=-1)
        never = censored(sessions)
        lists["cost"] += mean_cost(sessions).tolist()
        lists["time_to_lane_change"] += lane_change_time(sessions).tolist()
        lists["started"] += (~never).float().tolist()
        lists["distance_at_start"] += torch.where(never, at_end, start_distance(sessions)).tolist()
        lists["collided"] += collided(sessions).float().tolist()
    metrics: Metrics = {f"{prefix}.{name}": values for name, values in lists.items()}
    named = {"started": "start_rate", "collided": "collision_rate"}
    for name, values in lists.items():
        if values:
            metrics[f"{prefix}.{named.get(name, 'mean_' + name)}"] = float(np.mean(values))
    return metrics


def traces(
    setting: Setting, forecast: Forecast, sessions: Sessions, count: int = 3, replans: int = 3
) -> dict[str, np.ndarray]:
    """Return arrays that show sessions from above; x is lateral, y longitudinal, in metres.

    Parameters
    ----------
    setting : Setting
        The scenario.
    forecast : Forecast
        The robot's predictor.
    sessions : Sessions
        Simulated sessions.
    count : int
        The number of sessions to draw, from the first on.
    replans : int
        The number of forecasts to draw per session.

    Returns
    -------
    dict of str to ndarray
        ``trace.<i>.robot``, ``.human`` and, if there is a gray car, ``.gray``: paths ``[T, 2]``. ``.predicted [P, K, H,
        2]``: human paths forecast at the steps ``.predicted_at [P]``, given what the robot did next.
        ``.lane_change_start``: a step, or -1 if there is none. ``.lanes [2]``: x of the initial lanes of robot and
        human.
    """
    scenario, options = sessions.scenario, forecast.options
    motions = to_motion(sessions.states)
    drawn: dict[str, np.ndarray] = {}
    for i in range(min(count, len(sessions))):
        length, start = int(sessions.length[i]), int(sessions.lane_change_start[i])
        end = (start if start > 0 else length) - 1
        first = min(options.min_history, options.history) - 1
        steps = np.unique(np.linspace(min(first, end), end, replans).astype(int)) // TAU * TAU
        steps = np.unique(np.maximum(steps, -(-first // TAU) * TAU))
        predicted = []
        for step in steps:
            done = sessions.controls[i, step + 1 : step + 1 + options.horizon, ROBOT]
            plan = torch.zeros(options.horizon, 2)
            plan[: len(done)] = done / done.new_tensor(setting.control)
            seen = slice(0, int(step) + 1)
            human = forecast(motions[i : i + 1, seen], sessions.controls[i : i + 1, seen], plan[None, None])
            predicted.append(human[0, 0, :, :, :2].numpy())
        paths = {"robot": ROBOT, "human": HUMAN} | ({"gray": 2} if setting.cars > 2 else {})
        for name, car in paths.items():
            drawn[f"trace.{i}.{name}"] = sessions.states[i, :length, car, :2].numpy().copy()
        drawn[f"trace.{i}.predicted"] = np.stack(predicted)
        drawn[f"trace.{i}.predicted_at"] = steps
        drawn[f"trace.{i}.lane_change_start"] = np.asarray(start)
        drawn[f"trace.{i}.lanes"] = np.array([scenario.robot_lane, scenario.human_lane])
    return drawn
