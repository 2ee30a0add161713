"""The style of a city, and the time, the weather and the camera of a drive.

Hash noise gives values that look random but belong to an object, such as the shade of a brick in all visits.
"""

import math
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.integer[Any]]
Bools = NDArray[np.bool_]


def hashed(*keys: ArrayLike) -> NDArray[np.float32]:
    """Return a number in [0, 1) for each tuple of ``keys``, which are rounded down and broadcast."""
    mixed = np.zeros((), np.uint32)
    with np.errstate(over="ignore"):  # overflow is intended
        for number, key in enumerate(keys):
            word = np.floor(key).astype(np.int32).astype(np.uint32)
            mixed = (mixed ^ (word + np.uint32(0x9E3779B9 * (number + 1) & 0xFFFFFFFF))) * np.uint32(0x85EBCA6B)
            mixed = (mixed ^ (mixed >> np.uint32(15))) * np.uint32(0xC2B2AE35)
            mixed = mixed ^ (mixed >> np.uint32(13))
    return (mixed >> np.uint32(8)).astype(np.float32) * np.float32(2**-24)


def smooth_field(rng: np.random.Generator, height: int, width: int, cells: int) -> NDArray[np.float32]:
    """Draw smooth noise ``[height, width]`` in [0, 1], interpolated between ``cells`` by ``2 cells`` knots."""
    knots = rng.random((cells + 1, 2 * cells + 1), dtype=np.float32)
    row, column = (np.linspace(0, n, size, endpoint=False) for n, size in ((cells, height), (2 * cells, width)))
    i, j = row.astype(int), column.astype(int)
    x, y = (row - i).astype(np.float32)[:, None], (column - j).astype(np.float32)
    x, y = x * x * (3 - 2 * x), y * y * (3 - 2 * y)
    upper = knots[i][:, j] * (1 - y) + knots[i][:, j + 1] * y
    lower = knots[i + 1][:, j] * (1 - y) + knots[i + 1][:, j + 1] * y
    field: NDArray[np.float32] = upper * (1 - x) + lower * x
    return field


FLAT, EAVES, GABLE = 0, 1, 2
BROAD, CONIFER, PALM = "broad", "conifer", "palm"


@dataclass(frozen=True)
class Style:
    """The style of a city. Lengths are in metres, colours RGB in [0, 1], ranges (low, high), shares in [0, 1].

    ``walls``, ``roofs`` and ``signs`` are palettes ``[K, 3]``; ``roof_kinds`` are the shares of flat roofs, eaves and
    gables. ``gap`` is the share of buildings that stand apart from the next one. ``window`` is the spacing of windows
    and ``glass`` the share of it that is glass. ``road`` is half the width of a road. ``block`` is the distance between
    crossings and ``jitter`` its relative variation. ``trees`` is the share of places for a tree that have one.
    """

    walls: Floats
    roofs: Floats
    signs: Floats
    storeys: tuple[float, float]
    storey: float
    width: tuple[float, float]
    setback: tuple[float, float]
    gap: float
    window: tuple[float, float]
    glass: tuple[float, float]
    roof_kinds: tuple[float, float, float]
    shops: float
    road: float
    pavement: float
    block: float
    jitter: float
    tree: str
    trees: float
    line: tuple[float, float, float]
    yard: tuple[float, float, float]
    left_hand: bool
    southern: bool


def _palette(*codes: str) -> Floats:
    return np.array([[int(code[i : i + 2], 16) / 255 for i in (0, 2, 4)] for code in codes], np.float32)


