"""The examples of a folder, read once per process."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from fedapps.tasks.profiles import DataError

from .files import Columns, class_indices, classes_of, find_files, read_rows
from .options import Layout


@dataclass(frozen=True)
class Examples:
    """Texts and their classes ``labels`` int64 ``[n]``, counted from 0."""

    texts: tuple[str, ...]
    labels: np.ndarray

    def texts_at(self, rows: np.ndarray) -> list[str]:
        """Return the texts of some examples."""
        return [self.texts[row] for row in rows]


@dataclass(frozen=True, eq=False)
class Corpus:
    """All examples of a folder.

    ``classes`` are the labels as written. ``test`` is empty if there is no test file.
    """

    folder: Path
    classes: tuple[str, ...]
    train: Examples
    test: Examples


def read_corpus(folder: Path, layout: Layout) -> Corpus:
    """Read the examples in ``folder``. The result is the same object as long as the files do not change.

    Raises
    ------
    DataError
        There is no training file, a file is malformed, a label is not one of the layout's, or the training files
        contain another number of classes than the layout.
    """
    train, test = find_files(folder, layout.train), find_files(folder, layout.test)
    if not train:
        raise DataError(
            f"{folder}: no training texts; expected a file {' or '.join(layout.train)}, optionally with .gz or .xz "
            "(see text.dataset and text.train-files)"
        )
    return _read(folder, _stamped(train), _stamped(test), layout.columns, layout.labels, layout.classes)


Stamped = tuple[tuple[Path, int], ...]


def _stamped(paths: Sequence[Path]) -> Stamped:
    return tuple((path, path.stat().st_mtime_ns) for path in paths)


@lru_cache(maxsize=8)
def _read(
    folder: Path, train: Stamped, test: Stamped, columns: Columns, labels: tuple[str, ...], classes: int
) -> Corpus:
    training = [read_rows(path, columns) for path, _ in train]
    testing = [read_rows(path, columns) for path, _ in test]
    found = labels or classes_of(training)
    if len(found) != classes:
        raise DataError(
            f"{folder}: {len(found)} different labels in the training files ({', '.join(found[:9])}), but "
            f"text.classes = {classes}: correct it, or list all labels in text.labels"
        )
    examples = [
        Examples(
            tuple(text for part in rows for text in part.texts),
            np.concatenate([np.zeros(0, dtype=np.int64), *(class_indices(part, found) for part in rows)]),
        )
        for rows in (training, testing)
    ]
    return Corpus(folder, found, *examples)
