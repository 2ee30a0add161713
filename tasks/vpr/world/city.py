"""A city: its streets, houses and street furniture, a drive through a part of it, and one view out of the car.

Sprites of street furniture have several sizes: ``[S, S, 4]``, colour and opacity in [0, 1].
"""

import math
from dataclasses import dataclass, fields, replace

import numpy as np

from fedapps.base.seeding import derive_seed, generator

from .network import Buildings, Network, Walls, draw_buildings, draw_network
from .styles import (
    CONIFER,
    PALM,
    Bools,
    Conditions,
    Floats,
    Ints,
    Light,
    Style,
    city_style,
    hashed,
    light,
    smooth_field,
)

TREE, LAMP, SIGN, CAR, PERSON = range(5)
SIZE = 32
VARIANTS = 6
ASPECT = {TREE: 0.8, LAMP: 0.3, SIGN: 0.35, CAR: 1.3, PERSON: 0.4}
"""Width over height of each kind, for cars seen from behind."""
LEAVES = {
    "spring": ((0.44, 0.58, 0.24), (0.52, 0.62, 0.30), (0.78, 0.62, 0.66)),
    "summer": ((0.20, 0.40, 0.15), (0.26, 0.45, 0.18), (0.18, 0.34, 0.16)),
    "autumn": ((0.72, 0.46, 0.14), (0.66, 0.33, 0.12), (0.60, 0.52, 0.18)),
    "winter": ((0.34, 0.28, 0.24), (0.36, 0.30, 0.26), (0.30, 0.26, 0.24)),
}
EVERGREEN = ((0.14, 0.30, 0.17), (0.18, 0.34, 0.18), (0.16, 0.28, 0.20))
PAINTS = ((0.85, 0.85, 0.86), (0.10, 0.10, 0.12), (0.60, 0.62, 0.65), (0.62, 0.10, 0.10), (0.12, 0.22, 0.50),
          (0.30, 0.32, 0.34))  # fmt: skip
CLOTHES = ((0.16, 0.18, 0.28), (0.55, 0.16, 0.16), (0.22, 0.40, 0.30), (0.75, 0.72, 0.66), (0.24, 0.22, 0.22),
           (0.80, 0.60, 0.20))  # fmt: skip


@dataclass(frozen=True)
class Furniture:
    """``N`` things at ``position [N, 2]``, of ``kind [N]``, ``height [N]`` metres and ``variant [N]``, a whole number.

    ``along [N, 2]`` is the direction of the street. A CAR or a PERSON is a place that is occupied at times.
    """

    position: Floats
    kind: Ints
    height: Floats
    variant: Ints
    along: Floats

    def take(self, which: Bools) -> "Furniture":
        """Return the things selected by ``which [N]``."""
        return Furniture(*(getattr(self, field.name)[which] for field in fields(self)))


def draw_furniture(network: Network, style: Style, rng: np.random.Generator) -> Furniture:
    """Draw things on both sides of all streets, away from crossings."""
    places: list[Floats] = []
    along: list[Floats] = []
    kinds: list[Ints] = []
    clear = 1.3 * (float(network.road.max()) + style.pavement)
    for edge, (a, b) in enumerate(network.edges.tolist()):
        start, length = network.nodes[a], float(network.lengths[edge])
        d = (network.nodes[b] - start) / length
        road, verge = float(network.road[edge]), style.pavement
        tree_share = np.clip(style.trees * rng.choice([0.0, 0.6, 1.0, 2.0]), 0, 0.95)
        for side in (-1.0, 1.0):
            out = side * np.array([-d[1], d[0]])
            for kind, spacing, share, offset in (
                (TREE, 8.0, tree_share, road + 0.35 * verge),
                (LAMP, 27.0, 0.9, road + 0.2 * verge),
                (SIGN, 21.0, 0.35, road + 0.3 * verge),
                (CAR, 5.8, 0.75, road - 1.1),
                (PERSON, 6.0, 1.0, road + 0.65 * verge),
            ):
                u = np.arange(clear + rng.uniform(0, spacing), length - clear, spacing)
                u = u[rng.random(len(u)) < share]
                places.append(start + u[:, None] * d + rng.normal(offset, 0.12, size=(len(u), 1)) * out)
                along.append(np.tile(d, (len(u), 1)))
                kinds.append(np.full(len(u), kind))
    every = np.concatenate(kinds)
    size = np.array([6.5, 7.0, 2.6, 1.5, 1.72])[every] * rng.uniform(0.85, 1.15, size=len(every))
    size = np.where(every == TREE, size * rng.uniform(0.6, 1.4, size=len(every)), size)
    variant = rng.integers(1 << 30, size=len(every))
    return Furniture(_single(places), every, size.astype(np.float32), variant, _single(along))


