"""Reads the rollouts of point-mass robots: one CSV file per robot, plain, ``.gz`` or ``.xz``.

Columns ``robot, control_weight, split, trajectory, step, y, v, u, next_y, next_v`` in any order, one row
per step: in state ``(y, v)`` the control ``u`` led to ``(next_y, next_v)``. ``split`` is train, validation
or test; ``control_weight`` is the robot's ``R``, from which its true gain follows.
"""

import csv
import gzip
import lzma
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from tasks.profiles import DataError

SPLITS = ("train", "validation", "test")
NUMBERS = ("y", "v", "u", "next_y", "next_v", "control_weight")
SUFFIXES = (".csv", ".csv.gz", ".csv.xz")
_OPENERS: dict[str, Callable[..., Any]] = {".csv": open, ".gz": gzip.open, ".xz": lzma.open}


def robot_files(folder: Path) -> list[Path]:
    """The files ``robot-*.csv[.gz|.xz]`` of ``folder``, sorted. Raises :class:`DataError` for none."""
    files = sorted(path for path in folder.glob("robot-*") if path.name.endswith(SUFFIXES))
    if not files:
        raise DataError(f"{folder}: expected files robot-*.csv, .csv.gz or .csv.xz, found none")
    return files


@dataclass(frozen=True)
class Rollouts:
    """Rows of some robots' files, pooled.

    ``tables`` maps each split that has rows to float64 ``[N, 6]``: y, v, u, next_y, next_v, control_weight. ``key`` is
    the file's name up to the first dot, joined by ``+`` for several.
    """

    key: str
    tables: Mapping[str, np.ndarray]

    @property
    def groups(self) -> dict[str, str]:
        """The ``control-weight``, where all rows have the same."""
        distinct = np.unique(np.concatenate([table[:, 5] for table in self.tables.values()]))
        return {"control-weight": f"{distinct[0]:g}"} if len(distinct) == 1 else {}


def read_rollouts(paths: Iterable[Path]) -> Rollouts:
    """The rows of all ``paths``. Raises :class:`DataError` for none to train or test on, and for malformed files."""
    paths = list(paths)
    rows: dict[str, list[list[float]]] = {split: [] for split in SPLITS}
    for path in paths:
        for split, values in _rows(path):
            rows[split].append(values)
    if not rows["train"] and not rows["test"]:
        raise DataError(f"{', '.join(map(str, paths))}: expected rows of split train or test, found none")
    key = "+".join(path.name.split(".", 1)[0] for path in paths)
    return Rollouts(key, {split: np.array(values) for split, values in rows.items() if values})


def _rows(path: Path) -> Iterator[tuple[str, list[float]]]:
    with _opened(path) as file:
        reader = csv.reader(file)
        header = next(reader, [])
        if missing := [name for name in ("split", *NUMBERS) if name not in header]:
            raise DataError(f"{path}, line 1: expected the columns {', '.join(missing)}")
        split_at, number_at = header.index("split"), [header.index(name) for name in NUMBERS]
        for row in reader:
            place = f"{path}, line {reader.line_num}"
            if len(row) != len(header):
                raise DataError(f"{place}: expected {len(header)} fields, found {len(row)}")
            if row[split_at] not in SPLITS:
                raise DataError(f"{place}: split = {row[split_at]!r}: expected one of {', '.join(SPLITS)}")
            values = [_number(row[at], place, name) for name, at in zip(NUMBERS, number_at, strict=True)]
            if values[-1] <= 0:
                raise DataError(f"{place}: control_weight = {values[-1]}: expected a number above 0")
            yield row[split_at], values


def _number(text: str, place: str, name: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not isfinite(value):
        raise DataError(f"{place}: {name} = {text!r}: expected a finite number")
    return value


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    """``path`` as text; whatever goes wrong while reading becomes a :class:`DataError`."""
    try:
        with _OPENERS[path.suffix](path, "rt", newline="", encoding="utf-8") as file:
            yield file
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, lzma.LZMAError) as error:
        raise DataError(f"{path}: expected a readable CSV file: {error}") from error
