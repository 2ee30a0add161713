"""The streets of a city, drives through them, and the houses along them: their positions and their looks."""

from collections import defaultdict
from dataclasses import dataclass, fields

import numpy as np

from fedapps.base.seeding import generator

from .styles import EAVES, FLAT, SEASONS, Bools, Conditions, Floats, Ints, Style, draw_conditions

YEARS = {"database": (2012, 2015), "query": (2016, 2019)}
EASE = 5.0  # metres before and after a corner over which a car turns


@dataclass(frozen=True)
class Drive:
    """One drive along a route. ``number`` distinguishes the drives of a route and ``side``."""

    side: str
    route: int
    number: int
    reverse: bool
    conditions: Conditions


def draw_drives(
    city: str, route: int, fewest: int, more: float, southern: bool, night: float, seed: int
) -> list[Drive]:
    """Draw the drives along a route for the database and for queries: ``fewest`` and on average ``more`` additional
    ones each.
    Queries are recorded later, in other seasons, and only in directions in which the database was recorded.
    """
    rng = generator(seed, "streets.drives", city, route)
    order = rng.permutation(len(SEASONS)).tolist()
    seasons = {"database": (SEASONS[order[0]], SEASONS[order[1]]), "query": (SEASONS[order[2]], SEASONS[order[3]])}
    drives: list[Drive] = []
    ways = np.array([False])
    for side in ("database", "query"):
        count = fewest + int(rng.poisson(more))
        reverse = rng.random(count) < 0.5 if side == "database" else rng.choice(ways, count)
        ways = reverse
        for number in range(count):
            conditions = draw_conditions(rng, YEARS[side], seasons[side], southern, night)
            drives.append(Drive(side, route, number, bool(reverse[number]), conditions))
    return drives


@dataclass(frozen=True)
class Poses:
    """``position [T, 2]`` in metres (east, north) and ``heading [T]`` in radians clockwise from north."""

    position: Floats
    heading: Floats


def draw_poses(path: Floats, lane: float, spacing: float, rng: np.random.Generator) -> Poses:
    """Draw a drive along the corners ``path [K, 2]``, ``lane`` metres to the right, with a frame every ``spacing``
    metres.
    The car starts within one spacing of the beginning and drifts a little within its lane.
    """
    steps = np.linalg.norm(np.diff(path, axis=0), axis=1)
    ends = np.concatenate(([0.0], np.cumsum(steps)))
    at = np.arange(rng.uniform(0, min(spacing, ends[-1])), ends[-1], spacing)
    at = np.clip(at + rng.normal(0, 0.05 * spacing, size=len(at)), 0, ends[-1])
    ahead, behind = (_along(path, ends, np.clip(at + ease, 0, ends[-1])) for ease in (EASE, -EASE))
    heading = np.arctan2(*(ahead - behind).T)
    sway = lane + rng.normal(0, 0.4) + 0.25 * np.sin(at / rng.uniform(8, 20) + rng.uniform(0, 2 * np.pi))
    right = np.stack((np.cos(heading), -np.sin(heading)), axis=1)
    return Poses(_along(path, ends, at) + sway[:, None] * right, heading + rng.normal(0, 0.02, size=len(at)))


def _along(path: Floats, ends: Floats, at: Floats) -> Floats:
    return np.stack([np.interp(at, ends, path[:, axis]) for axis in (0, 1)], axis=1)


MARGIN = 2  # blocks around the driven part, so that its outermost streets look like the others
AVENUES = 0.25  # share of the grid lines that are wide


@dataclass(frozen=True)
class Network:
    """``nodes [N, 2]`` in metres (east, north), streets between nodes ``edges [E, 2]``, half-widths ``road [E]``.

    ``driven [E]`` tells in which streets camera cars drive.
    """

    nodes: Floats
    edges: Ints
    road: Floats
    driven: Bools

    @property
    def lengths(self) -> Floats:
        """The length of each street in metres, ``[E]``."""
        away: Floats = np.linalg.norm(self.nodes[self.edges[:, 1]] - self.nodes[self.edges[:, 0]], axis=1)
        return away

    def take(self, which: Bools) -> "Network":
        """Return the network of the streets selected by ``which [E]``; nodes keep their numbers."""
        return Network(self.nodes, self.edges[which], self.road[which], self.driven[which])


