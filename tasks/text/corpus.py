"""The labelled texts of a folder, in CSV, TSV and JSON-lines files, plain or compressed, read once per process."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from fedapps.tasks.partitioners import hold_out_each

from fedapps.base.errors import DataError
from fedapps.base.rows import SHEETS
from fedapps.base.tables import find_tables, line_of, read_table, refuse_spellings
from fedapps.base.text_files import found_in, shown

#: The keys that name files, for messages.
FILE_KEYS = "text.train-files or text.test-files"
_LISTED = 8  # files that an error lists
_CLASSES = 100  # labels that are always accepted as classes


@dataclass(frozen=True)
class Columns:
    """The columns of a file that hold the text and the label.

    Attributes
    ----------
    text : tuple of str
        Columns whose cells are joined by spaces.
    label : str
        The column of the label.

    Columns are names; or all are numbers, counted from 1, in a file without a header line, such as those of AG News.
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
class Layout:
    """Where the examples are: candidate file names, columns and classes. Without ``labels``, those found are used,
    sorted.
    """

    train: tuple[str, ...]
    test: tuple[str, ...]
    columns: Columns
    labels: tuple[str, ...]
    classes: int
    hint: str = ""  # what the error for missing files adds: the key that decides their names
    label_hint: str = "text.labels"  # what the error for an unknown label adds
    test_share: float = 0.0  # of the training texts, which are the test if there are no test files
    seed: int = 0  # of the draw of these


@dataclass(frozen=True)
class Rows:
    """The examples of one file: texts, labels as written, and the number of the line on which each example ends."""

    path: Path
    label_column: str
    texts: tuple[str, ...]
    labels: tuple[str, ...]
    lines: tuple[int, ...]


def read_rows(path: Path, columns: Columns) -> Rows:
    """Read all examples of a file, in its order (:func:`fedapps.base.tables.read_table`).

    Raises
    ------
    DataError
        The file is missing, damaged or empty, its format is unknown, or it lacks a column.
    """
    hint = (
        "text.text-columns and text.label-column name the columns to read, or number them all, from 1, in a file "
        "without a header line"
    )
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
    labels = {label for part in rows for label in part.labels}
    try:
        return tuple(sorted(labels, key=int))
    except ValueError:
        return tuple(sorted(labels))


