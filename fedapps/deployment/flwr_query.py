"""What the ``flwr`` command line knows of nodes and runs, as Python objects."""

import json
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from sim.flower_run import CONNECTION
from sim.processes import tool

from .processes import FleetError

_ATTEMPTS = 10


def query_flwr(
    *arguments: str, key: str, environment: Mapping[str, str], check: Callable[[], None]
) -> list[dict[str, Any]]:
    """Run a ``flwr`` command, and return the list under ``key`` in its JSON output.

    A failed command is repeated once per second, because the SuperLink's database may be locked for a moment.

    Parameters
    ----------
    *arguments : str
        The command after ``flwr``, such as ``"supernode", "ls"``.
    key : str
        Key of the list in the output.
    environment : mapping
        Environment variables, with the Flower home that defines the connection.
    check : callable
        Called before each attempt; may raise, e.g. if the SuperLink has ended.

    Raises
    ------
    FleetError
        If every attempt failed.
    """
    command = [tool("flwr"), *arguments, CONNECTION, "--format", "json"]
    for _ in range(_ATTEMPTS):
        check()
        done = subprocess.run(command, env=environment, capture_output=True, text=True, start_new_session=True)
        with suppress(ValueError, KeyError):
            return list(json.loads(done.stdout)[key])
        time.sleep(1.0)
    raise FleetError(f"flwr {shlex.join(arguments)} failed: {done.stdout}{done.stderr}")
