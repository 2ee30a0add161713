"""Traces of the task "vpr": image positions, and the database images retrieved for a few queries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .arrays import Array, Arrays


@dataclass(frozen=True)
class Positions:
    """Positions of n images.

    Attributes
    ----------
    cities : tuple of str
        Names of the cities.
    city : ndarray of shape [n]
        Index of each image's city.
    metres : ndarray of shape [n, 2]
        Position (east, north) in metres; each city may have a separate origin.
    """

    cities: tuple[str, ...]
    city: npt.NDArray[np.int64]
    metres: Array

    def by_city(self) -> dict[str, Array]:
        """The positions by city, without cities that have none."""
        found = {name: self.metres[self.city == place] for place, name in enumerate(self.cities)}
        return {name: metres for name, metres in found.items() if len(metres)}


@dataclass(frozen=True)
class Matches:
    """The k best matches of each of q queries.

    Attributes
    ----------
    queries : ndarray of shape [q, H, W, 3]
        Query images in RGB.
    matches : ndarray of shape [q, k, H, W, 3]
        Database images, the best match first.
    metres : ndarray of shape [q, k]
        Distance from the query in metres; inf in another city.
    correct : ndarray of shape [q, k]
        Whether the match is within ``radius`` of the query.
    radius : float
        In metres.
    num_queries : int
        Number of queries from which the q were chosen.
    """

    queries: npt.NDArray[np.uint8]
    matches: npt.NDArray[np.uint8]
    metres: Array
    correct: npt.NDArray[np.bool_]
    radius: float
    num_queries: int


def read_positions(arrays: Arrays, prefix: str) -> Positions | None:
    """Read the positions of the node's images (prefix ``places``) or of the common test (prefix ``common``).

    Returns
    -------
    Positions or None
        None if there are none.

    Raises
    ------
    ReportError
        If an array is missing or has a wrong shape or range.
    """
    if f"{prefix}.position" not in arrays:
        return None
    metres = arrays.get(f"{prefix}.position", None, 2)
    if not np.isfinite(metres).all():
        raise arrays.fail(f"{prefix}.position", "must be finite")
    cities = tuple(arrays.text(f"{prefix}.cities").split("\n"))
    city = arrays.indices(f"{prefix}.city", len(cities), len(metres))
    return Positions(cities, city, metres) if len(metres) else None


def read_matches(arrays: Arrays) -> Matches | None:
    """Read the queries and their matches; None if there are none.

    Raises
    ------
    ReportError
        If an array is missing or has a wrong shape or range.
    """
    if "matches.asked" not in arrays:
        return None
    queries = arrays.pixels("matches.asked", None, None, None, 3)
    images = arrays.pixels("matches.found", len(queries), None, *queries.shape[1:])
    shape = images.shape[:2]
    metres = arrays.get("matches.metres", *shape)
    radius = arrays.get("matches.radius")
    for name, distances in (("metres", metres), ("radius", radius)):
        if not (distances >= 0).all():
            raise arrays.fail(f"matches.{name}", "must be 0 or more")
    matches = Matches(
        queries=queries,
        matches=images,
        metres=metres,
        correct=arrays.indices("matches.right", 2, *shape).astype(bool),
        radius=float(radius),
        num_queries=int(arrays.indices("matches.queries", 2**53)),
    )
    return matches if images.size else None
