"""The rows of files and streams: CSV, TSV and JSON lines, with the numbers of their lines."""

import csv
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from .errors import DataError
from .text_files import COMPRESSIONS, from_json, open_text, shown

FORMATS = (".csv", ".tsv", ".jsonl")
#: The ending of Parquet files, which have no lines.
PARQUET = ".parquet"
#: The endings of spreadsheets, which are no text.
SHEETS = (".xlsx", ".xls", ".xlsm", ".ods", ".numbers")
_SHOWN = 40  # characters of a line that an error repeats
_SEPARATE = "separate the columns of a .csv file by commas, those of a .tsv file by tabs"


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
            line.encode()  # where the locale is C, Python reads what is not UTF-8 as surrogates
            yield line if number else line.removeprefix("\ufeff")
    except UnicodeError as error:
        raise DataError(f"{name_of(stream)}: {error}; write UTF-8") from error


def format_of(path: Path) -> str:
    if path.suffix == PARQUET:
        return PARQUET
    kind = path.with_suffix("").suffix if path.suffix in COMPRESSIONS else path.suffix
    if kind in SHEETS:
        raise DataError(f"{path}: a spreadsheet; save the sheet as CSV in UTF-8")
    if kind not in FORMATS:
        endings = ", ".join((PARQUET, *FORMATS))
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
    path: Path, lines: Iterable[str], kind: str, header: bool, read: Sequence[str], required: Sequence[str], hint: str
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
                advice = " (cells with commas need quotes)" if kind == ".csv" and len(row) > len(names) else ""
                advice = f" ({_SEPARATE})" if _separated_otherwise(names) else advice
                raise DataError(f"{location}: {len(row)} cells; expected {len(names)}, as in the header{advice}")
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


def _separated_otherwise(names: Collection[str]) -> bool:
    return len(names) == 1 and any(mark in name for name in names for mark in ";\t|")


def require_columns(present: Collection[str], columns: Iterable[str], location: str, hint: str) -> None:
    columns = list(columns)
    if lacking := [name for name in columns if name not in present]:
        if all(name.isdecimal() for name in (*present, *columns)):
            raise DataError(
                f"{location}: no column {', '.join(lacking)}; columns are counted from 1, and the line "
                f"has {len(present)}"
            )
        named = ", ".join(shown(name)[1:-1] for name in present if name) or "none"
        if _separated_otherwise(present):
            hint = _SEPARATE
        elif not hint and len(lacking) == len(columns) > 1:
            hint = "the first line of a table must have the names of its columns"
        raise DataError(f"{location}: no column {', '.join(lacking)}; found {named}" + (f" ({hint})" if hint else ""))
