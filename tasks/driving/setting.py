"""Constants of a scenario, which all nodes share: the scales of the inputs and the dynamics of a car.

Inputs are standardised by these constants and not by statistics of the data, so that a number means the same in every
node's model and no statistic of a node's data is shared.
"""

from dataclasses import dataclass

import torch
from fedapps.tasks.driving.world import dynamics
from fedapps.tasks.driving.world.scenarios import SCENARIOS, Scenario
from torch import Tensor


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
        if not self.bicycle:
            return dynamics.point_mass_rollout(motion, scaled)
        return to_motion(dynamics.rollout(to_bicycle(motion), scaled))


def to_motion(bicycle: Tensor) -> Tensor:
    """Convert bicycle states ``(x, y, heading, speed)`` to motions ``(x, y, vx, vy)``, both ``[..., 4]``."""
    return torch.cat((bicycle[..., :2], dynamics.velocity(bicycle)), dim=-1)


def to_bicycle(motion: Tensor) -> Tensor:
    """Convert motions to bicycle states, the inverse of :func:`to_motion`; a standing car faces along the road."""
    heading = torch.atan2(motion[..., 2], motion[..., 3])
    speed = torch.linalg.vector_norm(motion[..., 2:], dim=-1)
    return torch.cat((motion[..., :2], heading[..., None], speed[..., None]), dim=-1)


_PEDALS = (dynamics.THROTTLES[-1], dynamics.STEERS[-1])
SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("lane-swap", cars=2, bicycle=True, middle=1.75, cruise=20.0, control=_PEDALS),
        Setting("three-cars", cars=3, bicycle=True, middle=1.75, cruise=20.0, control=_PEDALS),
        Setting("trials", cars=2, bicycle=False, middle=0.0, cruise=28.0, control=(5.0, 6.0), lateral=2.13),
    )
}
