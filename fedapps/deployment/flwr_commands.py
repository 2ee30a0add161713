"""Commands of the ``flwr`` command line, and what it knows of nodes and runs, as Python objects."""

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from fedapps.sim.flower_run import CONNECTION

from .processes import FleetError

_ATTEMPTS = 10


class FlwrCommands:
    """Runs commands of ``flwr`` in one process (:mod:`fedapps.deployment.flwr_server`), which starts with the first.

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
            command = [sys.executable, "-P", "-m", "fedapps.deployment.flwr_server"]
            self._server = subprocess.Popen(
                command,
                env=dict(self._environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
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