def _single(parts: list[Floats]) -> Floats:
    whole: Floats = np.concatenate(parts).astype(np.float32)
    return whole


#: A sprite at successively halved sizes: level k is ``[SIZE / 2**k, SIZE / 2**k, 4]``.
Sprite = tuple[Floats, ...]


def draw_sprites(tree: str, season: str, lamps: float, rng: np.random.Generator) -> dict[int, tuple[Sprite, ...]]:
    """Draw :data:`VARIANTS` sprites of every kind; ``lamps`` above 0 switches lights on."""
    y, x = np.mgrid[0:SIZE, 0:SIZE].astype(np.float32)
    y, x = 1 - (y + 0.5) / SIZE, (x + 0.5) / SIZE  # y upwards
    drawn: dict[int, tuple[Sprite, ...]] = {}
    for kind in (TREE, LAMP, SIGN, CAR, PERSON):
        pictures = []
        for variant in range(VARIANTS):
            if kind == TREE:
                picture = _tree(tree, season, variant, x, y, rng)
            elif kind == LAMP:
                picture = _lamp(x, y, lamps)
            elif kind == SIGN:
                picture = _sign(x, y, variant)
            elif kind == CAR:
                picture = _car(x, y, variant, lamps)
            else:
                picture = _person(x, y, variant)
            pictures.append(_levels(picture))
        drawn[kind] = tuple(pictures)
    return drawn


