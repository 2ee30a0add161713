"""The processes of a fleet: each has a session and a log file, and all are ended together."""

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from fedapps.base.processes import Interrupts, end_groups, tool

_TAIL = 20
#: The SuperLink goes before its nodes. Other programs of the machine get three times the time of a node, not more.
_NICE = 5


class FleetError(RuntimeError):
    """A process of a fleet failed; the message names it and quotes the end of its log."""


@dataclass(frozen=True)
class FleetProcess:
    """A started process.

    Attributes
    ----------
    name : str
        Name for messages.
    process : subprocess.Popen
        The process.
    log : Path
        Log file; the output of this process starts at the byte ``begin``.
    begin : int
        Size of the log file when the process was started.
    """

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    begin: int = 0

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self.process.poll() is not None

    def exit_status(self) -> str:
        """How the process ended, as a clause."""
        status = self.process.returncode
        return f"{self.name} has ended ({f'killed by signal {-status}' if status < 0 else f'exit status {status}'})"

    def exit_report(self) -> str:
        """How the process ended, and the end of its log."""
        return f"{self.exit_status()}; {self.log_tail()}"

    def log_tail(self) -> str:
        """The path and the last lines of the log."""
        lines = self.log.read_text(errors="replace", encoding="utf-8").splitlines()[-_TAIL:]
        return f"the end of its log, {self.log}:\n" + "\n".join(f"  {line}" for line in lines or ["(empty)"])


class Processes:
    """Context that ends all processes started in it: the first one last.

    Signals are deferred while a process is started or ended.

    Parameters
    ----------
    scratch : Path
        Folder for temporary files of the processes, removed at the end.
    interrupts : Interrupts
        The signals to defer.
    """

    def __init__(self, scratch: Path, interrupts: Interrupts) -> None:
        self._scratch = scratch
        self._interrupts = interrupts
        self._started: list[FleetProcess] = []
        self._exit_functions: list[Callable[[], None]] = []

    def __enter__(self) -> Self:
        self._scratch.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *error: object) -> None:
        with self._interrupts.deferred():
            running = [started.process for started in self._started]
            end_groups(running[1:])
            end_groups(running[:1])  # the SuperLink: the SuperNodes sign off from it when they end
            shutil.rmtree(self._scratch, ignore_errors=True)
            for function in self._exit_functions:
                function()

    def on_exit(self, function: Callable[[], None]) -> None:
        """Call ``function`` after all processes have ended."""
        self._exit_functions.append(function)

    def start(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        *,
        low_priority: bool = False,
    ) -> FleetProcess:
        """Start a command.

        Parameters
        ----------
        name : str
            Name for messages.
        command : sequence of str
            A command of this Python environment or the path of a program, and its arguments.
        environment : mapping
            Environment variables; ``TMPDIR`` is added.
        log : Path
            The output is appended to this file; its folder is the working directory.
        low_priority : bool
            Run the process and its children with a lower CPU priority.

        Raises
        ------
        RuntimeError
            If the command is not installed.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        program, *arguments = command
        whole = [program if Path(program).is_absolute() else tool(program), *arguments]
        with self._interrupts.deferred(), log.open("ab") as output:
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
            if low_priority:
                _lower_priority(process.pid)
            started = FleetProcess(name, process, log, begin)
            self._started.append(started)
        return started


def _lower_priority(pid: int) -> None:
    with suppress(OSError):  # the process may have ended, and only Linux has autogroups
        os.setpriority(os.PRIO_PROCESS, pid, _NICE)
        Path(f"/proc/{pid}/autogroup").write_text(str(_NICE), encoding="utf-8")
