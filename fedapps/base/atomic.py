"""Files and folders that are written completely or not at all, and names from outside as names of files.

Content is written under a temporary name in the same folder, then renamed. The temporary name identifies fedapps and
the process that writes (:func:`temporary_name`). A killed process leaves its temporary file. Only the code that owns a
folder removes such files (:func:`remove_leftovers`), never in a folder that a user names.
"""

import hashlib
import os
import re
import secrets
import shutil
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from .errors import listed
from .processes import machine, start_time, still_runs

MAX_BYTES = 180
_QUOTED = frozenset("/\\%")
#: The mark of a name: the host and its start, the number and the start of the process, and a random number.
_MARKED = re.compile(r"\..*\.fedapps-([0-9a-f]{16})-(\d{1,10})-(\d{0,20})-[0-9a-f]{8}", re.DOTALL)
_LISTED = 5


class UnwritableError(OSError):
    """A file cannot be written. The message has its name, the reason and what to do."""


def write_whole(path: Path, content: bytes, *, sync: bool = False) -> None:
    """Write a file by way of a temporary file beside it. An existing file is replaced.

    Nothing else in the folder changes. A link is replaced, and not what it leads to; a device or a pipe, such as
    ``/dev/stdout``, is written to.

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
    if sync:
        with suppress(OSError):  # some network shares cannot sync a folder
            synced(path.parent)


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a temporary file beside ``path``, which becomes ``path`` when the block ends without an error; see
    :func:`write_whole`.
    """
    with naming_errors(path):
        if path.is_char_device() or path.is_fifo():  # renaming a file over it would delete it
            with path.open("wb") as file:
                yield file
            return
        temporary = temporary_name(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                yield file
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def entries(folder: Path) -> list[str]:
    """The names of all files and folders in a folder, sorted."""
    return sorted(os.listdir(folder))


@contextmanager
def whole_folder(path: Path, foreign: Callable[[Path], Sequence[str]] = entries) -> Iterator[Path]:
    """Yield an empty temporary folder beside ``path``, which becomes ``path`` when the block ends without an error.

    A folder that exists under the name is replaced if it is empty, or if all in it was written by the caller before
    (``foreign``). Any other folder stays as it is.

    The files are on the disk before the folder is renamed. Between the two renames a folder that is replaced has
    another name for an instant, so a reader that must never miss it reads through a link.

    Parameters
    ----------
    path : Path
        Its parent folders are made.
    foreign : function of a folder
        Returns the names of what in an existing folder must not be deleted; by default of all in it.

    Raises
    ------
    ValueError
        The name is that of a file or of a link, or of a folder with foreign content. Nothing was written.
    UnwritableError
        The folder cannot be written. An existing folder is unchanged.
    """
    path = path if path.name not in ("", "..") else path.resolve()  # "." has no name
    temporary, replaced = temporary_name(path), temporary_name(path)
    check_replaceable(path, foreign)
    with naming_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.mkdir()
            yield temporary
            sync_all(temporary)
            if os.path.lexists(path):
                path.replace(replaced)
                _check_replaceable(replaced, path, foreign)  # it may have changed since the first check
            temporary.replace(path)
            synced(path.parent)
            if os.path.lexists(replaced):
                shutil.rmtree(replaced)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
            if os.path.lexists(replaced) and not os.path.lexists(path):
                replaced.replace(path)


def check_replaceable(path: Path, foreign: Callable[[Path], Sequence[str]] = entries) -> None:
    """Check, before the work on its content, that :func:`whole_folder` may write a folder; errors are the same."""
    with naming_errors(path):
        _check_replaceable(path, path, foreign)


def _check_replaceable(folder: Path, path: Path, foreign: Callable[[Path], Sequence[str]]) -> None:
    """Check that ``folder``, whose name is or was ``path``, can be deleted."""
    if not os.path.lexists(folder):
        return
    if folder.is_symlink() or not folder.is_dir():
        raise ValueError(f"{path} is {'a link' if folder.is_symlink() else 'no folder'}: choose another folder")
    if names := foreign(folder):
        raise ValueError(f"{path} is not empty: choose another folder, or remove it; it has {listed(names, _LISTED)}")


def temporary_name(path: Path) -> Path:
    """A name beside ``path`` that no file has, for what is not finished. It names this process as its owner.

    It is ``.NAME.fedapps-HOST-PROCESS-START-RANDOM``: the name of ``path``, at most 180 bytes of it; a hash of the
    host, its start and its process numbers; the number of this process; and when it started, in ticks.
    """
    name = os.fsencode(path.name)[:MAX_BYTES].decode(errors="ignore")
    pid = os.getpid()
    return path.with_name(f".{name}.fedapps-{_host()}-{pid}-{_start_of(pid)}-{secrets.token_hex(4)}")


def remove_folder(path: Path) -> None:
    """Remove a folder, if it exists. A process that is killed leaves the whole folder, or none of this name."""
    if path.exists():
        leftover = temporary_name(path)
        path.replace(leftover)
        shutil.rmtree(leftover)


def remove_leftovers(folder: Path) -> None:
    """Remove what killed processes of this machine left unfinished in a folder that belongs to fedapps.

    Only names of :func:`temporary_name` count whose process belongs to this host, to its present start and to its
    process numbers, and has ended. What processes of other hosts and containers write stays, and so does what was left
    before the machine was restarted.

    Parameters
    ----------
    folder : Path
        Not one that a user names for other files, too. It need not exist.

    Raises
    ------
    UnwritableError
        The folder cannot be read, or a leftover cannot be removed.
    """
    with naming_errors(folder):  # a list is faster than a glob: a node looks for each message
        names = os.listdir(folder) if folder.is_dir() else []
    for owner in map(_MARKED.fullmatch, names):
        path = folder / owner[0] if owner else folder
        if owner and owner[1] == _host() and owner[3] and not still_runs(int(owner[2]), owner[3]):
            with naming_errors(path):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)  # another process may remove it, too
                else:
                    path.unlink(missing_ok=True)