def _levels(picture: Floats) -> Sprite:
    levels = [picture.astype(np.float32)]
    while len(levels[-1]) > 4:
        last = levels[-1]
        weight = last[..., 3:]
        both = np.concatenate((last[..., :3] * weight, weight), axis=-1)
        half = both.reshape(len(last) // 2, 2, len(last) // 2, 2, 4).mean(axis=(1, 3))
        levels.append(np.concatenate((half[..., :3] / np.maximum(half[..., 3:], 1e-3), half[..., 3:]), axis=-1))
    return tuple(levels)


def _put(picture: Floats, where: Bools, colour: tuple[float, ...] | Floats) -> None:
    picture[where] = (*colour, 1.0)


def _tree(tree: str, season: str, variant: int, x: Floats, y: Floats, rng: np.random.Generator) -> Floats:
    picture = np.zeros((SIZE, SIZE, 4), np.float32)
    grain = rng.random((SIZE, SIZE), dtype=np.float32)
    blobs = rng.random((8, 8), dtype=np.float32).repeat(SIZE // 8, axis=0).repeat(SIZE // 8, axis=1)
    rough = 0.5 * grain + 0.5 * blobs
    if tree == PALM:
        trunk = np.abs(x - 0.5 - 0.08 * np.sin(3 * y)) < 0.03
        _put(picture, trunk & (y < 0.8), (0.42, 0.36, 0.28))
        angle, away = np.arctan2(y - 0.8, x - 0.5), np.hypot(x - 0.5, y - 0.8)
        fronds = (np.cos((7 + variant % 3) * angle + variant) + 0.4 * rough > 0.2) & (away < 0.2 + 0.16 * rough)
        colour = np.array(EVERGREEN[variant % 3]) * 1.3
    elif tree == CONIFER and variant % 2:
        _put(picture, (np.abs(x - 0.5) < 0.03) & (y < 0.3), (0.30, 0.24, 0.18))
        fronds = (np.abs(x - 0.5) < 0.42 * (1 - y) * (0.6 + 0.5 * (y * 6 % 1)) + 0.08 * (rough - 0.5)) & (y > 0.12)
        colour = np.array(EVERGREEN[variant % 3])
    else:
        _put(picture, (np.abs(x - 0.5) < 0.035) & (y < 0.6), (0.30, 0.24, 0.18))
        inside = ((x - 0.5) / 0.48) ** 2 + ((y - 0.66) / 0.34) ** 2 + 0.7 * (rough - 0.5)
        fronds = inside < 1
        if season == "winter":
            twigs = np.abs(np.sin((9 + variant) * np.arctan2(x - 0.5, y - 0.3))) < 0.28
            fronds &= twigs & (grain > 0.2)
        colour = np.array(LEAVES[season][variant % 3])
    _put(picture, fronds, (0.0, 0.0, 0.0))
    lit = (0.65 + 0.5 * rough + 0.25 * (y - 0.6))[fronds]
    picture[fronds, :3] = colour * lit[:, None]
    return picture


def _lamp(x: Floats, y: Floats, lamps: float) -> Floats:
    picture = np.zeros((SIZE, SIZE, 4), np.float32)
    _put(picture, (np.abs(x - 0.3) < 0.035) & (y < 0.97), (0.30, 0.31, 0.32))
    _put(picture, (np.abs(y - 0.95) < 0.02) & (x > 0.3) & (x < 0.8), (0.30, 0.31, 0.32))
    shine = 0.75 + 3.0 * lamps
    _put(picture, (np.abs(y - 0.925) < 0.03) & (x > 0.6) & (x < 0.95), (shine, 0.92 * shine, 0.7 * shine))
    return picture


def _sign(x: Floats, y: Floats, variant: int) -> Floats:
    picture = np.zeros((SIZE, SIZE, 4), np.float32)
    _put(picture, (np.abs(x - 0.5) < 0.06) & (y < 0.7), (0.5, 0.5, 0.5))
    face = ((0.75, 0.1, 0.1), (0.12, 0.3, 0.65), (0.85, 0.7, 0.1), (0.9, 0.9, 0.9), (0.1, 0.45, 0.25), (0.8, 0.4, 0.1))
    away = np.hypot((x - 0.5) * 1.0, (y - 0.82) * 2.6)
    square = (np.abs(x - 0.5) < 0.42) & (np.abs(y - 0.82) < 0.16)
    _put(picture, (away < 0.45) if variant % 2 else square, face[variant])
    _put(picture, (away < 0.2) & (variant % 3 == 0), (0.95, 0.95, 0.95))
    return picture


def _car(x: Floats, y: Floats, variant: int, lamps: float) -> Floats:
    picture = np.zeros((SIZE, SIZE, 4), np.float32)
    paint = np.array(PAINTS[variant])
    tall = 0.9 if variant % 3 else 1.0
    _put(picture, (np.abs(np.abs(x - 0.5) - 0.36) < 0.09) & (y < 0.25), (0.06, 0.06, 0.06))
    body = (np.abs(x - 0.5) < 0.47) & (y > 0.14) & (y < 0.58)
    cabin = (np.abs(x - 0.5) < 0.47 - 0.35 * (y - 0.5)) & (y >= 0.55) & (y < tall)
    _put(picture, body, tuple(paint))
    _put(picture, cabin, tuple(0.9 * paint))
    glass = (np.abs(x - 0.5) < 0.38 - 0.35 * (y - 0.5)) & (y > 0.6) & (y < tall - 0.06)
    _put(picture, glass, (0.16, 0.19, 0.22))
    _put(picture, (np.abs(y - 0.3) < 0.05) & (np.abs(x - 0.5) < 0.14), (0.85, 0.85, 0.8))
    glow = 0.7 + 2.5 * lamps
    _put(picture, (np.abs(y - 0.47) < 0.06) & (np.abs(np.abs(x - 0.5) - 0.4) < 0.06), (glow, 0.1 * glow, 0.08 * glow))
    _put(picture, (y > 0.1) & (y < 0.17) & (np.abs(x - 0.5) < 0.45), (0.10, 0.10, 0.11))
    return picture


def _person(x: Floats, y: Floats, variant: int) -> Floats:
    picture = np.zeros((SIZE, SIZE, 4), np.float32)
    legs = (np.abs(np.abs(x - 0.5) - 0.14 * (1 - y)) < 0.12) & (y < 0.5)
    _put(picture, legs, (0.15, 0.16, 0.2))
    _put(picture, (np.abs(x - 0.5) < 0.3) & (y >= 0.45) & (y < 0.83), CLOTHES[variant])
    _put(picture, np.hypot(x - 0.5, (y - 0.91) * 2.4) < 0.21, (0.62, 0.46, 0.36))
    return picture


HILLS = 6  # waves that form the horizon of a city


@dataclass(frozen=True)
class City:
    """A city. ``hills [HILLS, 3]`` are amplitude (radians), frequency and phase of the horizon as a function of
    bearing.
    """

    name: str
    continent: str
    style: Style
    network: Network
    houses: Buildings
    walls: Walls
    furniture: Furniture
    hills: Floats


def draw_city(name: str, continent: str, metres: float, seed: int) -> City:
    """Draw a city, which depends only on ``seed``, name, continent and the ``metres`` of streets that are driven."""
    style = city_style(continent, generator(seed, "streets.style", name))
    network = draw_network(style, metres, generator(seed, "streets.network", name))
    houses, walls = draw_buildings(network, style, generator(seed, "streets.buildings", name))
    furniture = draw_furniture(network, style, generator(seed, "streets.furniture", name))
    rng = generator(seed, "streets.hills", name)
    waves = np.arange(1.0, HILLS + 1)
    height = rng.uniform(0.2, 1.0) * 0.05 / waves
    hills = np.stack((height * rng.uniform(0.3, 1, HILLS), waves, rng.uniform(0, 2 * np.pi, HILLS)), axis=1)
    return City(name, continent, style, network, houses, walls, furniture, hills)


def near(city: City, places: Floats, reach: float) -> City:
    """Return the part of ``city`` within ``reach`` metres of the bounding box of ``places [T, 2]``. Houses keep their
    numbers.
    """
    low, high = places.min(axis=0) - reach, places.max(axis=0) + reach

    def inside(points: Floats) -> np.ndarray:
        mask: np.ndarray = ((points > low) & (points < high)).all(axis=-1)
        return mask

    walls, network = city.walls, city.network
    kept = inside(walls.start) | inside(walls.stop)
    streets = np.asarray(inside(network.nodes[network.edges]).any(axis=1))
    return replace(
        city,
        network=network.take(streets),
        walls=Walls(walls.start[kept], walls.stop[kept], walls.building[kept], walls.front[kept]),
        furniture=city.furniture.take(inside(city.furniture.position)),
    )


@dataclass(frozen=True)
class Visit:
    """A city on one day: conditions, and everything that is there only then. ``number`` distinguishes visits."""

    city: City
    conditions: Conditions
    light: Light
    furniture: Furniture
    sprites: dict[int, tuple[Sprite, ...]]
    clouds: Floats
    number: int


def visit(city: City, conditions: Conditions, seed: int) -> Visit:
    """Return ``city`` under ``conditions``, with cars, people and clouds that ``seed`` determines."""
    lights = light(conditions, city.style.southern)
    things = city.furniture
    number = derive_seed(seed, "streets.visit") % (1 << 30)
    passing = (things.kind == CAR) | (things.kind == PERSON)
    share = np.where(things.kind == PERSON, 0.35, 1.0) * conditions.traffic
    present = hashed(things.variant, number) < share
    variant = np.where(passing, (hashed(things.variant, number, 1) * (1 << 20)).astype(int), things.variant)
    sprites = draw_sprites(city.style.tree, conditions.season, lights.lamps, generator(seed, "streets.sprites"))
    clouds = smooth_field(generator(seed, "streets.clouds"), 48, 256, 6)
    remaining = replace(things, variant=variant).take(present | ~passing)
    return Visit(city, conditions, lights, remaining, sprites, clouds, number)


@dataclass(frozen=True)
class View:
    """A view from ``position [2]`` in the direction ``ahead [2]``, with ``right [2]`` perpendicular to it.

    ``focal`` is in pixels. The pixels of column w look ``slopes [W]`` metres to the right per metre ahead, and ``rise
    [H, W]`` metres up. ``middle [W]`` is the row of the horizon.
    """

    position: Floats
    heading: float
    ahead: Floats
    right: Floats
    focal: float
    slopes: Floats
    rise: Floats
    middle: Floats


def look(visit: Visit, position: Floats, heading: float, size: tuple[int, int]) -> View:
    """Return the view of the camera of ``visit`` at ``position [2]``, with ``heading`` in radians and ``size`` (width,
    height).
    """
    width, height = size
    camera = visit.conditions.camera
    focal = 0.5 * width / math.tan(math.radians(camera.fov) / 2)
    slopes = ((np.arange(width) + 0.5 - width / 2) / focal).astype(np.float32)
    middle = height * (0.53 + camera.pitch) + camera.roll * focal * slopes
    rise = ((middle - np.arange(height)[:, None] - 0.5) / focal).astype(np.float32)
    ahead = np.array([math.sin(heading), math.cos(heading)], np.float32)
    right = np.array([ahead[1], -ahead[0]])
    return View(np.asarray(position, np.float32), heading, ahead, right, focal, slopes, rise, middle)
