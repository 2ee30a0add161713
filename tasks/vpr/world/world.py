"""Writes simulated cities as a data set for visual place recognition, in the layout of Mapillary Street-Level
Sequences (Warburg et al., CVPR 2020).

The images of Mapillary require a licence, and these stand in for them: cities differ by continent, and every street is
driven in several seasons, light and traffic conditions and with several cameras, while its houses stay the same.

A city has the folders ``query`` and ``database``. Each contains ``images/<key>.jpg`` and three tables whose first,
unnamed column counts the rows:

* ``raw.csv``: key, lon, lat, ca (compass angle, degrees), captured_at (a date), pano;
* ``postprocessed.csv``: key, easting, northing (UTM, metres), unique_cluster, control_panel, night, view_direction;
* ``seq_info.csv``: key, sequence_key, frame_number.
"""

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from fedapps.base.seeding import derive_seed, generator
from fedapps.base.tables import write_table

from .city import City, draw_city, near, visit
from .network import Drive, draw_drives, draw_poses, draw_routes
from .rendering import render
from .styles import CONTINENTS, NAMES, Floats

SIDES = ("query", "database")
RAW = ("", "key", "lon", "lat", "ca", "captured_at", "pano")
POSTPROCESSED = ("", "key", "easting", "northing", "unique_cluster", "control_panel", "night", "view_direction")
SEQUENCES = ("", "key", "sequence_key", "frame_number")


@dataclass(frozen=True)
class Frame:
    """A row of the three tables. ``heading`` is in degrees; ``cluster`` numbers the places of a city."""

    key: str
    easting: float
    northing: float
    heading: float
    captured_at: str
    cluster: int
    control_panel: bool
    night: bool
    sequence: str
    number: int


def write_tables(folder: Path, frames: Sequence[Frame], zone: int, southern: bool) -> None:
    """Write the three tables of ``frames``, with positions in metres of a UTM zone, into ``folder``."""
    places = np.array([(frame.easting, frame.northing) for frame in frames]).reshape(-1, 2)
    longitude, latitude = to_degrees(places[:, 0], places[:, 1], zone, southern)
    degrees = zip(longitude.tolist(), latitude.tolist(), strict=True)
    raw = [
        (f.key, f"{lon:.8f}", f"{lat:.8f}", f"{f.heading:.2f}", f.captured_at, False)
        for f, (lon, lat) in zip(frames, degrees, strict=True)
    ]
    processed = [
        (f.key, f"{f.easting:.3f}", f"{f.northing:.3f}", f.cluster, f.control_panel, f.night, "Forward") for f in frames
    ]
    sequences = [(f.key, f.sequence, f.number) for f in frames]
    for name, header, rows in (
        ("raw", RAW, raw), ("postprocessed", POSTPROCESSED, processed), ("seq_info", SEQUENCES, sequences)
    ):  # fmt: skip
        write_table(folder / f"{name}.csv", header, ((number, *row) for number, row in enumerate(rows)))


AXIS, FLATTENING = 6378137.0, 1 / 298.257223563  # WGS 84
SCALE, EAST, SOUTH = 0.9996, 500_000.0, 10_000_000.0


def to_degrees(easting: Floats, northing: Floats, zone: int, southern: bool) -> tuple[Floats, Floats]:
    """Return longitude and latitude in degrees of positions in UTM ``zone`` (1 to 60).

    In the south, ``northing`` includes the false northing of 10,000 km. The result is accurate to a millimetre within
    the zone: Krüger's series in the third flattening n, up to its third power.
    """
    n = FLATTENING / (2 - FLATTENING)
    radius = SCALE * AXIS / (1 + n) * (1 + n**2 / 4 + n**4 / 64)
    up = (np.asarray(northing, np.float64) - SOUTH * southern) / radius
    across = (np.asarray(easting, np.float64) - EAST) / radius
    betas = (n / 2 - 2 * n**2 / 3 + 37 * n**3 / 96, n**2 / 48 + n**3 / 15, 17 * n**3 / 480)
    deltas = (2 * n - 2 * n**2 / 3 - 2 * n**3, 7 * n**2 / 3 - 8 * n**3 / 5, 56 * n**3 / 15)
    xi = up - sum(b * np.sin(2 * j * up) * np.cosh(2 * j * across) for j, b in enumerate(betas, 1))
    eta = across - sum(b * np.cos(2 * j * up) * np.sinh(2 * j * across) for j, b in enumerate(betas, 1))
    chi = np.arcsin(np.sin(xi) / np.cosh(eta))
    latitude = chi + sum(d * np.sin(2 * j * chi) for j, d in enumerate(deltas, 1))
    longitude = np.arctan2(np.sinh(eta), np.cos(xi))
    return np.degrees(longitude) + (6 * zone - 183), np.degrees(latitude)


logger = logging.getLogger(__name__)
WORLD_FILE = "world.json"
SIGHT = 130.0  # metres around a drive within which the city is rendered
MOST_CITIES = sum(len(names) for names in NAMES.values())
GRIDS = {"europe": (32, 5_500_000), "america": (14, 4_100_000), "asia": (48, 1_700_000), "oceania": (55, 5_900_000)}
"""A UTM zone and a northing in each continent, near which its simulated cities lie."""


