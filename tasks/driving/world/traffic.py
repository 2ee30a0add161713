"""Cars and their drivers: motion and cost of a car, initial states and rules of sessions, and the synthetic human.

A car's state is ``[..., 4] = (x, y, heading, speed)``: ``x`` lateral and ``y`` longitudinal in metres, ``heading`` in
radians from the ``+y`` axis towards ``+x`` (0 drives straight along the road), ``speed`` in m/s, never negative. A
control is ``[..., 2] = (throttle, steer)``: m/s² and radians at the front wheel; positive steer turns towards ``+x``. A
control is held for one step of :data:`DT` seconds. The cost is what the robot's planner minimises before the lane
change (APFL, Sections IV-B and IV-C).

Reference: CARLO (Cao et al., "Reinforcement Learning based Control of Imitative Policies for Near-Accident Driving",
RSS 2020); the bicycle is that of Kong et al., IV 2015, with the centre of mass midway.

The synthetic driver is that of APFL, Section IV-C; it overtakes or yields according to its risk tolerance. In phase 2 a
static LQR steers a car into its target lane and keeps its speed (Section IV-B). People hardly differ once a lane change
has begun, so the human car uses the same controller as the robot.
"""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from scipy.linalg import solve_discrete_are
from torch import Tensor

from fedapps.base.seeding import generator

DT = 0.1
"""Seconds per step."""
THROTTLES = (-1.5, 0.0, 1.5)
"""The allowed throttles, m/s² (APFL, Section IV-B)."""
STEERS = (-0.04, 0.0, 0.04)
"""The allowed steering angles, radians (APFL, Section IV-B)."""
FRICTION = 0.06
"""Deceleration without throttle, m/s²."""
REAR_AXLE = 2.0
"""Metres from the centre of mass to either axle of a 4 m car."""
ALPHA = -3.0
"""Weight of the longitudinal term; it is negative, so that opening the gap lowers the cost."""
BETA = 5000.0
"""Weight of the proximity term, in metres."""
CLOSEST = 0.1
"""Minimum distance in metres between cars in the cost, which keeps the cost finite."""


def step(state: Tensor, control: Tensor) -> Tensor:
    """Return the state ``[..., 4]`` one step after ``state [..., 4]`` under ``control [..., 2]``; shapes broadcast."""
    x, y, heading, speed = state.unbind(-1)
    throttle, steer = control.unbind(-1)
    slip = torch.atan(0.5 * torch.tan(steer))
    new_speed = (speed + (throttle - FRICTION) * DT).clamp_min(0.0)
    distance = 0.5 * (speed + new_speed) * DT
    new_heading = heading + distance / REAR_AXLE * torch.sin(slip)
    course = 0.5 * (heading + new_heading) + slip
    x, y = x + distance * torch.sin(course), y + distance * torch.cos(course)
    return torch.stack(torch.broadcast_tensors(x, y, new_heading, new_speed), dim=-1)


def rollout(state: Tensor, controls: Tensor) -> Tensor:
    """Return the states ``[..., T, 4]`` after each of ``controls [..., T, 2]``, from ``state [..., 4]``.

    The result equals ``T`` calls of :func:`step` up to rounding, but needs no loop and is differentiable. Leading
    dimensions broadcast, so ``state[:, None]`` meets many candidate sequences.
    """
    x, y, heading, speed = (part.unsqueeze(-1) for part in state.unbind(-1))
    throttle, steer = controls.unbind(-1)
    slip = torch.atan(0.5 * torch.tan(steer))
    unclipped = speed + torch.cumsum((throttle - FRICTION) * DT, dim=-1)
    # max(0, .) at every step in closed form (Lindley's recursion): subtract the running minimum below zero
    speeds = unclipped - torch.cummin(unclipped, dim=-1).values.clamp_max(0.0)
    distance = 0.5 * DT * (speeds + _before(speed, speeds))
    headings = heading + torch.cumsum(distance / REAR_AXLE * torch.sin(slip), dim=-1)
    course = 0.5 * (headings + _before(heading, headings)) + slip
    xs = x + torch.cumsum(distance * torch.sin(course), dim=-1)
    ys = y + torch.cumsum(distance * torch.cos(course), dim=-1)
    return torch.stack((xs, ys, headings, speeds), dim=-1)


