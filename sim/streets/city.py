"""A city: its streets, houses and street furniture, and the part of it near a place."""

from dataclasses import dataclass

import numpy as np
from fedapps.sim.seeding import generator

from .buildings import Buildings, Walls, draw_buildings
from .furniture import Furniture, draw_furniture
from .network import Network, draw_network
from .noise import Floats
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
        found: np.ndarray = ((points > low) & (points < high)).all(axis=-1)
        return found

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
        city.furniture.take(inside(city.furniture.place)),
        city.hills,
    )
