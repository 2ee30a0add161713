"""Readers of data sets of places: Mapillary (MSLS), Nordland, a tower building, and a table with one row per image.

- MSLS: F. Warburg, S. Hauberg, M. López-Antequera, P. Gargallo, Y. Kuang, J. Civera. Mapillary Street-Level Sequences:
  A Dataset for Lifelong Place Recognition. CVPR 2020. 1.6 million images of 30 cities, available under a licence on
  request.
- Nordland: N. Sünderhauf, P. Neubert, P. Protzel. Are We There Yet? Challenging SeqSLAM on a 3000 km Journey Across All
  Four Seasons. ICRA Workshop on Long-Term Autonomy, 2013. A railway line in summer and in winter, in small grey images.
  Footage by NRK, aligned frame by frame.
- The tower building has 25 floors, 102 areas and 124 videos.
"""

import logging
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedapps.base.errors import DataError
from fedapps.base.tables import Table, read_table, refuse_spellings
from fedapps.base.text_files import arrays_in, found_in

from .images import ImageArray, ImageFiles, ImageStore, ImageTar
from .places import Places, Track, build_places, projected, refuse_far, refuse_wide

ARCHIVE, METADATA = "images_128x96.tar", "metadata.csv"
#: Far more than the 25 m beyond which an image shows a different place.
AREA_DISTANCE, FLOOR_DISTANCE = 100.0, 10_000.0


def read_indoor(folder: Path) -> Places:
    """Read the images of ``images_128x96.tar`` with the table ``metadata.csv``: floor, area, video and split.

    The gallery is the database. The positions of the images were not measured, so the place is the area of a floor
    ("liftspace_number" of floor 12 differs from that of floor 13). All images of an area have the same position; the
    areas of a floor lie 100 m apart in the order of their names, and floors 10 km apart. Images within 25 m therefore
    show the same area. The floor is the group, ``floor_range`` (basement, lowrise, midrise, highrise) the city, and
    ``section`` (basement, above-ground) the continent.

    Every fifth frame of a video is a query and the others are the gallery, so the temporal neighbours of a query are in
    the database, unlike in a data set with a second visit. A video counts as two sequences, one of each role. Whether
    an image exists is checked when it is loaded.

    Raises
    ------
    DataError
        A file or a column is missing, or a cell is invalid.
    """
    table = read_table(folder / METADATA, ["id", "floor", "split", "area", "section", "floor_range", "video"])
    query = table.words("split", {"query": True, "gallery": False})
    labels = [table.texts(name) for name in ("floor_range", "video", "section", "floor")]
    return build_places(
        ImageStore(ImageTar.of(folder / ARCHIVE, [f"{name}.jpg" for name in table.texts("id")])),
        [
            Track(city, video, asked, continent, floor)
            for city, video, continent, floor, asked in zip(*labels, query.tolist(), strict=True)
        ],
        _area_positions(table),
    )


def _area_positions(table: Table) -> np.ndarray:
    floors, areas = table.texts("floor"), table.texts("area")
    of_floor: dict[str, set[str]] = {}
    for floor, area in zip(floors, areas, strict=True):
        of_floor.setdefault(floor, set()).add(area)
    east = {
        (floor, area): column for floor, on_floor in of_floor.items() for column, area in enumerate(sorted(on_floor))
    }
    rows = zip(floors, areas, strict=True)
    return np.array(
        [
            (AREA_DISTANCE * east[floor, area], FLOOR_DISTANCE * _level(table, row, floor))
            for row, (floor, area) in enumerate(rows)
        ]
    )


def _level(table: Table, row: int, floor: str) -> int:
    """The number of floors above the ground, -4 for "basement4"."""
    if not (match := re.fullmatch(r"(basement|floor)(\d+)", floor)):
        raise DataError(f"{table.location(row, 'floor')}: {floor!r}; expected a name like floor12 or basement2")
    return int(match[2]) * (-1 if match[1] == "basement" else 1)


NORDLAND_FILE = "nordland_64x32.npz"
SEQUENCE_FRAMES = 10  # successive frames of a sequence, including those left out
LINE_LENGTH = 729_000.0  # metres from Trondheim to Bodø
#: 203.9 m, for 3,576 frames taken 10 s apart at the train's mean speed of 73 km/h.
METRES_PER_FRAME = LINE_LENGTH / 3575


