"""Tables in files: CSV, TSV and JSON lines, plain or compressed by gzip or xz.

All tasks read their tables here. Every error names the file, the line and the column, and says what is allowed."""

import csv
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from math import nan
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np

from .errors import DataError
from .text_files import COMPRESSIONS, from_json, open_text, shown

FORMATS = (".csv", ".tsv", ".jsonl")
#: The endings of spreadsheets, which are no text.
SHEETS = (".xlsx", ".xls", ".xlsm", ".ods", ".numbers")
_SHOWN = 40  # characters of a line that an error repeats


def json_lines(source: Path | Iterable[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number and the object of each line of JSON lines, a file or a stream, without blank lines.

    Raises
    ------
    DataError
        The file cannot be read, or a line is not a JSON object.
    """
    path = source if isinstance(source, Path) else name_of(source)
    with lines_of(source) as lines:
        yield from _json_objects(path, lines)


def name_of(stream: object) -> Path:
    """The name of a stream, for messages."""
    return Path(getattr(stream, "name", "<input>"))


@contextmanager
def lines_of(source: Path | Iterable[str], columns: Sequence[str] = ()) -> Iterator[Iterable[str]]:
    """Open the lines of a file (:func:`fedapps.base.text_files.open_text`), or those of a stream.

    Raise :class:`DataError` if they cannot be read. ``columns`` are those that the message for a missing file names.
    """
    if not isinstance(source, Path):
        yield _decoded(source)
    elif not source.exists():
        expected = f"; expected one with the columns {', '.join(columns)}" if columns else ""
        raise DataError(f"{source}: no such file{expected}")
    else:
        with open_text(source) as file:
            yield file


def _decoded(stream: Iterable[str]) -> Iterator[str]:
    """The lines of a stream without a byte-order mark."""
    try:
        for number, line in enumerate(stream):
            yield line if number else line.removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise DataError(f"{name_of(stream)}: {error}; write UTF-8") from error


def format_of(path: Path) -> str:
    kind = path.with_suffix("").suffix if path.suffix in COMPRESSIONS else path.suffix
    if kind in SHEETS:
        raise DataError(f"{path}: a spreadsheet; save the sheet as CSV in UTF-8")
    if kind not in FORMATS:
        endings = ", ".join(FORMATS)
        raise DataError(
            f"{path}: unknown format; expected a file name that ends in {endings}, .gz or .xz: rename the file, for "
            "example to .tsv if tabs separate its columns"
        )
    return kind


def with_kind(lines: Iterable[str]) -> tuple[bool, Iterable[str]]:
    """Whether the lines of a stream are JSON lines, because the first begins with ``{``; and the lines."""
    rest = iter(lines)
    first = next((line for line in rest if line.strip()), "")
    return first.lstrip().startswith("{"), chain([first], rest)


def rows_of(
    path: Path,
    lines: Iterable[str],
    kind: str,
    header: bool,
    read: Sequence[str],
    required: Sequence[str],
    hint: str,
) -> Iterator[tuple[int, Mapping[str, object]]]:
    """The rows of a table of a kind, with the numbers of their lines."""
    if kind == ".jsonl":
        return _json_objects(path, lines)
    return _csv_rows(path, lines, kind, header, read, required, hint)


def _csv_rows(
    path: Path, file: Iterable[str], kind: str, header: bool, read: Sequence[str], required: Sequence[str], hint: str
) -> Iterator[tuple[int, dict[str, str]]]:
    if kind == ".tsv":
        reader = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
    else:
        reader = csv.reader(file, strict=True)
    names: list[str] = []
    try:
        if header:
            names = [name.strip() for name in next(reader, [])]
            require_columns(names, required, f"{path}, line 1", hint)
            if twice := [name for name, count in Counter(names).items() if count > 1 and name in read]:
                raise DataError(
                    f"{path}, line 1: column {', '.join(twice)} occurs twice; keep or rename one of the two"
                )
        for row in reader:
            if not row:
                continue
            if header and len(row) != len(names):
                location = f"{path}, line {reader.line_num}"
                quoted = " (cells with commas need quotes)" if kind == ".csv" and len(row) > len(names) else ""
                raise DataError(f"{location}: {len(row)} cells; expected {len(names)}, as in the header{quoted}")
            columns = names or [str(number) for number in range(1, len(row) + 1)]
            yield reader.line_num, dict(zip(columns, row, strict=True))
    except csv.Error as error:
        raise DataError(
            f"{path}, line {reader.line_num}: {error}; expected {kind[1:].upper()} (JSON lines, .jsonl, set no limits "
            "on quotes and lengths)"
        ) from error


def cell_of(value: object, location: str, column: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise DataError(f"{location}, column {column}: {shown(value)}; expected a string or a number")
    return str(value)


def _json_objects(path: Path, file: Iterable[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        begins = repr(line.strip()[:_SHOWN])
        try:
            record = from_json(line)
        except ValueError as error:
            raise DataError(f"{path}, line {number}: {begins} is not JSON: {error}") from error
        if not isinstance(record, dict):
            raise DataError(f"{path}, line {number}: {begins}; expected a JSON object of names and values")
        yield number, record


def require_columns(present: Collection[str], columns: Iterable[str], location: str, hint: str) -> None:
    columns = list(columns)
    if lacking := [name for name in columns if name not in present]:
        if all(name.isdecimal() for name in (*present, *columns)):
            raise DataError(
                f"{location}: no column {', '.join(lacking)}; columns are counted from 1, and the line "
                f"has {len(present)}"
            )
        named = ", ".join(shown(name)[1:-1] for name in present if name) or "none"
        if len(present) == 1 and any(mark in named for mark in (";", "\t", "|")):
            hint = "separate the columns of a .csv file by commas, those of a .tsv file by tabs"
        elif not hint and len(lacking) == len(columns) > 1:
            hint = "the first line of a table must have the names of its columns"
        raise DataError(f"{location}: no column {', '.join(lacking)}; found {named}" + (f" ({hint})" if hint else ""))


#: The endings of the names of CSV files.
CSV_ENDINGS = tuple(".csv" + compression for compression in COMPRESSIONS)
#: The numbers that float32 can hold, in which most tasks compute, and the whole numbers that float64 can.
_LARGEST, _WHOLE = float(np.finfo(np.float32).max), 2.0**53
_LISTED = 5  # lines that an error lists


@dataclass(frozen=True)
class Table:
    """Some columns of a file, as text.

    Attributes
    ----------
    path : Path
        The file.
    names : tuple of str
        The names of all columns of the file.
    columns : mapping of str to list of str
        The cells of the columns that were read, in the order of the rows.
    lines : list of int
        The number of the line on which each row ends, counted from 1.
    """

    path: Path
    names: tuple[str, ...]
    columns: Mapping[str, list[str]]
    lines: list[int]

    def __len__(self) -> int:
        return len(self.lines)

    def __contains__(self, column: str) -> bool:
        return column in self.columns

    def require(self, columns: Iterable[str]) -> None:
        """Raise :class:`DataError` if one of the optional ``columns`` is missing."""
        if any(column not in self for column in columns):
            require_columns(self.names, columns, f"{self.path}, line 1", "")

    def texts(self, column: str) -> list[str]:
        """Return the cells of a column as written."""
        return self.columns[column]

    def numbers(self, column: str, *, missing: float | None = None) -> np.ndarray:
        """Return a column as finite numbers, float64 ``[n]``.

        Parameters
        ----------
        column : str
            The name of the column.
        missing : float, optional
            The value of empty cells. Without it an empty cell is an error.

        Raises
        ------
        DataError
            A cell is not a finite number. The message counts all such cells.
        """
        cells = self.columns[column]
        try:
            values = np.fromiter(map(float, cells), dtype=np.float64, count=len(cells))
        except ValueError:
            values = np.array([_number(cell, missing) for cell in cells])
        wrong = np.flatnonzero(~(np.abs(values) <= _LARGEST))  # NaN is not either
        if missing is not None:
            wrong = np.array([row for row in wrong if cells[row].strip()], dtype=np.int64)
        if len(wrong):
            raise self.fault(column, wrong, "expected a finite number")
        return values

    def integers(self, column: str) -> np.ndarray:
        """Return a column as int64 ``[n]``. Raise :class:`DataError` for a cell that is not a whole number."""
        values = self.numbers(column)
        if len(wrong := np.flatnonzero((values != np.floor(values)) | (np.abs(values) > _WHOLE))):
            raise self.fault(column, wrong, "expected a whole number")
        return values.astype(np.int64)

    def words(self, column: str, meanings: Mapping[str, Any]) -> np.ndarray:
        """Return what each cell of a column means, ``[n]``.

        Parameters
        ----------
        column : str
            The name of the column.
        meanings : mapping of str to object
            The allowed words in lower case, and what each stands for. Upper and lower case are the same word.

        Raises
        ------
        DataError
            A cell holds another word.
        """
        values = [meanings.get(cell.strip().lower()) for cell in self.columns[column]]
        if wrong := [row for row, meaning in enumerate(values) if meaning is None]:
            raise self.fault(column, wrong, f"expected one of {', '.join(meanings)}")
        return np.array(values)

    def location(self, row: int, column: str) -> str:
        """Return the file, line and column of a cell, for an error message."""
        return f"{self.path}, line {self.lines[row]}, column {column}"

    def distinct(self, columns: Sequence[str]) -> None:
        """Raise :class:`DataError` if two rows have the same cells in some columns."""
        rows: dict[tuple[str, ...], int] = {}
        for row, cells in enumerate(zip(*(self.columns[column] for column in columns), strict=True)):
            if (first := rows.setdefault(cells, row)) != row:
                named = ", ".join(f"{column} = {shown(cell)}" for column, cell in zip(columns, cells, strict=True))
                raise DataError(
                    f"{self.path}, line {self.lines[row]}: {named} occurs for the second time (first in line "
                    f"{self.lines[first]}); keep one of the two rows"
                )

    def fault(self, column: str, rows: Sequence[int] | np.ndarray, expected: str) -> DataError:
        """Return the error for the first of the wrong cells ``rows`` of a column; it counts them and lists lines."""
        lines = ", ".join(str(self.lines[row]) for row in rows[:_LISTED]) + (", ..." if len(rows) > _LISTED else "")
        more = f" (wrong in {len(rows)} rows: lines {lines})" if len(rows) > 1 else ""
        return DataError(f"{self.location(rows[0], column)}: {shown(self.columns[column][rows[0]])}; {expected}{more}")


def read_table(
    path: Path, required: Sequence[str], optional: Sequence[str] = (), *, header: bool = True, hint: str = ""
) -> Table:
    """Read columns of a table.

    The ending of the file name decides the format: ``.csv`` (quoted), ``.tsv`` (separated by tabs, without quotes, as
    GLUE's files) or ``.jsonl`` (one object of strings and numbers per line), each optionally followed by ``.gz`` or
    ``.xz``. For encodings see :mod:`fedapps.base.text_files`. Blank lines are skipped.

    Parameters
    ----------
    path : Path
        The file.
    required : sequence of str
        Columns that the file must have.
    optional : sequence of str
        Columns that are read if the file has them.
    header : bool
        Whether the first row of a CSV or TSV file names the columns. Without a header, columns are called ``"1"``,
        ``"2"`` and so on.
    hint : str
        What the error for a missing column adds, for example the option that names the columns.

    Raises
    ------
    DataError
        The format is unknown, the file cannot be read, a required column or a cell is missing, a column that is read
        occurs twice, or there are no rows.
    """
    kind = format_of(path)
    columns: dict[str, list[str]] = {}
    names: tuple[str, ...] = ()
    lines: list[int] = []
    with lines_of(path, required) as file:
        for line, row in rows_of(path, file, kind, header, (*required, *optional), required, hint):
            if not lines:
                names = tuple(row)
                columns = {name: [] for name in (*required, *optional) if name in required or name in row}
            location = f"{path}, line {line}"
            require_columns(row, columns, location, hint)
            if late := [name for name in optional if name in row and name not in columns]:
                raise DataError(
                    f"{location}: column {', '.join(late)}, which line {lines[0]} lacks; write it in all lines"
                )
            for name, cells in columns.items():
                cells.append(cell_of(row[name], location, name))
            lines.append(line)
    if not lines:
        raise DataError(f"{path}: has no rows; expected one per line")
    return Table(path, names, columns, lines)


@dataclass(frozen=True)
class Row:
    """One row of a table that is read row by row.

    Attributes
    ----------
    location : str
        The file and the line, for error messages.
    cells : mapping of str to str
        The cells by column, as written.
    """

    location: str
    cells: Mapping[str, str]

    def number(self, column: str) -> float:
        """Return a cell as a finite number. Raise :class:`DataError` if it is none."""
        value = _number(self.cells[column], None)
        if not abs(value) <= _LARGEST:  # NaN is not either
            raise DataError(f"{self.location}, column {column}: {shown(self.cells[column])}; expected a finite number")
        return value


def stream_rows(
    source: Path | Iterable[str], required: Sequence[str], *, header: bool = True, hint: str = ""
) -> Iterator[Row]:
    """Yield the rows of a table one by one, of any length.

    Parameters
    ----------
    source : Path or lines
        A file as in :func:`read_table`; or the lines of a stream, which are JSON lines if they begin with ``{``, and
        CSV otherwise.
    required : sequence of str
        The columns to read.
    header, hint
        As in :func:`read_table`.

    Raises
    ------
    DataError
        As :func:`read_table`; without rows nothing is yielded.
    """
    if isinstance(source, Path):
        path, kind = source, format_of(source)
    else:
        path, kind = name_of(source), ""
    with lines_of(source, required) as file:
        lines = file
        if not kind:
            is_json, lines = with_kind(file)
            kind = ".jsonl" if is_json else ".csv"
        for line, row in rows_of(path, lines, kind, header, required, required, hint):
            location = f"{path}, line {line}"
            require_columns(row, required, location, hint)
            yield Row(location, {name: cell_of(row[name], location, name) for name in required})


def refuse_spellings(labels: Iterable[str], where: str, key: str) -> None:
    """Refuse labels that differ only in case, blanks or their form in Unicode, such as ``sport`` and ``Sport ``.

    Parameters
    ----------
    labels : iterable of str
        The label of each row.
    where : str
        The file and the column, for the message.
    key : str
        The key that lists labels that are different in spite of this; empty if there is none.

    Raises
    ------
    DataError
        Two labels are the same word. The message has the number of rows of each.
    """
    counts = Counter(labels)
    spellings: dict[str, list[str]] = {}
    for label in sorted(counts):
        spellings.setdefault(" ".join(normalize("NFKC", label).casefold().split()), []).append(label)
    if several := [same for same in spellings.values() if len(same) > 1]:
        groups = "; ".join(
            " and ".join(f"{shown(label)} ({counts[label]:,} rows)" for label in same) for same in several[:_LISTED]
        )
        unless = f", or list them in {key} if they are different" if key else ""
        raise DataError(f"{where}: labels differ only in case or blanks: {groups}; write each in one way{unless}")


def _number(cell: str, missing: float | None) -> float:
    """The number in a cell, ``missing`` for an empty cell, NaN for anything else."""
    if missing is not None and not cell.strip():
        return missing
    try:
        return float(cell)
    except ValueError:
        return nan
