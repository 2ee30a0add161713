"""Object features kept on disk, under a key of everything they are made of."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from .cache import cached, key_of
from .connectivity import Graph, graph_files
from .files import find_file
from .object_features import object_features
from .objects import BOXES_FILE, CLASSES_FILE, POSITIONS_FILE
from .rooms import ROOMS_FILE

VERSION = 1  # raised when the same files come to give other features


def cached_object_features(
    folder: Path, graphs: Mapping[str, Graph], scans: Sequence[str], label_width: int, cache: Path
) -> np.ndarray:
    """Object features of some houses, one after another, ``[V, 36, D]`` in float32.

    All houses of ``folder`` are made at once, as they share the room classifier, and kept in ``cache``.

    Raises
    ------
    DataError
        As :func:`~fedapps.tasks.vln.object_features.object_features`.
    """

    def compute(unfinished: Path) -> None:
        for scan, features in object_features(folder, graphs, label_width).items():
            np.save(unfinished / f"{scan}.npy", features)

    found = cached(cache, f"features-{key_of(_inputs(folder, label_width))}", compute)
    return np.concatenate([np.load(found / f"{scan}.npy") for scan in scans])


def _inputs(folder: Path, label_width: int) -> Iterator[tuple[str, bytes]]:
    yield "features", f"{VERSION} {label_width}".encode()
    named = [find_file(folder, name) for name in (BOXES_FILE, CLASSES_FILE, POSITIONS_FILE, ROOMS_FILE)]
    for path in (path for path in [*named, *graph_files(folder)] if path is not None and path.is_file()):
        yield path.name, path.read_bytes()