def draw_network(style: Style, metres: float, rng: np.random.Generator) -> Network:
    """Draw streets of which at least ``metres`` are driven, exceeded by at most one street."""
    inner = int(np.ceil(0.5 + np.sqrt(0.25 + 1.5 * metres / (2 * style.block))))
    side = max(inner, 2) + 2 * MARGIN
    i, j = np.meshgrid(np.arange(side), np.arange(side), indexing="ij")
    grid = np.stack((i, j), axis=-1).astype(float) - (side - 1) / 2
    bend, phase = rng.uniform(0, 2 * style.jitter, size=2), rng.uniform(0, 2 * np.pi, size=2)
    places = grid + rng.uniform(-style.jitter, style.jitter, size=grid.shape)
    places += bend * np.sin(grid[..., ::-1] * 0.9 + phase)
    angle = rng.uniform(0, np.pi / 2)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    nodes = style.block * places.reshape(-1, 2) @ turn.T
    number = np.arange(side * side).reshape(side, side)
    along = np.stack((number[:-1].ravel(), number[1:].ravel()), axis=1)
    across = np.stack((number[:, :-1].ravel(), number[:, 1:].ravel()), axis=1)
    wide = rng.random((2, side)) < AVENUES
    road = style.road * np.where(np.concatenate((wide[0][along[:, 0] % side], wide[1][across[:, 0] // side])), 1.5, 1.0)
    edges = np.concatenate((along, across))
    bare = Network(nodes, edges, road, np.zeros(len(edges), bool))
    return Network(nodes, edges, road, _grow(bare, metres, rng))


def _grow(network: Network, metres: float, rng: np.random.Generator) -> Bools:
    """A connected set of streets, mostly near the centre, but not a disc."""
    centres = network.nodes[network.edges].mean(axis=1)
    order = np.linalg.norm(centres, axis=1) * rng.uniform(0.6, 1.4, size=len(centres))
    lengths, driven = network.lengths, np.zeros(len(order), bool)
    reached: set[int] = set()
    while driven.sum() < len(driven) and (lengths * driven).sum() < metres:
        touching = np.array([not reached or a in reached or b in reached for a, b in network.edges.tolist()])
        best = int(np.argmin(np.where(touching & ~driven, order, np.inf)))
        driven[best] = True
        reached.update(network.edges[best].tolist())
    return driven


def draw_routes(network: Network, metres: float, rng: np.random.Generator) -> list[list[int]]:
    """Draw routes of crossings that together cover every driven street once, each at most about ``metres`` long.

    A route continues straight on where it can. It ends with the first street that makes it 3/4 of ``metres`` long.
    """
    free: dict[int, dict[int, float]] = defaultdict(dict)
    lengths = network.lengths
    for edge in np.flatnonzero(network.driven).tolist():
        a, b = network.edges[edge].tolist()
        free[a][b] = free[b][a] = float(lengths[edge])
    routes = []
    while any(free.values()):
        odd = [node for node in sorted(free) if len(free[node]) % 2] or [node for node in sorted(free) if free[node]]
        path, length = [odd[int(rng.integers(len(odd)))]], 0.0
        while free[path[-1]] and length < 0.75 * metres:
            crossing = path[-1]
            following = min(sorted(free[crossing]), key=lambda node: _turn(network.nodes, path, node))
            length += free[crossing].pop(following)
            del free[following][crossing]
            path.append(following)
        routes.append(path)
    return routes


def _turn(nodes: Floats, path: list[int], following: int) -> float:
    """The negative cosine of the turn from the last street of ``path`` to ``following``."""
    if len(path) < 2:
        return 0.0
    before, after = nodes[path[-1]] - nodes[path[-2]], nodes[following] - nodes[path[-1]]
    return -float(before @ after / (np.linalg.norm(before) * np.linalg.norm(after)))


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
