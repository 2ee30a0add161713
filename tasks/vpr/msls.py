"""Reads Mapillary Street-Level Sequences in the folders and files of the release.

F. Warburg, S. Hauberg, M. López-Antequera, P. Gargallo, Y. Kuang, J. Civera. Mapillary Street-Level Sequences: A
Dataset for Lifelong Place Recognition. CVPR 2020. 1.6 million images of 30 cities, available under a licence on
request.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedapps.base.errors import DataError
from fedapps.base.tables import Table, read_table
from fedapps.base.text_files import found_in

from .images import ImageFiles, ImageStore
from .places import Places, Track, build_places
from .positions import headings, refuse_far

#: The cities by continent, which the release does not give; FedVPR (Section 5.1, Appendix C) has one America.
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
#: FedVPR (Section 4) tests in the validation cities of the release.
FEDVPR_TEST = ("cph", "sf")

logger = logging.getLogger(__name__)

_TRUTH = {"true": True, "1": True, "false": False, "0": False}


def continents_of(root: Path) -> dict[str, str]:
    """Return the continents of cities by the names of their folders.

    The 30 cities of the release are known. ``<root>/continents.csv`` (columns ``city, continent``) adds others, such as
    simulated cities in the same format.
    """
    known = {city: continent for continent, cities in CONTINENTS.items() for city in cities}
    if (file := root / CONTINENTS_FILE).exists():
        table = read_table(file, ["city", "continent"])
        table.distinct(["city"])
        known |= dict(zip(table.texts("city"), table.texts("continent"), strict=True))
    return known


def find_cities(root: Path) -> dict[str, Path]:
    """Return the cities below ``root`` and their folders, by name: all of ``train_val``, and those of ``test`` with
    positions.

    The release withholds the positions of its test cities.
    """
    folders = [folder for folder in found_in(root, "train_val/*") if _roles(folder)]
    folders += [file.parents[1] for file in found_in(root, "test/*/query/postprocessed.csv")]
    city_folders: dict[str, Path] = {}
    for folder in sorted(folders, key=lambda folder: folder.name):
        if (other := city_folders.setdefault(folder.name, folder)) != folder:
            raise DataError(f"{folder}: there is also {other}; rename or remove one of the two cities")
    return city_folders


def read_msls(root: Path, cities: Sequence[str] | None = None) -> Places:
    """Read the images of cities whose positions are known, without panoramas.

    The files of ``<root>/{train_val,test}/<city>/{query,database}/`` are ``raw.csv`` (``key, pano`` and optionally
    ``ca``, the heading), ``postprocessed.csv`` (``key, easting, northing``: UTM in metres), ``seq_info.csv`` (``key,
    sequence_key, frame_number``; the description of the release names the second ``sequence_id``) and
    ``images/<key>.jpg``. A city may lack one of the two folders. Whether an image exists is checked when it is loaded.
    The continents are those of :func:`continents_of`, "" for unknown cities.

    Parameters
    ----------
    root : Path
        The folder of the data set.
    cities : sequence of str, optional
        The cities to read; by default all.

    Raises
    ------
    DataError
        A city, a file, a column or the row of an image is missing, a key occurs twice, all images are panoramas, or a
        position is implausible (:func:`~fedapps.tasks.vpr.positions.refuse_far`).
    """
    city_folders = find_cities(root)
    if not city_folders:
        raise DataError(f"{root}: no city found; expected folders like train_val/amsterdam/query and .../database")
    if cities is not None and not cities:
        raise DataError(f"{root}: no city selected; available: {', '.join(city_folders)}")
    if unknown := [city for city in cities or () if city not in city_folders]:
        raise DataError(f"{root}: no positions for {', '.join(unknown)}; available: {', '.join(city_folders)}")
    continents = continents_of(root)
    parts = [
        _read_part(root, city_folders[city], role, continents.get(city, ""))
        for city in (city_folders if cities is None else cities)
        for role in _roles(city_folders[city])
    ]
    if not any(part[0] for part in parts):
        raise DataError(f"{root}: all images are panoramas (column pano of raw.csv), which are left out; add others")
    return build_places(
        ImageStore(ImageFiles(root, [name for part in parts for name in part[0]])),
        [track for part in parts for track in part[1]],
        np.concatenate([part[2] for part in parts]),
        np.concatenate([part[3] for part in parts]),
        np.concatenate([part[4] for part in parts]),
    )


_Part = tuple[list[str], list[Track], np.ndarray, np.ndarray, np.ndarray]


def _roles(city: Path) -> list[str]:
    """The roles for which a city has a folder."""
    return [role for role in ("query", "database") if (city / role).is_dir()]


def _read_part(root: Path, city: Path, role: str, continent: str) -> _Part:
    """The names, sequences, positions, frames and headings of the images of one role."""
    folder = city / role
    raw = read_table(folder / "raw.csv", ["key", "pano"], ["ca"])
    flat = np.flatnonzero(~raw.words("pano", _TRUTH))
    raw.distinct(["key"])
    if not len(flat):
        logger.warning("%s: all %d images are panoramas, which are left out", folder, len(raw))
    keys = [raw.texts("key")[row] for row in flat]
    placed = read_table(folder / "postprocessed.csv", ["key", "easting", "northing"])
    placed_rows = _rows_of(keys, placed)
    position = np.stack([placed.numbers("easting"), placed.numbers("northing")], axis=1)
    refuse_far(placed, ("easting", "northing"), position, "use UTM coordinates in metres")
    position = position[placed_rows]
    ordered, sequence = _read_sequences(folder / "seq_info.csv")
    ordered_rows = _rows_of(keys, ordered)
    tracks = {name: Track(city.name, name, role == "query", continent) for name in set(ordered.texts(sequence))}
    inside = folder.relative_to(root).as_posix()
    return (
        [f"{inside}/images/{key}.jpg" for key in keys],
        [tracks[ordered.texts(sequence)[row]] for row in ordered_rows],
        position,
        ordered.integers("frame_number")[ordered_rows],
        headings(raw, "ca")[flat] if "ca" in raw else np.full(len(flat), np.nan),
    )


def _read_sequences(path: Path) -> tuple[Table, str]:
    """The table of sequences, and the name of the column that identifies a sequence."""
    table = read_table(path, ["key", "frame_number"], ["sequence_key", "sequence_id"])
    name = "sequence_id" if "sequence_id" in table and "sequence_key" not in table else "sequence_key"
    table.require([name])
    if "sequence_id" in table and table.texts("sequence_id") != table.texts(name):
        raise DataError(f"{path}: the columns sequence_key and sequence_id differ; keep the one that names sequences")
    return table, name


def _rows_of(keys: Sequence[str], table: Table) -> np.ndarray:
    table.distinct(["key"])
    row_of = {key: row for row, key in enumerate(table.texts("key"))}
    try:
        return np.array([row_of[key] for key in keys], dtype=np.int64)
    except KeyError as error:
        raise DataError(f"{table.path}: no row with the key {error.args[0]!r}, which raw.csv has") from error
