"""Commands of the ``flwr`` command line, and what it knows of nodes and runs, as Python objects.

    python -P -m fedapps.deployment.flwr_commands

is the process that imports ``flwr`` once and then runs its commands one after another. Each line of its standard input
is a JSON list with the arguments of a command. Each line of its standard output is a JSON list with the exit status of
the command, its standard output and its standard error. The process ends with its standard input.
"""

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from tempfile import TemporaryFile
from typing import Any

from fedapps.sim.flower_run import CONNECTION

from .flower_command import load_command
from .processes import FleetError

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