def class_indices(rows: Rows, classes: Sequence[str], hint: str = "text.labels") -> np.ndarray:
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
                f"{line_of(rows.path, line)}, column {rows.label_column}: label {label!r}; expected one of "
                f"{', '.join(classes)} ({hint})"
            )
    return np.array([index[label] for label in rows.labels], dtype=np.int64)


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

    ``classes`` are the labels as written. Without test files, ``test`` is drawn from the training texts, or empty.
    ``train_files`` and ``test_files`` are what was read.
    """

    folder: Path
    classes: tuple[str, ...]
    train: Examples
    test: Examples
    train_files: tuple[Path, ...] = ()
    test_files: tuple[Path, ...] = ()


def read_corpus(folder: Path, layout: Layout, *, only_test: bool = False) -> Corpus:
    """Read the examples in ``folder``. The result is the same object as long as the files do not change.

    Parameters
    ----------
    folder : Path
    layout : Layout
    only_test : bool
        Whether test files are enough, for a layout with labels.

    Raises
    ------
    DataError
        There is no training file (nor a test file), a file is malformed, a label is not one of the layout's, or the
        training files contain another number of classes than the layout.
    """
    train, test = (find_tables(folder, names, FILE_KEYS) for names in (layout.train, layout.test))
    if not train and not (only_test and test):
        raise missing(folder, "training", layout.train, layout.hint)
    return _read(folder, _stamped(train), _stamped(test), layout)


def missing(folder: Path, which: str, candidates: Sequence[str], hint: str) -> DataError:
    """Return the error for missing texts, which lists what the folder has."""
    expected = [name for name in candidates if "*" not in name.removeprefix("**/") or not name.startswith("**/")]
    names = [path.name for path in found_in(folder, "*") if path.is_file()]
    listing = ", ".join(names[:_LISTED]) + (", ..." if len(names) > _LISTED else "") or "no file"
    if any(name.endswith(SHEETS) for name in names):
        hint = f"{hint}; save spreadsheets as CSV in UTF-8"
    return DataError(
        f"{folder}: no {which} texts; expected a file {' or '.join(expected).replace('**/', '')}, optionally with .gz "
        f"or .xz; found {listing} ({hint})"
    )


def labels_in(folder: Path, candidates: Sequence[str], columns: Columns, hint: str) -> tuple[tuple[str, ...], int]:
    """Return the distinct labels of the training files (:func:`classes_of`), and the number of texts.

    Raises
    ------
    DataError
        There is no training file, one is malformed, or the labels are no classes: there is one, or nearly one a text.
    """
    files = find_tables(folder, candidates, FILE_KEYS)
    if not files:
        raise missing(folder, "training", candidates, hint)
    rows = [_rows(path, stamp, columns) for path, stamp in _stamped(files)]
    for part in rows:
        if blank := [line for label, line in zip(part.labels, part.lines, strict=True) if not label.strip()]:
            raise DataError(
                f"{line_of(part.path, blank[0])}, column {columns.label}: no label; add it or remove the line "
                f"({len(blank)} in all)"
            )
    _refuse_spellings(rows)
    classes, count = classes_of(rows), sum(len(part.labels) for part in rows)
    if len(classes) < 2 or len(classes) > max(_CLASSES, count // 10):
        what = f"only the label {shown(classes[0])}" if len(classes) < 2 else f"{len(classes):,} different labels"
        raise DataError(
            f"{files[0]}, column {columns.label}: {what} in {count:,} training texts; expected one of a few classes in "
            "each line (text.label-column names the column)"
        )
    return classes, count


def _refuse_spellings(rows: Sequence[Rows]) -> None:
    labels = (label for part in rows for label in part.labels)
    refuse_spellings(labels, f"{rows[0].path}, column {rows[0].label_column}", "text.labels")


Stamped = tuple[tuple[Path, int], ...]


def _stamped(paths: Sequence[Path]) -> Stamped:
    return tuple((path, path.stat().st_mtime_ns) for path in paths)


@lru_cache(maxsize=8)
def _rows(path: Path, stamp: int, columns: Columns) -> Rows:
    """As :func:`read_rows`, once for each state of a file, which ``stamp`` identifies."""
    return read_rows(path, columns)


@lru_cache(maxsize=8)
def _read(folder: Path, train: Stamped, test: Stamped, layout: Layout) -> Corpus:
    training, testing = ([_rows(path, stamp, layout.columns) for path, stamp in files] for files in (train, test))
    if training and not any(text.strip() for part in training for text in part.texts):
        raise DataError(f"{training[0].path}: all texts are empty (text.text-columns names their columns)")
    if not layout.labels:
        _refuse_spellings(training)
    labels, classes = layout.labels or classes_of(training), layout.classes
    if len(labels) != classes:
        raise DataError(
            f"{folder}: {len(labels)} different labels in the training files ({', '.join(labels[:9])}), but "
            f"text.classes = {classes}: correct it, or list all labels in text.labels"
        )
    train_examples, test_examples = (
        Examples(
            tuple(text for part in rows for text in part.texts),
            np.concatenate(
                [np.zeros(0, dtype=np.int64), *(class_indices(part, labels, layout.label_hint) for part in rows)]
            ),
        )
        for rows in (training, testing)
    )
    if not testing:
        kept, held = hold_out_each(np.arange(len(train_examples.texts)), layout.test_share, layout.seed, "text.test")
        train_examples, test_examples = (
            Examples(tuple(train_examples.texts_at(rows)), train_examples.labels[rows]) for rows in (kept, held)
        )
    train_files, test_files = (tuple(part.path for part in rows) for rows in (training, testing))
    return Corpus(folder, labels, train_examples, test_examples, train_files, test_files)
