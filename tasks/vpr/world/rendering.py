"""Renders what a camera sees from a place in a city under given conditions.

A column of the image is one ray in the plan of the city. It meets the nearest house and, above it, the house that forms
the skyline; below is the ground. Trees, lamps, signs, cars and people are upright sprites in the street. The light that
enters the camera is exposed at the end.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .city import ASPECT, CAR, SIZE, View, Visit, look
from .network import Buildings, Network, Walls, roof_line
from .styles import Bools, Conditions, Floats, Ints
from .surfaces import WallPoints, paint_facades, paint_ground, paint_sky

FAR = 1e5  # depth in metres of a column that meets no wall
NEAREST = 2.5  # minimum distance in metres of what is drawn
FARTHEST = 65.0
SMALLEST = 4.0  # pixels
FLAT = -2e-3  # rise per metre above which a pixel shows no ground
GROUND_REACH = 45.0  # metres around the camera within which streets are drawn


@dataclass(frozen=True)
class Hits:
    """The intersections of the ``W`` columns of an image: first the nearest walls, then those that form the skyline.

    Arrays ``[2 W]``. ``depth`` is in metres ahead, :data:`FAR` without a wall; ``along`` is in metres from the wall's
    left end, ``length`` the wall's length. ``top`` is the height of the house in metres above the ground. ``facing`` is
    the cosine between ray and wall, and ``normal [2 W, 2]`` points outwards (east, north).
    """

    depth: Floats
    building: Ints
    along: Floats
    length: Floats
    front: Bools
    top: Floats
    facing: Floats
    normal: Floats


def cast(houses: Buildings, walls: Walls, view: View, height: float) -> Hits:
    """Return the intersections of the columns of ``view`` from a ``height`` in metres."""
    start, stop = walls.start - view.position, walls.stop - view.position
    outside = start[:, 0] * stop[:, 1] < start[:, 1] * stop[:, 0]
    a, a_side, b, b_side = start @ view.ahead, start @ view.right, stop @ view.ahead, stop @ view.right
    deep = np.maximum(a, b)
    reach = (float(np.abs(view.slopes).max()) + 0.01) * deep
    index = np.flatnonzero(outside & (deep > 0.2) & (a_side < reach) & (b_side > -reach))
    if not len(index):
        return _nothing(len(view.slopes))
    a, a_side, b, b_side = (v[index][:, None] for v in (a, a_side, b, b_side))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        share = (view.slopes * a - a_side) / ((b_side - a_side) - view.slopes * (b - a))
        depth = a + share * (b - a)
        met = (share >= 0) & (share <= 1) & (depth > 0.2)
        depth = np.where(met, depth, np.float32(FAR))
        highest = (houses.height + houses.rise - height)[walls.building[index]]
        steep = np.where(met, highest[:, None] / depth, np.float32(-FAR))

    columns = np.tile(np.arange(len(view.slopes)), 2)
    row = np.concatenate((depth.argmin(axis=0), steep.argmax(axis=0)))
    wall = index[row]
    line = walls.stop[wall] - walls.start[wall]
    length = np.sqrt((line * line).sum(axis=1))
    hit = met[row, columns]
    at = np.where(hit, share[row, columns], np.float32(0))
    normal = np.stack((line[:, 1], -line[:, 0]), axis=1) / length[:, None]
    rays = view.ahead + view.slopes[columns, None] * view.right
    facing = -(normal * rays).sum(axis=1) / np.sqrt((rays * rays).sum(axis=1))
    return Hits(
        depth=depth[row, columns],
        building=walls.building[wall],
        along=at * length,
        length=length,
        front=walls.front[wall] > 0,
        top=np.where(hit, roof_line(houses, walls.building[wall], at), np.float32(-FAR)),
        facing=np.maximum(facing, np.float32(0.05)),
        normal=normal,
    )


def _nothing(columns: int) -> Hits:
    zeros = np.zeros(2 * columns, np.float32)
    none = np.zeros(2 * columns, int)
    return Hits(zeros + FAR, none, zeros, zeros + 1, zeros > 0, zeros - FAR, zeros + 1, np.zeros((2 * columns, 2)))


def draw_things(visit: Visit, view: View, image: Floats, depth: Floats) -> None:
    """Draw street furniture into ``image [H, W, 3]`` where ``depth [H, W]`` is larger.

    Distant things are drawn first. Both arrays are modified.
    """
    height, width = depth.shape
    things, camera = visit.furniture, visit.conditions.camera
    offset = things.position - view.position
    away, side = offset @ view.ahead, offset @ view.right
    safe = np.maximum(away, 0.1)
    column, span = width / 2 + view.focal * side / safe, view.focal * things.height / safe
    seen = (away > NEAREST) & (away < FARTHEST) & (column + span > 0) & (column - span < width) & (span > SMALLEST)
    index = np.flatnonzero(seen)
    index = index[np.argsort(-away[index], kind="stable")]
    lit = visit.light.ambient + 0.5 * visit.light.sun
    turned = np.abs(things.along[index] @ view.right)  # cars in a crossing street are seen from the side
    parts = (things.kind, things.variant, away, span, column)
    for kind, variant, reach, tall, centre, turn in zip(
        *(p[index].tolist() for p in parts), turned.tolist(), strict=True
    ):
        broad = tall * ASPECT[kind] * (1 + 1.6 * turn * (kind == CAR))
        left = centre - broad / 2
        foot = float(view.middle[min(max(int(centre), 0), width - 1)]) + view.focal * camera.height / reach
        top, bottom = max(0, round(foot - tall)), min(height, round(foot))
        first, last = max(0, round(left)), min(width, round(left + broad))
        if top >= bottom or first >= last:
            continue
        levels = visit.sprites[kind][variant % len(visit.sprites[kind])]
        level = levels[min(len(levels) - 1, max(0, int(math.log2(max(1.0, SIZE / tall)))))]
        picture = level[_sample(top, bottom, foot - tall, tall, len(level))]
        picture = picture[:, _sample(first, last, left, broad, len(level))]
        box = (slice(top, bottom), slice(first, last))
        cover = picture[..., 3] * (depth[box] > reach)
        image[box] += (picture[..., :3] * lit - image[box]) * cover[..., None]
        depth[box] = np.where(cover > 0.5, reach, depth[box])


def _sample(start: int, stop: int, begin: float, length: float, count: int) -> np.ndarray:
    """The indices of the sprite's ``count`` pixels that the pixels from ``start`` to ``stop`` show."""
    at = ((np.arange(start, stop) + (0.5 - begin)) * (count / length)).astype(np.int64)
    sampled: np.ndarray = np.minimum(np.maximum(at, 0), count - 1)
    return sampled


