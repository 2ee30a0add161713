"""Learning curves of methods that run side by side until they finish or the time is over.

Each method runs in its own process. A process that is stopped keeps the rounds that it has evaluated.

    python -m benchmarks.curves --recipe images-cifar10 --methods fedavg,fedprox --minutes 7 --set data-dir=cifar10
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedapps.registry.expressions import split_expressions
from fedapps.runs.run_folder import RunFolder

from .recipe_runs import add_jobs, exit_status, recipe_parser

_POLL, _GRACE = 0.5, 20.0  # seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its last accuracies; returns 2 if the settings are invalid, else 0."""
    return exit_status("curves", lambda: _run(parser().parse_args(arguments)))


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = recipe_parser("curves", __doc__.partition("\n")[0])
    add_jobs(parser)
    parser.add_argument("--methods", required=True, help="the methods, separated by commas")
    parser.add_argument("--metrics", default="test.global_accuracy,test.local_accuracy", help="metrics of the curves")
    parser.add_argument("--minutes", type=float, default=7.0, help="after which runs are stopped (default 7)")
    parser.set_defaults(jobs=0)  # all methods at once
    return parser


def _run(options: argparse.Namespace) -> None:
    methods = split_expressions(options.methods)
    until = time.monotonic() + 60 * options.minutes
    with TemporaryDirectory(prefix="fedapps-curves-") as folder:
        waiting, rows = list(enumerate(methods)), dict[int, Any]()
        running: dict[int, Any] = {}
        at_once = options.jobs or len(methods)
        while waiting or running:
            while waiting and len(running) < at_once:
                number, method = waiting.pop(0)
                running[number] = method, time.monotonic(), _begin(options, method, Path(folder), number)
            time.sleep(_POLL)
            late = time.monotonic() > until
            for number, (method, begun, process) in list(running.items()):
                if late and process.poll() is None:
                    _stop(process)
                if process.poll() is not None:
                    del running[number]
                    seconds = time.monotonic() - begun
                    rows[number] = _row(Path(folder) / str(number), method, options.metrics.split(","), seconds)
            if late:
                waiting.clear()
    for _, row in sorted(rows.items()):
        print(row["method"], row["rounds"], f"rounds in {row['seconds']:.0f} s", _last(row), flush=True)
        if options.json:
            with Path(options.json).open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(row) + "\n")


def _begin(options: argparse.Namespace, method: str, folder: Path, number: int) -> "subprocess.Popen[bytes]":
    settings = [*options.set, f"methods={method}", f"name={number}", "evaluate-every=1"]
    words = [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, "-m", "fedapps", "run", options.recipe, "--engine", "inline", *words]
    with (folder / f"{number}.log").open("wb") as log:
        return subprocess.Popen(
            [*command, "--output-dir", str(folder)],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _row(folder: Path, method: str, metrics: Sequence[str], seconds: float) -> dict[str, Any]:
    """The curves of a run; without a round, the end of its log says why."""
    rounds: Sequence[Mapping[str, Any]] = RunFolder(folder, "").lines("metrics.jsonl") if folder.exists() else []
    curves = {
        name: [(row["round"], row["evaluate"][name]) for row in rounds if name in row["evaluate"]] for name in metrics
    }
    row = {"method": method, "rounds": max((row["round"] for row in rounds), default=0), "seconds": round(seconds, 1)}
    if not rounds:
        row["log"] = folder.with_suffix(".log").read_text(encoding="utf-8")[-1500:]
    return row | {"curves": {name: values for name, values in curves.items() if values}}


def _last(row: Mapping[str, Any]) -> str:
    return row.get("log") or ", ".join(f"{name} {values[-1][1]:.4f}" for name, values in row["curves"].items())


if __name__ == "__main__":
    sys.exit(main())
