"""Files of JSON lines that a run appends to: whole lines are read, damaged ones are named, and nothing is deleted."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedapps.base.atomic import naming_errors, write_whole

_SHOWN = 5


def append_whole(path: Path, lines: bytes) -> None:
    """Append lines to a file, and return when they are on the disk.

    Raises
    ------
    UnwritableError
        The file cannot be written. Its last line may be incomplete.
    """
    with naming_errors(path), path.open("ab") as file:
        file.write(lines)
        file.flush()
        os.fsync(file.fileno())


def whole_lines(path: Path, is_row: Callable[[Any], bool]) -> list[Any]:
    """The values of the whole lines of a file, in their order.

    Parameters
    ----------
    path : Path
        Empty if it does not exist.
    is_row : callable
        Whether a JSON value has the form of a line. Lines that have not are left out (:func:`damaged_lines`).
    """
    return [value for value in _values(path, is_row) if value is not None]


def damaged_lines(path: Path, is_row: Callable[[Any], bool]) -> list[int]:
    """The numbers, from 1, of complete lines that are no JSON or have another form."""
    return [number for number, value in enumerate(_values(path, is_row), start=1) if value is None]


def first_numbers(numbers: Sequence[int]) -> str:
    """The first numbers as text."""
    return ", ".join(map(str, numbers[:_SHOWN])) + (f" and {len(numbers) - _SHOWN} more" * (len(numbers) > _SHOWN))


def keep_copy(path: Path) -> Path:
    """Copy a damaged file to ``<name>.damaged-<number>``, a file that does not exist yet, and return its path."""
    count = 1
    while (copy := path.with_name(f"{path.name}.damaged-{count}")).exists():
        count += 1
    write_whole(copy, path.read_bytes(), sync=True)
    return copy


def _values(path: Path, is_row: Callable[[Any], bool]) -> list[Any]:
    """The value of each complete line; ``None`` for a damaged one."""
    content = path.read_bytes() if path.exists() else b""
    return [_value(line, is_row) for line in content[: content.rfind(b"\n") + 1].split(b"\n")[:-1]]


def _value(line: bytes, is_row: Callable[[Any], bool]) -> Any:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if is_row(value) else None
