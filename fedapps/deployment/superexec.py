"""Flower's SuperExec of a node, with workers that are forks of a process with imported libraries.

python -P -m fedapps.deployment.superexec LIBRARIES [options of flower-superexec]
"""

import json
import subprocess
import sys
from collections.abc import Sequence

from .flower_command import run_flower
from .quick_exit import run_and_exit

_WORKER = "flwr-clientapp"


class ForkedWorkers:
    """Starts workers through :mod:`fedapps.deployment.fork_server`.

    Parameters
    ----------
    libraries : sequence of str
        Modules that workers need; those that are not installed are skipped.
    """

    def __init__(self, libraries: Sequence[str]) -> None:
        command = [sys.executable, "-P", "-m", "fedapps.deployment.fork_server", _WORKER, *libraries]
        self._server = subprocess.Popen(command, stdin=subprocess.PIPE)

    def start(self, arguments: Sequence[str]) -> Sequence[str] | None:
        """Start a worker; if the server has ended, return the command line that starts it without."""
        assert self._server.stdin
        try:
            self._server.stdin.write(json.dumps(arguments).encode() + b"\n")
            self._server.stdin.flush()
        except OSError:
            return [_WORKER, *arguments]
        return None


def main() -> None:
    """Run the SuperExec until its node ends."""
    libraries, *arguments = sys.argv[1:]
    workers = ForkedWorkers([name for name in libraries.split(",") if name])
    run_flower("flower-superexec", arguments, replace=_WORKER, start=workers.start)


if __name__ == "__main__":
    run_and_exit(main)
