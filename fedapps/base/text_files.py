"""Files that people write: finding them in a folder, and opening them as text, JSON, TOML or an archive of arrays.

All readers of tasks, and those of recipes and node configs, use these functions. Text is UTF-8, with or without a
byte-order mark, or UTF-16 or UTF-32 with one. Another encoding is refused, because it cannot be recognised: bytes of
Latin-1 are valid in every one-byte encoding. Files may be compressed by gzip or xz, or be in a zip archive.
"""

import codecs
import gzip
import json
import lzma
import os
import tomllib
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path, PurePath
from reprlib import Repr
from tokenize import TokenError
from typing import Any, BinaryIO, TextIO, cast
from zipfile import BadZipFile, ZipFile

import numpy as np

from .errors import DataError

_PARTS = 20

COMPRESSIONS = ("", ".gz", ".xz")
#: What reading a missing or damaged file raises, compressed or not.
UNREADABLE = (OSError, EOFError, lzma.LZMAError, zlib.error, BadZipFile, NotImplementedError)
#: What NumPy raises for a damaged archive of arrays.
_NO_ARRAYS = (ValueError, TypeError, SyntaxError, TokenError, RuntimeError, MemoryError, OverflowError)

#: The longer mark first: that of UTF-32 begins with that of UTF-16.
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_HEAD = 4096  # bytes at the start that are searched for a zero byte, which no text in UTF-8 has
_BLOCK = 1 << 16
#: Names that operating systems and archivers give to files and folders beside those of a person.
_MADE = frozenset(
    ["__macosx", "thumbs.db", "ehthumbs.db", "desktop.ini", "$recycle.bin", "lost+found", "@eadir", "#recycle"]
)
_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80
_SHORT.maxlevel = 4


def shown(value: object) -> str:
    """Return a value for an error message: its ``repr``, shortened in the middle if it is long or deeply nested."""
    return _SHORT.repr(value)


def is_made(path: PurePath) -> bool:
    """Return whether an operating system or an archiver made a file, or one of its folders.

    Parameters
    ----------
    path : PurePath
        Relative to the folder of the data. Hidden names, which begin with a dot, are made, such as ``._a.csv``.
    """
    return any(part.startswith(".") or part.lower() in _MADE for part in path.parts)


def found_in(folder: Path, *patterns: str) -> list[Path]:
    """Return the files and folders below ``folder`` that match one of the glob patterns, sorted, each once.

    What operating systems and archivers made is left out (:func:`is_made`). ``**`` also enters links to folders, and
    each folder once.
    """
    paths = {path for pattern in patterns for path in _matches(folder, pattern)}
    return sorted(path for path in paths if not is_made(path.relative_to(folder)))


def _matches(folder: Path, pattern: str) -> Iterator[Path]:
    first, every, rest = pattern.partition("**/")
    if not every:
        yield from folder.glob(pattern)
        return
    for root in folder.glob(first) if first else [folder]:
        seen = set()
        for path, names, _ in os.walk(root, followlinks=True):
            names.sort()
            if (real := os.path.realpath(path)) in seen:
                names.clear()  # a link to a folder above, or a second one to the same
                continue
            seen.add(real)
            yield from Path(path).glob(rest) if rest else [Path(path)]


def refuse_several(folder: Path, readings: Mapping[str, bool], advice: str) -> None:
    """Raise :class:`DataError` if a folder can be read in two ways.

    Parameters
    ----------
    folder : Path
        The folder.
    readings : mapping of str to bool
        Files or folders that decide how it is read, as text, and whether it has them.
    advice : str
        What to do, for the message.
    """
    if len(kinds := [name for name, applies in readings.items() if applies]) > 1:
        raise DataError(f"{folder}: has {' and '.join(kinds)}, and could be read in {len(kinds)} ways; {advice}")


