"""Reads images of a tower building: 25 floors, 102 areas, 124 videos."""

import re
from pathlib import Path

import numpy as np

from fedapps.base.errors import DataError
from fedapps.base.tables import Table, read_table

from .images import ImageStore, ImageTar
from .places import Places, Track, build_places

ARCHIVE, METADATA = "images_128x96.tar", "metadata.csv"
#: Far more than the 25 m beyond which an image shows a different place.
AREA_DISTANCE, FLOOR_DISTANCE = 100.0, 10_000.0


def read_indoor(folder: Path) -> Places:
    """Read the images of ``images_128x96.tar`` with the table ``metadata.csv``: floor, area, video, frame and split.

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
    names = ["id", "floor", "split", "area", "section", "floor_range", "video", "frame"]
    table = read_table(folder / METADATA, names)
    query = table.words("split", {"query": True, "gallery": False})
    labels = [table.texts(name) for name in ("floor_range", "video", "section", "floor")]
    return build_places(
        ImageStore(ImageTar.of(folder / ARCHIVE, [f"{name}.jpg" for name in table.texts("id")])),
        [
            Track(city, video, asked, continent, floor)
            for city, video, continent, floor, asked in zip(*labels, query.tolist(), strict=True)
        ],
        _positions(table),
        table.integers("frame"),
    )


def _positions(table: Table) -> np.ndarray:
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
