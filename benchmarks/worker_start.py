"""How long a worker of a node takes until it can work on its message: in a new process, and as a fork.

Both import Flower's command ``flwr-clientapp`` and the libraries of
:data:`fedapps.deployment.flower_command.LIBRARIES`, and print the help of the command. The two ways alternate. The app
itself is not unpacked or imported.

    python -m benchmarks.worker_start --pairs 5
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial

from fedapps.deployment.flower_command import LIBRARIES

from .sides import alternate, compare, show

_WORKER = "flwr-clientapp"
FORK, NEW = "fork", "new process"
_NEW = """
import sys
from importlib import import_module
from fedapps.deployment.flower_command import load_command

command, *libraries = sys.argv[1:]
for name in libraries:
    import_module(name)
sys.argv = [command, "--help"]
load_command(command)()
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.worker_start", description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=5, help="number of starts of each kind (default 5)")
    parser.add_argument("--json", default="", help="append the row to this file, as JSON lines")
    options = parser.parse_args(arguments)
    command = [sys.executable, "-P", "-m", "fedapps.deployment.flower_command", _WORKER, *LIBRARIES]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        for _ in range(2):  # the libraries are imported after the first call
            _fork(server)
        seconds = alternate({FORK: partial(_fork, server), NEW: _new_process}, options.pairs)
    setup = "until the worker can work on its message, wall clock"
    show(compare("start of a worker [s]", seconds, FORK, "", setup, dict.fromkeys(seconds)), options.json)
    return 0


def _new_process() -> float:
    """Seconds until a new process has imported everything and prints."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-P", "-c", _NEW, _WORKER, *LIBRARIES], check=True, stdout=subprocess.PIPE)
    return time.perf_counter() - begin


def _fork(server: subprocess.Popen[bytes]) -> float:
    """Seconds until a fork of the server prints."""
    assert server.stdin
    assert server.stdout
    begin = time.perf_counter()
    server.stdin.write(json.dumps(["--help"]).encode() + b"\n")
    server.stdin.flush()
    while b"show this help" not in server.stdout.readline():  # once in the help; skips what is left of an earlier one
        pass
    return time.perf_counter() - begin


if __name__ == "__main__":
    sys.exit(main())
