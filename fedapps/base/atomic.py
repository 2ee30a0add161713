"""Files and folders that are written completely or not at all, and names from outside as names of files."""

import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

MAX_BYTES = 180
_QUOTED = frozenset("/\\%")
_UNFINISHED = re.compile(r"\..+\.(\d+)")


class UnwritableError(OSError):
    """A file cannot be written. The message has its name, the reason and what to do."""


def write_whole(path: Path, content: bytes, *, sync: bool = False) -> None:
    """Write a file by way of a temporary file beside it. An existing file is replaced.

    Temporary files of killed processes are removed from the folder.

    Parameters
    ----------
    path : Path
    content : bytes
    sync : bool
        Return only when the content is on the disk.

    Raises
    ------
    UnwritableError
        The file cannot be written. An existing file is unchanged.
    """
    with whole_file(path) as file:
        file.write(content)
        if sync:
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a temporary file beside ``path``, which becomes ``path`` when the block ends without an error; see
    :func:`write_whole`.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with told(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path.parent)
        try:
            with temporary.open("wb") as file:
                yield file
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Yield an empty temporary folder beside ``path``, which becomes ``path`` when the block ends without an error.

    Its files are on the disk before it is renamed. A folder that exists under the name is replaced; between the two
    renames it has another name for an instant, so a reader that must never miss it reads through a link. Temporary
    folders of killed processes are removed.

    Parameters
    ----------
    path : Path
        Its parent folders are made.

    Raises
    ------
    UnwritableError
        The folder cannot be written. An existing folder is unchanged.
    """
    temporary = path.with_name(f".{path.name}.new.{os.getpid()}")
    replaced = path.with_name(f".{path.name}.old.{os.getpid()}")
    with told(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path.parent)
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            temporary.mkdir()
            yield temporary
            for written in (*temporary.rglob("*"), temporary):
                synced(written)
            if path.exists():
                path.replace(replaced)
            temporary.replace(path)
            synced(path.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
            if replaced.exists() and not path.exists():
                replaced.replace(path)
            shutil.rmtree(replaced, ignore_errors=True)


def append_line(file: BinaryIO, line: bytes) -> None:
    """Add a line to a file that was opened with ``"ab+"``, and return when it is on the disk.

    If the last line of the file has no line break, because a process was killed while it wrote, it gets one.
    """
    if file.seek(0, os.SEEK_END):
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            file.write(b"\n")
    file.write(line + b"\n")
    file.flush()
    os.fsync(file.fileno())


def synced(path: Path) -> None:
    """Return when the content of a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def told(path: Path) -> Iterator[None]:
    """Turn an ``OSError`` within this context into an :class:`UnwritableError` about ``path``."""
    try:
        yield
    except OSError as error:
        raise UnwritableError(
            f"{path} cannot be written ({error.strerror or error}); what was kept before is still there: make room on "
            "the disk, or check the permissions of the folder"
        ) from error


def _sweep(folder: Path) -> None:
    for path in folder.glob(".*"):
        owner = _UNFINISHED.fullmatch(path.name)
        if owner and not runs(int(owner[1])):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def runs(pid: int) -> bool:
    """Whether a process of this number exists on this machine."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


@lru_cache(maxsize=1024)  # every message of a node names the same folders
def path_name(name: str) -> str:
    r"""Quote a name from outside, such as a node key, so that it is the name of one file or folder.

    Every name from data or from a message goes through this function before it becomes part of a path. A slash, a
    backslash, ``%``, a leading dot and unprintable characters are replaced by ``%`` and two hexadecimal digits for each
    byte, as in URLs. All other names stay as they are. A quoted name of more than 180 bytes is cut and ends in ``%-``
    and 32 digits of its SHA-256; the empty name is ``%-``.

    Parameters
    ----------
    name : str
        Any text.

    Returns
    -------
    str
        1 to 215 bytes in UTF-8, without ``/``, ``\`` and unprintable characters, and not ``.`` or ``..``. Different
        names give different results.
    """
    quoted = "".join(
        _escaped(char) if char in _QUOTED or not char.isprintable() or (char == "." and place == 0) else char
        for place, char in enumerate(name)
    )
    content = quoted.encode()
    if len(content) > MAX_BYTES:
        return content[:MAX_BYTES].decode(errors="ignore") + f"%-{hashlib.sha256(content).hexdigest()[:32]}"
    return quoted or "%-"


def _escaped(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode(errors="surrogatepass"))
