"""Labelled texts out of CSV, TSV and JSON-lines files, plain or compressed, with errors that name the place."""

import csv
import gzip
import json
import lzma
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import TextIOBase
from pathlib import Path

import numpy as np

from tasks.profiles import DataError

FORMATS = (".csv", ".tsv", ".jsonl")
COMPRESSIONS = ("", ".gz", ".xz")


@dataclass(frozen=True)
class Columns:
    """Which columns hold the text (several are joined by a space) and the label.

    Names, or numbers counted from 1 for a file without a header, as the official files of AG News are.
    """

    text: tuple[str, ...]
    label: str

    @property
    def all(self) -> tuple[str, ...]:
        return (self.label, *self.text)

    @property
    def numbered(self) -> bool:
        """Whether the columns are numbers, so that the first line is an example and no header."""
        return all(name.isdecimal() and int(name) > 0 for name in self.all)


@dataclass(frozen=True)
class Rows:
    """The examples of one file: text, label as it is written, number of the line where each ends."""

    path: Path
    label_column: str
    texts: tuple[str, ...]
    labels: tuple[str, ...]
    lines: tuple[int, ...]


def open_text(path: Path) -> TextIOBase:
    """A text file in UTF-8, unpacked where its name ends in .gz or .xz."""
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    if path.suffix == ".xz":
        return lzma.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def find_files(folder: Path, candidates: Sequence[str]) -> list[Path]:
    """The files that match the first of ``candidates`` that any file matches, by name; none where none does.

    A candidate is a file name or pattern (``train*.csv``), also tried with .gz and with .xz behind it.
    """
    for candidate in candidates:
        for compression in COMPRESSIONS:
            if found := sorted(path for path in folder.glob(candidate + compression) if path.is_file()):
                return found
    return []


def read_rows(path: Path, columns: Columns) -> Rows:
    """All examples of a file, in its order.

    The format is that of the name: ``.csv`` (quoted), ``.tsv`` (tab-separated, not quoted, as GLUE's) or ``.jsonl``
    (one object per line), perhaps with ``.gz`` or ``.xz``, in UTF-8. Raises :class:`DataError` with file, line and
    column for a damaged file, an unknown format, a missing column (naming those found), or a file without rows.
    """
    kind = path.with_suffix("").suffix if path.suffix in COMPRESSIONS else path.suffix
    if kind not in FORMATS:
        raise DataError(f"{path}: unknown format; expected a file name that ends in {', '.join(FORMATS)}, .gz or .xz")
    texts, labels, lines = [], [], []
    try:
        with open_text(path) as file:
            records = _json_records(path, file) if kind == ".jsonl" else _table_records(path, file, kind, columns)
            for number, record in records:
                label, *parts = _values(record, columns, f"{path}, line {number}")
                texts.append(" ".join(parts))
                labels.append(label)
                lines.append(number)
    except (OSError, EOFError, lzma.LZMAError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read or is damaged: {error}") from error
    if not texts:
        raise DataError(f"{path}: holds no examples; expected one per line")
    return Rows(path, columns.label, tuple(texts), tuple(labels), tuple(lines))


def classes_of(rows: Sequence[Rows]) -> tuple[str, ...]:
    """The different labels in order: by value where all are whole numbers, else as strings."""
    found = {label for part in rows for label in part.labels}
    try:
        return tuple(sorted(found, key=int))
    except ValueError:
        return tuple(sorted(found))


def class_indices(rows: Rows, classes: Sequence[str]) -> np.ndarray:
    """The place of each label in ``classes``, int64 ``[n]``. Raises :class:`DataError` for a label outside them."""
    index = {label: i for i, label in enumerate(classes)}
    for label, line in zip(rows.labels, rows.lines, strict=True):
        if label not in index:
            raise DataError(
                f"{rows.path}, line {line}, column {rows.label_column}: label {label!r}; expected one of "
                f"{', '.join(classes)} (text.labels)"
            )
    return np.array([index[label] for label in rows.labels], dtype=np.int64)


def _table_records(
    path: Path, file: TextIOBase, kind: str, columns: Columns
) -> Iterator[tuple[int, Mapping[str, object]]]:
    if kind == ".tsv":
        reader = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
    else:
        reader = csv.reader(file, strict=True)
    try:
        header = [] if columns.numbered else [name.strip() for name in next(reader, [])]
        for row in reader:
            if row:
                names = header or [str(number) for number in range(1, len(row) + 1)]
                yield reader.line_num, dict(zip(names, row, strict=False))
    except csv.Error as error:
        raise DataError(
            f"{path}, line {reader.line_num}: {error}; expected {kind[1:]} as the standard has it (.jsonl has no "
            "limits on quotes and lengths)"
        ) from error


def _json_records(path: Path, file: TextIOBase) -> Iterator[tuple[int, Mapping[str, object]]]:
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise DataError(f"{path}, line {number}: {line.strip()[:40]!r} is not JSON: {error}") from error
        if not isinstance(record, dict):
            raise DataError(f"{path}, line {number}: {line.strip()[:40]!r}; expected an object with names and values")
        yield number, record


def _values(record: Mapping[str, object], columns: Columns, place: str) -> list[str]:
    """Label, then texts."""
    if missing := [name for name in columns.all if name not in record]:
        raise DataError(
            f"{place}: no column {', '.join(missing)}; found {', '.join(record)} (text.text-columns and "
            "text.label-column say which to read)"
        )
    values = [record[name] for name in columns.all]
    for name, value in zip(columns.all, values, strict=True):
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise DataError(f"{place}, column {name}: {value!r}; expected a string or a whole number")
    return [str(value) for value in values]