def velocity(state: Tensor) -> Tensor:
    """Return ``[..., 2] = (vx, vy)`` in m/s, lateral then longitudinal, of ``state [..., 4]``."""
    heading, speed = state[..., 2], state[..., 3]
    return torch.stack((speed * torch.sin(heading), speed * torch.cos(heading)), dim=-1)


def point_mass_rollout(state: Tensor, controls: Tensor) -> Tensor:
    """Return the states ``[..., T, 4] = (x, y, vx, vy)`` of a double integrator, from a ``state [..., 4]`` of the same
    form.

    ``controls [..., T, 2] = (ax, ay)`` in m/s² are held for one step each. This is the model of recorded trials, whose
    controls are accelerations.
    """
    position, speed = state[..., None, :2], state[..., None, 2:]
    speeds = speed + torch.cumsum(controls * DT, dim=-2)
    before = torch.cat((speed.expand_as(speeds[..., :1, :]), speeds[..., :-1, :]), dim=-2)
    positions = position + torch.cumsum(0.5 * DT * (before + speeds), dim=-2)
    return torch.cat((positions, speeds), dim=-1)


def quantise(control: Tensor) -> Tensor:
    """Round ``control [..., 2]`` to the nearest allowed throttle and steer; both sets are symmetric."""
    limits = control.new_tensor((THROTTLES[-1], STEERS[-1]))
    return (control / limits).round().clamp(-1.0, 1.0) * limits


def _before(first: Tensor, values: Tensor) -> Tensor:
    """``values [..., T]`` delayed by one step, starting with ``first [..., 1]``."""
    return torch.cat((first.expand_as(values[..., :1]), values[..., :-1]), dim=-1)


def stage_cost(robot: Tensor, human: Tensor, floor: float | None = None) -> Tensor:
    """Return ``J = alpha (y_r - y_h)(vy_r - vy_h) + beta / |p_r - p_h|`` for one moment, shape ``[...]``.

    Parameters
    ----------
    robot, human : Tensor [..., 4]
        Bicycle states ``(x, y, heading, speed)``, which broadcast.
    floor : float, optional
        ``C_low`` of the three-car variant: the cost is ``max(floor, J)``.
    """
    return pair_cost(robot[..., :2] - human[..., :2], velocity(robot) - velocity(human), floor)


def pair_cost(offset: Tensor, closing: Tensor, floor: float | None = None) -> Tensor:
    """Return the same cost from the robot's position and velocity relative to the human's, ``[..., 2] = (x, y)``.

    This form also suits the point masses of recorded trials.
    """
    distance = torch.linalg.vector_norm(offset, dim=-1).clamp_min(CLOSEST)
    cost: Tensor = ALPHA * offset[..., 1] * closing[..., 1] + BETA / distance
    return cost if floor is None else torch.clamp_min(cost, floor)


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

    def __getitem__(self, rows: Tensor | slice) -> "InitialStates":
        """Select initial states by a boolean mask, an index tensor or a slice."""
        return replace(self, states=self.states[rows], session=self.session[rows], held_out=self.held_out[rows])


def initial_states(scenario: Scenario, count: int, seed: int) -> InitialStates:
    """Draw ``count`` initial states of ``scenario``, the same for every driver; the last ones are held out for testing.

    The held-out share is that of the scenario (10 of 50, 9 of 54), rounded down, but at least 1 if ``count > 1``.
    Session ``i`` depends on ``count`` only in whether it is held out. The robot starts at ``y = 0``.
    """
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
    cars = [[scenario.robot_lane, 0.0, 0.0, robot_speed], [scenario.human_lane, offset, 0.0, human_speed]]
    if scenario.gray_car:
        cars.append([scenario.robot_lane, rng.uniform(*scenario.gray_gap), 0.0, rng.uniform(*scenario.gray_speeds)])
    return cars


