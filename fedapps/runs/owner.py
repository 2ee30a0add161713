"""The owner of a folder: the one process that may write to it.

The owner holds a lock of the operating system on the folder, which ends with the process. Locks of network shares may
lie, or be missing. The owner therefore also writes a file with its host and process, and touches it every few seconds.
The age of this heartbeat is measured by the clock of the share, so that the clocks of hosts need not agree.
"""

import errno
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from fedapps.base.atomic import UnwritableError, naming_errors, temporary_name
from fedapps.base.processes import machine, start_time, still_runs

try:
    import fcntl
except ImportError:  # not a Unix system: the file alone
    fcntl = None  # type: ignore[assignment]

#: The file in the folder that names its owner.
OWNER_FILE = "owner.json"
#: Seconds between two heartbeats.
HEARTBEAT = 10.0
#: Seconds without a heartbeat after which an owner on another host counts as dead.
STALE = 120.0


class FolderInUseError(ValueError):
    """Another process writes to the folder. The message names it, and what to do."""


@dataclass(frozen=True)
class Owner:
    """A process that owns a folder.

    Parameters
    ----------
    host : str
        Name of the host.
    machine : str
        Identifies the start of the host and its process numbers; containers on one host differ.
    pid : int
        Process number, which counts within ``machine``.
    born : str
        When the process started, in ticks of the machine; empty if unknown.
    started : str
        When it began to own the folder.
    token : str
        Differs between all owners.
    """

    host: str = ""
    machine: str = ""
    pid: int = 0
    born: str = ""
    started: str = ""
    token: str = ""

    @classmethod
    def this_process(cls) -> "Owner":
        started = time.strftime("%Y-%m-%d %H:%M:%S %z")
        return cls(socket.gethostname(), machine(), os.getpid(), start_time(os.getpid()), started, secrets.token_hex(8))

    @classmethod
    def read(cls, path: Path) -> "Owner | None":
        """The owner in a file; an unknown one if the file is incomplete, ``None`` without a file."""
        try:
            known = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError):
            return cls()
        whole = isinstance(known, dict) and all(type(known.get(own.name)) is type(own.default) for own in fields(cls))
        return cls(**{own.name: known[own.name] for own in fields(cls)}) if whole else cls()

    def silent_for(self, path: Path) -> float | None:
        """Seconds since the last heartbeat in the owner's file; ``None`` if this machine knows better.

        The owner is then a process of this machine. A heartbeat in the future, of a clock that was wrong, is moved to
        now, so that a dead owner does not seem to live until then.
        """
        if self.is_here():
            return None
        silent = _now_at(path.parent) - path.stat().st_mtime
        if silent < 0:
            os.utime(path)
        return max(silent, 0.0)

    def is_here(self) -> bool:
        """Whether it is a process of this machine."""
        return self.machine == machine()

    def runs_here(self) -> bool:
        """Whether a process of this machine still runs."""
        return still_runs(self.pid, self.born)

    def lives(self, path: Path) -> bool:
        """Whether the owner in the file ``path`` still runs, as far as it can be known."""
        silent = self.silent_for(path)
        if silent is None:
            return self.runs_here()
        return silent < STALE

    def in_use(self, path: Path) -> FolderInUseError:
        """The error for a folder that this process owns."""
        try:
            silent = self.silent_for(path)
        except OSError:  # the file is gone
            silent = None
        who = f"process {self.pid} on {self.host}, since {self.started}" if self.pid else "another process"
        remedy = "wait for its end, or end it" + (
            f"; its last sign of life was {silent:.0f} s ago: {STALE:.0f} s after the last, the folder is free"
            if silent is not None
            else ""
        )
        return FolderInUseError(f"{path.parent} is in use by {who}: {remedy}")


class Ownership:
    """The right to write to a folder, as long as no other process has taken it over."""

    def __init__(self, path: Path, owner: Owner) -> None:
        self._path = path
        self._owner = owner
        self._ended = threading.Event()
        self._beats = threading.Thread(target=self._beat, name="owner", daemon=True)
        self._beats.start()

    def check(self) -> None:
        """Raise :class:`FolderInUseError` if another process has taken the folder over.

        This happens to a process that was suspended, or cut off from the share, for longer than :data:`STALE`.
        """
        now = Owner.read(self._path)
        if now is None or now.token != self._owner.token:
            raise (now or Owner()).in_use(self._path)

    def end(self) -> None:
        """Give the folder free."""
        self._ended.set()
        self._beats.join(HEARTBEAT)  # it can hang in a share that is gone
        now = Owner.read(self._path)
        if now is not None and now.token == self._owner.token:
            self._path.unlink(missing_ok=True)

    def _beat(self) -> None:
        while not self._ended.wait(HEARTBEAT):
            try:
                self.check()
                os.utime(self._path)
            except FolderInUseError:
                return  # the next check of the owner raises it
            except OSError:
                continue  # the share may come back


