"""Renders what a camera sees from a place in a city under given conditions.

A column of the image is one ray in the plan of the city. It meets the nearest house and, above it, the house that forms
the skyline; below is the ground. Trees, cars and people are upright sprites in the street.
"""

import numpy as np
from numpy.typing import NDArray

from . import facades, ground, sky
from .exposure import expose
from .network import Network
from .noise import Floats, Ints
from .rays import FAR, Hits, cast
from .things import draw_things
from .view import View, Visit, look

FLAT = -2e-3  # rise per metre above which a pixel shows no ground
GROUND_REACH = 45.0  # metres around the camera within which streets are drawn


def render(
    visit: Visit, place: Floats, heading: float, size: tuple[int, int], rng: np.random.Generator
) -> NDArray[np.uint8]:
    """Render the image ``[height, width, 3]`` from ``place [2]`` (metres) in direction ``heading`` (radians from
    north).
    ``size`` is (width, height); ``rng`` draws the camera's noise.
    """
    view = look(visit, place, heading, size)
    camera, lights = visit.conditions.camera, visit.light
    width, height = size
    rise, column = view.rise.ravel(), np.tile(np.arange(width), height)
    image, depth = np.zeros((height * width, 3), np.float32), np.full(height * width, FAR, np.float32)

    hits = cast(visit.city.houses, visit.city.walls, view, camera.height)
    wall = _meets(hits, view.rise, camera.height)
    flat = np.flatnonzero(wall >= 0)
    depth[flat] = hits.depth[wall[flat]]
    image[flat] = _walls(visit, view, hits, wall[flat], rise[flat])

    flat = np.flatnonzero((wall < 0) & (rise < FLAT))
    depth[flat] = camera.height / -rise[flat]
    image[flat] = _ground(visit, view, view.slopes[column[flat]], depth[flat])

    flat = np.flatnonzero((wall < 0) & (rise >= FLAT))
    bearing = heading + np.arctan(view.slopes)
    image[flat] = sky.paint(lights, visit.city.hills, visit.clouds, rise[flat], bearing, column[flat])

    scene, distance = image.reshape(height, width, 3), depth.reshape(height, width)
    if visit.conditions.night:  # headlights
        scene *= (0.8 + 1.4 * np.exp(-distance / 14) * (view.rise < 0.12))[..., None]
    draw_things(visit, view, scene, distance)
    open_sky = 60 * (1.2 - np.minimum(np.maximum(view.rise, 0), 1))
    clear = np.exp(-lights.haze * np.where(distance >= FAR, open_sky, distance))
    return expose(lights.horizon + (scene - lights.horizon) * clear[..., None], visit.conditions, rng)


def _meets(hits: Hits, rise: Floats, height: float) -> Ints:
    """The index in ``hits [2 W]`` of the wall at each pixel, nearest walls first, or -1: ``[H W]``."""
    width = rise.shape[1]
    met = np.full(rise.shape, -1)
    for layer in (1, 0):
        part = slice(layer * width, (layer + 1) * width)
        up = height + rise * hits.depth[part]
        met = np.where((up > 0) & (up < hits.top[part]), np.arange(2 * width)[part], met)
    return met.ravel()


def _walls(visit: Visit, view: View, hits: Hits, wall: Ints, rise: Floats) -> Floats:
    lights, houses = visit.light, visit.city.houses
    pixel = hits.depth / view.focal
    points = facades.Points(
        building=hits.building[wall],
        along=hits.along[wall],
        up=visit.conditions.camera.height + rise * hits.depth[wall],
        length=hits.length[wall],
        front=hits.front[wall],
        wide=(pixel / hits.facing)[wall],
        high=pixel[wall],
    )
    colour, glow = facades.paint(houses, points, 0.4 * lights.lamps, visit.number)
    if lights.snow:
        colour = np.where((points.up > houses.height[points.building])[:, None], 0.25 * colour + 0.7, colour)
    facing = np.maximum(hits.normal @ lights.towards[:2], 0)[wall]
    lit = lights.ambient + lights.sun * facing[:, None]
    if visit.conditions.night:
        lit = lit + np.exp(-points.up / 5)[:, None] * np.array([0.22, 0.17, 0.09], np.float32)
    shaded: Floats = colour * lit + glow * lights.lamps
    return shaded


def _ground(visit: Visit, view: View, slope: Floats, away: Floats) -> Floats:
    city, lights = visit.city, visit.light
    points = view.place + away[:, None] * (view.ahead + slope[:, None] * view.right)
    wide = away / view.focal
    deep = wide * away / visit.conditions.camera.height
    colour = ground.paint(_around(city.network, view.place), city.style, points, deep, wide, lights.snow)
    shaded: Floats = colour * (lights.ambient + lights.sun * max(float(lights.towards[2]), 0.0))
    if lights.wet:
        mirror = 0.45 * lights.wet * np.minimum(np.maximum(away / 25, 0.15), 1)[:, None]
        shaded = 0.75 * shaded * (1 - mirror) + mirror * (0.5 * lights.cloud + 0.2)
    return shaded


def _around(network: Network, place: Floats) -> Network:
    ends = network.nodes[network.edges]
    low, high = ends.min(axis=1) - GROUND_REACH, ends.max(axis=1) + GROUND_REACH
    near = ((place > low) & (place < high)).all(axis=1)
    return Network(network.nodes, network.edges[near], network.road[near], network.driven[near])
