"""Options of the driving task, and the constants of a scenario: the scales of the inputs and the dynamics of a car.

All nodes share the constants. Inputs are standardised by these constants and not by statistics of the data, so that a
number means the same in every node's model and no statistic of a node's data is shared.
"""

from dataclasses import dataclass

import torch
from fedapps.tasks.driving.world.traffic import (
    SCENARIOS,
    STEERS,
    THROTTLES,
    Scenario,
    point_mass_rollout,
    rollout,
    velocity,
)
from torch import Tensor

from fedapps.base.errors import DataError
from fedapps.base.options import option, split_names

WALKING_STEP = 0.4  # seconds, of recorded pedestrians


@dataclass(frozen=True)
class Setting:
    """A scenario as the forecaster sees it. Lengths are in m, speeds in m/s; the cars are robot, human and gray car.

    A *motion* is ``[..., 4]``: x, y, vx, vy, with x lateral and y longitudinal. Controls are divided by ``control``:
    throttle and steering of a bicycle, or lateral and longitudinal acceleration of a point mass.
    """

    name: str
    cars: int
    bicycle: bool
    middle: float  # x of the line between the two lanes
    cruise: float  # speed that is standardised to 0
    control: tuple[float, float]
    lateral: float = 1.75  # half a lane
    drift: float = 2.0  # lateral speed that is standardised to 1
    speed: float = 3.0  # longitudinal speed difference that is standardised to 1
    gap: float = 10.0

    @property
    def features(self) -> int:
        """Numbers per step of history: 3 per car, a gap per other car, 4 controls, 1 mask."""
        return 3 * self.cars + (self.cars - 1) + 4 + 1

    @property
    def scenario(self) -> Scenario | None:
        """The simulated scenario, ``None`` for recorded trials."""
        return SCENARIOS.get(self.name)

    def describe(self, motions: Tensor, controls: Tensor) -> Tensor:
        """Return the features ``[..., features]`` of motions ``[..., cars, 4]`` and controls ``[..., cars, 2]``.

        Longitudinal positions are gaps to the human at the same moment, so features do not depend on the position on
        the road. The last feature, the mask, is 1.
        """
        x, y, vx, vy = motions.unbind(-1)
        others = [car for car in range(self.cars) if car != 1]
        acting = controls[..., :2, :] / controls.new_tensor(self.control)
        parts = (
            (x - self.middle) / self.lateral,
            vx / self.drift,
            (vy - self.cruise) / self.speed,
            (y[..., others] - y[..., 1:2]) / self.gap,
            acting.flatten(-2),
            torch.ones_like(x[..., :1]),
        )
        return torch.cat(parts, dim=-1)

    def roll_out(self, motion: Tensor, controls: Tensor) -> Tensor:
        """Return the motions ``[..., H, 4]`` after each of the standardised ``controls [..., H, 2]``."""
        scaled = controls * controls.new_tensor(self.control)
        if self.name == "pedestrians":
            # a velocity is the difference of positions over a step, so that no acceleration repeats the last step
            speeds = motion[..., None, 2:] + torch.cumsum(scaled * WALKING_STEP, dim=-2)
            places = motion[..., None, :2] + torch.cumsum(speeds * WALKING_STEP, dim=-2)
            return torch.cat((places, speeds), dim=-1)
        if not self.bicycle:
            return point_mass_rollout(motion, scaled)
        return to_motion(rollout(to_bicycle(motion), scaled))


def to_motion(bicycle: Tensor) -> Tensor:
    """Convert bicycle states ``(x, y, heading, speed)`` to motions ``(x, y, vx, vy)``, both ``[..., 4]``."""
    return torch.cat((bicycle[..., :2], velocity(bicycle)), dim=-1)


def to_bicycle(motion: Tensor) -> Tensor:
    """Convert motions to bicycle states, the inverse of :func:`to_motion`; a standing car faces along the road."""
    heading = torch.atan2(motion[..., 2], motion[..., 3])
    speed = torch.linalg.vector_norm(motion[..., 2:], dim=-1)
    return torch.cat((motion[..., :2], heading[..., None], speed[..., None]), dim=-1)


_PEDALS = (THROTTLES[-1], STEERS[-1])
SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("lane-swap", cars=2, bicycle=True, middle=1.75, cruise=20.0, control=_PEDALS),
        Setting("three-cars", cars=3, bicycle=True, middle=1.75, cruise=20.0, control=_PEDALS),
        Setting("trials", cars=2, bicycle=False, middle=0.0, cruise=28.0, control=(5.0, 6.0), lateral=2.13),
        Setting("pedestrians", 2, False, 0.0, 1.2, (1.5, 1.5), lateral=2.0, drift=0.5, speed=0.5, gap=3.0),
    )
}
#: The places of the recorded pedestrians by the names of the literature, and their recordings.
PLACES = {
    "eth": ("biwi_eth",),
    "hotel": ("biwi_hotel",),
    "univ": ("students001", "students003"),
    "zara1": ("crowds_zara01",),
    "zara2": ("crowds_zara02",),
    "none": (),
}


