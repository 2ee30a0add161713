"""Numbers out of comma-separated files, plain or compressed, with errors that name the place."""

import csv
import gzip
import io
import lzma
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from tasks.profiles import DataError

SUFFIXES = (".csv", ".csv.gz", ".csv.xz")


def read_header(path: Path) -> list[str]:
    """The names in the first line of ``path``."""
    with _reading(path) as file:
        return [name.strip() for name in next(csv.reader(file), [])]


def read_table(
    path: Path, columns: Sequence[str], words: tuple[str, Sequence[str]]
) -> tuple[np.ndarray, np.ndarray | None]:
    """The numbers of ``columns``, float64 ``[rows, len(columns)]``, and of a column of words.

    ``words`` names that column and the words it may hold; each row gives the word's index, int64
    ``[rows]``, or all is ``None`` where the file has no such column. Raises :class:`DataError` with file,
    line and column for a missing column, something that is no finite number, an unknown word, no rows, or a
    damaged file.
    """
    header = read_header(path)
    missing = [name for name in columns if name not in header]
    if missing:
        expected = ", ".join(dict.fromkeys(columns))
        raise DataError(f"{path}, line 1: missing columns {', '.join(missing)}; expected {expected}")
    wanted = [header.index(name) for name in columns]
    name, allowed = words
    converters: dict[int | str, Callable[[str], Any]] = {}
    if name in header:
        wanted.append(header.index(name))
        converters[wanted[-1]] = lambda word: float(list(allowed).index(word))
    try:
        with _reading(path) as file:
            first = list(islice(file, 1, 2))
            if not first:
                raise DataError(f"{path}: holds a header but no rows; expected one row per step")
            table = np.loadtxt(
                chain(first, file), delimiter=",", usecols=wanted, converters=converters or None, ndmin=2
            )
    except DataError:
        raise
    except (ValueError, IndexError) as error:
        raise _first_fault(path, columns, words) from error
    if not np.isfinite(table).all():
        raise _first_fault(path, columns, words)
    return table[:, : len(columns)], table[:, -1].astype(np.int64) if converters else None


@contextmanager
def _reading(path: Path) -> Iterator[io.TextIOBase]:
    try:
        with _open(path) as file:
            yield file
    except (EOFError, lzma.LZMAError, gzip.BadGzipFile, UnicodeDecodeError) as error:
        raise DataError(f"{path}: damaged, cannot be decoded: {error}") from error


def _open(path: Path) -> io.TextIOBase:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    if path.suffix == ".xz":
        return lzma.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")


def _first_fault(path: Path, columns: Sequence[str], words: tuple[str, Sequence[str]]) -> DataError:
    """Reads slowly, to say where a fast reading failed."""
    name, allowed = words
    with _reading(path) as file:
        for number, row in enumerate(csv.DictReader(file), start=2):
            for column in columns:
                if not _is_finite(row[column]):
                    expected = "expected a finite number"
                    return DataError(f"{path}, line {number}, column {column}: {row[column]!r}; {expected}")
            if name in row and row[name] not in allowed:
                expected = f"expected one of {', '.join(allowed)}"
                return DataError(f"{path}, line {number}, column {name}: {row[name]!r}; {expected}")
    return DataError(f"{path}: cannot be read as comma-separated numbers")


def _is_finite(text: str | None) -> bool:
    try:
        return text is not None and bool(np.isfinite(float(text)))
    except ValueError:
        return False
