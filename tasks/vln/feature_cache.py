"""Object features kept on disk, under a key of everything they are made of."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from .connectivity import Graph, graph_files
from .files import find_file
from .object_features import object_features
from .objects import BOXES_FILE, CLASSES_FILE, POSITIONS_FILE
from .rooms import ROOMS_FILE

VERSION = 1  # raised when the same files come to give other features
DEFAULT_FOLDER = "~/fedapps/features"


def cached_object_features(
    folder: Path, graphs: Mapping[str, Graph], scans: Sequence[str], label_width: int, cache: Path
) -> np.ndarray:
    """Object features of some houses, one after another, ``[V, 36, D]`` in float32.

    All houses of ``folder`` are made at once, as they share the room classifier, and kept in ``cache``: another process
    that makes the same at the same time does no harm.

    Raises
    ------
    DataError
        As :func:`~tasks.vln.object_features.object_features`.
    """
    target = cache / _key(folder, label_width)
    if not target.is_dir():
        made = object_features(folder, graphs, label_width)
        cache.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix="unfinished-", dir=cache))
        try:
            for scan, features in made.items():
                np.save(unfinished / f"{scan}.npy", features)
            os.replace(unfinished, target)
        except OSError:
            if not target.is_dir():  # or another process was faster
                raise
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return np.concatenate([np.load(target / f"{scan}.npy") for scan in scans])


def _key(folder: Path, label_width: int) -> str:
    digest = hashlib.blake2b(f"{VERSION} {label_width}".encode(), digest_size=16)
    named = [find_file(folder, name) for name in (BOXES_FILE, CLASSES_FILE, POSITIONS_FILE, ROOMS_FILE)]
    graphs = graph_files(folder)
    for path in (path for path in [*named, *graphs] if path is not None and path.is_file()):
        content = path.read_bytes()
        digest.update(f"\x1f{path.name}\x1f{len(content)}\x1f".encode())
        digest.update(content)
    return digest.hexdigest()