def refuse_copies(paths: Iterable[Path]) -> None:
    """Raise :class:`DataError` if a file lies beside a compressed copy, such as ``a.csv`` and ``a.csv.gz``."""
    known: dict[Path, Path] = {}
    for path in paths:
        plain = path.with_suffix("") if path.suffix in COMPRESSIONS else path
        if (other := known.setdefault(plain, path)) != path:
            raise DataError(f"{other} and {path.name}: the same file twice, plain and compressed; keep one of them")


@contextmanager
def open_text(path: Path, *, newline: str = "", member: str = "") -> Iterator[TextIO]:
    """Open a text file for reading; decompress it if its name ends in .gz or .xz.

    Parameters
    ----------
    path : Path
        The file.
    newline : str
        As for :class:`io.TextIOWrapper`: ``""`` keeps all line ends and ``"\\n"`` ends lines only there.
    member : str
        The member of the zip archive ``path`` that is the text, for a file whose name ends in .zip.

    Raises
    ------
    DataError
        The file is missing or damaged, or its bytes are not text in one of the encodings above. The latter message
        gives the line, the byte and what to do.
    """
    named = f"{path}, {member}" if member else str(path)
    encoding, mark = "utf-8", b""
    try:
        try:
            with _opened(path, member) as file:
                encoding, mark = _encoding(file.peek(_HEAD)[:_HEAD], named)  # type: ignore[attr-defined]
                file.read(len(mark))
                yield TextIOWrapper(file, encoding, newline=newline)
        except UnicodeDecodeError as error:
            raise _undecodable(path, member, encoding, len(mark), named) or error from None
    except UNREADABLE as error:
        raise DataError(f"{named}: cannot be read or is damaged: {error}") from error


def read_text(path: Path) -> str:
    """Return the text of a file with ``\\n`` at the end of lines. Raise :class:`DataError` as :func:`open_text`."""
    with open_text(path) as file:
        return file.read().replace("\r\n", "\n").replace("\r", "\n")


def zipped_texts(path: Path) -> list[str]:
    """Return the names of the files ``*.txt`` and ``*.vec`` in a zip archive.

    Raises
    ------
    DataError
        It is no zip archive, or a file in it has a password.
    """
    try:
        with ZipFile(path) as archive:
            members = [
                member
                for member in archive.infolist()
                if member.filename.endswith((".txt", ".vec")) and not is_made(PurePath(member.filename))
            ]
    except (*UNREADABLE, ValueError) as error:
        raise DataError(f"{path}: cannot be read or is damaged: {error}") from error
    if locked := [member.filename for member in members if member.flag_bits & 1]:
        raise DataError(f"{path}: {locked[0]} has a password; unpack the archive")
    return [member.filename for member in members]


def read_json(path: Path, *, constants: bool = False) -> Any:
    """Return the content of a JSON file. Raise :class:`DataError` as :func:`open_text`, or if it is not JSON.

    ``constants`` is that of :func:`from_json`.
    """
    text = read_text(path)
    try:
        return from_json(text, constants=constants)
    except ValueError as error:
        raise DataError(f"{path}: no JSON: {error}") from error


