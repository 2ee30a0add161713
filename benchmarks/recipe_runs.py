"""What benchmarks of the runs of a recipe have in common: arguments, exit status, and the last evaluation of a run."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedapps.sim.flower_internals import flower_identity
from fedapps.sim.inprocess import InProcessGrid
from fedapps.strategies.aggregation import MetricMean
from fedapps.strategies.replies import weighting_of
from flwr.app import MetricRecord
from flwr.serverapp import Grid

from fedapps.app.client_app import app as client_app
from fedapps.app.server_app import run_method
from fedapps.base.errors import accept_all_text
from fedapps.config.parsing import Config, parse
from fedapps.config.recipe_files import Value
from fedapps.runs.run_folder import RunFolder
from fedapps.runs.tracking import Tracking


def recipe_parser(name: str, line: str) -> argparse.ArgumentParser:
    """A parser with the arguments of all benchmarks that run a recipe."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=line)
    parser.add_argument("--recipe", required=True, help="name of a recipe or path of a run-config file")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="replace a key of the recipe")
    parser.add_argument("--json", default="", metavar="FILE", help="also write the results to this file")
    return parser


def comparison_parser(name: str, line: str) -> argparse.ArgumentParser:
    """A parser with the arguments of all benchmarks that use the models of a comparison."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=line)
    parser.add_argument("comparison", type=Path, help="folder of a comparison")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (default 3)")
    parser.add_argument("--json", default="", metavar="FILE", help="also write the results to this file")
    return parser


def add_jobs(parser: argparse.ArgumentParser) -> None:
    """Add the argument of benchmarks that can make several runs at once."""
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time; 0 = one per CPU core (default 1)")


def exit_status(name: str, run: Callable[[], None]) -> int:
    """Run a benchmark: 0, or 2 if the settings are invalid, after a message that says why."""
    accept_all_text()
    try:
        run()
    except ValueError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    return 0


def own_nodes(config: Config) -> list[Mapping[str, Any]]:
    """The node configs of a run: empty, because in-process grids number their nodes."""
    return [{} for _ in range(config.run.num_nodes)]


def honest_grid(config: Config) -> InProcessGrid:
    """The nodes of a run."""
    return InProcessGrid(client_app, own_nodes(config), config.flat(), errors="reply")


def final_metrics(
    settings: Mapping[str, Value], seed: int, grid: Callable[[Config], Grid] = honest_grid
) -> dict[str, float]:
    """Run the only method of a run config with a seed, and return the metrics of its last evaluation.

    Metrics of nodes are means over them, also under a robust aggregation, whose own are medians: what is compared must
    be measured alike, and no benchmark has nodes with false metrics.

    Raises
    ------
    RunEndedError
        The run failed.
    """
    with TemporaryDirectory(prefix="fedapps-") as output:
        config = parse({**settings, "seed": seed, "output-dir": output})
        folder, label = RunFolder.open(config, run_id=1), next(iter(config.methods))
        with flower_identity():
            run_method(grid(config), config, folder, label, Tracking(config, folder, label))
        final = folder.summary()["methods"][label]["final"] | _means(config, folder.last_evaluation())
        return {name: float(value) for name, value in final.items()}


def _means(config: Config, nodes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The means of the metrics of nodes, from their lines of ``nodes.jsonl``."""
    mean, weight_of = MetricMean(config.task.metric_rules), weighting_of(config.run.weighting)
    for row in nodes:
        mean.add(MetricRecord(row["metrics"]), weight_of(row["num_examples"]))
    return dict(mean.result())