NOMINAL_SPEED = 20.0
"""Speed in m/s about which the bicycle is linearised."""
LARGEST_ERROR = 1.2
"""Metres at which the lateral error saturates, which limits the heading while a car changes lanes."""
STYLES = ("threshold", "literal")


@cache
def gains() -> tuple[tuple[float, float], float]:
    """Return ``((k_lateral, k_heading), k_speed)``: ``steer = -k_lateral e - k_heading heading``, throttle likewise.

    The gains solve the discrete Riccati equation for the bicycle linearised at :data:`NOMINAL_SPEED`: lateral error and
    heading (metres, radians) under steer, and speed error (m/s) under throttle. Weights follow Bryson's rule: 0.5 m,
    0.1 rad and 0.04 rad of steer; 1 m/s and 1.5 m/s² of throttle.
    """
    travel = NOMINAL_SPEED * DT
    turn = 0.5 * travel / REAR_AXLE  # change of heading in a step, per radian of steer
    A = np.array([[1.0, travel], [0.0, 1.0]])
    B = np.array([[travel * (0.5 + 0.5 * turn)], [turn]])
    lateral = _lqr(A, B, np.diag([1 / 0.5**2, 1 / 0.1**2]), np.array([[1 / 0.04**2]]))
    speed = _lqr(np.eye(1), np.array([[DT]]), np.eye(1), np.array([[1 / 1.5**2]]))
    return (float(lateral[0, 0]), float(lateral[0, 1])), float(speed[0, 0])


def steer_to_lane(car: Tensor, lane: float | Tensor) -> Tensor:
    """Return the unquantised steer ``[...]`` in radians that takes ``car [..., 4]`` to the lane at ``x = lane``."""
    (k_lateral, k_heading), _ = gains()
    error = (car[..., 0] - lane).clamp(-LARGEST_ERROR, LARGEST_ERROR)
    return -k_lateral * error - k_heading * car[..., 2]


def lane_change_control(car: Tensor, lane: float | Tensor, speed: Tensor) -> Tensor:
    """Return allowed controls ``[..., 2]`` that take ``car [..., 4]`` to ``x = lane`` at ``speed [...]`` (m/s)."""
    _, k_speed = gains()
    throttle = FRICTION - k_speed * (car[..., 3] - speed)
    return quantise(torch.stack((throttle, steer_to_lane(car, lane)), dim=-1))


