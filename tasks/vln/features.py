"""Features of the 36 views of each viewpoint, out of the files that the field passes around.

Viewpoints are named ``<scan>_<viewpoint>``. An HDF5 file has a data set ``[36, D]`` under each name, a NumPy archive
(``.npz``) an array, and a TSV file a line with the columns scan, viewpoint, image width, image height, field of view
and the base64 code of 36 x D float32 numbers, as the ResNet-152 features of Room-to-Room.
"""

import base64
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from fedapps.base.errors import DataError, listed, need
from fedapps.base.text_files import UNREADABLE, arrays_in, open_text

from .geometry import VIEWS

#: Numbers per view of the features that have a name.
WIDTHS: Mapping[str, int] = {"resnet152": 2048, "clip-vit-b32": 512}
_LISTED = 10  # viewpoints that a message names


def read_features(path: Path, names: Sequence[str], width: int) -> np.ndarray:
    """Read the features of some viewpoints.

    Parameters
    ----------
    path : Path
        The file, of a kind told by its ending: ``.hdf5`` or ``.h5``, ``.npz``, ``.tsv`` (perhaps ``.gz`` or ``.xz``).
    names : sequence of str
        V viewpoints, as ``<scan>_<viewpoint>``.
    width : int
        Numbers per view, D.

    Returns
    -------
    float32 ndarray [V, 36, D]

    Raises
    ------
    DataError
        The file is missing or malformed, it lacks viewpoints, or its features have another width.
    """
    if not path.is_file():
        raise DataError(f"vln.feature-file = {str(path)!r}: no such file; name a file .hdf5, .npz or .tsv")
    rows = {name: row for row, name in enumerate(names)}
    features = np.zeros((len(names), VIEWS, width), dtype=np.float32)
    missing = set(names)
    for name, array in _arrays(path, rows):
        if array.shape != (VIEWS, width):
            raise DataError(
                f"{path}: the features of {name} have the shape {list(array.shape)}; expected [{VIEWS}, {width}]: set "
                "vln.features or vln.feature-width to what the file has"
            )
        if not np.isfinite(array).all():
            raise DataError(f"{path}: the features of {name} have a value that is not finite")
        if name not in missing:
            raise DataError(f"{path}: the features of {name} occur twice; keep one of the two")
        features[rows[name]] = array
        missing.discard(name)
    if missing:
        raise DataError(
            f"{path}: no features for {len(missing)} of {len(names)} viewpoints: {listed(sorted(missing), _LISTED)}"
        )
    return features


def _arrays(path: Path, wanted: Mapping[str, int]) -> Iterator[tuple[str, np.ndarray]]:
    suffixes = [suffix for suffix in path.suffixes if suffix not in (".gz", ".xz")]
    kind = suffixes[-1] if suffixes else ""
    try:
        if kind in (".hdf5", ".h5"):
            need("h5py", "vln", f"vln.feature-file = {str(path)!r}")
            from h5py import File

            with File(path) as file:
                yield from ((name, np.asarray(file[name], dtype=np.float32)) for name in wanted if name in file)
        elif kind == ".npz":
            yield from ((name, array.astype(np.float32)) for name, array in arrays_in(path, wanted))
        elif kind == ".tsv":
            yield from _lines(path, wanted)
        else:
            raise DataError(f"vln.feature-file = {str(path)!r}: expected a name that ends in .hdf5, .h5, .npz or .tsv")
    except (*UNREADABLE, ValueError, TypeError, KeyError, RuntimeError, MemoryError, struct.error) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path}: cannot be read: {error}") from error


def _lines(path: Path, wanted: Mapping[str, int]) -> Iterator[tuple[str, np.ndarray]]:
    with open_text(path) as file:
        for number, line in enumerate(file, 1):
            cells = line.split("\t")
            if len(cells) != 6:
                raise DataError(f"{path}, line {number}: {len(cells)} columns; expected 6, separated by tabs")
            name = f"{cells[0]}_{cells[1]}"
            if name in wanted:
                values = np.frombuffer(base64.b64decode(cells[5]), dtype="<f4")
                yield name, values.reshape(VIEWS, -1)
