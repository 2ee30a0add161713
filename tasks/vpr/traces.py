"""Traces to draw: where a node's images lie, and which images its model matches to a few queries."""

import numpy as np

from .evaluation import CommonSet
from .networks import PlaceNetwork
from .places import Places

MOST = 400  # maximum number of positions per set of images, evenly spaced
PIXELS = 96  # maximum length of an image's longer side


def traces(network: PlaceNetwork, own: Places, common: CommonSet | None, radius: float) -> dict[str, np.ndarray]:
    """Return the :func:`place_traces` of the ``own`` images (``places.*``) and of the ``common`` ones (``common.*``).

    For the common images, also return the :func:`match_traces` of ``network``, in which matches within ``radius``
    metres are correct.
    """
    found = place_traces("places", own)
    if common is not None:
        found |= place_traces("common", common.images.places) | match_traces(network, common, radius)
    return found


def place_traces(prefix: str, places: Places) -> dict[str, np.ndarray]:
    """Return the positions of up to ``MOST`` images.

    ``<prefix>.cities`` uint8 holds the names of the cities in UTF-8, one per line; ``.city`` int32 ``[n]`` are indices
    into them; ``.position`` float32 ``[n, 2]`` is east and north in metres from the city's origin.
    """
    rows = np.unique(np.linspace(0, len(places) - 1, min(len(places), MOST)).astype(np.int64))
    return {
        f"{prefix}.cities": np.frombuffer("\n".join(places.cities).encode(), dtype=np.uint8),
        f"{prefix}.city": _city(places, rows).astype(np.int32),
        f"{prefix}.position": places.position[rows].astype(np.float32),
    }


def match_traces(network: PlaceNetwork, common: CommonSet, radius: float) -> dict[str, np.ndarray]:
    """Return the queries ``common.shown`` with their nearest images; empty if no query is findable.

    ``matches.asked`` uint8 ``[q, H, W, 3]`` and ``matches.found [q, k, H, W, 3]`` are the images; ``matches.metres``
    float64 ``[q, k]`` the distances between their positions, infinite in different cities; ``matches.right`` bool ``[q,
    k]`` whether a match is correct, that is, within ``matches.radius`` metres; ``matches.queries`` the number of
    findable queries.
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
    """The index of each row's city in ``places.cities``, shaped like ``rows``."""
    number = {city: place for place, city in enumerate(places.cities)}
    found: np.ndarray = np.array([number.get(track.city, -1) for track in places.tracks])[places.track[rows]]
    return found


def _images(common: CommonSet, rows: np.ndarray) -> np.ndarray:
    """Small images with the aspect ratio that the network sees, uint8 ``[*rows.shape, H, W, 3]``."""
    height, width = common.images.size
    scale = min(1.0, PIXELS / max(height, width))
    size = (max(1, round(scale * height)), max(1, round(scale * width)))
    loaded = common.images.places.load_images(rows.ravel(), size)
    return loaded.permute(0, 2, 3, 1).numpy().reshape(*rows.shape, *size, 3)
