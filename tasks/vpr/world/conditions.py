"""The time, the weather and the camera of a drive."""

import math
from dataclasses import dataclass
from datetime import date, timedelta

import numpy as np

from .noise import Floats

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
