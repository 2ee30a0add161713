"""What nodes of the task "vpr" left behind: where their pictures lie, and what was found for a few queries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .arrays import Array, Arrays


@dataclass(frozen=True)
class Positions:
    """Where n pictures lie.

    Attributes:
        cities: by name.
        city: [n], which of them.
        metres: [n, 2], east and north; each city may have an origin of its own.
    """

    cities: tuple[str, ...]
    city: npt.NDArray[np.int64]
    metres: Array

    def by_city(self) -> dict[str, Array]:
        """The positions of each city that has some."""
        found = {name: self.metres[self.city == place] for place, name in enumerate(self.cities)}
        return {name: metres for name, metres in found.items() if len(metres)}


@dataclass(frozen=True)
class Matches:
    """The k pictures that were found first for each of q queries.

    Attributes:
        asked: [q, H, W, 3], the queries in RGB.
        found: [q, k, H, W, 3].
        metres: [q, k], how far from the query; inf in another city.
        right: [q, k], whether the picture shows the query's place, which it does within `radius` metres.
        radius: in metres.
        queries: of how many the q are.
    """

    asked: npt.NDArray[np.uint8]
    found: npt.NDArray[np.uint8]
    metres: Array
    right: npt.NDArray[np.bool_]
    radius: float
    queries: int


def read_positions(arrays: Arrays, prefix: str) -> Positions | None:
    """The pictures that a node has itself, `places`, or that are common to all nodes, `common`; None without any.

    Raises:
        ReportError: an array is missing, or has another shape or range.
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
    """The queries with what was found for them, None where there are none.

    Raises:
        ReportError: an array is missing, or has another shape or range.
    """
    if "matches.asked" not in arrays:
        return None
    asked = arrays.pixels("matches.asked", None, None, None, 3)
    found = arrays.pixels("matches.found", len(asked), None, *asked.shape[1:])
    shape = found.shape[:2]
    metres = arrays.get("matches.metres", *shape)
    radius = arrays.get("matches.radius")
    for name, distances in (("metres", metres), ("radius", radius)):
        if not (distances >= 0).all():
            raise arrays.fail(f"matches.{name}", "must be 0 or more")
    matches = Matches(
        asked=asked,
        found=found,
        metres=metres,
        right=arrays.indices("matches.right", 2, *shape).astype(bool),
        radius=float(radius),
        queries=int(arrays.indices("matches.queries", 2**53)),
    )
    return matches if found.size else None
