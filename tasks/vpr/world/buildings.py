"""The houses along the streets of a city: their positions and their looks."""

from dataclasses import dataclass, fields

import numpy as np

from .network import Network
from .noise import Floats, Ints
from .styles import EAVES, FLAT, Style

PARKS = 0.06  # share of street sides without houses
CORNER = 1.2  # additional distance in metres of houses from a crossing


@dataclass(frozen=True)
class Buildings:
    """Arrays with one entry for each of ``B`` houses; lengths in metres, colours ``[B, 3]`` in [0, 1].

    ``height`` is the height of the walls, ``rise`` that of the roof above them, ``ground`` that of the ground floor and
    ``storey`` that of the others. ``window`` is the spacing of windows; ``glass`` and ``tall`` are the shares of the
    spacing and of a storey that are glass. ``shop`` and ``balcony`` are 0 or 1; ``roof_kind`` is one of the three kinds
    in ``styles``.
    """

    height: Floats
    rise: Floats
    ground: Floats
    storey: Floats
    window: Floats
    glass: Floats
    tall: Floats
    shop: Floats
    balcony: Floats
    roof_kind: Ints
    wall: Floats
    trim: Floats
    roof: Floats
    sign: Floats


@dataclass(frozen=True)
class Walls:
    """``S`` upright walls from ``start [S, 2]`` to ``stop [S, 2]`` of the houses ``building [S]``.

    Seen from outside, ``start`` is on the left. ``front [S]`` is 1 for the wall that faces the street.
    """

    start: Floats
    stop: Floats
    building: Ints
    front: Floats


def draw_buildings(network: Network, style: Style, rng: np.random.Generator) -> tuple[Buildings, Walls]:
    """Draw houses on both sides of all streets, from corner to corner."""
    corners: list[Floats] = []
    clear = np.zeros(len(network.nodes))
    for (a, b), road in zip(network.edges.tolist(), network.road.tolist(), strict=True):
        clear[[a, b]] = np.maximum(clear[[a, b]], road + style.pavement + CORNER)
    for (a, b), road in zip(network.edges.tolist(), network.road.tolist(), strict=True):
        start, street = network.nodes[a], network.nodes[b] - network.nodes[a]
        length = float(np.linalg.norm(street))
        along = street / length
        for side in (-1.0, 1.0):
            if rng.random() < PARKS:
                continue
            out = side * np.array([-along[1], along[0]])
            for low, high in _lots(style, clear[a], length - clear[b], rng):
                near = road + style.pavement + rng.uniform(*style.setback)
                far = near + rng.uniform(7, 11)
                lot = [start + u * along + v * out for u, v in ((low, near), (high, near), (high, far), (low, far))]
                corners.append(np.array(lot if side > 0 else [lot[1], lot[0], lot[3], lot[2]]))
    quads = np.array(corners, np.float32).reshape(-1, 4, 2)
    starts, stops = quads.reshape(-1, 2), quads[:, [1, 2, 3, 0]].reshape(-1, 2)
    front = np.tile(np.array([1, 0, 0, 0], np.float32), len(quads))
    walls = Walls(starts, stops, np.repeat(np.arange(len(quads)), 4), front)
    return _looks(len(quads), style, rng), walls


def _lots(style: Style, start: float, stop: float, rng: np.random.Generator) -> list[tuple[float, float]]:
    """The parts of a street side from ``start`` to ``stop`` metres on which houses stand."""
    if stop - start < 0.7 * style.width[0]:
        return []
    widths: list[float] = []
    gaps: list[float] = []
    while sum(widths) + sum(gaps) < stop - start:
        widths.append(rng.uniform(*style.width))
        gaps.append(rng.uniform(1.5, 4.5) if rng.random() < style.gap else 0.0)
    scale = (stop - start) / (sum(widths) + sum(gaps) - gaps[-1])
    lots, at = [], start
    for width, gap in zip(widths, gaps, strict=True):
        lots.append((at, at + scale * width))
        at += scale * (width + gap)
    return lots


def _looks(count: int, style: Style, rng: np.random.Generator) -> Buildings:
    kind = rng.choice(3, size=count, p=style.roof_kinds)
    storeys = np.maximum(1, np.rint(rng.uniform(*style.storeys, size=count)))
    storeys = np.where(rng.random(count) < 0.05, storeys + rng.integers(2, 5, size=count), storeys)
    storey = style.storey * rng.uniform(0.88, 1.15, size=count)
    shop = (rng.random(count) < style.shops).astype(float)
    ground = storey * np.where(shop > 0, 1.2, 1.0)
    wall = style.walls[rng.integers(len(style.walls), size=count)] * rng.uniform(0.82, 1.15, size=(count, 1))
    wall = wall + rng.uniform(-0.05, 0.05, size=(count, 3))
    light = np.where(rng.random((count, 1)) < 0.7, 0.85 + 0.1 * rng.random((count, 1)), 0.25)
    houses = Buildings(
        height=ground + (storeys - 1) * storey,
        rise=np.where(kind == FLAT, rng.uniform(0.2, 0.9, size=count), rng.uniform(1.5, 4.0, size=count)),
        ground=ground,
        storey=storey,
        window=rng.uniform(*style.window, size=count),
        glass=rng.uniform(*style.glass, size=count),
        tall=rng.uniform(0.4, 0.68, size=count),
        shop=shop,
        balcony=(rng.random(count) < 0.25).astype(float),
        roof_kind=kind,
        wall=np.clip(wall, 0.05, 0.97),
        trim=np.clip(0.35 * wall + 0.65 * light, 0.05, 0.97),
        roof=np.clip(
            style.roofs[rng.integers(len(style.roofs), size=count)] * rng.uniform(0.8, 1.2, size=(count, 1)), 0, 1
        ),
        sign=style.signs[rng.integers(len(style.signs), size=count)],
    )
    arrays = {f.name: getattr(houses, f.name) for f in fields(houses)}
    return Buildings(**{k: v.astype(np.float32) if v.dtype.kind == "f" else v for k, v in arrays.items()})


def roof_line(houses: Buildings, building: Ints, along: Floats) -> Floats:
    """Return the height in metres of a house at the share ``along`` in [0, 1] of its wall."""
    slope = np.minimum(along, 1 - along)
    shape = np.where(houses.roof_kind[building] == EAVES, np.minimum(1, 6 * slope), 2 * slope)
    shape = np.where(houses.roof_kind[building] == FLAT, 1, shape)
    line: Floats = houses.height[building] + shape * houses.rise[building]
    return line
