"""What benchmarks of the runs of a recipe have in common: arguments and the exit status."""

import argparse
import sys
from collections.abc import Callable


def recipe_parser(name: str, line: str) -> argparse.ArgumentParser:
    """A parser with the arguments of all benchmarks that run a recipe."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=line)
    parser.add_argument("--recipe", required=True, help="name of a recipe or path of a run-config file")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time; 0 = one per CPU core (default 1)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="replace a key of the recipe")
    parser.add_argument("--json", default="", metavar="FILE", help="also write the results to this file")
    return parser


def exit_status(name: str, run: Callable[[], None]) -> int:
    """Run a benchmark: 0, or 2 if the settings are invalid, after a message that says why."""
    try:
        run()
    except ValueError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    return 0
