"""What a node leaves behind to look at: where its images lie, and what it takes for the places of a few queries."""

import numpy as np

from .evaluation import CommonSet
from .networks import PlaceNetwork
from .places import Places

MOST = 400  # positions of each set of images, evenly spaced over it
PIXELS = 96  # the longer side of an image, at most


def traces(network: PlaceNetwork, own: Places, common: CommonSet | None, radius: float) -> dict[str, np.ndarray]:
    """The :func:`place_traces` of ``own`` images, ``places.*``, and of the ``common`` ones, ``common.*``.

    Of the latter also the :func:`match_traces`, by ``network`` with what is within ``radius`` metres being right.
    """
    found = place_traces("places", own)
    if common is not None:
        found |= place_traces("common", common.images.places) | match_traces(network, common, radius)
    return found


def place_traces(prefix: str, places: Places) -> dict[str, np.ndarray]:
    """Where up to ``MOST`` of the images lie.

    ``<prefix>.cities`` uint8 are the names of the cities in UTF-8, a line each; ``.city`` int32 ``[n]`` counts in
    them. ``.position`` float32 ``[n, 2]`` is east and north in metres from the city's origin.
    """
    rows = np.unique(np.linspace(0, len(places) - 1, min(len(places), MOST)).astype(np.int64))
    return {
        f"{prefix}.cities": np.frombuffer("\n".join(places.cities).encode(), dtype=np.uint8),
        f"{prefix}.city": _city(places, rows).astype(np.int32),
        f"{prefix}.position": places.position[rows].astype(np.float32),
    }


def match_traces(network: PlaceNetwork, common: CommonSet, radius: float) -> dict[str, np.ndarray]:
    """The ``common.shown`` queries with the images that are found first; empty where no query can be found.

    ``matches.asked`` uint8 ``[q, H, W, 3]`` and ``matches.found`` ``[q, k, H, W, 3]`` are the images,
    ``matches.metres`` float64 ``[q, k]`` how far apart they were taken, inf in different cities, ``matches.right`` bool
    ``[q, k]`` whether that counts as the query's place, which it does within ``matches.radius`` metres.
    ``matches.queries`` is of how many queries these are.
    """
    if not len(common.shown):
        return {}
    places = common.images.places
    nearest = common.nearest(network)
    asked, found = places.queries[common.shown], places.database[nearest]
    metres = np.linalg.norm(places.position[found] - places.position[asked][:, None], axis=2)
    apart = _city(places, found) != _city(places, asked)[:, None]
    right = [np.isin(rows, common.true_rows[query]) for query, rows in zip(common.shown, nearest, strict=True)]
    return {
        "matches.asked": _images(common, asked),
        "matches.found": _images(common, found),
        "matches.metres": np.where(apart, np.inf, metres),
        "matches.right": np.stack(right),
        "matches.radius": np.array(radius),
        "matches.queries": np.array(len(common.findable)),
    }


def _city(places: Places, rows: np.ndarray) -> np.ndarray:
    """The city of each row, a place in ``places.cities``; shaped as ``rows``."""
    number = {city: place for place, city in enumerate(places.cities)}
    found: np.ndarray = np.array([number.get(track.city, -1) for track in places.tracks])[places.track[rows]]
    return found


def _images(common: CommonSet, rows: np.ndarray) -> np.ndarray:
    """Small images in the proportions in which the network sees them, uint8 ``[*rows.shape, H, W, 3]``."""
    height, width = common.images.size
    scale = min(1.0, PIXELS / max(height, width))
    size = (max(1, round(scale * height)), max(1, round(scale * width)))
    loaded = common.images.places.load_images(rows.ravel(), size)
    return loaded.permute(0, 2, 3, 1).numpy().reshape(*rows.shape, *size, 3)