def expose(image: Floats, conditions: Conditions, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Expose, tint and vignette ``image [H, W, 3]``; add noise drawn from ``rng`` and the car's bonnet, if visible."""
    camera = conditions.camera
    height, width = image.shape[:2]
    y, x = np.linspace(-1, 1, height, dtype=np.float32)[:, None], np.linspace(-1, 1, width, dtype=np.float32)
    gain = camera.exposure * (1.35 if conditions.night else 1.0)
    stored = image * (gain * np.array(camera.cast, np.float32))
    stored *= (1 - 0.5 * camera.vignette * (x * x + y * y))[..., None]
    stored = np.minimum(np.maximum(stored, 0), 1) ** np.float32(camera.contrast)
    noise = rng.standard_normal((height, width), dtype=np.float32)
    stored += (camera.noise * (1.8 if conditions.night else 1.0)) * noise[..., None]
    if camera.panel:
        bonnet = y[:, 0] > 1 - 2 * camera.panel
        stored[bonnet] = 0.12 + 0.05 * stored[bonnet]
    pixels: NDArray[np.uint8] = (255 * np.minimum(np.maximum(stored, 0), 1) + 0.5).astype(np.uint8)
    return pixels


def render(
    visit: Visit, position: Floats, heading: float, size: tuple[int, int], rng: np.random.Generator
) -> NDArray[np.uint8]:
    """Render the image ``[height, width, 3]`` from ``position [2]`` (metres) in direction ``heading`` (radians from
    north).
    ``size`` is (width, height); ``rng`` draws the camera's noise.
    """
    view = look(visit, position, heading, size)
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
    image[flat] = paint_sky(lights, visit.city.hills, visit.clouds, rise[flat], bearing, column[flat])

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
    points = WallPoints(
        building=hits.building[wall],
        along=hits.along[wall],
        up=visit.conditions.camera.height + rise * hits.depth[wall],
        length=hits.length[wall],
        front=hits.front[wall],
        wide=(pixel / hits.facing)[wall],
        high=pixel[wall],
    )
    colour, glow = paint_facades(houses, points, 0.4 * lights.lamps, visit.number)
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
    points = view.position + away[:, None] * (view.ahead + slope[:, None] * view.right)
    wide = away / view.focal
    deep = wide * away / visit.conditions.camera.height
    colour = paint_ground(_around(city.network, view.position), city.style, points, deep, wide, lights.snow)
    shaded: Floats = colour * (lights.ambient + lights.sun * max(float(lights.towards[2]), 0.0))
    if lights.wet:
        mirror = 0.45 * lights.wet * np.minimum(np.maximum(away / 25, 0.15), 1)[:, None]
        shaded = 0.75 * shaded * (1 - mirror) + mirror * (0.5 * lights.cloud + 0.2)
    return shaded


def _around(network: Network, position: Floats) -> Network:
    ends = network.nodes[network.edges]
    low, high = ends.min(axis=1) - GROUND_REACH, ends.max(axis=1) + GROUND_REACH
    return network.take(((position > low) & (position < high)).all(axis=1))
