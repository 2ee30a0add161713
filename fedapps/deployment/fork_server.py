"""A process that imports a command and its libraries once, and then runs the command in forks of itself.

    python -P -m fedapps.deployment.fork_server flwr-clientapp torch

Each line of its standard input is a JSON list with the arguments of one call. It ends with its standard input. The
libraries are imported after the first call has started, so that a command that does not need them does not wait.

A fork starts like a new process: the app is not imported yet, and NumPy's global generator has a new seed. It ends with
its exit functions, so calls have nothing in common but the imported libraries.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module

from .flower_command import load_command, name_process
from .quick_exit import run_and_exit


def serve(command: str, libraries: Sequence[str]) -> None:
    """Serve until the standard input ends. Returns in the server and in every fork.

    Parameters
    ----------
    command : str
        Name of the command.
    libraries : sequence of str
        Modules to import; those that are not installed are skipped.
    """
    name_process("fork-server")
    function, waiting = load_command(command), list(libraries)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system forgets forks that have ended
    for line in sys.stdin:
        if os.fork() == 0:
            _call(command, function, json.loads(line))
            return
        while waiting:
            with suppress(ImportError):
                import_module(waiting.pop(0))


def _call(command: str, function: Callable[[], object], arguments: Sequence[str]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    name_process(command)
    sys.argv = [command, *arguments]
    for name in [name for name in sys.modules if name.partition(".")[0] == __package__.partition(".")[0]]:
        del sys.modules[name]  # the app that was sent with the run may be another version of it
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    function()


if __name__ == "__main__":
    run_and_exit(lambda: serve(sys.argv[1], sys.argv[2:]))
