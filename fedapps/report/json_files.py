"""Read JSON files with errors that name the file, the line and the key."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from reprlib import Repr
from typing import Any

import numpy as np
import numpy.typing as npt

from fedapps.strategies.checks import LARGEST_COUNT

#: Shows a value in a message, whatever its size and depth.
_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = 200


class ReportError(ValueError):
    """A run folder has missing or malformed files; the message names the file, the line and the problem."""


@dataclass(frozen=True)
class Entry:
    """One JSON object with typed access to its fields.

    Attributes
    ----------
    where : str
        ``file`` or ``file:line``, for error messages.
    fields : mapping
        The parsed object.
    """

    where: str
    fields: Mapping[str, Any]

    def fail(self, key: str, value: object, wanted: str) -> ReportError:
        return ReportError(f"{self.where}: {key!r} is {_SHORT.repr(value)}; it must be {wanted}")

    def text(self, key: str, default: str | None = None) -> str:
        value = self.fields.get(key, default)
        if not isinstance(value, str):
            raise self.fail(key, value, "a string")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.fields.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST_COUNT:
            raise self.fail(key, value, "a whole number of at most 2^53")
        if value != int(value):
            raise self.fail(key, value, "a whole number")
        return int(value)

    def number(self, key: str, default: float | None = None) -> float:
        """The number under ``key``; null becomes NaN."""
        return self._to_float(key, self.fields.get(key, default))

    def inner(self, key: str) -> Entry:
        """The object under ``key``; empty if missing or null."""
        value = self.fields.get(key)
        if value is None:
            return Entry(self.where, {})
        if not isinstance(value, dict):
            raise self.fail(key, value, "an object")
        return Entry(self.where, value)

    def items(self, key: str) -> list[Entry]:
        """The list of objects under ``key``; empty if missing or null."""
        value = self.fields.get(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.fail(key, value, "a list of objects")
        return [Entry(self.where, item) for item in value]

    def scalars(self) -> dict[str, float]:
        """All fields that are single numbers, in the order of the file; null becomes NaN."""
        return {key: self._to_float(key, value) for key, value in self.fields.items() if not isinstance(value, list)}

    def series(self) -> dict[str, tuple[float, ...]]:
        """All fields that are lists of numbers."""
        return {
            key: tuple(self._to_float(key, item) for item in value)
            for key, value in self.fields.items()
            if isinstance(value, list)
        }

    def texts(self) -> dict[str, str]:
        """All fields, which must be strings."""
        return {key: self.text(key) for key in self.fields}

    def words(self, key: str) -> tuple[str, ...]:
        """The list of strings under ``key``; empty if missing or null."""
        value = self.fields.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.fail(key, value, "a list of strings")
        return tuple(value)

    def matrix(self, key: str) -> npt.NDArray[np.float64]:
        """The matrix under ``key``, a list of rows of equal length; null becomes NaN."""
        rows = self.fields.get(key)
        if not isinstance(rows, list) or not all(isinstance(row, list) and len(row) == len(rows[0]) for row in rows):
            raise self.fail(key, rows, "a list of rows of equal length")
        return np.array([[self._to_float(key, value) for value in row] for row in rows])

    def _to_float(self, key: str, value: object) -> float:
        if value is None:
            return math.nan
        if not isinstance(value, int | float):
            raise self.fail(key, value, "a number")
        try:
            return float(value)
        except OverflowError:
            raise self.fail(key, value, "a number of at most 1.8e308") from None


def read_object(path: Path) -> Entry | None:
    """Read a file with one JSON object; None if the file does not exist.

    Raises
    ------
    ReportError
        If the file is not JSON or not an object.
    """
    if not path.exists():
        return None
    return _parse(path.read_bytes(), path.name, first_line=1)


def read_lines(path: Path) -> tuple[list[Entry], bool]:
    """Read a ``.jsonl`` file with one JSON object per line; blank lines are skipped.

    Parameters
    ----------
    path : Path
        The file; treated as empty if it does not exist.

    Returns
    -------
    (list of Entry, bool)
        The objects, and whether an incomplete last line (without newline, not JSON) was skipped.

    Raises
    ------
    ReportError
        If any other line is not a JSON object.
    """
    if not path.exists():
        return [], False
    lines = path.read_bytes().split(b"\n")
    entries: list[Entry] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entries.append(_parse(line, f"{path.name}:{number}", first_line=number))
        except ReportError:
            if number == len(lines):
                return entries, True
            raise
    return entries, False


def _parse(raw: bytes, where: str, *, first_line: int) -> Entry:
    try:
        value = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ReportError(f"{where}: not UTF-8: {error}") from error
    except json.JSONDecodeError as error:
        name = where.partition(":")[0]
        line = first_line + error.lineno - 1
        raise ReportError(f"{name}:{line}: not JSON: {error.msg} (column {error.colno})") from error
    except RecursionError:
        raise ReportError(f"{where}: not readable: nested too deeply") from None
    except ValueError as error:  # a number with thousands of digits
        raise ReportError(f"{where}: not readable: {error}") from error
    if not isinstance(value, dict):
        raise ReportError(f"{where}: found {type(value).__name__}; it must be a JSON object")
    return Entry(where, value)
