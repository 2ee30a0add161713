"""Whole runs of a recipe in one process, with nodes that train at once and with nodes one after another.

The two alternate, after one run of each that is not measured. Times are CPU times of the process for everything that a
run does: reading data, training, evaluation, records and report.

    python -m benchmarks.node_batch --recipe lqr --set num-nodes=20 --set methods=sfl --node-batch 20 --pairs 3
"""

import argparse
import logging
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

from .recipe_runs import exit_status, recipe_parser
from .sides import alternate, compare, peak_megabytes, show

AT_ONCE, ONE_BY_ONE = "at once", "one after another"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table; returns 2 if the settings are invalid, else 0."""
    return exit_status("node_batch", lambda: _run(parser().parse_args(arguments)))


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = recipe_parser("node_batch", __doc__.partition("\n")[0])
    parser.add_argument("--node-batch", type=int, default=20, help="nodes that train at once (default 20)")
    parser.add_argument("--pairs", type=int, default=3, help="pairs of runs (default 3)")
    parser.add_argument("--goal", default="", help="shown in the table")
    return parser


def _run(options: argparse.Namespace) -> None:
    recipe = {**read_recipe(Path(options.recipe)), **assignments(options.set), "device": "cpu"}
    _settle()
    with TemporaryDirectory() as folder:
        config = _config(recipe, Path(folder), "prepared", options.node_batch)
        check_data(config)
        sides = {
            AT_ONCE: partial(_seconds, recipe, Path(folder), options.node_batch),
            ONE_BY_ONE: partial(_seconds, recipe, Path(folder), 1),
        }
        for run in sides.values():
            run()  # imports
        measurements = alternate(sides, options.pairs)
        batches = {AT_ONCE: options.node_batch, ONE_BY_ONE: 1}
        peaks = {
            side: peak_megabytes(partial(_whole_run, recipe, Path(folder), size)) for side, size in batches.items()
        }
        nodes, methods = config.run.num_nodes, len(config.methods)
        setup = (
            f"{nodes} nodes, {methods} methods, {config.run.rounds} rounds, node-batch {options.node_batch}, CPU time"
        )
        show(compare(f"run of {options.recipe} [s]", measurements, AT_ONCE, options.goal, setup, peaks), options.json)
        print(f"largest difference of a parameter: {_difference(Path(folder), config):.2g}")


def _config(recipe: Mapping[str, Any], folder: Path, name: str, node_batch: int) -> Config:
    return parse(resolve({**recipe, "name": name, "node-batch": node_batch}, str(folder)))


def _seconds(recipe: Mapping[str, Any], folder: Path, node_batch: int) -> float:
    """CPU seconds of a run; the last one with this ``node_batch`` stays in the folder."""
    number = sum(1 for _ in folder.glob(f"batch-{node_batch}-*"))
    config = _config(recipe, folder, f"batch-{node_batch}-{number}", node_batch)
    begin = time.process_time()
    _silently(config)
    return time.process_time() - begin


def _settle() -> None:
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(1)


def _whole_run(recipe: Mapping[str, Any], folder: Path, node_batch: int) -> Callable[[], object]:
    """A run in a new process, for its peak memory."""
    _settle()
    config = _config(recipe, folder, f"memory-{node_batch}", node_batch)
    return partial(_silently, config)


def _silently(config: Config) -> None:
    with redirect_stdout(StringIO()):
        execute(config, "inline")


def _difference(folder: Path, config: Config) -> float:
    """The largest difference between the shared parameters of the first runs of both sides."""
    runs = [RunFolder(folder / f"batch-{batch}-0", "") for batch in (config.run.node_batch, 1)]
    differences = [0.0]
    for method in config.methods:
        first, second = (run.checkpoints(method).latest() for run in runs)
        if first is not None and second is not None:
            differences += [np.abs(first.arrays[name] - array).max() for name, array in second.arrays.items()]
    return float(max(differences))


if __name__ == "__main__":
    sys.exit(main())
