"""The colours of what a ray meets: the sky with its clouds and hills, roads, pavements and yards, walls and roofs."""

from dataclasses import dataclass

import numpy as np

from .network import Buildings, Network
from .styles import Bools, Floats, Ints, Light, Style, hashed

HILL = np.array([0.30, 0.38, 0.34], np.float32)
ASPHALT = np.array([0.31, 0.31, 0.32], np.float32)
PAVING = np.array([0.58, 0.56, 0.53], np.float32)
GLASS = np.array([0.20, 0.25, 0.30], np.float32)
LAMP = np.array([1.0, 0.78, 0.45], np.float32)


def paint_sky(light: Light, hills: Floats, clouds: Floats, rise: Floats, bearing: Floats, column: Ints) -> Floats:
    """Return the colour ``[N, 3]`` of the sky at ``rise [N]`` (tangent of the elevation).

    Parameters
    ----------
    light : Light
        The light.
    hills : ndarray [K, 3]
        The city's horizon.
    clouds : ndarray [h, w]
        Cloud cover in [0, 1] around the place.
    rise : ndarray [N]
        Tangent of the elevation of each point.
    bearing : ndarray [W]
        Bearing of each column of the image, in radians from north.
    column : ndarray [N]
        The column of each point.
    """
    up = np.sqrt(np.minimum(np.maximum(rise / 0.9, 0), 1))[:, None]
    colour = light.horizon + (light.zenith - light.horizon) * up
    height, width = clouds.shape
    row = np.sqrt(np.minimum(np.maximum(rise / 1.2, 0), 0.999)) * height
    around = (bearing / (2 * np.pi) % 1.0 * width).astype(int) % width
    cover = np.clip((clouds[row.astype(int), around[column]] - 1 + light.clouds) * 4, 0, 1)
    colour = colour + (light.cloud - colour) * (0.85 * cover)[:, None]
    crest: Floats = 0.01 + (hills[:, 0] * (1 + np.sin(hills[:, 1] * bearing[:, None] + hills[:, 2]))).sum(axis=1)
    hazy = 0.45 * light.horizon + 0.55 * HILL * (light.ambient + 0.5 * light.sun)
    painted: Floats = np.where((rise < crest[column])[:, None], hazy, colour)
    return painted


def paint_ground(network: Network, style: Style, points: Floats, deep: Floats, wide: Floats, snow: float) -> Floats:
    """Return the colours under white light of ``points [N, 2]`` on the ground, ``[N, 3]``.

    ``deep [N]`` and ``wide [N]`` are the metres that a pixel covers along and across the line of sight; ``snow`` is in
    [0, 1].
    """
    start = network.nodes[network.edges[:, 0]].astype(np.float32)
    ends = network.nodes[network.edges[:, 1]].astype(np.float32)
    length = np.linalg.norm(ends - start, axis=1)
    d = (ends - start) / length[:, None]
    road = network.road.astype(np.float32)
    x, y = points[:, 0, None] - start[:, 0], points[:, 1, None] - start[:, 1]
    at = x * d[:, 0] + y * d[:, 1]
    side = y * d[:, 0] - x * d[:, 1]
    beyond = np.maximum(np.maximum(-at, at - length), 0)
    out = np.sqrt(side * side + beyond * beyond) - road
    best = out.argmin(axis=1)
    row = np.arange(len(best))
    at, side, out, half, length = at[row, best], side[row, best], out[row, best], road[best], length[best]

    fine = 1 / (1 + (deep / 0.5) ** 2)
    grain = hashed(points[:, 0] * 4, points[:, 1] * 4) - 0.5
    patch = hashed(points[:, 0] / 2.2, points[:, 1] / 2.2, 3) - 0.5
    tone = 1 + 0.2 * fine * grain + 0.10 * patch
    pixel = np.maximum(wide, 0.3 * deep)
    paved = np.clip(out / pixel + 0.5, 0, 1)
    yard = np.clip((out - style.pavement) / pixel + 0.5, 0, 1)
    slabs = 1 - 0.12 * fine * (hashed(points[:, 0] / 0.8, points[:, 1] / 0.8, 7) > 0.6)
    colour = ASPHALT * tone[:, None]
    colour += (PAVING * slabs[:, None] - colour) * paved[:, None]
    colour += (np.array(style.yard, np.float32) * (1 + 0.3 * grain)[:, None] - colour) * yard[:, None]
    kerb = np.clip(1 - np.abs(out) / np.maximum(0.15, pixel), 0, 1) * np.minimum(1, 0.3 / pixel)
    colour += (0.72 - colour) * (0.7 * kerb)[:, None]

    clear = 1.3 * (style.road * 1.5 + style.pavement)
    inner = (at > clear) & (at < length - clear) & (out < 0)
    street = network.edges[best]
    middle = _line(side, 0.0, pixel) * ((at % 6.0 < 3.5) | (hashed(street[:, 0], street[:, 1]) < 0.4))
    margin = _line(np.abs(side), half - 2.2, pixel) * (hashed(street[:, 0], street[:, 1], 2) < 0.4)
    stripes = (np.minimum(at, length - at) - clear + 3.2) / 3.0
    zebra = (stripes > 0) & (stripes < 1) & (out < -0.3) & (hashed(street[:, 0], street[:, 1], 4) < 0.6)
    bars = zebra * np.where(pixel < 0.5, side % 1.1 < 0.6, 0.55)
    colour += (np.array(style.line, np.float32) - colour) * (0.85 * inner * middle)[:, None]
    colour += (0.85 - colour) * (0.8 * np.maximum(inner * margin, bars))[:, None]
    if snow:
        tracks = np.clip(np.abs(np.abs(np.abs(side) - half / 2) - 0.8) / 0.5, 0.25, 1)
        white = np.where(out < 0, 0.8 * tracks, 0.95) * (0.85 + 0.3 * patch)
        colour += (0.92 - colour) * (snow * np.clip(white, 0, 1))[:, None]
    painted: Floats = colour
    return painted


def _line(side: Floats, at: Floats | float, pixel: Floats) -> Floats:
    """The share of a pixel that a line 16 cm wide covers."""
    line: Floats = np.clip((0.08 - np.abs(side - at)) / pixel + 0.5, 0, 1) * np.minimum(1, 0.25 / pixel)
    return line


@dataclass(frozen=True)
class WallPoints:
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


def paint_facades(houses: Buildings, points: WallPoints, lit: float, visit: int) -> tuple[Floats, Floats]:
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
