"""A fork of this process that waits for calls."""

import json
import os
from collections.abc import Callable, Sequence

from .quick_exit import run_and_exit


class Fork:
    """A fork that reads calls from its standard input, as :mod:`fedapps.deployment.fork_server` does.

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
