"""Writes image sequences in the layout of Mapillary Street-Level Sequences (Warburg et al., CVPR 2020).

A city has the folders ``query`` and ``database``. Each contains ``images/<key>.jpg`` and three tables whose first,
unnamed column counts the rows:

* ``raw.csv``: key, lon, lat, ca (compass angle, degrees), captured_at (a date), pano;
* ``postprocessed.csv``: key, easting, northing (UTM, metres), unique_cluster, control_panel, night, view_direction;
* ``seq_info.csv``: key, sequence_key, frame_number.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .noise import Floats

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


def write_picture(folder: Path, key: str, picture: NDArray[np.uint8], quality: int) -> None:
    """Write ``picture [H, W, 3]`` as ``images/<key>.jpg`` into ``folder``, which must contain ``images``."""
    Image.fromarray(picture).save(folder / "images" / f"{key}.jpg", quality=quality, subsampling=0)


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
    _write(folder / "raw.csv", RAW, raw)
    _write(folder / "postprocessed.csv", POSTPROCESSED, processed)
    _write(folder / "seq_info.csv", SEQUENCES, [(f.key, f.sequence, f.number) for f in frames])


def _write(path: Path, header: Sequence[str], rows: Sequence[tuple[object, ...]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(header)
        table.writerows((number, *row) for number, row in enumerate(rows))


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
