"""Colours of points on walls and roofs: windows, doors, shops, bricks and tiles."""

from dataclasses import dataclass

import numpy as np

from .buildings import Buildings
from .noise import Bools, Floats, Ints, hashed

GLASS = np.array([0.20, 0.25, 0.30], np.float32)
LAMP = np.array([1.0, 0.78, 0.45], np.float32)


@dataclass(frozen=True)
class Points:
    """``N`` points on walls of ``building [N]``, ``along [N]`` metres from the wall's left end, ``up [N]`` metres high.

    ``length [N]`` is the wall's length, ``front [N]`` whether it faces the street. ``wide [N]`` and ``high [N]`` are
    the metres that a pixel covers there, over which details are averaged.
    """

    building: Ints
    along: Floats
    up: Floats
    length: Floats
    front: Bools
    wide: Floats
    high: Floats


def paint(houses: Buildings, points: Points, lit: float, visit: int) -> tuple[Floats, Floats]:
    """Return the colours under white light and the emitted light of ``points``, ``[N, 3]`` each.

    ``lit`` is the share of lit windows, which ``visit`` selects.
    """
    b, along, up = points.building, points.along, points.up
    height, ground = houses.height[b], houses.ground[b]
    shop = (houses.shop[b] > 0) & points.front
    street = up < ground
    panes = np.maximum(np.rint(points.length / np.where(street & shop, 3.2, houses.window[b])), 1)
    pane = points.length / panes
    column, across = np.divmod(along / pane, 1.0)
    storey = np.where(street, ground, houses.storey[b])
    floor, over = np.divmod(np.where(street, up, up - ground) / storey, 1.0)
    floor += ~street
    glass = np.where(street & shop, 0.86, houses.glass[b])
    low = np.where(street, np.where(shop, 0.06, 0.30), 0.26)
    tall = np.where(street & shop, 0.62, houses.tall[b])
    door = street & ~shop & points.front & (column == np.floor(hashed(b, 5) * panes))
    low, tall = np.where(door, 0.0, low), np.where(door, 0.72, tall)
    wide, high = points.wide / pane, points.high / storey
    window = _band(across, 0.5 - glass / 2, 0.5 + glass / 2, wide) * _band(over, low, low + tall, high)
    margin = 0.09 / pane
    frame = _band(across, 0.5 - glass / 2 - margin, 0.5 + glass / 2 + margin, wide)
    frame = frame * _band(over, low - 0.03, low + tall + 0.03, high)
    blank = ~points.front & (hashed(b, 6) < 0.6)  # side walls mostly have no windows
    window, frame = np.where(blank, 0, window), np.where(blank, 0, frame)

    coarse = 4 * np.maximum(points.wide, points.high)
    near = 1 / (1 + coarse * coarse)
    brick = hashed(b, along / 0.5 + 0.5 * np.floor(up / 0.25 % 2), up / 0.25) - 0.5
    stain = hashed(b, along / 2.5, up / 2.0) - 0.5
    shade = 1 + 0.22 * near * brick + 0.08 * stain - 0.1 * np.maximum(1 - up / 1.2, 0)
    trim = houses.trim[b]
    colour = houses.wall[b] * shade[:, None]
    ledge = _band(over, 0.93, 1.0, high) * (~street | shop) * points.front
    edges = np.maximum(frame, np.maximum(0.6 * ledge, up > height - 0.45))
    colour += (trim - colour) * edges[:, None]

    pick = hashed(b, column, floor)
    pane_tone = 0.55 + 0.9 * pick
    shine = np.maximum(over - 0.2, 0) * 0.25
    glazing = GLASS * pane_tone[:, None] + shine[:, None]
    curtain = (pick > 0.75) & ~(street & shop)
    glazing = np.where(curtain[:, None], 0.5 * trim + 0.25, glazing)
    glazing = np.where(door[:, None], houses.sign[b] * 0.7, glazing)
    colour += (glazing - colour) * window[:, None]
    rail = (houses.balcony[b] > 0) & points.front & ~street
    bars = rail * _band(over, 0.12, 0.32, high) * _band(across, 0.08, 0.92, wide)
    colour += (0.35 * trim - colour) * (0.7 * bars)[:, None]

    sign = (street & shop) * _band(over, 0.74, 0.95, high)
    letters = (hashed(b, along / 0.4, 9) > 0.5) & (np.abs(over - 0.845) < 0.05) & (points.high < 0.2)
    board = np.where(letters[:, None], 0.92, houses.sign[b])
    colour += (board - colour) * sign[:, None]

    tiles = 1 + 0.18 * near * (hashed(b, along / 0.6, up / 0.35) - 0.5) - 0.1 * (up / 0.7 % 1.0) * near
    colour = np.where((up > height)[:, None], houses.roof[b] * tiles[:, None], colour)

    on = hashed(b, column, floor, visit) < np.where(street & shop, 2 * lit, lit)
    glow = np.where(on & ~door & (up < height), 0.75 * window, 0) + 0.35 * sign * (2 * lit > hashed(b, visit))
    return colour, glow[:, None] * LAMP


def _band(at: Floats, low: Floats | float, high: Floats | float, pixel: Floats) -> Floats:
    """The share of a pixel of width ``pixel`` around ``at`` in [0, 1) between ``low`` and ``high`` of every period."""
    sharp = np.minimum(np.maximum(np.minimum(at - low, high - at) / np.maximum(pixel, 1e-3) + 0.5, 0), 1)
    blurred = np.minimum(np.maximum(2 * pixel - 0.7, 0), 1)
    band: Floats = sharp + (np.minimum(np.subtract(high, low), 1) - sharp) * blurred
    return band
