"""What the commands of benchmarks have in common: arguments, exit status, and the table and the file of their rows."""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedapps.base.errors import accept_all_text
from fedapps.base.report.numbers import Estimate, number
from fedapps.base.report.tables import text_table


def new_parser(name: str, doc: str) -> argparse.ArgumentParser:
    """A parser that is described by the first line of the module's ``doc``, with the argument for the file of rows."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=doc.partition("\n")[0])
    parser.add_argument("--json", default="", metavar="FILE", help="also append the rows to this file, as JSON lines")
    return parser


def recipe_parser(name: str, doc: str) -> argparse.ArgumentParser:
    """A parser with the arguments of all benchmarks that run a recipe."""
    parser = new_parser(name, doc)
    parser.add_argument("--recipe", required=True, help="name of a recipe or path of a run-config file")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="replace a key of the recipe")
    return parser


def comparison_parser(name: str, doc: str) -> argparse.ArgumentParser:
    """A parser with the arguments of all benchmarks that use the models of a comparison."""
    parser = new_parser(name, doc)
    parser.add_argument("comparison", type=Path, help="folder of a comparison")
    add_seeds(parser)
    return parser


def add_seeds(parser: argparse.ArgumentParser, *, jobs: bool = False) -> None:
    """Add the number of seeds, and with ``jobs`` that of runs at a time."""
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (default 3)")
    if jobs:
        parser.add_argument("--jobs", type=int, default=1, help="runs at a time; 0 = one per CPU core (default 1)")


def run(
    parser: argparse.ArgumentParser, work: Callable[[argparse.Namespace], None], arguments: Sequence[str] | None
) -> int:
    """Run a benchmark: 0, or 2 if the settings are invalid, after a message that says why."""
    accept_all_text()
    try:
        work(parser.parse_args(arguments))
    except ValueError as error:
        print(f"{parser.prog.rpartition('.')[2]}: {error}", file=sys.stderr)
        return 2
    return 0


def show(rows: Sequence[Mapping[str, Any]], path: str) -> None:
    """Print rows as a table, a list as the mean over seeds with half its interval; append them to a file of JSON lines.

    ``path`` is empty without a file.
    """
    append(rows, path)
    columns = list(dict.fromkeys(name for row in rows for name, value in row.items() if not isinstance(value, Mapping)))
    print(text_table(columns, [[_cell(row.get(name)) for name in columns] for row in rows]), flush=True)


def show_methods(methods: Mapping[str, Mapping[str, Sequence[float]]], path: str) -> None:
    """The same for the values over seeds of each metric of each method, which are one line of the file."""
    append([{"methods": methods}], path)
    show([{"method": method, **values} for method, values in methods.items()], "")


def append(rows: Iterable[Any], path: str) -> None:
    """Append rows to a file of JSON lines, unless ``path`` is empty."""
    if path:
        with Path(path).open("a", encoding="utf-8") as lines:
            lines.writelines(json.dumps(row) + "\n" for row in rows)


def _cell(value: Any) -> str:
    if value is None or value == []:
        return "–"
    if isinstance(value, str):
        return value
    if not isinstance(value, Sequence):
        return number(value)
    if isinstance(value[0], str):
        return ", ".join(value)
    estimate = Estimate.of(value)
    return number(estimate.mean) + ("" if estimate.half is None else f" ± {number(estimate.half)}")