@dataclass(frozen=True)
class Road:
    """What recorded trials do not say themselves. The defaults are those of the published trials.

    Parameters
    ----------
    lane_line : float
        y in metres, as in the file, of the line between the lane of the robot and that of the human.
    demonstrations : frozenset of int
        Blocks that belong to no driver, and are left out.
    """

    lane_line: float = -4.0
    demonstrations: frozenset[int] = frozenset([99])


@dataclass(frozen=True)
class Options:
    """Options of the task "driving". Durations are in steps of 0.1 s, for pedestrians 0.4 s."""

    scenario: str = option(
        "lane-swap",
        "lane-swap: simulated, two cars swap lanes; three-cars: simulated, with a third car that drives straight "
        "ahead; trials: recorded trials of people with a robot; pedestrians: recorded people, as in ETH and UCY",
        choices=tuple(SETTINGS),
        data=True,
    )
    posterior: str = option(
        "literal",
        "literal: infer the latent variable from history and robot future, as in the paper's Figure 6; cvae: also "
        "train a posterior that sees the human's future, with the literal encoder as learned prior",
        choices=("literal", "cvae"),
    )
    driver_style: str = option(
        "threshold",
        "Effect of a simulated driver's risk tolerance: threshold shifts the distance at which it overtakes; "
        "literal is the formula printed in the paper, in which only the sign matters",
        choices=("threshold", "literal"),
        data=True,
    )
    lane_line: float = option(
        Road.lane_line,
        "y in metres, in the files of recorded trials, of the line between the lanes of robot and human, which start "
        "on different sides of it",
        data=True,
    )
    demonstrations: str = option(
        "99",
        "Blocks of recorded trials that belong to no driver and are left out, separated by commas; '' = none",
        data=True,
    )
    left_out: str = option(
        "eth",
        "Place of the recorded pedestrians on which all models are tested, and none is trained; none: for recordings "
        "of one's own",
        choices=tuple(PLACES),
        data=True,
    )
    history: int = option(10, "Past steps that the forecaster sees", minimum=1, data=True)
    min_history: int = option(
        5, "Minimum number of past steps of a window; missing steps are masked", minimum=1, data=True
    )
    horizon: int = option(20, "Future steps to forecast and to plan (H)", minimum=1, data=True)
    latent: int = option(8, "Dimension of the latent variable z", minimum=1)
    hidden: int = option(32, "Units of each LSTM", minimum=1)
    loss: str = option(
        "controls",
        "Error of a forecast in the loss: controls, the mean squared error of standardised controls, as in the paper; "
        "path, the mean distance of the forecast positions in m",
        choices=("controls", "path"),
    )
    kl_weight: float = option(0.05, "Weight of the KL term in the loss; 0 = reconstruction only", minimum=0.0)
    window_stride: int = option(3, "Steps between consecutive windows of a session", minimum=1)
    samples: int = option(8, "Samples of z per forecast (K)", minimum=1)
    candidates: str = option(
        "hold",
        "Candidate plans of the robot: hold keeps each of 9 controls over the horizon; blocks tries all 729 "
        "sequences of 3 controls and holds the last one",
        choices=("hold", "blocks"),
    )
    non_proactive: str = option(
        "constant-velocity",
        "How the baseline robot without a forecaster predicts the human: constant-velocity or hold-control (the "
        "human keeps its current control)",
        choices=("constant-velocity", "hold-control"),
    )
    context: str = option(
        "state", "Additional input of the decoder: state (the current joint state) or none", choices=("state", "none")
    )
    sessions_train: int = option(0, "Training sessions per simulated driver; 0 = as in the paper", minimum=0, data=True)
    sessions_test: int = option(0, "Test sessions per simulated driver; 0 = as in the paper", minimum=0, data=True)
    validation_share: float = option(
        0.0,
        "Share of a driver's training sessions held out for validation, the last ones, if the files name none",
        minimum=0,
        maximum=0.9,
    )

    @property
    def road(self) -> Road:
        """What recorded trials do not say themselves.

        Raises
        ------
        DataError
            A block in ``demonstrations`` is no whole number.
        """
        blocks = split_names(self.demonstrations)
        if wrong := [block for block in blocks if not block.isdecimal()]:
            raise DataError(
                f"driving.demonstrations = {self.demonstrations!r}: {wrong[0]!r} is no block; list the numbers of "
                "blocks, separated by commas"
            )
        return Road(self.lane_line, frozenset(map(int, blocks)))

    def moments(self, steps: int) -> range:
        """Return the steps, counted from 0, at which a session of ``steps`` steps has a window; none if it is short."""
        return range(min(self.min_history, self.history) - 1, steps - self.horizon, self.window_stride)

    def sessions(self) -> tuple[int, int]:
        """Return how many training and test sessions a simulated driver has; the paper's numbers by default."""
        scenario = SCENARIOS[self.scenario]
        return self.sessions_train or scenario.sessions - scenario.held_out, self.sessions_test or scenario.held_out
