"""A process that imports ``flwr`` once and then runs its commands one after another.

    python -P -m fedapps.deployment.flwr_server

Each line of its standard input is a JSON list with the arguments of a command. Each line of its standard output is a
JSON list with the exit status of the command, its standard output and its standard error. The process ends with its
standard input.
"""

import io
import json
import os
import sys
from contextlib import redirect_stderr, redirect_stdout

from .flower_command import load_command


def main() -> None:
    """Serve until the standard input ends."""
    flwr = load_command("flwr")
    with os.fdopen(os.dup(1), "w") as replies:
        os.dup2(2, 1)  # only replies are written to the standard output
        for line in sys.stdin:
            sys.argv = ["flwr", *json.loads(line)]
            status, output, errors = 0, io.StringIO(), io.StringIO()
            with redirect_stdout(output), redirect_stderr(errors):
                try:
                    flwr()
                except SystemExit as end:
                    status = end.code if isinstance(end.code, int) else int(end.code is not None)
                except Exception as error:
                    status = 1
                    print(f"{type(error).__name__}: {error}", file=sys.stderr)
            replies.write(json.dumps([status, output.getvalue(), errors.getvalue()]) + "\n")
            replies.flush()


if __name__ == "__main__":
    main()
