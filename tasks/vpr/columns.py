"""Named columns of a CSV file, with errors that name the file, the column and the line."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tasks.profiles import DataError


@dataclass(frozen=True)
class Columns:
    """The cells of a file by column. ``lines`` are the numbers of the lines on which the rows end."""

    path: Path
    cells: dict[str, list[str]]
    lines: list[int]

    def __len__(self) -> int:
        return len(self.lines)

    def __contains__(self, name: str) -> bool:
        return name in self.cells

    def texts(self, name: str) -> list[str]:
        """The cells of a column as they are written."""
        return self.cells[name]

    def numbers(self, name: str, *, missing: float | None = None) -> np.ndarray:
        """A column as float64 ``[n]``; empty cells are ``missing`` where that is given.

        Raises :class:`DataError` for a cell that is no finite number, with how many there are.
        """
        values, wrong = np.empty(len(self)), []
        for row, cell in enumerate(self.cells[name]):
            if missing is not None and not cell.strip():
                values[row] = missing
                continue
            try:
                values[row] = float(cell)
            except ValueError:
                values[row] = np.nan
            if not np.isfinite(values[row]):
                wrong.append(row)
        if wrong:
            others = f" (so for {len(wrong) - 1} other lines)" if len(wrong) > 1 else ""
            raise DataError(f"{self.place(wrong[0], name)}: {self.cells[name][wrong[0]]!r}; expected a number{others}")
        return values

    def integers(self, name: str) -> np.ndarray:
        """A column as int64 ``[n]``. Raises :class:`DataError` for a cell that is no whole number."""
        values = self.numbers(name)
        if len(wrong := np.flatnonzero(values != np.floor(values))):
            raise DataError(f"{self.place(wrong[0], name)}: {values[wrong[0]]}; expected a whole number")
        return values.astype(np.int64)

    def matches(self, name: str, meanings: dict[str, bool]) -> np.ndarray:
        """A column as bool ``[n]``, by what each of its values means, in capitals or not.

        Raises :class:`DataError` for a value that means nothing.
        """
        values = np.empty(len(self), dtype=bool)
        for row, cell in enumerate(self.cells[name]):
            meaning = meanings.get(cell.strip().lower())
            if meaning is None:
                raise DataError(f"{self.place(row, name)}: {cell!r}; expected one of {', '.join(meanings)}")
            values[row] = meaning
        return values

    def place(self, row: int, name: str) -> str:
        """Where a cell stands, for errors."""
        return f"{self.path}, line {self.lines[row]}, column {name}"


def read_columns(path: Path, required: Sequence[str], optional: Sequence[str] = ()) -> Columns:
    """The columns ``required`` and those of ``optional`` that are there, of a CSV file with a header, in UTF-8.

    Raises :class:`DataError` for a missing or unreadable file, a missing column (naming those found), a line without
    a cell for each column, and a file without rows.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = [name.strip() for name in next(reader, [])]
            if lacking := [name for name in required if name not in header]:
                raise DataError(f"{path}: no column {', '.join(lacking)}; found {', '.join(filter(None, header))}")
            wanted = {name: header.index(name) for name in [*required, *optional] if name in header}
            table = _table(path, reader, wanted, len(header))
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file; expected one with the columns {', '.join(required)}") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    if not len(table):
        raise DataError(f"{path}: holds no rows below its header")
    return table


def _table(path: Path, reader: Iterator[list[str]], wanted: dict[str, int], width: int) -> Columns:
    table = Columns(path, {name: [] for name in wanted}, [])
    for row in reader:
        if not row:
            continue
        line = reader.line_num  # type: ignore[attr-defined]  # every reader of csv has it
        if len(row) != width:
            raise DataError(f"{path}, line {line}: {len(row)} cells; expected {width} as in the header")
        for name, column in wanted.items():
            table.cells[name].append(row[column])
        table.lines.append(line)
    return table
