"""The robot's controller with a forecaster: the planner before the lane change, then the lane-change controller."""

import numpy as np
import torch
from fedapps.tasks.answers import finite_answer, finite_numbers
from fedapps.tasks.driving.world.drivers import lane_change_control
from fedapps.tasks.driving.world.dynamics import quantise
from fedapps.tasks.driving.world.sessions import HUMAN, ROBOT
from numpy.typing import ArrayLike
from torch import Tensor

from fedapps.base.errors import DataError
from fedapps.base.seeding import TorchState, torch_seed

from .planner import TAU, Forecast, candidate_plans, next_controls
from .setting import to_bicycle


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
        The scenario is "trials": recorded trials have no planner.
    """

    def __init__(self, forecast: Forecast, seed: int = 0) -> None:
        self.forecast, self.setting, self.options = forecast, forecast.setting, forecast.options
        if self.setting.scenario is None:
            raise DataError("driving.scenario = 'trials' is recorded: it has no planner; use forecast()")
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
        chosen = self._plan[:, self.steps % TAU]
        if self.scenario.robot_swaps:
            robot = to_bicycle(now[:, ROBOT])
            swapping = lane_change_control(robot, self.scenario.human_lane, self._held_speed)
            chosen = torch.where(self._apart[:, None], swapping, chosen)
        self.steps += 1
        following: np.ndarray = chosen.numpy().copy()
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
