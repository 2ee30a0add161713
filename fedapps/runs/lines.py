"""Files of JSON lines that a run appends to: whole lines are read, damaged ones are named, and nothing is deleted."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedapps.base.atomic import naming_errors, write_whole

#: How many numbers of lines or rounds a message lists.
SHOWN = 5


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


def whole_lines(path: Path, is_row: Callable[[Any], bool]) -> tuple[list[Any], list[int]]:
    """The values of the whole lines of a file in their order, and the numbers of its damaged lines, from 1.

    An incomplete last line, which has no line break, is neither.

    Parameters
    ----------
    path : Path
        Empty if it does not exist.
    is_row : callable
        Whether a JSON value has the form of a line. A complete line that is no JSON or has another form is damaged.
    """
    content = path.read_bytes() if path.exists() else b""
    rows, damaged = [], []
    for number, line in enumerate(content[: content.rfind(b"\n") + 1].split(b"\n")[:-1], start=1):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if value is not None and is_row(value):
            rows.append(value)
        else:
            damaged.append(number)
    return rows, damaged


def keep_copy(path: Path) -> Path:
    """Copy a damaged file to ``<name>.damaged-<number>``, a file that does not exist yet, and return its path."""
    count = 1
    while (copy := path.with_name(f"{path.name}.damaged-{count}")).exists():
        count += 1
    write_whole(copy, path.read_bytes(), sync=True)
    return copy
