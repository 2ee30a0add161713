"""The robot's controller, and closed-loop sessions of a planning robot with a node's driver (APFL, Figures 8 and 9)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from fedapps.tasks.answers import finite_answer, finite_numbers
from fedapps.tasks.base import Metrics
from fedapps.tasks.driving.world.sessions import (
    HUMAN,
    ROBOT,
    Sessions,
    World,
    collided,
    mean_cost,
    row_of_start,
    simulate,
    write_sessions,
    write_world,
)
from fedapps.tasks.driving.world.traffic import (
    DT,
    Driver,
    InitialStates,
    Scenario,
    initial_states,
    lane_change_control,
    lane_swap_drivers,
    quantise,
)
from numpy.typing import ArrayLike
from torch import Tensor

from fedapps.base.errors import DataError
from fedapps.base.seeding import TorchState, torch_seed

from .data import Session
from .options import SETTINGS, Options, Setting, to_bicycle, to_motion
from .planner import TAU, Forecast, HoldLastControl, Predictor, candidate_plans, mpc_policy, next_controls

_DRAWN = 3  # sessions, and forecasts of each


class Controller:
    """Drives the robot of one encounter, or of S encounters at once, as the closed loop of an evaluation does.

    Call :meth:`step` every 0.1 s. It plans with the forecast every :data:`~fedapps.tasks.driving.planner.TAU` steps
    until robot and human are far enough apart along the road; from then on, if the scenario's robot swaps lanes, it
    steers into the other lane (APFL, Section IV-B).

    Parameters
    ----------
    forecast : Forecast
        The predictor of the human.
    seed : int
        Seed of the samples of the latent variable.

    Raises
    ------
    DataError
        The scenario is "trials" or "pedestrians": recordings have no planner.
    """

    def __init__(self, forecast: Forecast, seed: int = 0) -> None:
        self.forecast, self.setting, self.options = forecast, forecast.setting, forecast.options
        if self.setting.scenario is None:
            raise DataError(
                f"driving.scenario = {self.options.scenario!r} is recorded: it has no planner; use forecast() or "
                "forecast_people()"
            )
        self.scenario = self.setting.scenario
        self._candidates = candidate_plans(self.options.candidates, max(self.options.horizon, TAU))
        with torch_seed(seed, "driving", "closed-loop"):
            self._draws = TorchState()
        self.steps = 0
        self._motions = self._controls = torch.empty(0)
        self._plan = self._apart = self._held_speed = torch.empty(0)

    def use(self, forecast: Forecast) -> None:
        """Plan with the forecasts of another model, such as a newer one, from the next plan on; what was seen stays.

        Raises
        ------
        DataError
            It was trained with other options.
        """
        if forecast.options != self.options:
            raise DataError("the model was trained with other options of driving.*: make a new controller for it")
        self.forecast = forecast

    @torch.no_grad()
    def step(self, motion: ArrayLike | Tensor, control: ArrayLike | Tensor) -> np.ndarray:
        """Return the robot's control for the next 0.1 s.

        Parameters
        ----------
        motion : array-like [cars, 4] or [S, cars, 4]
            Where the cars are: x, y, vx, vy in m and m/s, x lateral and y along the road. The robot is the first car,
            the human the second, the gray car the third if there is one.
        control : array-like [cars, 2] or [S, cars, 2]
            Throttle (m/s²) and steering angle (radians) of the last 0.1 s that led there; zeros at first, and for the
            gray car.

        Returns
        -------
        float32 ndarray [2] or [S, 2]
            Throttle, one of -1.5, 0 and 1.5 m/s², and steering angle, one of -0.04, 0 and 0.04 radians.

        Raises
        ------
        DataError
            A shape is wrong, differs from that of the step before, or a number is not finite, also of the forecast.
        """
        now, acting = self._checked(motion, 4, "motion"), self._checked(control, 2, "control")
        single = now.ndim == 2
        now, acting = (each[None] if each.ndim == 2 else each for each in (now, acting))
        if len(now) != len(acting):
            raise DataError(f"motion of {len(now)} encounters and control of {len(acting)}: expected as many")
        if not self.steps:
            self._motions, self._controls = now[:, None], acting[:, None]
            self._apart = torch.zeros(len(now), dtype=torch.bool)
            self._held_speed = torch.zeros(len(now))
        elif now.shape != self._motions[:, 0].shape:
            raise DataError(
                f"motion of {len(now)} encounters after {len(self._motions)}: make a new controller for others"
            )
        else:
            most = self.options.history
            self._motions = torch.cat((self._motions, now[:, None]), dim=1)[:, -most:]
            self._controls = torch.cat((self._controls, acting[:, None]), dim=1)[:, -most:]
        self._note_gap(now)
        if self.steps % TAU == 0:
            self._plan = self._planned()
        answer = self._plan[:, self.steps % TAU]
        if self.scenario.robot_swaps:
            robot = to_bicycle(now[:, ROBOT])
            swapping = lane_change_control(robot, self.scenario.human_lane, self._held_speed)
            answer = torch.where(self._apart[:, None], swapping, answer)
        self.steps += 1
        following: np.ndarray = answer.numpy().copy()
        return following[0] if single else following

    def _checked(self, numbers: ArrayLike | Tensor, width: int, what: str) -> Tensor:
        tensor = torch.tensor(finite_numbers(numbers, what), dtype=torch.float32)  # a copy, which stays as it is
        if tensor.ndim not in (2, 3) or tensor.shape[-2:] != (self.setting.cars, width):
            cars = self.setting.cars
            raise DataError(
                f"{what} of shape {list(tensor.shape)}; expected [{cars}, {width}], or [S, {cars}, {width}] for S "
                "encounters"
            )
        finite_numbers(tensor, what)  # as float32
        return tensor

    def _note_gap(self, now: Tensor) -> None:
        gap = (now[:, ROBOT, 1] - now[:, HUMAN, 1]).abs()
        opens = ~self._apart & (gap >= self.scenario.gap_enough)
        self._held_speed = torch.where(opens, to_bicycle(now[:, ROBOT])[:, 3], self._held_speed)
        self._apart = self._apart | opens

    def _planned(self) -> Tensor:
        plan = self._motions.new_zeros(len(self._motions), TAU, 2)
        planning = ~self._apart if self.scenario.robot_swaps else torch.ones_like(self._apart)
        if bool(planning.any()):
            motions, controls = self._motions[planning], self._controls[planning]
            with self._draws:
                plan[planning] = next_controls(self._forecast, self.setting, motions, controls, self._candidates)
        return quantise(plan)

    def _forecast(self, motions: Tensor, controls: Tensor, plans: Tensor) -> Tensor:
        expected = self.forecast(motions, controls, plans)
        finite_answer(expected.numpy(), "forecast")
        return expected


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
        of_split = [session for session in sessions if session.split == split]
        cars = sessions[0].states.shape[1]
        motions = np.array([session.states[0] for session in of_split], dtype=np.float32).reshape(-1, cars, 4)
        numbers = torch.tensor([session.number for session in of_split], dtype=torch.int64)
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
        The scenario is recorded.
    """
    setting = SETTINGS[options.scenario]
    scenario = setting.scenario
    if scenario is None:
        raise DataError(
            f"driving.scenario = {options.scenario!r} is recorded, not simulated: set data-dir to its folder"
        )
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
    names = ("cost", "time_to_lane_change", "started", "distance_at_start", "collided")
    lists: dict[str, list[float]] = {name: [] for name in names}
    for sessions in batches:
        rows = row_of_start(sessions)
        cars = sessions.states[torch.arange(len(sessions)), rows]
        distance = torch.linalg.vector_norm(cars[:, ROBOT, :2] - cars[:, HUMAN, :2], dim=-1)
        lists["cost"] += mean_cost(sessions).tolist()
        lists["time_to_lane_change"] += (rows * DT).tolist()
        lists["started"] += (sessions.lane_change_start >= 0).float().tolist()
        lists["distance_at_start"] += distance.tolist()
        lists["collided"] += collided(sessions).float().tolist()
    metrics: Metrics = {f"{prefix}.{name}": values for name, values in lists.items()}
    named = {"started": "start_rate", "collided": "collision_rate"}
    for name, values in lists.items():
        if values:
            metrics[f"{prefix}.{named.get(name, 'mean_' + name)}"] = float(np.mean(values))
    return metrics


def traces(setting: Setting, forecast: Forecast, sessions: Sessions) -> dict[str, np.ndarray]:
    """Return arrays that show three sessions from above, each with three forecasts; x is lateral, y longitudinal, in m.

    Parameters
    ----------
    setting : Setting
        The scenario.
    forecast : Forecast
        The robot's predictor.
    sessions : Sessions
        Simulated sessions, of which the first ones are drawn.

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
    for i in range(min(_DRAWN, len(sessions))):
        length, start = int(sessions.length[i]), int(sessions.lane_change_start[i])
        end = (start if start > 0 else length) - 1
        first = min(options.min_history, options.history) - 1
        steps = np.unique(np.linspace(min(first, end), end, _DRAWN).astype(int)) // TAU * TAU
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
