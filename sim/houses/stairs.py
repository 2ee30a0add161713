"""Stairs: two flights with a landing between them, in the well that all floors share."""

from dataclasses import dataclass
from itertools import pairwise

from .plan import Plan, Rect

MARGIN = 0.7  # metres from the walls to where one stands
FLIGHT = 2.6  # metres on the ground from the foot to the landing


@dataclass(frozen=True)
class Stairs:
    """The stairs from the floor of the room ``lower`` to that of ``upper``, given by their places in the plan.

    ``foot``, ``landing`` and ``top`` are (x, y, z) on the ground in metres.
    """

    lower: int
    upper: int
    foot: tuple[float, float, float]
    landing: tuple[float, float, float]
    top: tuple[float, float, float]


def stairs_of(plan: Plan) -> list[Stairs]:
    """All stairs of a house, from the lowest. They start and end at the side of the well that leads to the hallway."""
    wells = [number for number, room in enumerate(plan.rooms) if room.kind == "stairs"]
    return [_connect(plan, lower, upper) for lower, upper in pairwise(wells)]


def _connect(plan: Plan, lower: int, upper: int) -> Stairs:
    well: Rect = plan.rooms[lower].rect
    ground = plan.rooms[lower].floor * plan.storey
    quarter, front = well.sides[0] / 4, well.y1 - MARGIN
    return Stairs(
        lower,
        upper,
        (well.x0 + quarter, front, ground),
        (well.x0 + 2 * quarter, max(well.y0 + MARGIN, front - FLIGHT), ground + plan.storey / 2),
        (well.x1 - quarter, front, ground + plan.storey),
    )
