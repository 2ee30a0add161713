"""Labelled texts in CSV, TSV and JSON-lines files, plain or compressed."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from fedapps.tasks.profiles import DataError
from fedapps.tasks.tables import COMPRESSIONS, read_table


@dataclass(frozen=True)
class Columns:
    """The columns of a file that hold the text and the label.

    Attributes
    ----------
    text : tuple of str
        Columns whose cells are joined by spaces.
    label : str
        The column of the label.

    Columns are names, or numbers from 1 for a file without a header, such as the official files of AG News.
    """

    text: tuple[str, ...]
    label: str

    @property
    def all(self) -> tuple[str, ...]:
        """The column of the label, then those of the text."""
        return (self.label, *self.text)

    @property
    def numbered(self) -> bool:
        """Whether the columns are numbers, so that the first line of the file is an example and not a header."""
        return all(name.isdecimal() and int(name) > 0 for name in self.all)


@dataclass(frozen=True)
class Rows:
    """The examples of one file: texts, labels as written, and the number of the line on which each example ends."""

    path: Path
    label_column: str
    texts: tuple[str, ...]
    labels: tuple[str, ...]
    lines: tuple[int, ...]


def find_files(folder: Path, candidates: Sequence[str]) -> list[Path]:
    """Return the files that match the first candidate with a match, sorted by name.

    A candidate is a file name or a pattern such as ``train*.csv``. Each candidate is also tried with the endings .gz
    and .xz.
    """
    for candidate in candidates:
        for compression in COMPRESSIONS:
            if found := sorted(path for path in folder.glob(candidate + compression) if path.is_file()):
                return found
    return []


def read_rows(path: Path, columns: Columns) -> Rows:
    """Read all examples of a file, in its order (:func:`fedapps.tasks.tables.read_table`).

    Raises
    ------
    DataError
        The file is missing, damaged or empty, its format is unknown, or it lacks a column.
    """
    hint = "text.text-columns and text.label-column name the columns to read"
    table = read_table(path, list(dict.fromkeys(columns.all)), header=not columns.numbered, hint=hint)
    texts = zip(*(table.texts(column) for column in columns.text), strict=True)
    return Rows(
        path,
        columns.label,
        tuple(" ".join(parts) for parts in texts),
        tuple(table.texts(columns.label)),
        tuple(table.lines),
    )


def classes_of(rows: Sequence[Rows]) -> tuple[str, ...]:
    """Return the distinct labels, sorted by value if all are whole numbers, otherwise alphabetically."""
    found = {label for part in rows for label in part.labels}
    try:
        return tuple(sorted(found, key=int))
    except ValueError:
        return tuple(sorted(found))


def class_indices(rows: Rows, classes: Sequence[str]) -> np.ndarray:
    """Return the index of each label in ``classes``, int64 ``[n]``.

    Raises
    ------
    DataError
        A label is not one of ``classes``.
    """
    index = {label: i for i, label in enumerate(classes)}
    for label, line in zip(rows.labels, rows.lines, strict=True):
        if label not in index:
            raise DataError(
                f"{rows.path}, line {line}, column {rows.label_column}: label {label!r}; expected one of "
                f"{', '.join(classes)} (text.labels)"
            )
    return np.array([index[label] for label in rows.labels], dtype=np.int64)