CONTINENTS = {
    "europe": Style(
        walls=_palette("c9a06b", "b5533c", "d9c7a3", "8f4a3a", "c7b8a0", "e0d2b8", "a8794f", "9c9a8c", "d8a58a"),
        roofs=_palette("8a4030", "5c4a44", "44464c", "a0533a"),
        signs=_palette("2d5f3a", "7a1f2b", "1f3a6a", "b8892f", "3a3a3a"),
        storeys=(2.6, 6.0), storey=3.1, width=(6.0, 13.0), setback=(0.0, 0.5), gap=0.06,
        window=(1.7, 2.6), glass=(0.42, 0.6), roof_kinds=(0.2, 0.45, 0.35), shops=0.4,
        road=3.6, pavement=2.4, block=72.0, jitter=0.2, tree=BROAD, trees=0.35,
        line=(0.85, 0.85, 0.82), yard=(0.42, 0.44, 0.30), left_hand=False, southern=False,
    ),
    "america": Style(
        walls=_palette("9aa7ae", "c4c0b6", "8c5a48", "b9a58c", "6f7f8a", "d8d4ca", "7c8a7a", "a86b52", "5f6870"),
        roofs=_palette("55575a", "6b5a50", "3f4448", "7a7468"),
        signs=_palette("c8322c", "e0b020", "2463ae", "2f8f57", "e8e4dc"),
        storeys=(1.0, 5.5), storey=3.5, width=(10.0, 24.0), setback=(0.0, 4.0), gap=0.5,
        window=(2.4, 4.0), glass=(0.5, 0.8), roof_kinds=(0.65, 0.2, 0.15), shops=0.35,
        road=5.6, pavement=2.6, block=94.0, jitter=0.04, tree=BROAD, trees=0.28,
        line=(0.86, 0.70, 0.22), yard=(0.36, 0.46, 0.25), left_hand=False, southern=False,
    ),
    "asia": Style(
        walls=_palette("d8d3c8", "b8b0a2", "9fb3b0", "c9b79a", "a49a90", "d2a98a", "8b9aa5", "e2dccb", "7f8c84"),
        roofs=_palette("58606a", "7b8890", "6a4b3a", "35607a"),
        signs=_palette("d62839", "f2b705", "0b7fab", "1e9e5a", "e86a17", "7b2d8b", "f4f1e8"),
        storeys=(1.8, 7.5), storey=2.9, width=(4.5, 11.0), setback=(0.0, 1.2), gap=0.22,
        window=(1.8, 3.2), glass=(0.5, 0.75), roof_kinds=(0.7, 0.2, 0.1), shops=0.65,
        road=3.2, pavement=1.5, block=64.0, jitter=0.18, tree=PALM, trees=0.25,
        line=(0.86, 0.86, 0.84), yard=(0.50, 0.46, 0.38), left_hand=True, southern=False,
    ),
    "oceania": Style(
        walls=_palette("e3ddcf", "c98f6a", "b9c4c2", "efe6d2", "a7b59b", "d3b9a0", "8fa3b0", "bf7a5a", "f0efe8"),
        roofs=_palette("9a4a35", "6d7478", "7f8f8a", "b0603f", "4f565c"),
        signs=_palette("1d6fa5", "e07a3f", "3b8e5a", "d9c24a"),
        storeys=(1.0, 2.8), storey=3.0, width=(9.0, 17.0), setback=(2.0, 6.5), gap=0.8,
        window=(2.4, 4.2), glass=(0.4, 0.6), roof_kinds=(0.1, 0.55, 0.35), shops=0.15,
        road=4.6, pavement=2.8, block=86.0, jitter=0.1, tree=CONIFER, trees=0.45,
        line=(0.86, 0.86, 0.84), yard=(0.40, 0.50, 0.26), left_hand=True, southern=True,
    ),
}  # fmt: skip
"""The styles of the four continents by which FedVPR's hierarchy groups its clients (Appendix B)."""
NAMES = {
    "europe": ("aldmark", "brisegard", "corvenna", "dunholt", "estrelle", "falkenmoor", "gravenna", "hollisund"),
    "america": ("altapina", "bluefork", "cedarvane", "dos-lagos", "elkmouth", "fairhollow", "granmesa", "highbend"),
    "asia": ("ambalor", "banyura", "chenlou", "damarang", "erhaishi", "furukoda", "gandapur", "haliang"),
    "oceania": ("arrawonga", "billaroo", "coolendra", "dunamarra", "echuma", "fernlea", "goorawin", "hakanui"),
}
"""Invented names of cities by continent."""


