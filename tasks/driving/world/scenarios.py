"""Initial states and rules of sessions: the lane swap of two cars, and the variant with three cars."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedapps.base.seeding import generator


@dataclass(frozen=True)
class Scenario:
    """A stretch of road and its rules. Lengths are in metres, speeds in m/s, durations in steps of 0.1 s.

    The robot starts in the lane at ``robot_lane`` and changes to that at ``human_lane``; the human does the reverse.

    * ``gap_enough``: longitudinal distance between them at which a lane change may start;
    * ``robot_swaps``: whether the robot then switches from its planner to the lane-change controller (phase 2);
    * ``max_steps``: maximum duration of a session;
    * ``gray_car``: whether a third car leads in the robot's lane, driving straight at a constant speed;
    * ``cost_floor``: ``C_low`` of APFL, Section IV-C; ``None`` for none;
    * ``sessions`` and ``held_out``: numbers of initial states in the paper, and of those held out for testing;
    * ``max_offset``, ``speeds``: ranges of the initial longitudinal offset human - robot, and of both speeds;
    * ``hard_offset``, ``hard_closing``: largest initial offset and speed difference of a held-out session, ``None`` if
      held-out sessions are drawn like the others;
    * ``gray_gap``, ``gray_speeds``: ranges of the gray car's lead over the robot, and of its speed.
    """

    name: str
    robot_lane: float = 0.0
    human_lane: float = 3.5
    gap_enough: float = 12.0
    robot_swaps: bool = True
    max_steps: int = 150
    gray_car: bool = False
    cost_floor: float | None = None
    sessions: int = 50
    held_out: int = 10
    max_offset: float = 8.0
    speeds: tuple[float, float] = (18.0, 22.0)
    hard_offset: float | None = 2.0
    hard_closing: float | None = 1.0
    gray_gap: tuple[float, float] = (18.0, 40.0)
    gray_speeds: tuple[float, float] = (19.0, 23.0)

    @property
    def cars(self) -> int:
        """The number of cars: the robot is 0, the human 1, the gray car 2."""
        return 3 if self.gray_car else 2


LANE_SWAP = Scenario("lane-swap")
"""APFL, Sec. IV-B: two cars swap lanes; 50 initial states, the last 10 of them challenging."""

THREE_CARS = Scenario(
    "three-cars",
    robot_swaps=False,
    max_steps=60,
    gray_car=True,
    cost_floor=200.0,  # about J when the human is 15 m away and the gap opens at 3 m/s
    sessions=54,
    held_out=9,
    hard_offset=None,
    hard_closing=None,
)
"""APFL, Sec. IV-C: a gray car leads in the robot's lane and the robot keeps it; 54 uniform starts."""

SCENARIOS = {scenario.name: scenario for scenario in (LANE_SWAP, THREE_CARS)}


@dataclass(frozen=True)
class InitialStates:
    """Initial states of sessions.

    Attributes
    ----------
    states : Tensor [S, cars, 4]
        Car states, float32.
    session : Tensor [S]
        The number of each initial state, int64. It keys the driver's noise, so a session meets the same human when
        simulated alone or with another robot.
    held_out : Tensor [S]
        Whether the session is held out for testing, bool.
    """

    states: Tensor
    session: Tensor
    held_out: Tensor

    def __len__(self) -> int:
        return len(self.session)

    def __getitem__(self, chosen: Tensor | slice) -> "InitialStates":
        """Select initial states by a boolean mask, an index tensor or a slice."""
        return replace(self, states=self.states[chosen], session=self.session[chosen], held_out=self.held_out[chosen])


def initial_states(scenario: Scenario, count: int, seed: int) -> InitialStates:
    """Draw ``count`` initial states of ``scenario``, the same for every driver; the last ones are held out for testing.

    The held-out share is that of the scenario (10 of 50, 9 of 54), rounded down, but at least 1 if ``count > 1``.
    Session ``i`` depends on ``count`` only in whether it is held out. The robot starts at ``y = 0``.
    """
    if count < 0:
        raise ValueError(f"count = {count}: must be at least 0")
    held_out = max(count * scenario.held_out // scenario.sessions, min(1, count - 1)) if count else 0
    is_held_out = torch.arange(count) >= count - held_out
    starts = [_start(scenario, seed, i, hard=bool(is_held_out[i])) for i in range(count)]
    states = torch.tensor(np.array(starts).reshape(count, scenario.cars, 4), dtype=torch.float32)
    return InitialStates(states, torch.arange(count), is_held_out)


def _start(scenario: Scenario, seed: int, session: int, *, hard: bool) -> list[list[float]]:
    rng = generator(seed, "traffic.start", scenario.name, session)
    offset = rng.uniform(-1.0, 1.0) * scenario.max_offset
    robot_speed, human_speed = rng.uniform(*scenario.speeds, size=2)
    if hard and scenario.hard_offset is not None and scenario.hard_closing is not None:
        offset *= scenario.hard_offset / scenario.max_offset
        spread = scenario.speeds[1] - scenario.speeds[0]
        human_speed = robot_speed + (human_speed - robot_speed) * scenario.hard_closing / spread
    cars = [
        [scenario.robot_lane, 0.0, 0.0, robot_speed],
        [scenario.human_lane, offset, 0.0, human_speed],
    ]
    if scenario.gray_car:
        cars.append([scenario.robot_lane, rng.uniform(*scenario.gray_gap), 0.0, rng.uniform(*scenario.gray_speeds)])
    return cars
