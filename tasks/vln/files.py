"""Find and open data files, which may be compressed with gzip or xz."""

import gzip
import lzma
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from tasks.profiles import DataError

SUFFIXES = ("", ".gz", ".xz")


def find_file(folder: Path, name: str) -> Path | None:
    """The file ``name``, perhaps with ``.gz`` or ``.xz`` after it, in ``folder`` or any folder below it.

    Raises
    ------
    DataError
        There is more than one.
    """
    wanted = {name + suffix for suffix in SUFFIXES}
    found = sorted(path for path in folder.rglob(f"{name}*") if path.name in wanted and path.is_file())
    if len(found) > 1:
        raise DataError(
            f"{folder}: {len(found)} files are called {name}: {', '.join(map(str, found))}; keep one of them"
        )
    return found[0] if found else None


def in_folder(name: str, folder: Path | None = None) -> Path:
    """The file ``name`` in a node's folder if it is there, otherwise wherever its path leads."""
    if folder is not None and (folder / name).is_file():
        return folder / name
    return Path(name).expanduser()


@contextmanager
def open_text(path: Path) -> Iterator[IO[str]]:
    """Open a plain, gzip or xz file as UTF-8 text. Raises :class:`DataError` where it cannot be read."""
    opener: Any = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    try:
        with opener(path, "rt", encoding="utf-8") as file:
            yield file
    except (OSError, EOFError, lzma.LZMAError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}; expected UTF-8 text, plain, gzip or xz") from error