def city_style(continent: str, rng: np.random.Generator) -> Style:
    """Draw a city's style: a few of its continent's materials, tinted, with other heights, widths and trees."""
    style = CONTINENTS[continent]

    def choose(palette: Floats, count: int) -> Floats:
        colours = palette[rng.choice(len(palette), min(count, len(palette)), replace=False)]
        tinted: Floats = np.clip(colours * rng.uniform(0.88, 1.1, size=3), 0, 1).astype(np.float32)
        return tinted

    low, high = style.storeys
    height, width, glass = rng.uniform(0.8, 1.25), rng.uniform(0.85, 1.2), rng.uniform(0.9, 1.1)
    return replace(
        style,
        walls=choose(style.walls, 5),
        roofs=choose(style.roofs, 3),
        signs=choose(style.signs, 4),
        storeys=(max(1.0, low * height), high * height),
        width=(style.width[0] * width, style.width[1] * width),
        glass=(style.glass[0] * glass, style.glass[1] * glass),
        road=style.road * rng.uniform(0.9, 1.15),
        block=style.block * rng.uniform(0.9, 1.1),
        trees=style.trees * rng.uniform(0.5, 1.5),
    )


SEASONS = ("spring", "summer", "autumn", "winter")
WEATHERS = ("clear", "cloudy", "rain", "fog", "snow")


@dataclass(frozen=True)
class Camera:
    """The parameters of a camera.

    ``fov`` is the horizontal field of view in degrees, ``height`` metres above the road. ``pitch`` shifts the horizon
    up by a share of the image's height, ``roll`` tilts it (rise over run). ``exposure`` and ``cast`` (RGB) multiply the
    light, ``contrast`` is an exponent, ``noise`` a standard deviation, ``vignette`` the loss of light in the corners,
    and ``panel`` the share of the image that the car's bonnet hides.
    """

    fov: float
    height: float
    pitch: float
    roll: float
    exposure: float
    cast: tuple[float, float, float]
    contrast: float
    noise: float
    vignette: float
    panel: float


@dataclass(frozen=True)
class Conditions:
    """The conditions of a drive.

    ``hour`` is local time in [0, 24); ``traffic`` is the share of places for cars and people that are occupied.
    """

    day: date
    season: str
    hour: float
    weather: str
    traffic: float
    camera: Camera

    @property
    def night(self) -> bool:
        """Whether it is dark."""
        return not 6.0 <= self.hour < 19.5


def draw_camera(rng: np.random.Generator) -> Camera:
    """Draw a phone, dashboard or roof camera."""
    warm, tint = rng.normal(0, 0.07), rng.normal(0, 0.03)
    return Camera(
        fov=rng.uniform(58, 84),
        height=rng.uniform(1.3, 2.3),
        pitch=rng.uniform(-0.05, 0.09),
        roll=rng.normal(0, 0.012),
        exposure=math.exp(rng.normal(0.08, 0.16)),
        cast=(1 + warm, 1 + tint, 1 - warm),
        contrast=rng.uniform(0.8, 1.2),
        noise=rng.uniform(0.004, 0.02),
        vignette=rng.uniform(0.0, 0.35),
        panel=rng.uniform(0.05, 0.14) if rng.random() < 0.12 else 0.0,
    )


