"""``python -m fedapps``: the command line."""

import sys

from .cli.commands import main
from .deployment.flower_command import run_and_exit

if __name__ == "__main__":
    run_and_exit(lambda: sys.exit(main()))