def read_nordland(
    path: Path, *, stretches: int = 30, regions: int = 5, metres_per_frame: float = METRES_PER_FRAME
) -> Places:
    """Read summer as the database and winter as the queries.

    The file has ``summer`` and ``winter``, uint8 or uint16 ``[n, H, W]``, in which frame i shows the same place, and
    ``usable``, bool ``[n]``. Frames that are not usable (dark, or the train stands) are left out. Frame i lies ``i *
    metres_per_frame`` east of the start. With the default a query has exactly one image within 25 m, its own frame in
    summer; at 8 m per frame its neighbours, 10 s before and after, are positives too.

    Parameters
    ----------
    path : Path
        The ``.npz`` file, or the folder of ``nordland_64x32.npz``.
    stretches : int
        The number of stretches of equal length. They are the groups.
    regions : int
        The number of regions of equally many stretches. They take the place of cities.
    metres_per_frame : float
        The distance between frames.

    Raises
    ------
    DataError
        The file is missing, lacks an array or has arrays of wrong shapes, or the numbers do not divide it.
    """
    file = path / NORDLAND_FILE if path.is_dir() else path
    summer, winter, usable = _arrays(file)
    if not 1 <= regions <= stretches <= len(usable):
        raise DataError(
            f"{file}: {stretches} stretches in {regions} regions; expected 1 <= regions <= stretches <= {len(usable)} "
            "frames"
        )
    frames = np.flatnonzero(usable)
    of_stretch = frames * stretches // len(usable)
    first = -(-of_stretch * len(usable) // stretches)  # the first frame of the stretch
    block = (frames - first) // SEQUENCE_FRAMES
    tracks = [
        Track(
            city=f"region-{stretch * regions // stretches}",
            name=f"{stretch:03d}-{number:03d}",
            query=query,
            continent="europe",
            group=f"stretch-{stretch:03d}",
        )
        for query in (False, True)
        for stretch, number in zip(of_stretch.tolist(), block.tolist(), strict=True)
    ]
    line = np.stack([frames * metres_per_frame, np.zeros(len(frames))], axis=1)
    return build_places(
        ImageStore(ImageArray(np.concatenate([summer[frames], winter[frames]]))),
        tracks,
        np.concatenate([line, line]),
    )


def _grey(pixels: np.ndarray) -> bool:
    return pixels.dtype in (np.uint8, np.uint16)


def _arrays(file: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    names = ("summer", "winter", "usable")
    arrays = dict(arrays_in(file, names))
    if missing := [name for name in names if name not in arrays]:
        raise DataError(f"{file}: no array {', '.join(missing)}; found {', '.join(arrays) or 'none'}")
    summer, winter, usable = (arrays[name] for name in names)
    if summer.ndim != 3 or winter.shape != summer.shape or usable.shape != summer.shape[:1]:
        raise DataError(
            f"{file}: summer {summer.shape}, winter {winter.shape}, usable {usable.shape}; expected (n, H, W) twice "
            "and (n,)"
        )
    if not (_grey(summer) and _grey(winter)):
        raise DataError(f"{file}: summer {summer.dtype}, winter {winter.dtype}; expected grey values, uint8 or uint16")
    if not np.isin(usable, (0, 1)).all():
        raise DataError(f"{file}: usable has other values than true and false, or 1 and 0")
    return summer, winter, usable.astype(bool)


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


def read_msls(root: Path) -> Places:
    """Read the images of cities whose positions are known, without panoramas.

    The files of ``<root>/{train_val,test}/<city>/{query,database}/`` are ``raw.csv`` (``key, pano``),
    ``postprocessed.csv`` (``key, easting, northing``: UTM in metres), ``seq_info.csv`` (``key, sequence_key``; the
    description of the release names the second ``sequence_id``) and ``images/<key>.jpg``. A city may lack one of the
    two folders. Whether an image exists is checked when it is loaded. The continents are those of
    :func:`continents_of`, "" for unknown cities.

    Raises
    ------
    DataError
        A city, a file, a column or the row of an image is missing, a key occurs twice, all images are panoramas, or a
        position is implausible (:func:`~fedapps.tasks.vpr.places.refuse_far`).
    """
    city_folders = find_cities(root)
    if not city_folders:
        raise DataError(f"{root}: no city found; expected folders like train_val/amsterdam/query and .../database")
    continents = continents_of(root)
    parts = [
        _read_part(root, city_folders[city], role, continents.get(city, ""))
        for city in city_folders
        for role in _roles(city_folders[city])
    ]
    if not any(part[0] for part in parts):
        raise DataError(f"{root}: all images are panoramas (column pano of raw.csv), which are left out; add others")
    return build_places(
        ImageStore(ImageFiles(root, [name for part in parts for name in part[0]])),
        [track for part in parts for track in part[1]],
        np.concatenate([part[2] for part in parts]),
    )


def _roles(city: Path) -> list[str]:
    """The roles for which a city has a folder."""
    return [role for role in ("query", "database") if (city / role).is_dir()]


def _read_part(root: Path, city: Path, role: str, continent: str) -> tuple[list[str], list[Track], np.ndarray]:
    """The names, sequences and positions of the images of one role."""
    folder = city / role
    raw = read_table(folder / "raw.csv", ["key", "pano"])
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
    )


def _read_sequences(path: Path) -> tuple[Table, str]:
    """The table of sequences, and the name of the column that identifies a sequence."""
    table = read_table(path, ["key"], ["sequence_key", "sequence_id"])
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


REQUIRED = ("path", "sequence", "role")
OPTIONAL = ("x", "y", "lon", "lat", "city", "continent", "group")
#: The words in the column role, and whether they mean a query.
ROLES = {"query": True, "database": False, "gallery": False}


def read_image_table(path: Path) -> Places:
    """Read the images that a table lists.

    The table has the columns ``path`` (relative to the table's folder), ``sequence`` and ``role`` ("query" or
    "database"; "gallery" means the same as "database"), and either ``x`` and ``y`` (metres east and north) or ``lon``
    and ``lat`` (degrees). Degrees are projected to metres about the median of each city
    (:func:`~fedapps.tasks.vpr.places.projected`). A sequence with images of both roles counts as two sequences.

    The columns ``city``, ``continent`` and ``group`` are optional. Without them all images belong to one unnamed city
    and have no continent and no group.

    Raises
    ------
    DataError
        The file or a column is missing, a cell is invalid, an image is listed twice in a role, or a position is
        implausible: far from the rest of its city, or (0, 0), which devices write without a fix.
    """
    hint = "the first line names the columns; a sequence is a drive; the role of an image to recognise is query, that "
    hint += "of an image of the map database"
    table = read_table(path, REQUIRED, OPTIONAL, hint=hint)
    table.distinct(["path", "role"])
    cities = _labels(table, "city")
    labels = zip(
        cities,
        table.texts("sequence"),
        table.words("role", ROLES).tolist(),
        _labels(table, "continent"),
        _labels(table, "group"),
        strict=True,
    )
    return build_places(
        ImageStore(ImageFiles(path.parent, table.texts("path"))),
        [Track(*label) for label in labels],
        _positions(table, np.array(cities)),
    )


def _labels(table: Table, column: str) -> list[str]:
    if column not in table:
        return [""] * len(table)
    labels = table.texts(column)
    refuse_spellings(labels, f"{table.path}, column {column}", "")
    return labels


#: The degrees that are possible: of lon (column 0 of a position) and lat (column 1).
DEGREES = {"lon": (-180.0, 360.0), "lat": (-90.0, 90.0)}


def swapped(lon: np.ndarray, lat: np.ndarray) -> bool:
    """Whether positions, of which one is impossible, are possible with longitude and latitude exchanged."""
    return not (np.abs(lon) > 90).any() and not (np.abs(lat) > 180).any()


def coordinates(table: Table) -> tuple[np.ndarray, bool]:
    """Return the positions in the columns x and y, or lon and lat, float64 ``[n, 2]``, and whether they are
    degrees.

    Raises
    ------
    DataError
        The table has neither or both, a cell is invalid, or a position is implausible: (0, 0) in degrees, which devices
        write without a fix, or far from the rest of its city in metres.
    """
    if "x" in table and "y" in table and "lon" in table and "lat" in table:
        raise DataError(
            f"{table.path}: has both x and y and lon and lat; keep the positions in metres or those in degrees"
        )
    if "x" in table and "y" in table:
        position = np.stack([table.numbers("x"), table.numbers("y")], axis=1)
        cities = np.array(_labels(table, "city"))
        for city in np.unique(cities):
            refuse_far(table, ("x", "y"), position, "write metres", np.flatnonzero(cities == city))
        return position, False
    if "lon" not in table or "lat" not in table:
        raise DataError(f"{table.path}: no columns x and y, nor lon and lat; found {', '.join(table.columns)}")
    lon, lat = table.numbers("lon"), table.numbers("lat")
    for name, values in (("lat", lat), ("lon", lon)):
        least, most = DEGREES[name]
        if len(wrong := np.flatnonzero((values < least) | (values > most))):
            advice = "are lon and lat swapped?" if swapped(lon, lat) else "write metres in the columns x and y"
            raise table.fault(name, wrong, f"expected degrees from {least:g} to {most:g}; {advice}")
    if len(zero := np.flatnonzero((lon == 0) & (lat == 0))):
        raise table.fault("lon", zero, "lon and lat are 0, as without a GPS fix; correct or remove the row")
    return np.stack([lon, lat], axis=1), True


def _positions(table: Table, cities: np.ndarray) -> np.ndarray:
    """Positions in metres, float64 ``[n, 2]``."""
    position, degrees = coordinates(table)
    if degrees:
        for city in np.unique(cities):
            inside = np.flatnonzero(cities == city)
            refuse_wide(table, position[:, 0], position[:, 1], inside)
            position[inside] = projected(*position[inside].T)
    return position
