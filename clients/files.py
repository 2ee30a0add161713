"""Files that are written completely or not at all, even if the process is killed or the disk is full."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with told(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path.parent)
        try:
            with temporary.open("wb") as file:
                file.write(content)
                if sync:
                    file.flush()
                    os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


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
        if owner and not _runs(int(owner[1])):
            path.unlink(missing_ok=True)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