def draw_conditions(
    rng: np.random.Generator, years: tuple[int, int], seasons: tuple[str, ...], southern: bool, night: float
) -> Conditions:
    """Draw conditions within ``years`` (inclusive) and one of ``seasons``; it is dark with probability ``night``."""
    season = seasons[int(rng.integers(len(seasons)))]
    month = 3 + 3 * SEASONS.index(season) + (6 if southern else 0)
    year = int(rng.integers(years[0], years[1] + 1))
    day = date(year, (month - 1) % 12 + 1, 1) + timedelta(days=int(rng.integers(85)))
    cold = season == "winter"
    chances = np.array([0.45, 0.3, 0.12, 0.07, 0.35 if cold else 0.0])
    hours = (19.5, 28.0) if rng.random() < night else (7.0, 18.5)
    return Conditions(
        day=day,
        season=season,
        hour=float(rng.uniform(*hours) % 24),
        weather=str(rng.choice(WEATHERS, p=chances / chances.sum())),
        traffic=rng.uniform(0.1, 0.8),
        camera=draw_camera(rng),
    )


@dataclass(frozen=True)
class Light:
    """The light under given conditions, RGB unless stated otherwise.

    ``ambient`` lights everything, ``sun`` lights what faces ``towards``, the unit vector (east, north, up) to the sun.
    ``zenith``, ``horizon`` and ``cloud`` colour the sky, and ``clouds`` in [0, 1] is its cover. ``haze`` is the share
    of light lost per metre. ``wet``, ``snow`` and ``lamps`` are in [0, 1].
    """

    ambient: Floats
    sun: Floats
    towards: Floats
    zenith: Floats
    horizon: Floats
    cloud: Floats
    clouds: float
    haze: float
    wet: float
    snow: float
    lamps: float


def light(conditions: Conditions, southern: bool) -> Light:
    """Return the light under ``conditions``. In the south the sun is in the north at noon."""
    noon = (conditions.hour - 12.5) / 7  # -1 at dawn, 1 at dusk
    low = min(abs(noon), 1.0) ** 3  # 0 at noon, 1 with the sun at the horizon
    height = math.radians(58 - 22 * (conditions.season == "winter")) * max(math.cos(noon * math.pi / 2), 0.12)
    bearing = math.radians(180 + 100 * noon if not southern else -100 * noon)
    towards = _rgb(math.sin(bearing) * math.cos(height), math.cos(bearing) * math.cos(height), math.sin(height))
    cover = {"clear": 0.25, "cloudy": 0.85, "rain": 1.0, "fog": 1.0, "snow": 0.95}[conditions.weather]
    grey = _rgb(0.72, 0.74, 0.77)
    if conditions.night:
        return Light(
            ambient=_rgb(0.27, 0.24, 0.21),
            sun=_rgb(0, 0, 0),
            towards=towards,
            zenith=_rgb(0.02, 0.03, 0.07),
            horizon=_rgb(0.10, 0.09, 0.11),
            cloud=_rgb(0.12, 0.11, 0.11),
            clouds=cover,
            haze=0.02 if conditions.weather == "fog" else 0.004,
            wet=float(conditions.weather == "rain"),
            snow=float(conditions.weather == "snow"),
            lamps=1.0,
        )
    warm = _rgb(1.0, 0.92, 0.82) * (1 - low) + _rgb(1.0, 0.66, 0.38) * low
    horizon = _rgb(0.74, 0.82, 0.90) * (1 - low) + _rgb(0.95, 0.72, 0.52) * low
    shade = _rgb(0.52, 0.56, 0.62) * (1 - 0.35 * low)
    return Light(
        ambient=shade * (1 - cover) + cover * 0.72 * grey * (1 - 0.3 * low),
        sun=0.85 * warm * max(0.0, 1 - 1.15 * cover),
        towards=towards,
        zenith=_rgb(0.28, 0.48, 0.80) * (1 - 0.4 * low),
        horizon=horizon * (1 - 0.7 * cover) + 0.7 * cover * grey,
        cloud=grey * (1.2 - 0.35 * cover) * (1 - 0.25 * low),
        clouds=cover,
        haze={"fog": 0.022, "rain": 0.007, "snow": 0.008}.get(conditions.weather, 0.0025),
        wet=float(conditions.weather == "rain"),
        snow=float(conditions.weather == "snow"),
        lamps=0.5 * low,
    )


def _rgb(*three: float) -> Floats:
    return np.array(three, np.float32)
