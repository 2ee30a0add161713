"""Files that are there in full or not at all, whenever a process is killed or a disk runs full."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_UNFINISHED = re.compile(r"\..+\.(\d+)")


class UnwritableError(OSError):
    """A file cannot be written; the message names it, the reason and what to do."""


def write_whole(path: Path, content: bytes, *, sync: bool = False) -> None:
    """Put ``content`` at ``path``, in place of what was there, by way of a temporary file beside it.

    Temporary files that killed processes left in the folder are removed. With ``sync`` the content is on the disk
    when this returns. Raises :class:`UnwritableError`; what was at ``path`` is then still there.
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
    """Raise :class:`UnwritableError` about ``path`` where something within this context cannot be written."""
    try:
        yield
    except OSError as error:
        raise UnwritableError(
            f"{path} cannot be written ({error.strerror or error}); what was kept before is still there: make room on "
            "the disk, or see who may write to the folder"
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
