"""The nodes of a run of a recipe in one process, and its last evaluation."""

from collections.abc import Callable, Mapping, Sequence
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
from fedapps.config.parsing import Config, parse
from fedapps.config.recipe_files import Value
from fedapps.runs.run_folder import RunFolder
from fedapps.runs.tracking import Tracking


def honest_grid(config: Config) -> InProcessGrid:
    """The nodes of a run."""
    return InProcessGrid(client_app, [{}] * config.run.num_nodes, config.flat(), errors="reply")


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
