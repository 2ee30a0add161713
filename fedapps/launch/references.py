"""Floors and ceilings of a run, which the task finds on the data of all nodes without training."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from flwr.app import MetricRecord

from fedapps.config.parsing import Config
from fedapps.report import write_report
from fedapps.runs.continual import continual_metrics, measure_names, stage_metrics
from fedapps.runs.run_folder import RunFolder
from fedapps.strategies.aggregation import MetricMean
from fedapps.tasks.base import Metrics

#: Metrics by the name of the reference.
References = Mapping[str, Mapping[str, float]]


def find_references(config: Config) -> References:
    """The references of a simulation, where one folder holds the data of all nodes.

    Returns
    -------
    mapping of str to mapping of str to float
        Metrics by the name of the reference; empty for a task without references.

    Raises
    ------
    DataError
        If data are missing or invalid.
    """
    partition = {"partition-id": 0, "num-partitions": config.run.num_nodes}
    folder = config.run.source(config.task, partition).folder
    of_nodes = config.task.node_references(folder, config.run.num_nodes)
    return {
        **config.task.references(folder),
        **{name: means for name, nodes in of_nodes.items() if (means := _over_nodes(config, nodes))},
    }


def _over_nodes(config: Config, nodes: Sequence[Metrics]) -> dict[str, float]:
    """The metrics of a reference over all nodes, combined as those of methods; of stages, also their average.

    Nodes have equal weight, but for metrics with a count.
    """
    mean = MetricMean(config.task.metric_means)
    for metrics in nodes:
        mean.add(MetricRecord(dict(metrics)), 1.0)
    means = {name: float(value) for name, value in mean.result().items() if isinstance(value, int | float)}
    rows = [{"round": stage, "evaluate": means} for stage in range(1, config.num_stages + 1)]
    averages = {measure_names(metric)[0] for metric in stage_metrics(rows)}
    measured = continual_metrics(rows, config.num_stages) if averages else {}
    return {**means, **{name: value for name, value in measured.items() if name in averages}}


def add_references(path: Path, references: References) -> None:
    """Write the references into a run folder, and again its report, which then shows them.

    Nothing is written if there are no references or the run did not begin. An unfinished run has no report.
    """
    if not references or not path.is_dir():
        return
    RunFolder(path, "").save_references(references)
    if (path / "report.html").exists():
        write_report(path)
