"""The processes of a fleet: each in a session of its own with a log file, all ended together."""

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from sim.processes import end_groups, tool

from .interrupts import Interrupts

_TAIL = 20
_NICE = 10


class FleetError(RuntimeError):
    """Something in a fleet does not run; the message says what, and what its log says."""


@dataclass(frozen=True)
class Started:
    """A process with the name that messages call it by; what it says comes after byte ``begin`` of its log."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    begin: int = 0

    @property
    def has_ended(self) -> bool:
        """Whether it runs no more."""
        return self.process.poll() is not None

    def fate(self) -> str:
        """That it ended, and how."""
        status = self.process.returncode
        return f"{self.name} has ended ({f'killed by signal {-status}' if status < 0 else f'exit status {status}'})"

    def obituary(self) -> str:
        """How it ended, where its log is and what stands at the end of it."""
        return f"{self.fate()}; {self.last_words()}"

    def last_words(self) -> str:
        """Where its log is, and the last lines in it."""
        lines = self.log.read_text(errors="replace").splitlines()[-_TAIL:]
        return f"the end of its log, {self.log}:\n" + "\n".join(f"  {line}" for line in lines or ["(nothing)"])


class Processes:
    """What has been started within this context, which ends it: first all others, then the one that came first.

    ``scratch`` is the folder of their temporary files, removed with them. A signal that comes while a process is
    started or ended is heeded once that is done.
    """

    def __init__(self, scratch: Path, interrupts: Interrupts) -> None:
        self._scratch = scratch
        self._interrupts = interrupts
        self._started: list[Started] = []
        self._afterwards: list[Callable[[], None]] = []

    def __enter__(self) -> Self:
        self._scratch.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *error: object) -> None:
        with self._interrupts.held():
            running = [started.process for started in self._started]
            end_groups(running[1:])
            end_groups(running[:1])  # the SuperLink, to which the others say goodbye
            shutil.rmtree(self._scratch, ignore_errors=True)
            for function in self._afterwards:
                function()

    def afterwards(self, function: Callable[[], None]) -> None:
        """Call it when all processes have ended."""
        self._afterwards.append(function)

    def start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path, *, yielding: bool = False
    ) -> Started:
        """Start a command of this Python environment in ``log``'s folder, with its output at the end of ``log``.

        One that is ``yielding``, with all that it starts, leaves the cores to the others where there are too few.

        Raises ``RuntimeError`` when the command is not installed.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        whole = [tool(command[0]), *command[1:]]
        with self._interrupts.held(), log.open("ab") as output:
            begin = output.tell()
            process = subprocess.Popen(
                whole,
                env={**environment, "TMPDIR": str(self._scratch)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=log.parent,
                start_new_session=True,
            )
            if yielding:
                _yield(process.pid)
            started = Started(name, process, log, begin)
            self._started.append(started)
        return started


def _yield(pid: int) -> None:
    with suppress(OSError):  # it may have ended; or this is not Linux, which may share the cores by sessions first
        os.setpriority(os.PRIO_PROCESS, pid, _NICE)
        Path(f"/proc/{pid}/autogroup").write_text(str(_NICE))
