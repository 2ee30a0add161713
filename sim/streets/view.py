"""One drive through a part of a city, and one view out of the car."""

import math
from dataclasses import dataclass, replace

import numpy as np
from fedapps.sim.seeding import derive_seed, generator

from .city import City
from .conditions import Conditions, Light, light
from .furniture import CAR, PERSON, Furniture
from .noise import Floats, hashed, smooth_field
from .sprites import Sprite, draw_sprites


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
    here = hashed(things.variant, number) < share
    variant = np.where(passing, (hashed(things.variant, number, 1) * (1 << 20)).astype(int), things.variant)
    sprites = draw_sprites(city.style.tree, conditions.season, lights.lamps, generator(seed, "streets.sprites"))
    clouds = smooth_field(generator(seed, "streets.clouds"), 48, 256, 6)
    there = replace(things, variant=variant).take(here | ~passing)
    return Visit(city, conditions, lights, there, sprites, clouds, number)


@dataclass(frozen=True)
class View:
    """A view from ``place [2]`` in the direction ``ahead [2]``, with ``right [2]`` perpendicular to it.

    ``focal`` is in pixels. The pixels of column w look ``slopes [W]`` metres to the right per metre ahead, and ``rise
    [H, W]`` metres up. ``middle [W]`` is the row of the horizon.
    """

    place: Floats
    heading: float
    ahead: Floats
    right: Floats
    focal: float
    slopes: Floats
    rise: Floats
    middle: Floats


def look(visit: Visit, place: Floats, heading: float, size: tuple[int, int]) -> View:
    """Return the view of the camera of ``visit`` at ``place [2]``, with ``heading`` in radians and ``size`` (width,
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
    return View(np.asarray(place, np.float32), heading, ahead, right, focal, slopes, rise, middle)
