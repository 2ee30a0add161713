"""Whole runs of a recipe in one process, with some settings and with others.

The two alternate, after one run of each that is not measured. Times are CPU times of the process for everything that a
run does: reading data, training, evaluation, records and report.

    python -m benchmarks.whole_runs --recipe lqr --ours node-batch=3 --reference node-batch=1
    python -m benchmarks.whole_runs --recipe lqr --ours methods=apfl --reference methods=fedavg --set rounds=4
"""

import argparse
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from fedapps.comparison.matrix import assignments
from fedapps.config.parsing import Config, parse
from fedapps.config.recipe_files import read_recipe
from fedapps.launch.inputs import check_data, resolve
from fedapps.launch.launch import execute
from fedapps.runs.run_folder import RunFolder

from .commands import recipe_parser, run
from .sides import alternate, compare, peak_megabytes, show

OURS = "ours"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table; returns 2 if the settings are invalid, else 0."""
    parser = recipe_parser("whole_runs", __doc__)
    for side in ("ours", "reference"):
        parser.add_argument(
            f"--{side}", action="append", required=True, metavar="KEY=VALUE", help="a key of this side alone"
        )
    parser.add_argument("--pairs", type=int, default=3, help="pairs of runs (default 3)")
    return run(parser, _run, arguments)


def _run(options: argparse.Namespace) -> None:
    recipe = {**read_recipe(Path(options.recipe)), **assignments(options.set), "device": "cpu"}
    reference = ", ".join(options.reference)
    settings = {OURS: recipe | assignments(options.ours), reference: recipe | assignments(options.reference)}
    _settle()
    with TemporaryDirectory() as name:
        folder = Path(name)
        configs = {side: _config(keys, folder, "prepared") for side, keys in settings.items()}
        for config in configs.values():
            check_data(config)
        sides = {
            side: partial(_seconds, keys, folder / str(number)) for number, (side, keys) in enumerate(settings.items())
        }
        for side in sides.values():
            side()  # imports
        measurements = alternate(sides, options.pairs)
        peaks = {side: peak_megabytes(partial(_whole_run, keys, folder)) for side, keys in settings.items()}
        of_run = configs[OURS].run
        setup = f"{', '.join(options.ours)}: {of_run.num_nodes} nodes, {of_run.rounds} rounds, CPU time"
        show(compare(f"run of {options.recipe} [s]", measurements, OURS, setup, peaks), options.json)
        if list(configs[OURS].methods) == list(configs[reference].methods):
            print(f"largest difference of a parameter: {_difference(folder, configs[OURS]):.2g}")


def _config(settings: Mapping[str, Any], folder: Path, name: str) -> Config:
    return parse(resolve({**settings, "name": name}, str(folder)))


def _seconds(settings: Mapping[str, Any], folder: Path) -> float:
    """CPU seconds of a run in a new folder of ``folder``."""
    config = _config(settings, folder, str(sum(1 for _ in folder.glob("*"))))
    begin = time.process_time()
    _silently(config)
    return time.process_time() - begin


def _settle() -> None:
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(1)


def _whole_run(settings: Mapping[str, Any], folder: Path) -> Callable[[], object]:
    """A run in a new process, for its peak memory."""
    _settle()
    return partial(_silently, _config(settings, folder, f"memory-{os.getpid()}"))


def _silently(config: Config) -> None:
    with redirect_stdout(StringIO()):
        execute(config, "inline")


def _difference(folder: Path, config: Config) -> float:
    """The largest difference between the shared parameters of the first runs of both sides."""
    runs = [RunFolder(folder / number / "0", "") for number in "01"]
    differences = [0.0]
    for method in config.methods:
        first, second = (run.checkpoints(method).latest() for run in runs)
        if first is not None and second is not None:
            differences += [np.abs(first.arrays[name] - array).max() for name, array in second.arrays.items()]
    return float(max(differences))


if __name__ == "__main__":
    sys.exit(main())
