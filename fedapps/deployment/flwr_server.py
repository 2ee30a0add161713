"""A process that imports ``flwr`` once and then runs its commands one after another.

    python -P -m fedapps.deployment.flwr_server

Each line of its standard input is a JSON list with the arguments of a command. Each line of its standard output is a
JSON list with the exit status of the command, its standard output and its standard error. The process ends with its
standard input.
"""

import json
import os
import sys
from tempfile import TemporaryFile

from .flower_command import load_command


def main() -> None:
    """Serve until the standard input ends."""
    load_command("flwr")
    with os.fdopen(os.dup(1), "w") as replies:
        for line in sys.stdin:
            replies.write(json.dumps(run(json.loads(line))) + "\n")
            replies.flush()


def run(arguments: list[str]) -> tuple[int, str, str]:
    """Run a command of ``flwr``: its exit status, standard output and standard error."""
    sys.argv, status = ["flwr", *arguments], 0
    with TemporaryFile("w+") as output, TemporaryFile("w+") as errors:
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
    main()
