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
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import tomli_w

from fedapps.config.keys import for_flower
from fedapps.config.parsing import Config, parse
from fedapps.config.recipe_files import read_recipe
from fedapps.launch.app_folder import app_folder
from fedapps.launch.runner import RunFailedError
from fedapps.registry.local_methods import local_methods
from fedapps.sim.flower_run import CONNECTION, submission

from .flower_command import load_command
from .processes import FleetError


def run_config_text(recipe: Path, overrides: Mapping[str, Any]) -> str:
    """The keys of a recipe as one flat TOML file for ``flwr run --run-config``, which knows no ``base``.

    Raises
    ------
    ValueError
        If the recipe or a key is invalid, or nodes with their own data cannot run it.
    """
    keys = read_recipe(recipe, overrides)
    check_deployable(parse(keys, files_exist=False))
    return tomli_w.dumps(for_flower(keys))


def deploy(recipe: Path, federation: str, overrides: Mapping[str, Any], *, stream: bool) -> int:
    """Run a recipe on the SuperLink of a federation.

    Parameters
    ----------
    recipe : Path
        Name of a recipe, or path of a run-config file.
    federation : str
        The name of a connection in Flower's ``config.toml``; empty for its default.
    overrides : mapping
        Keys of the run config that override the recipe. Paths refer to the server.
    stream : bool
        Show the log of the run until it ends.

    Returns
    -------
    int
        The exit status of ``flwr run``.

    Raises
    ------
    ValueError
        As :func:`run_config_text`.
    RunFailedError
        If the SuperLink does not take the run.
    """
    keys = read_recipe(recipe, overrides)
    check_deployable(parse(keys, files_exist=False))
    with app_folder() as app, tempfile.TemporaryDirectory(prefix="fedapps-submit-") as folder:
        command = submission(app, Path(folder), for_flower(keys), federation, stream=stream)
        status = subprocess.run(command, check=False).returncode
    if status:
        raise RunFailedError(
            f"flwr run ended with exit status {status}: see its message above; `flwr config list` shows the federations"
        )
    return status


def check_deployable(config: Config) -> None:
    """Check that nodes with their own data and processes can run a config.

    Raises
    ------
    ValueError
        If nodes shall train at once, or in simulated time, or if a method needs the pooled data of all nodes or is not
        part of a package.
    """
    config.run.check_separate_nodes()
    config.check_real_nodes()
    if pooled := [label for label, method in config.methods.items() if method.pools_data]:
        others = ",".join(label for label in config.methods if label not in pooled)
        raise ValueError(
            f"methods: {', '.join(pooled)} trains on the pooled data of all nodes, which no node of a fleet has: "
            "use `fedapps run`" + (f", or add --set methods={others}" if others else "")
        )
    if local := [label for label, method in config.methods.items() if method.name in local_methods()]:
        raise ValueError(
            f"methods: {', '.join(local)} is defined in a file of this machine, which the nodes do not have: make a "
            "package of it (docs/extending.md) and install it on the server and on every node"
        )


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