_start_of = lru_cache(maxsize=1)(start_time)  # a process that was forked has another number


@lru_cache(maxsize=1)
def _host() -> str:
    return hashlib.sha256(f"{socket.gethostname()} {machine()}".encode()).hexdigest()[:16]


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


def append_whole(path: Path, lines: bytes, *, sync: bool) -> None:
    """Append lines to a file; with ``sync``, return when they are on the disk.

    Raises
    ------
    UnwritableError
        The file cannot be written. Its last line may be incomplete.
    """
    with naming_errors(path), path.open("ab") as file:
        file.write(lines)
        if sync:
            file.flush()
            os.fsync(file.fileno())


def synced(path: Path) -> None:
    """Return when the content of a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_all(folder: Path) -> None:
    """Return when a folder and all in it are on the disk."""
    for written in (*folder.rglob("*"), folder):
        synced(written)


@contextmanager
def naming_errors(path: Path) -> Iterator[None]:
    """Turn an ``OSError`` within this context into an :class:`UnwritableError` about ``path``."""
    try:
        yield
    except OSError as error:
        raise UnwritableError(
            f"{path} cannot be written ({error.strerror or error}); what was kept before is still there: make room on "
            "the disk, or check the permissions of the folder"
        ) from error


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
        _escaped(char) if char in _QUOTED or not char.isprintable() or (char == "." and position == 0) else char
        for position, char in enumerate(name)
    )
    content = quoted.encode()
    if len(content) > MAX_BYTES:
        return content[:MAX_BYTES].decode(errors="ignore") + f"%-{hashlib.sha256(content).hexdigest()[:32]}"
    return quoted or "%-"


def _escaped(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode(errors="surrogatepass"))
