"""Checks that cities have both queries and a database."""

import logging
from pathlib import Path

import numpy as np
from fedapps.tasks.profiles import DataError

from .places import Places

logger = logging.getLogger(__name__)


def incomplete_cities(places: Places) -> dict[str, str]:
    """Return the cities without queries or without a database, by name, with what they lack."""
    of_city = np.array([track.city for track in places.tracks])[places.track]
    asked, known = set(of_city[places.queries]), set(of_city[places.database])
    return {
        city: "no database" if city in asked else "no queries"
        for city in places.cities
        if not (city in asked and city in known)
    }


def complete_for_training(places: Places, folder: Path) -> Places:
    """Return the images of the cities that have queries and a database, and log the names of the other cities.

    Raises
    ------
    DataError
        No city has both.
    """
    lacking = incomplete_cities(places)
    if not lacking:
        return places
    if len(lacking) == len(places.cities):
        raise DataError(
            f"{folder}: no training city has both queries and a database: {_named(lacking)}; expected images of both "
            "roles in the same city"
        )
    logger.warning("%s: excluded from training: %s", folder, _named(lacking))
    return places.of_city(*(city for city in places.cities if city not in lacking))


def require_complete(places: Places, folder: Path, purpose: str, key: str) -> None:
    """Raise :class:`DataError` if a city lacks queries or a database.

    Parameters
    ----------
    places : Places
        The images.
    folder : Path
        The folder of the images, for the message.
    purpose : str
        What the images are for, for the message.
    key : str
        The option that selects the cities.
    """
    if lacking := incomplete_cities(places):
        raise DataError(
            f"{folder}: the {purpose} set needs queries and a database in each of its cities: {_named(lacking)}; add "
            f"the images, or name other cities in {key}"
        )


def _named(lacking: dict[str, str]) -> str:
    return ", ".join(f"{city or 'the only city'} ({lack})" for city, lack in lacking.items())
