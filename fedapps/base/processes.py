"""Flower's processes: their commands and environment, how to stop all that they started, and signals meanwhile."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Self

from .errors import text_environment

#: Ports above those of Ray's workers, and below those that systems give to outgoing connections.
_PORTS = range(20_000, 32_000)
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
#: The path of a socket has at most 107 bytes, and Ray adds up to 68 to that of its folder:
#: /ray/session_DATE_TIME_MICROSECONDS_PID/sockets/plasma_store.
_RAY_PATH = 39
_GRACE = 10.0  # seconds, between SIGTERM and SIGKILL
#: States of processes that have ended: not reaped yet, and dead.
_ENDED = ("Z", "X")


def flower_environment(home: Path) -> dict[str, str]:
    """Return the environment of Flower's processes: a separate home, no telemetry, no installation of dependencies.

    Raises ``ValueError`` as :func:`ray_environment`.
    """
    scripts = str(Path(sys.executable).parent)
    return (
        os.environ
        | ray_environment()
        | {
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "PATH": os.pathsep.join([scripts, os.environ.get("PATH", "")]),
        }
    )


def ray_environment() -> dict[str, str]:
    """Return the variables that Ray's processes need beside those of this one: no telemetry, no workers without work.

    Connections on this machine use no proxy, and the path of Ray's folder is short enough for its sockets.

    Raises
    ------
    ValueError
        The path of the folder for temporary files is too long for Ray, and no other folder can be used.
    """
    return (
        text_environment(os.environ)
        | {name: ",".join(filter(None, [os.environ.get(name), *_LOOPBACK])) for name in ("no_proxy", "NO_PROXY")}
        | _ray_folder()
        | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_prestart_worker_first_driver": "0"}
        | {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}  # otherwise Ray warns of a later default
    )


def _ray_folder() -> dict[str, str]:
    """Where Ray puts its sockets, if the path of the folder for temporary files is too long."""
    usual = tempfile.gettempdir()
    if os.environ.get("RAY_TMPDIR") or len(os.fsencode(usual)) <= _RAY_PATH:
        return {}
    for short in ("/tmp", "/var/tmp", "/dev/shm"):  # Ray makes a folder of its own in it
        if os.access(short, os.W_OK):
            return {"RAY_TMPDIR": short}
    raise ValueError(
        f"TMPDIR = {usual!r}: Ray needs a folder whose path has at most {_RAY_PATH} characters, because it holds "
        "sockets: set RAY_TMPDIR to such a folder"
    )


def tool(name: str) -> str:
    """Return the path of a command of this Python environment. Raise ``RuntimeError`` if it is not installed."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise RuntimeError(f"{name} is not installed beside {sys.executable}: pip install 'fedapps[apps]'")
    return str(path)


def runs(pid: int, command: str) -> bool:
    """Whether a process runs this command of a Python environment."""
    try:
        name = Path(f"/proc/{pid}/comm").read_bytes().rstrip(b"\n")  # at most 15 bytes
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return os.fsdecode(name) == command[:15] or any(Path(os.fsdecode(word)).name == command for word in words[:2])


def usable_cores() -> int:
    """CPU cores that this process may use: under ``taskset`` or in a container fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_port() -> int:
    """Return a loopback port that was free a moment ago, and that no outgoing connection takes."""
    while True:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port := _PORTS[secrets.randbelow(len(_PORTS))]))
            return port


def end_groups(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Stop processes that lead sessions, and everything they started.

    All are sent SIGTERM at the same time, and SIGKILL after 10 seconds. Processes that they started get a
    quarter of that time to exit by themselves before they are sent SIGTERM as well.
    """
    leaders = [process.pid for process in processes]
    started = {*descendants(*leaders), *_members(leaders)}.difference(leaders)
    deadline = time.monotonic() + _GRACE
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    started |= set(descendants(*started))  # processes started in the meantime
    if left := _wait_until_gone(started, min(deadline, time.monotonic() + _GRACE / 4)):
        _signal(left, signal.SIGTERM)
        _signal(_wait_until_gone(left, deadline), signal.SIGKILL)


def descendants(*roots: int) -> list[int]:
    """Return the ids of all descendants of ``roots``. Call this before the roots end: orphans get a new parent."""
    children = _by("ppid")
    pids: list[int] = []
    queue = list(roots)
    while queue:
        below = children.get(queue.pop(), [])
        pids += below
        queue += below
    return pids


def is_alive(pid: int) -> bool:
    """Return whether a process runs. A process that has ended but was not reaped does not."""
    return bool(start_time(pid))


def start_time(pid: int) -> str:
    """When a process of this machine started, in ticks since the machine did; empty if it has ended, or is hidden."""
    facts = process_facts(pid)
    return facts[19] if facts and facts[0] not in _ENDED else ""


def still_runs(pid: int, started: str) -> bool:
    """Whether the process of this machine that started at this :func:`start_time` still runs.

    Where the system does not tell when processes started, any process of this number counts.
    """
    if facts := process_facts(pid):
        return facts[0] not in _ENDED and facts[19] == started
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def process_facts(pid: int) -> list[str]:
    """What the system tells about a process, from its state on; empty if there is none, or if it is hidden."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def machine() -> str:
    """Identify the start of this machine and its process numbers: containers on one host differ.

    The host name where the system tells neither.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # not Linux
        return socket.gethostname()


def _members(leaders: Iterable[int]) -> list[int]:
    """The process ids in the sessions of ``leaders``, including those of leaders that have ended."""
    sessions = _by("sess")
    return [pid for leader in leaders for pid in sessions.get(leader, [])]


def _by(relation: str) -> dict[int, list[int]]:
    """All process ids by a column of ``ps``."""
    listing = subprocess.run(
        ["ps", "-eo", f"pid=,{relation}="], capture_output=True, text=True, check=True, encoding="utf-8"
    ).stdout
    of_related: dict[int, list[int]] = {}
    for line in listing.splitlines():
        pid, related = map(int, line.split())
        of_related.setdefault(related, []).append(pid)
    return of_related


def _wait_until_gone(pids: Iterable[int], deadline: float) -> list[int]:
    """The processes that still run at the deadline (monotonic time)."""
    while left := [pid for pid in pids if is_alive(pid)]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    return left


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # it may have ended in the meantime
            os.kill(pid, number)


class Interrupts:
    """Context in which SIGINT, SIGTERM and SIGHUP raise ``KeyboardInterrupt``; signals that are ignored stay ignored.

    Enter it in the main thread.
    """

    def __init__(self) -> None:
        self._deferred = False
        self._came = False
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Defer the signals to the end of this context, which may be nested."""
        outermost, self._deferred = not self._deferred, True
        try:
            yield
        finally:
            if outermost:
                self._deferred = False
        if outermost and self._came:
            self._came = False
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._deferred:
            raise KeyboardInterrupt
        self._came = True