def flattened(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one flat mapping with dotted keys.

    Raises
    ------
    ValueError
        A key is set twice, as ``"lqr.horizon"`` beside ``horizon`` in ``[lqr]``, or has more than 20 parts.
    """
    if prefix.count(".") > _PARTS:
        raise ValueError(f"{prefix[:_PARTS]}...: tables are nested in more than {_PARTS} others")
    flat: dict[str, Any] = {}
    for key, value in table.items():
        entries = flattened(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
        if twice := sorted(flat.keys() & entries.keys()):
            raise ValueError(f"{', '.join(twice)}: set twice; keep one of the two")
        flat |= entries
    return flat


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file. Raise :class:`DataError` as :func:`open_text`, or if it is not TOML."""
    text = read_text(path)
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise DataError(f"{path}: no TOML that can be read: arrays or tables are nested too deeply") from None
    except ValueError as error:
        raise DataError(f"{path}: no TOML: {error}") from error


def arrays_in(path: Path, names: Iterable[str]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the arrays of a NumPy archive (``.npz``) under some names, as far as it has them. No pickle is read.

    Raises
    ------
    DataError
        The file is missing, no such archive or damaged.
    """
    try:
        with ZipFile(path), np.load(path, allow_pickle=False) as archive:
            for name in names:
                if name in archive:
                    array = archive[name]
                    if not isinstance(array, np.ndarray):
                        raise ValueError(f"{name} is no array")
                    yield name, array
    except (*UNREADABLE, *_NO_ARRAYS) as error:
        raise DataError(f"{path}: cannot be read as an archive of arrays (.npz): {error}") from error


def from_json(text: str | bytes, *, constants: bool = False) -> Any:
    """Return the value of a JSON text.

    Parameters
    ----------
    text : str or bytes
    constants : bool
        Whether NaN and infinity are read as Python writes them.

    Raises
    ------
    ValueError
        The text is not JSON, or nested too deeply to be read. NaN and infinity are not JSON, nor is an object with the
        same name twice, nor a whole number of thousands of digits.
    """
    try:
        return json.loads(text, object_pairs_hook=_distinct, parse_constant=float if constants else _no_constant)
    except RecursionError:
        raise ValueError("arrays or objects are nested too deeply") from None


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for name, value in pairs:
        if name in table:
            raise ValueError(f"an object has the name {shown(name)} twice; keep one of the two")
        table[name] = value
    return table


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


@contextmanager
def _opened(path: Path, member: str) -> Iterator[BinaryIO]:
    """The bytes of a file, or of a member of an archive, decompressed."""
    if member:
        with ZipFile(path) as archive, archive.open(member) as inside:
            yield cast(BinaryIO, inside)
        return
    openers = {".gz": gzip.GzipFile, ".xz": lzma.LZMAFile}
    with cast(BinaryIO, openers[path.suffix](path) if path.suffix in openers else path.open("rb")) as file:
        yield file


def _encoding(head: bytes, named: str) -> tuple[str, bytes]:
    """The encoding of a text that begins with ``head``, and its mark."""
    for mark, encoding in _MARKS:
        if head.startswith(mark):
            return encoding, mark
    if head.startswith(b"PK\x03\x04"):
        raise DataError(
            f"{named}: a spreadsheet or a zip archive; save the sheet as CSV in UTF-8, or unpack the archive"
        )
    if (at := head.find(b"\0")) >= 0:
        raise DataError(
            f"{named}, byte {at}: 0x00, which no text has in UTF-8: the file is binary, or in UTF-16 without a "
            "byte-order mark; save it as UTF-8"
        )
    return "utf-8", b""


def _undecodable(path: Path, member: str, encoding: str, start: int, named: str) -> DataError | None:
    """The error for the first byte that is wrong in an encoding, which begins after ``start`` bytes."""
    decoder = codecs.getincrementaldecoder(encoding)()
    done, line = start, 1
    with _opened(path, member) as file:
        file.read(start)
        while True:
            block = file.read(_BLOCK)
            held = len(decoder.getstate()[0])
            try:
                line += decoder.decode(block, final=not block).count("\n")
            except UnicodeDecodeError as error:
                line += error.object[: error.start].decode(encoding, errors="ignore").count("\n")
                return DataError(
                    f"{named}, line {line}, byte {done - held + error.start}: 0x{error.object[error.start]:02x} is not "
                    f"{encoding.upper()} ({error.reason}); save the file as UTF-8, for example with "
                    f"iconv -f WINDOWS-1252 -t UTF-8, if that is its encoding"
                )
            if not block:
                return None
            done += len(block)


@contextmanager
def without_progress_bar() -> Iterator[None]:
    """Let transformers draw no progress bar, which would fill the logs of a fleet."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