@dataclass(frozen=True)
class StreetWorld:
    """The size of a world.

    Attributes
    ----------
    cities, test_cities : int
        Cities for training and validation, and for the common test: together at most 32, from the four continents in
        turn.
    kilometres : float
        Mean length of the driven streets of a city, which varies between half and one and a half times as much.
    size : tuple of (int, int)
        Width and height of images in pixels.
    route : float
        Approximate length of a route in metres.
    spacing : float
        Metres between consecutive images.
    drives : int
        Minimum number of database sequences, and of query sequences, per route.
    more_drives : float
        Mean number of additional sequences of each.
    night : float
        Share of the sequences recorded in the dark.
    quality : int
        JPEG quality.

    A kilometre of street gives about ``2000 (drives + more_drives) / spacing`` images: 1000 by default.

    Raises
    ------
    ValueError
        There are too many cities, or images are too small.
    """

    cities: int = 16
    test_cities: int = 2
    kilometres: float = 1.2
    size: tuple[int, int] = (96, 64)
    route: float = 120.0
    spacing: float = 5.0
    drives: int = 2
    more_drives: float = 0.5
    night: float = 0.1
    quality: int = 90

    def __post_init__(self) -> None:
        if self.cities + self.test_cities > MOST_CITIES:
            total = f"cities + test_cities = {self.cities} + {self.test_cities}"
            raise ValueError(f"{total}: must be at most {MOST_CITIES}; increase kilometres instead")
        if min(self.size) < 16:
            raise ValueError(f"size = {self.size}: must be at least 16 pixels each way")

    def names(self) -> dict[str, tuple[str, str]]:
        """Return the continent and the part of the data set (``train_val`` or ``test``) of each city."""
        parts = ["train_val"] * self.cities + ["test"] * self.test_cities
        continents = list(CONTINENTS)
        cities = {}
        for number, part in enumerate(parts):
            continent = continents[number % len(continents)]
            cities[NAMES[continent][number // len(continents)]] = (continent, part)
        return cities


def write_streets(folder: Path, world: StreetWorld, seed: int) -> None:
    """Write the cities of ``world`` into ``folder``.

    This module describes ``<folder>/<train_val or test>/<city>/<query or database>``.
    ``<folder>/world.json``, written last, records that everything is simulated, the ``seed`` and parameters, and each
    city's continent. The same seed gives the same bytes on the same machine. A city does not depend on the others.
    Progress is logged every ten seconds.
    """
    begun = logged = time.monotonic()
    names = world.names()
    for number, (name, (continent, part)) in enumerate(names.items()):
        write_city(folder / part / name, name, continent, world, seed)
        if time.monotonic() - logged > 10:
            logged = time.monotonic()
            logger.info("rendered %d of %d cities in %.0f s", number + 1, len(names), logged - begun)
    cities = {name: {"continent": continent, "part": part} for name, (continent, part) in names.items()}
    facts = {"simulated": True, "seed": seed, "parameters": asdict(world), "cities": cities}
    (folder / WORLD_FILE).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def write_city(folder: Path, name: str, continent: str, world: StreetWorld, seed: int) -> None:
    """Simulate one city and the drives through it, and write its images and tables into ``folder``."""
    rng = generator(seed, "streets.city", name)
    metres = 1000 * world.kilometres * rng.uniform(0.5, 1.5)
    zone, northing = GRIDS[continent]
    zone += int(rng.integers(-2, 3))
    centre = np.array([500_000, northing]) + rng.uniform(-150_000, 150_000, size=2)
    city = draw_city(name, continent, metres, seed)
    frames: dict[str, list[Frame]] = {side: [] for side in SIDES}
    for side in SIDES:
        (folder / side / "images").mkdir(parents=True, exist_ok=True)
    for route, nodes in enumerate(draw_routes(city.network, world.route, rng)):
        path = city.network.nodes[nodes]
        for drive in draw_drives(name, route, world.drives, world.more_drives, city.style.southern, world.night, seed):
            frames[drive.side] += _drive(
                folder / drive.side, city, path[::-1] if drive.reverse else path, centre, drive, world, seed
            )
    for side in SIDES:
        write_tables(folder / side, frames[side], zone, city.style.southern)


def _drive(
    folder: Path, city: City, path: np.ndarray, centre: np.ndarray, drive: Drive, world: StreetWorld, seed: int
) -> list[Frame]:
    labels = ("streets.drive", city.name, drive.side, drive.route, drive.number)
    rng, drive_seed = generator(seed, *labels), derive_seed(seed, *labels)
    lane = 0.5 * city.style.road * (-1 if city.style.left_hand else 1)
    poses = draw_poses(path, lane, world.spacing, rng)
    read = poses.position + rng.uniform(-1, 1, size=2) + np.clip(rng.normal(0, 0.4, size=poses.position.shape), -1, 1)
    seen = visit(near(city, poses.position, SIGHT), drive.conditions, drive_seed)
    frames = []
    for number, (position, heading) in enumerate(zip(poses.position, poses.heading.tolist(), strict=True)):
        key = f"{derive_seed(drive_seed, 'key', number):016x}"
        picture = render(seen, position, heading, world.size, generator(drive_seed, "noise", number))
        Image.fromarray(picture).save(folder / "images" / f"{key}.jpg", quality=world.quality, subsampling=0)
        easting, northing = (centre + read[number]).tolist()
        frames.append(
            Frame(
                key=key,
                easting=easting,
                northing=northing,
                heading=float(np.degrees(heading)) % 360,
                captured_at=drive.conditions.day.isoformat(),
                cluster=drive.route,
                control_panel=drive.conditions.camera.panel > 0,
                night=drive.conditions.night,
                sequence=f"{drive_seed:016x}",
                number=number,
            )
        )
    return frames
