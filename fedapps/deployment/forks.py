"""Forks that have imported libraries and wait for calls.

    python -P -m fedapps.deployment.forks flwr-clientapp torch

A fork server imports a command and its libraries once, and runs the command in forks of itself. Each line of its
standard input is a JSON list with the arguments of one call. It ends with its standard input. The libraries are
imported after the first call has started, so that a command that does not need them does not wait.

A fork starts like a new process: the app is not imported yet, and NumPy's global generator has a new seed. It ends with
its exit functions, so calls have nothing in common but the imported libraries.

A call whose process is killed by a signal is repeated once. A worker of Flower that is killed, as when memory is
exhausted, thus starts its task, or fails at once if the first process has started it; the SuperNode learns of the
failure from it, and does not wait for 60 s for a heartbeat.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module

from .flower_command import load_command, name_process, run_and_exit

#: What workers of this project import before they train.
LIBRARIES: tuple[str, ...] = ("torch", "scipy.spatial", "PIL.Image", "safetensors.numpy")


class Fork:
    """A fork that reads calls from its standard input, as :func:`serve` does.

    It has what this process has imported and need not import it again. Create it before there are other threads.

    Parameters
    ----------
    command : str
        The command that it runs.
    serve : callable
        Called in the fork. Each line of its standard input is a JSON list with the arguments of one call; it must
        return when its standard input ends, which is at the latest when this process ends.
    """

    def __init__(self, command: str, serve: Callable[[], object]) -> None:
        self._command = command
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.dup2(reading, 0)
            os.close(reading)
            os.close(writing)
            run_and_exit(serve)
        os.close(reading)
        self._calls = writing

    def start(self, arguments: Sequence[str]) -> Sequence[str] | None:
        """Let it run the command; if it has ended, return the command line that does so without it."""
        try:
            os.write(self._calls, json.dumps(arguments).encode() + b"\n")
        except OSError:
            return [self._command, *arguments]
        return None


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
    with open(os.devnull, encoding="utf-8") as nothing:
        os.dup2(nothing.fileno(), 0)
    if first := os.fork():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # which a terminal sends to all: it is for the first
        _, status = os.waitpid(first, 0)
        if not os.WIFSIGNALED(status):
            os._exit(os.waitstatus_to_exitcode(status))
        signal.signal(signal.SIGINT, signal.default_int_handler)
    name_process(command)
    sys.argv = [command, *arguments]
    for name in [name for name in sys.modules if name.partition(".")[0] == __package__.partition(".")[0]]:
        del sys.modules[name]  # the app that was sent with the run may be another version of it
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    function()


if __name__ == "__main__":
    run_and_exit(lambda: serve(sys.argv[1], sys.argv[2:]))
