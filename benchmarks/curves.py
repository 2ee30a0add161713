"""The learning curve of a run, which is stopped when the time is over and keeps the rounds that it has evaluated.

python -m benchmarks.curves --recipe images-cifar10 --methods fedavg --minutes 7 --set data-dir=cifar10
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from fedapps.runs.run_folder import RunFolder

from .commands import recipe_parser, run, show

METRICS = ("test.global_accuracy", "test.local_accuracy")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its last round."""
    parser = recipe_parser("curves", __doc__)
    parser.add_argument("--methods", required=True, help="the method")
    parser.add_argument("--minutes", type=float, default=7.0, help="after which the run is stopped (default 7)")
    return run(parser, _run, arguments)


def _run(options: argparse.Namespace) -> None:
    with TemporaryDirectory(prefix="fedapps-curves-") as folder:
        settings = [*options.set, f"methods={options.methods}", "name=run", "evaluate-every=1"]
        words = [word for setting in settings for word in ("--set", setting)]
        command = [sys.executable, "-m", "fedapps", "run", options.recipe, "--engine", "inline", *words]
        begun = time.monotonic()
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [*command, "--output-dir", folder],
                check=True,
                stdout=subprocess.DEVNULL,
                timeout=60 * options.minutes,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        seconds = round(time.monotonic() - begun, 1)
        rounds = RunFolder(Path(folder) / "run", "").lines("metrics.jsonl")
    curves = {
        name: [(row["round"], row["evaluate"][name]) for row in rounds if name in row["evaluate"]] for name in METRICS
    }
    last = max((row["round"] for row in rounds), default=0)
    row = {"method": options.methods, "rounds": last, "seconds": seconds}
    show([row | {"curves": {name: values for name, values in curves.items() if values}}], options.json)


if __name__ == "__main__":
    sys.exit(main())
