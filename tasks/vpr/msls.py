"""Mapillary Street-Level Sequences, in the folders and files of its release.

F. Warburg, S. Hauberg, M. López-Antequera, P. Gargallo, Y. Kuang, J. Civera. Mapillary Street-Level Sequences: A
Dataset for Lifelong Place Recognition. CVPR 2020. 1.6 million pictures of 30 cities; the licence must be asked for.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tasks.profiles import DataError

from .columns import Columns, read_columns
from .images import ImageFiles, ImageStore
from .places import Places, Track, build_places

#: The cities by continent. The release does not tell it; FedVPR (Sec. 5.1, Appendix C) has one America.
CONTINENTS = {
    "africa": ("kampala", "nairobi"),
    "america": ("austin", "boston", "buenosaires", "miami", "ottawa", "phoenix", "saopaulo", "sf", "toronto"),
    "asia": ("amman", "bangkok", "bengaluru", "goa", "manila", "tokyo"),
    "europe": (
        *("amsterdam", "athens", "berlin", "budapest", "cph", "helsinki", "london", "moscow", "paris", "stockholm"),
        *("trondheim", "zurich"),
    ),
    "oceania": ("melbourne",),
}
CONTINENTS_FILE = "continents.csv"
#: FedVPR (Sec. 4) tests in the cities that the release validates in.
FEDVPR_TEST = ("cph", "sf")
FEDVPR_VALIDATION = ("amsterdam", "manila")

_TRUTH = {"true": True, "1": True, "false": False, "0": False}


def continents_of(root: Path) -> dict[str, str]:
    """The continents of cities by the names of their folders.

    To the 30 of the release come those of ``<root>/continents.csv`` (columns ``city, continent``) where that is there,
    as cities made up in the release's format have it.
    """
    known = {city: continent for continent, cities in CONTINENTS.items() for city in cities}
    if (file := root / CONTINENTS_FILE).exists():
        table = read_columns(file, ["city", "continent"])
        known |= dict(zip(table.texts("city"), table.texts("continent"), strict=True))
    return known


def find_cities(root: Path) -> dict[str, Path]:
    """The cities below ``root`` and their folders, by name: those of ``train_val``, and of ``test`` where not withheld.

    The release withholds the positions of its test cities, from Miami to Kampala.
    """
    folders = [folder for folder in (root / "train_val").glob("*") if _roles(folder)]
    folders += [file.parents[1] for file in (root / "test").glob("*/query/postprocessed.csv")]
    return {folder.name: folder for folder in sorted(folders, key=lambda folder: folder.name)}


def read_msls(root: Path, cities: Sequence[str] | None = None) -> Places:
    """The pictures of ``cities``, or for None of all whose positions are known, without panoramas.

    Reads ``<root>/{train_val,test}/<city>/{query,database}/``: ``raw.csv`` (``key, ca, pano``), ``postprocessed.csv``
    (``key, easting, northing``: UTM in metres) and ``seq_info.csv`` (``key, sequence_key, frame_number``, the second
    named ``sequence_id`` in the description of the release). Pictures are ``images/<key>.jpg``. Other columns do not
    matter, nor does ``ca``, the heading, have to be there. Whether a picture is there shows when it is loaded. A city
    may lack one of the two folders.
    Continents are those of :func:`continents_of`, "" for a city that it does not have.

    Raises :class:`DataError` when there is no such city or a file, a column or a picture's line is missing.
    """
    found = find_cities(root)
    if not found:
        raise DataError(f"{root}: no city; expected folders like train_val/amsterdam/query and .../database")
    if cities is not None and not cities:
        raise DataError(f"{root}: none of its cities asked for; there are {', '.join(found)}")
    if unknown := [city for city in cities or () if city not in found]:
        raise DataError(f"{root}: no positions of the city {', '.join(unknown)}; there are {', '.join(found)}")
    continents = continents_of(root)
    parts = [
        _read_part(root, found[city], role, continents.get(city, ""))
        for city in (found if cities is None else cities)
        for role in _roles(found[city])
    ]
    return build_places(
        ImageStore(ImageFiles(root, [name for part in parts for name in part[0]])),
        [track for part in parts for track in part[1]],
        np.concatenate([part[2] for part in parts]),
        np.concatenate([part[3] for part in parts]),
        np.concatenate([part[4] for part in parts]),
    )


_Part = tuple[list[str], list[Track], np.ndarray, np.ndarray, np.ndarray]


def _roles(city: Path) -> list[str]:
    """What a city's folder has pictures for."""
    return [role for role in ("query", "database") if (city / role).is_dir()]


def _read_part(root: Path, city: Path, role: str, continent: str) -> _Part:
    """Names of pictures, their sequences, positions, frames and headings."""
    folder = city / role
    raw = read_columns(folder / "raw.csv", ["key", "pano"], ["ca"])
    flat = np.flatnonzero(~raw.matches("pano", _TRUTH))
    keys = [raw.texts("key")[row] for row in flat]
    placed = read_columns(folder / "postprocessed.csv", ["key", "easting", "northing"])
    placed_rows = _rows_of(keys, placed)
    position = np.stack([placed.numbers("easting"), placed.numbers("northing")], axis=1)[placed_rows]
    ordered, sequence = _read_sequences(folder / "seq_info.csv")
    ordered_rows = _rows_of(keys, ordered)
    tracks = {name: Track(city.name, name, role == "query", continent) for name in set(ordered.texts(sequence))}
    inside = folder.relative_to(root).as_posix()
    return (
        [f"{inside}/images/{key}.jpg" for key in keys],
        [tracks[ordered.texts(sequence)[row]] for row in ordered_rows],
        position,
        ordered.integers("frame_number")[ordered_rows],
        raw.numbers("ca", missing=np.nan)[flat] if "ca" in raw else np.full(len(flat), np.nan),
    )


def _read_sequences(path: Path) -> tuple[Columns, str]:
    """The table of sequences and the name of the column that tells them apart."""
    table = read_columns(path, ["key", "frame_number"], ["sequence_key", "sequence_id"])
    for name in ("sequence_key", "sequence_id"):
        if name in table:
            return table, name
    read_columns(path, ["sequence_key"])  # raises, with the columns found
    raise AssertionError


def _rows_of(keys: Sequence[str], table: Columns) -> np.ndarray:
    row_of = {key: row for row, key in enumerate(table.texts("key"))}
    try:
        return np.array([row_of[key] for key in keys], dtype=np.int64)
    except KeyError as error:
        raise DataError(f"{table.path}: no line with the key {error.args[0]}, which raw.csv has") from error
