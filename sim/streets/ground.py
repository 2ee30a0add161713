"""Colours of points on roads, pavements and yards: asphalt, kerbs, lines and crossings."""

import numpy as np

from .network import Network
from .noise import Floats, hashed
from .styles import Style

ASPHALT = np.array([0.31, 0.31, 0.32], np.float32)
PAVING = np.array([0.58, 0.56, 0.53], np.float32)


def paint(network: Network, style: Style, points: Floats, deep: Floats, wide: Floats, snow: float) -> Floats:
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
