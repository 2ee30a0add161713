"""Repeat the experiments behind the numbers in ``docs/``, and write these numbers into the pages.

python -m benchmarks run --list
python -m benchmarks run --only 'lqr*,quickstart'
python -m benchmarks tables
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from fedapps.base.errors import accept_all_text

from .experiments import experiments
from .pages import stale, write
from .results import FOLDER
from .runner import listing, matching, run_all


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line: 0, 1 if an experiment failed or a page is stale, 2 if an argument is invalid."""
    accept_all_text()
    options = parser().parse_args(arguments)
    if options.command == "tables":
        return _tables(check=options.check)
    try:
        selected = matching(experiments(), options.only)
    except ValueError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    if options.list:
        print(listing(selected, options.output))
        return 0
    data = os.environ.get("FEDAPPS_DATA", "")
    return min(1, run_all(selected, options.output, options.results, data=data, again=options.again))


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run experiments; those that have finished are skipped")
    run.add_argument("--only", default="", metavar="NAME,...", help="experiments to run; * stands for any letters")
    run.add_argument("--list", action="store_true", help="list the experiments instead of running them")
    run.add_argument("--again", action="store_true", help="also repeat those that have finished")
    run.add_argument("--output", type=Path, default=Path("runs/bench"), help="folder of the runs (default runs/bench)")
    run.add_argument("--results", type=Path, default=FOLDER, help="folder of the results (default: the published ones)")
    tables = commands.add_parser("tables", help="write the results into the pages")
    tables.add_argument("--check", action="store_true", help="change nothing; fail if a page is stale")
    return parser


def _tables(*, check: bool) -> int:
    changed = stale()
    if check and changed:
        print(f"stale: {', '.join(map(str, changed))}; run: make results", file=sys.stderr)
        return 1
    if not check:
        write()
        print("\n".join(f"written: {path}" for path in changed) or "all pages are up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main())
