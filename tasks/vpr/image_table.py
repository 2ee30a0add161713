"""Images listed in a table with one row per image (``vpr.dataset = table``)."""

from pathlib import Path

import numpy as np

from fedapps.base.errors import DataError
from fedapps.base.tables import Table, read_table, refuse_spellings

from .images import ImageFiles, ImageStore
from .places import Places, Track, build_places
from .positions import headings, projected, refuse_far, refuse_wide

REQUIRED = ("path", "sequence", "role")
OPTIONAL = ("x", "y", "lon", "lat", "city", "continent", "group", "frame", "heading")

#: The words in the column role, and whether they mean a query.
ROLES = {"query": True, "database": False, "gallery": False}


def read_image_table(path: Path) -> Places:
    """Read the images that a table lists.

    The table has the columns ``path`` (relative to the table's folder), ``sequence`` and ``role`` ("query" or
    "database"; "gallery" means the same as "database"), and either ``x`` and ``y`` (metres east and north) or ``lon``
    and ``lat`` (degrees). Degrees are projected to metres about the median of each city
    (:func:`~fedapps.tasks.vpr.positions.projected`). A sequence with images of both roles counts as two sequences.

    The columns ``city``, ``continent``, ``group``, ``frame`` and ``heading`` are optional. Without them all images
    belong to one unnamed city, have no continent and no group, keep the order of the file within their sequence, and
    have an unknown heading.

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
        table.integers("frame") if "frame" in table else np.arange(len(table)),
        headings(table, "heading") if "heading" in table else None,
    )


def _labels(table: Table, column: str) -> list[str]:
    if column not in table:
        return [""] * len(table)
    labels = table.texts(column)
    refuse_spellings(labels, f"{table.path}, column {column}", "")
    return labels


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
    for name, values, least, most in (("lat", lat, -90.0, 90.0), ("lon", lon, -180.0, 360.0)):
        if len(wrong := np.flatnonzero((values < least) | (values > most))):
            swapped = np.abs(lon).max() <= 90 and np.abs(lat).max() <= 180
            advice = "are lon and lat swapped?" if swapped else "write metres in the columns x and y"
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
