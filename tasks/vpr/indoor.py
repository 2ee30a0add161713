"""The floors of a tower building, walked with a camera: 25 floors, 102 areas, 124 videos."""

import re
from pathlib import Path

import numpy as np

from tasks.profiles import DataError

from .columns import Columns, read_columns
from .images import ImageStore, ImageTar
from .places import Places, Track, build_places

ARCHIVE, METADATA = "images_128x96.tar", "metadata.csv"
#: Far beyond the 25 m from which on a picture shows another place.
AREA_DISTANCE, FLOOR_DISTANCE = 100.0, 10_000.0


def read_indoor(folder: Path) -> Places:
    """The pictures of ``images_128x96.tar``, ``metadata.csv`` telling floor, area, video, frame and split.

    The gallery is the database. Nobody measured where a picture was taken; the place is the area of a floor
    ("liftspace_number" of floor 12 is not that of floor 13). So all pictures of an area have one position, areas of a
    floor lie 100 m apart in the order of their names, floors 10 km: within 25 m is what shows the same area. The floor
    is the group; ``floor_range`` (basement, lowrise, midrise, highrise) is what is called a city elsewhere, and
    ``section`` (basement, above-ground) the continent.

    Every fifth frame of a video is a query and the others are the gallery, so that a query's neighbours in time are
    in the database, unlike those of a second visit. A video counts as two sequences, one of each role. Whether a
    picture is there shows when it is loaded.

    Raises :class:`DataError` for a missing file or column or a cell that is not understood.
    """
    names = ["id", "floor", "split", "area", "section", "floor_range", "video", "frame"]
    table = read_columns(folder / METADATA, names)
    query = table.matches("split", {"query": True, "gallery": False})
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


def _positions(table: Columns) -> np.ndarray:
    floors, areas = table.texts("floor"), table.texts("area")
    of_floor: dict[str, set[str]] = {}
    for floor, area in zip(floors, areas, strict=True):
        of_floor.setdefault(floor, set()).add(area)
    east = {(floor, area): place for floor, found in of_floor.items() for place, area in enumerate(sorted(found))}
    rows = zip(floors, areas, strict=True)
    return np.array(
        [
            (AREA_DISTANCE * east[floor, area], FLOOR_DISTANCE * _level(table, row, floor))
            for row, (floor, area) in enumerate(rows)
        ]
    )


def _level(table: Columns, row: int, floor: str) -> int:
    """Floors above the ground, -4 for "basement4"."""
    if not (found := re.fullmatch(r"(basement|floor)(\d+)", floor)):
        raise DataError(f"{table.place(row, 'floor')}: {floor!r}; expected a name like floor12 or basement2")
    return int(found[2]) * (-1 if found[1] == "basement" else 1)
