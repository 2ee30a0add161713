"""The processes of a fleet: each has a session and a log file, and all are ended together.

    python -P -m fedapps.deployment.processes

is the one that imports ``flwr`` once and then runs its commands one after another. Each line of its standard input is a
JSON list with the arguments of a command. Each line of its standard output is a JSON list with the exit status of the
command, its standard output and its standard error. The process ends with its standard input.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Self

from fedapps.base.processes import Interrupts, end_groups, tool

from .flower_command import load_command
from .submission import CONNECTION

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


_ATTEMPTS = 10


class FlwrCommands:
    """Runs commands of ``flwr`` in one process, which starts with the first.

    A process for each would import Flower every time, which takes seconds of processor time.

    Parameters
    ----------
    environment : mapping
        Environment variables, with the Flower home that defines the connection.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._server: subprocess.Popen[str] | None = None

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command.

        Raises
        ------
        FleetError
            If the process of the commands has ended.
        """
        if self._server is None:
            command = [sys.executable, "-P", "-m", __name__]
            self._server = subprocess.Popen(
                command,
                env={**self._environment, "PYTHONIOENCODING": "utf-8:backslashreplace"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,
            )
        assert self._server.stdin
        assert self._server.stdout
        with suppress(OSError):
            self._server.stdin.write(json.dumps(arguments) + "\n")
            self._server.stdin.flush()
        if not (reply := self._server.stdout.readline()):
            raise FleetError(f"flwr {shlex.join(arguments)} ended its process (exit status {self._server.wait()})")
        return subprocess.CompletedProcess(["flwr", *arguments], *json.loads(reply))

    def query(self, *arguments: str, key: str, check: Callable[[], None]) -> list[dict[str, Any]]:
        """Run a command, and return the list under ``key`` in its JSON output.

        A failed command is repeated once per second, because the SuperLink's database may be locked for a moment.

        Parameters
        ----------
        *arguments : str
            The command after ``flwr``, such as ``"supernode", "ls"``.
        key : str
            Key of the list in the output.
        check : callable
            Called before each attempt; may raise, e.g. if the SuperLink has ended.

        Raises
        ------
        FleetError
            If every attempt failed.
        """
        for _ in range(_ATTEMPTS):
            check()
            done = self.run(*arguments, CONNECTION, "--format", "json")
            with suppress(ValueError, KeyError):
                return list(json.loads(done.stdout)[key])
            time.sleep(1.0)
        raise FleetError(f"flwr {shlex.join(arguments)} failed: {done.stdout}{done.stderr}")

    def close(self) -> None:
        """End the process."""
        if self._server:
            self._server.kill()
            self._server.communicate()
            self._server = None


def serve() -> None:
    """Serve until the standard input ends."""
    load_command("flwr")
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as replies:
        for line in sys.stdin:
            replies.write(json.dumps(_run(json.loads(line))) + "\n")
            replies.flush()


def _run(arguments: list[str]) -> tuple[int, str, str]:
    """Run a command of ``flwr``: its exit status, standard output and standard error."""
    sys.argv, status = ["flwr", *arguments], 0
    with (
        TemporaryFile("w+", encoding="utf-8", errors="replace") as output,
        TemporaryFile("w+", encoding="utf-8", errors="replace") as errors,
    ):
        os.dup2(output.fileno(), 1)  # flwr also writes to sys.__stdout__
        os.dup2(errors.fileno(), 2)
        try:
            load_command("flwr")()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
            if isinstance(end.code, str):
                print(end.code, file=sys.stderr)
        except Exception as error:
            status = 1
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        for stream in (output, errors):
            stream.seek(0)
        return status, output.read(), errors.read()


if __name__ == "__main__":
    serve()
