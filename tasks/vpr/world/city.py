"""A city: its streets, houses and street furniture, a drive through a part of it, and one view out of the car."""

import math
from dataclasses import dataclass, replace

import numpy as np

from fedapps.base.seeding import derive_seed, generator

from .buildings import Buildings, Walls, draw_buildings
from .conditions import Conditions, Light, light
from .furniture import CAR, PERSON, Furniture, Sprite, draw_furniture, draw_sprites
from .network import Network, draw_network
from .noise import Floats, hashed, smooth_field
from .styles import Style, city_style

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
    streets = inside(network.nodes[network.edges]).any(axis=1)
    return City(
        city.name,
        city.continent,
        city.style,
        Network(network.nodes, network.edges[streets], network.road[streets], network.driven[streets]),
        city.houses,
        Walls(walls.start[kept], walls.stop[kept], walls.building[kept], walls.front[kept]),
        city.furniture.take(inside(city.furniture.position)),
        city.hills,
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
