"""Cities that cannot serve what they are for, because they have no queries or no database."""

import logging
from pathlib import Path

import numpy as np

from tasks.profiles import DataError

from .places import Places

logger = logging.getLogger(__name__)


def incomplete_cities(places: Places) -> dict[str, str]:
    """By name the cities without queries or without a database, and which of the two they lack."""
    of_city = np.array([track.city for track in places.tracks])[places.track]
    asked, known = set(of_city[places.queries]), set(of_city[places.database])
    return {
        city: "no database" if city in asked else "no queries"
        for city in places.cities
        if not (city in asked and city in known)
    }


def complete_for_training(places: Places, folder: Path) -> Places:
    """``places`` of the cities that have queries and a database; the log names the others.

    Raises :class:`DataError` when none is left.
    """
    lacking = incomplete_cities(places)
    if not lacking:
        return places
    if len(lacking) == len(places.cities):
        raise DataError(
            f"{folder}: no city to train in has queries and a database: {_named(lacking)}; pictures of both roles are "
            "needed in the same city"
        )
    logger.warning("%s: left out of training: %s", folder, _named(lacking))
    return places.of_city(*(city for city in places.cities if city not in lacking))


def require_complete(places: Places, folder: Path, purpose: str, key: str) -> None:
    """Raise :class:`DataError` where a city of ``places`` has no queries or no database; ``key`` chooses others."""
    if lacking := incomplete_cities(places):
        raise DataError(
            f"{folder}: {purpose} in cities that lack what it needs: {_named(lacking)}; queries are looked for in the "
            f"database of their city: add the pictures, or name other cities in {key}"
        )


def _named(lacking: dict[str, str]) -> str:
    return ", ".join(f"{city or 'the only city'} ({lack})" for city, lack in lacking.items())
