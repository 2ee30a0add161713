"""Pictures listed in a CSV file of one's own."""

from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np

from tasks.profiles import DataError

from .columns import Columns, read_columns
from .images import ImageFiles, ImageStore
from .places import Places, Track, build_places, projected

_ROLES = {"query": True, "database": False, "gallery": False}


@dataclass(frozen=True)
class TableColumns:
    """Which columns of the file hold what.

    Of ``x`` and ``y`` (metres east and north) and ``lon`` and ``lat`` (degrees) the file has one pair. The columns
    from ``city`` on need not be there: all pictures are then of one city without a name, on no continent, in no
    group, their order in a sequence is that of the file, and their heading is unknown.
    """

    path: str = "path"
    sequence: str = "sequence"
    role: str = "role"
    x: str = "x"
    y: str = "y"
    lon: str = "lon"
    lat: str = "lat"
    city: str = "city"
    continent: str = "continent"
    group: str = "group"
    frame: str = "frame"
    heading: str = "heading"


def read_table(path: Path, columns: TableColumns | None = None) -> Places:
    """The pictures of a CSV file with a header, their paths relative to its folder.

    The role is "query" or "database" ("gallery" is the same). A sequence that holds both counts as two. Degrees become
    metres about the mean of each city (:func:`~tasks.vpr.places.projected`).

    Raises :class:`DataError` for a missing file or column (naming those found) or a cell that is not understood.
    """
    names = columns or TableColumns()
    table = read_columns(path, [names.path, names.sequence, names.role], astuple(names)[3:])
    cities = _labels(table, names.city)
    labels = zip(
        cities,
        table.texts(names.sequence),
        table.matches(names.role, _ROLES).tolist(),
        _labels(table, names.continent),
        _labels(table, names.group),
        strict=True,
    )
    return build_places(
        ImageStore(ImageFiles(path.parent, table.texts(names.path))),
        [Track(*label) for label in labels],
        _positions(table, names, np.array(cities)),
        table.integers(names.frame) if names.frame in table else np.arange(len(table)),
        table.numbers(names.heading, missing=np.nan) if names.heading in table else None,
    )


def _labels(table: Columns, name: str) -> list[str]:
    return table.texts(name) if name in table else [""] * len(table)


def _positions(table: Columns, names: TableColumns, cities: np.ndarray) -> np.ndarray:
    if names.x in table and names.y in table:
        return np.stack([table.numbers(names.x), table.numbers(names.y)], axis=1)
    if names.lon not in table or names.lat not in table:
        raise DataError(
            f"{table.path}: no columns {names.x} and {names.y}, nor {names.lon} and {names.lat}; "
            f"found {', '.join(table.cells)}"
        )
    lon, lat = table.numbers(names.lon), table.numbers(names.lat)
    for name, values, least, most in ((names.lat, lat, -90.0, 90.0), (names.lon, lon, -180.0, 360.0)):
        if len(wrong := np.flatnonzero((values < least) | (values > most))):
            others = f" (so for {len(wrong) - 1} other lines)" if len(wrong) > 1 else ""
            could_be_swapped = np.abs(lon).max() <= 90 and np.abs(lat).max() <= 180
            raise DataError(
                f"{table.place(wrong[0], name)}: {values[wrong[0]]:g}; expected degrees from {least:g} to {most:g}"
                f"{others}; "
                + (f"swap {names.lon} and {names.lat}?" if could_be_swapped else f"metres are {names.x} and {names.y}")
            )
    position = np.empty((len(table), 2))
    for city in np.unique(cities):
        inside = cities == city
        position[inside] = projected(lon[inside], lat[inside])
    return position