@contextmanager
def owned(folder: Path) -> Iterator[Ownership]:
    """Own a folder within this context; it is created if it is missing.

    Raises
    ------
    FolderInUseError
        Another process owns the folder. Nothing was changed.
    UnwritableError
        The owner's file cannot be written.
    """
    path = folder / OWNER_FILE
    with naming_errors(path):
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY)
    try:
        _acquire(path, lock)
        _check_renames(folder)
        owner = Owner.this_process()
        with naming_errors(path):
            _write_new(path, owner)
        ownership = Ownership(path, owner)
        try:
            yield ownership
        finally:
            ownership.end()
    finally:
        os.close(lock)


def has_owner(folder: Path, now: float) -> bool:
    """Whether a living process owns the folder, as far as can be seen without writing to it.

    For an owner on another host, ``now``, in seconds since the epoch, is compared with the clock of the share.
    """
    path = folder / OWNER_FILE
    owner = Owner.read(path)
    if owner is None:
        return False
    if owner.is_here():
        return owner.runs_here()
    try:
        return now - path.stat().st_mtime < STALE
    except FileNotFoundError:  # it has ended meanwhile
        return False


def check_free(folder: Path) -> None:
    """Raise :class:`FolderInUseError` if a process owns the folder; a missing folder is free."""
    if not folder.is_dir():
        return
    path = folder / OWNER_FILE
    lock = os.open(folder, os.O_RDONLY)
    try:
        _check_lock(path, lock)
        _check_owner(path)
    finally:
        os.close(lock)


def await_free(folder: Path) -> None:
    """Wait for the end of an owner that may have died a moment ago, on a host whose heartbeat is still recent.

    Raises
    ------
    FolderInUseError
        The owner is still alive after twice :data:`STALE`.
    """
    deadline = time.monotonic() + 2 * STALE
    while True:
        try:
            return check_free(folder)
        except FolderInUseError:
            if time.monotonic() > deadline:
                raise
        time.sleep(HEARTBEAT / 4)


def _acquire(path: Path, lock: int) -> None:
    """Lock the folder, and remove the file of an owner that has died."""
    _check_lock(path, lock)
    owner = _check_owner(path)
    if owner is None:
        return
    # Two processes can find the same dead owner. Only one of them can rename its file, and it must be that file.
    aside = temporary_name(path)
    try:
        path.rename(aside)
    except FileNotFoundError:
        raise Owner().in_use(path) from None
    if Owner.read(aside) != owner:
        aside.rename(path)
        raise (Owner.read(path) or Owner()).in_use(path)
    aside.unlink()


def _check_owner(path: Path) -> Owner | None:
    """The dead owner that the file names, ``None`` without a file; raise :class:`FolderInUseError` for a living one."""
    owner = Owner.read(path)
    if owner is not None:
        with naming_errors(path):
            if owner.lives(path):
                raise owner.in_use(path)
    return owner


def _write_new(path: Path, owner: Owner) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            json.dump(asdict(owner), file)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        raise (Owner.read(path) or Owner()).in_use(path) from None
    except OSError:
        path.unlink()  # an incomplete file would own the folder
        raise


def _check_lock(path: Path, lock: int) -> None:
    """Lock the folder where the system can; raise :class:`FolderInUseError` if another process has the lock."""
    if fcntl is None:
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise (Owner.read(path) or Owner()).in_use(path) from None
        # Otherwise the file system has no locks, as NFS for folders: the owner's file decides.


def _check_renames(folder: Path) -> None:
    """Check that a rename replaces a file, as every checkpoint needs; some network shares and mounts refuse it."""
    first, second = (temporary_name(folder / "probe") for _ in range(2))
    try:
        first.touch()
        second.touch()
        first.replace(second)
    except OSError as error:
        raise UnwritableError(
            f"{folder} is on a file system where renaming a file over another one fails ({error.strerror or error}), "
            "so that checkpoints cannot be replaced: choose another output-dir"
        ) from error
    finally:
        first.unlink(missing_ok=True)
        second.unlink(missing_ok=True)


def _now_at(folder: Path) -> float:
    """The time of the file system that a folder is on, in seconds."""
    probe = temporary_name(folder / "clock")
    probe.touch()
    try:
        return probe.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)