def _lqr(
    A: np.ndarray[tuple[int, int], np.dtype[np.float64]],
    B: np.ndarray[tuple[int, int], np.dtype[np.float64]],
    Q: np.ndarray[tuple[int, int], np.dtype[np.float64]],
    R: np.ndarray[tuple[int, int], np.dtype[np.float64]],
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    P = solve_discrete_are(A, B, Q, R)
    gain: np.ndarray[tuple[int, int], np.dtype[np.float64]] = np.linalg.solve(R + B.T @ P @ B, B.T @ P @ A)
    return gain


@dataclass(frozen=True)
class Driver:
    """The parameters of a driver. Speeds are in m/s, distances in metres.

    The driver aims for ``v_high`` if it wants to overtake and the gray car, if any, is at least ``d_safe`` away along
    the road; otherwise for ``v_low``. With ``D_rel = (y_h - y_r) + (vy_h - vy_r)`` (one second of look-ahead), it wants
    to overtake when

    * style ``"threshold"``: ``D_rel + gamma * d0 >= 0``, a graded style. ``gamma = 1`` overtakes from ``d0`` behind,
      ``gamma = -1`` only when already ``d0`` ahead, ``gamma = 0`` when ahead;
    * style ``"literal"``: ``gamma * D_rel >= 0``, the printed formula, in which only the sign of ``gamma`` matters: 0.5
      drives like 1, -0.5 like -1, 0 is always fast, and a negative driver speeds up when *behind*.

    ``name`` keys the driver's noise; ``speed_noise`` is the standard deviation of its reading of its own speed in each
    step. ``kp``, ``ki``, ``kd`` are the gains of the speed controller (m/s² per m/s, per m and per m/s per step);
    ``patience`` bounds its integral, in m.
    """

    name: str
    gamma: float
    style: str = "threshold"
    v_high: float = 23.0
    v_low: float = 17.0
    d_safe: float = 15.0
    d0: float = 10.0
    speed_noise: float = 0.2
    kp: float = 1.5
    ki: float = 0.1
    kd: float = 0.1
    patience: float = 2.0

    def __post_init__(self) -> None:
        if self.style not in STYLES:
            raise ValueError(f"style = {self.style!r}: must be one of {', '.join(map(repr, STYLES))}")
        if not -1.0 <= self.gamma <= 1.0:
            raise ValueError(f"gamma = {self.gamma}: must be between -1 and 1")

    def wants_fast(self, human: Tensor, robot: Tensor, gray: Tensor | None = None) -> Tensor:
        """Return whether the target speed is ``v_high``, bool ``[...]``, for car states ``[..., 4]``."""
        human_vy, robot_vy = (car[..., 3] * torch.cos(car[..., 2]) for car in (human, robot))
        lead = (human[..., 1] - robot[..., 1]) + (human_vy - robot_vy)
        fast = lead + self.gamma * self.d0 >= 0 if self.style == "threshold" else self.gamma * lead >= 0
        if gray is not None:
            fast = fast & ((human[..., 1] - gray[..., 1]).abs() >= self.d_safe)
        return fast

    def memory(self, human: Tensor) -> Tensor:
        """Return the initial state ``[..., 2] = (integral, last error)`` of the speed controller."""
        return torch.zeros_like(human[..., :2])

    def control(
        self, human: Tensor, robot: Tensor, gray: Tensor | None, memory: Tensor, noise: Tensor, lane: float
    ) -> tuple[Tensor, Tensor]:
        """Return the human's control ``[..., 2]`` for one step of phase 1, and the controller's next state.

        Parameters
        ----------
        human, robot, gray : Tensor [..., 4]
            Car states; ``gray`` may be None.
        memory : Tensor [..., 2]
            The state of the speed controller.
        noise : Tensor [...]
            Standard normal numbers, drawn by the caller so that they can be keyed by session.
        lane : float
            The ``x`` of the driver's lane.
        """
        reading = torch.cat((human[..., :3], (human[..., 3] + self.speed_noise * noise).unsqueeze(-1)), dim=-1)
        target = torch.where(self.wants_fast(reading, robot, gray), self.v_high, self.v_low)
        error = target - reading[..., 3]
        integral = (memory[..., 0] + DT * error).clamp(-self.patience, self.patience)
        throttle = self.kp * error + self.ki * integral + self.kd * (error - memory[..., 1])
        control = quantise(torch.stack((throttle, steer_to_lane(human, lane)), dim=-1))
        return control, torch.stack((integral, error), dim=-1)


def lane_swap_drivers(count: int = 7, style: str = "threshold") -> tuple[Driver, ...]:
    """Return ``count`` drivers with ``gamma`` evenly spaced over [-1, 1], from cautious to aggressive.

    Seven of them stand in for the seven people of APFL, Section IV-B, whose recordings were not published; five are the
    drivers of Section IV-C. A single driver has ``gamma = 0``.
    """
    gammas = [2.0 * i / (count - 1) - 1.0 for i in range(count)] if count > 1 else [0.0]
    return tuple(Driver(f"driver-{i:02d}", gamma, style) for i, gamma in enumerate(gammas))
