"""Tables in files: CSV, TSV and JSON lines, plain or compressed by gzip or xz, and Parquet.

All tasks find and read their tables here. Every error names the file, the line and the column, and says what is
allowed.
"""

import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np

from .errors import DataError, need
from .rows import FORMATS, PARQUET, cell_of, format_of, lines_of, name_of, require_columns, rows_of, with_kind
from .text_files import COMPRESSIONS, found_in, shown

#: The endings of the names of CSV files.
CSV_ENDINGS = tuple(".csv" + compression for compression in COMPRESSIONS)
#: The numbers that float32 can hold, in which most tasks compute, and the whole numbers that float64 can.
_LARGEST, _WHOLE = float(np.finfo(np.float32).max), 2.0**53

_LISTED = 5  # lines that an error lists
#: What the library datasets calls the features in the metadata of a Parquet file.
_FEATURES = b"huggingface"


def line_of(path: Path, number: int) -> str:
    """The place of a row, for messages: the file and the number of its line, or of the row in a Parquet file."""
    return f"{path}, {'row' if path.suffix == PARQUET else 'line'} {number}"


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
        The number of the line on which each row ends, or of the row in a Parquet file, counted from 1.
    classes : mapping of str to tuple of str
        By column, the names of the classes in the order of their numbers, where a Parquet file has them. The cells are
        names.
    """

    path: Path
    names: tuple[str, ...]
    columns: Mapping[str, list[str]]
    lines: list[int]
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.lines)

    def __contains__(self, column: str) -> bool:
        return column in self.columns

    def require(self, columns: Iterable[str]) -> None:
        """Raise :class:`DataError` if one of the optional ``columns`` is missing."""
        if any(column not in self for column in columns):
            require_columns(self.names, columns, line_of(self.path, 1), "")

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
        return f"{line_of(self.path, self.lines[row])}, column {column}"

    def distinct(self, columns: Sequence[str]) -> None:
        """Raise :class:`DataError` if two rows have the same cells in some columns."""
        rows: dict[tuple[str, ...], int] = {}
        for row, cells in enumerate(zip(*(self.columns[column] for column in columns), strict=True)):
            if (first := rows.setdefault(cells, row)) != row:
                named = ", ".join(f"{column} = {shown(cell)}" for column, cell in zip(columns, cells, strict=True))
                raise DataError(
                    f"{line_of(self.path, self.lines[row])}: {named} occurs for the second time (first in line "
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
    ``.xz``; or ``.parquet``, where a class has the name that the library datasets wrote for its number. For encodings
    see :mod:`fedapps.base.text_files`. Blank lines are skipped.

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
    if kind == PARQUET:
        return _read_parquet(path, required, optional, hint)
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


def _read_parquet(path: Path, required: Sequence[str], optional: Sequence[str], hint: str) -> Table:
    names, metadata = parquet_columns(path)
    require_columns(names, required, str(path), hint)
    read = parquet_cells(path, [name for name in dict.fromkeys((*required, *optional)) if name in names])
    if not read.num_rows:
        raise DataError(f"{path}: has no rows")
    classes = {name: known for name in read.column_names if (known := _class_names(metadata, name))}
    columns = {}
    for name in read.column_names:
        values, known = read.column(name).to_pylist(), classes.get(name, ())
        for row, value in enumerate(values):
            location = f"{line_of(path, row + 1)}, column {name}"
            if known and not (isinstance(value, int) and 0 <= value < len(known)):
                raise DataError(f"{location}: {shown(value)}; expected a class from 0 to {len(known) - 1}")
            values[row] = known[value] if known else cell_of(value, line_of(path, row + 1), name)
        columns[name] = values
    return Table(path, names, columns, list(range(1, read.num_rows + 1)), classes)


def parquet_columns(path: Path) -> tuple[tuple[str, ...], Mapping[bytes, bytes]]:
    """Return the names of the columns of a Parquet file, and its metadata.

    Raise :class:`DataError` if it is damaged.
    """
    schema = _from_parquet(path, "read_schema")
    return tuple(schema.names), schema.metadata or {}


def parquet_cells(path: Path, columns: Sequence[str]) -> Any:
    """Return some columns of a Parquet file as a table of pyarrow. Raise :class:`DataError` if it is damaged."""
    return _from_parquet(path, "read_table", columns=list(columns))


def _from_parquet(path: Path, function: str, **options: Any) -> Any:
    parquet, failures = need("pyarrow.parquet", "images", str(path)), need("pyarrow.lib", "images", str(path))
    try:
        return getattr(parquet, function)(path, **options)
    except (OSError, failures.ArrowException, UnicodeDecodeError) as error:  # the last is of a column's name
        raise DataError(f"{path}: cannot be read as a Parquet file: {error}") from error


def _class_names(metadata: Mapping[bytes, bytes], column: str) -> tuple[str, ...]:
    """The names that the library datasets wrote for a column of classes; empty if there are none."""
    try:
        features = json.loads(metadata.get(_FEATURES, b"{}"))["info"]["features"]
        return tuple(map(str, features[column]["names"]))
    except (ValueError, KeyError, TypeError):
        return ()


def write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a CSV file with a header into a folder, which is made where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(header)
        table.writerows(rows)


def columns_of(path: Path) -> tuple[str, ...]:
    """Return the names of the columns of a table; those of the first object of JSON lines; empty without rows."""
    kind = format_of(path)
    if kind == PARQUET:
        return parquet_columns(path)[0]
    with lines_of(path) as file:
        return next((tuple(row) for _, row in rows_of(path, file, kind, True, (), (), "")), ())


def table_names(stem: str) -> tuple[str, ...]:
    """Return the names of the files of a table, for :func:`find_tables`: in each format, and as on the hub.

    The Hugging Face hub has ``train-00000-of-00001.parquet`` in any folder.
    """
    return (*(stem + kind for kind in FORMATS), *(f"**/{stem}{ending}{PARQUET}" for ending in ("", "-*", "/*")))


def find_tables(folder: Path, candidates: Sequence[str], key: str = "") -> list[Path]:
    """Return the files that match the first candidate with a match, sorted by name.

    Parameters
    ----------
    folder : Path
    candidates : sequence of str
        File names, or patterns such as ``train*.csv``. Each is also tried with the endings .gz and .xz.
    key : str
        The key that names one of several files, for messages; empty if there is none.

    Raises
    ------
    DataError
        A candidate is no pattern of names below ``folder``, or the folder has files of one name in several formats, or
        on the hub's pattern in several folders.
    """
    matches: dict[str, list[Path]] = {}
    for candidate in candidates:
        for compression in COMPRESSIONS:
            try:
                paths = [path for path in found_in(folder, candidate + compression) if path.is_file()]
            except (ValueError, NotImplementedError) as error:  # two stars within a name, or an absolute path
                raise DataError(
                    f"{key} = {candidate!r}: {error}; name files below {folder}, such as train*.csv"
                ) from error
            if paths:
                matches.setdefault(candidate, paths)
    if not matches:
        return []
    first, paths = next(iter(matches.items()))
    if others := [files[0].name for name, files in matches.items() if name != first and _stem(name) == _stem(first)]:
        named = f", or name it in {key}" if key else ""
        raise DataError(
            f"{folder}: has {paths[0].name} and {others[0]}, and each could be meant; keep one of them{named}"
        )
    if first.startswith("**/") and len(parents := sorted({str(path.parent) for path in paths})) > 1:
        raise DataError(
            f"{folder}: Parquet files of {_stem(first)} in several folders ({', '.join(parents[:3])}); set data-dir to "
            "one of them"
        )
    return paths


def _stem(candidate: str) -> str:
    return re.sub(r"(-\*|/\*)?\.\w+$", "", candidate.removeprefix("**/"))


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
        if kind == PARQUET:
            table = _read_parquet(path, required, (), hint)
            for index, line in enumerate(table.lines):
                yield Row(line_of(path, line), {name: cells[index] for name, cells in table.columns.items()})
            return
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
