"""Run one federation on an engine of this machine, beside the references that need no training."""

from __future__ import annotations

import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any, cast

import torch
from flwr.app import MetricRecord

from fedapps.app.client_app import app as client_app
from fedapps.app.node import choose_device
from fedapps.app.server_app import app as server_app
from fedapps.app.server_app import check_start
from fedapps.base.atomic import UnwritableError
from fedapps.base.errors import RunFailedError
from fedapps.base.processes import usable_cores
from fedapps.base.report.numbers import format_duration
from fedapps.clients.data import cached_load, loaded_data
from fedapps.config.parsing import Config, parse
from fedapps.config.run_config import RunConfig
from fedapps.report.comparison_tables import below_floors
from fedapps.runs.continual import continual_metrics, measure_names, stage_metrics
from fedapps.runs.run_folder import RunFolder
from fedapps.runs.tables import RefusedNodesError, refused_text, summary_table
from fedapps.sim.flower_internals import color_log, fallback, missing_names
from fedapps.sim.inprocess import run_inprocess, run_server
from fedapps.sim.ray_cluster import RAY_ADDRESS, check_named_cluster
from fedapps.sim.ray_nodes import ray_grid, run_flower_simulation
from fedapps.strategies import RunEndedError
from fedapps.strategies.aggregation import MetricMean
from fedapps.tasks.base import WEIGHT, Metrics

from .estimate import faster_engine
from .inputs import check_data, check_folder, resolve
from .plan import new_folder
from .progress import RunProgress, one_bar

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

    Metrics with a count are weighted by it, the others as the run weighs nodes.
    """
    mean = MetricMean(config.task.metric_rules)
    for metrics in nodes:
        examples = cast(float, metrics.get(WEIGHT, 1.0)) if config.run.weighting == "num-examples" else 1.0
        mean.add(MetricRecord({name: value for name, value in metrics.items() if name != WEIGHT}), examples)
    means = {name: float(value) for name, value in mean.result().items() if isinstance(value, int | float)}
    rows = [{"round": stage, "evaluate": means} for stage in range(1, config.num_stages + 1)]
    averages = {measure_names(metric)[0] for metric in stage_metrics(rows)}
    measured = continual_metrics(rows, config.num_stages) if averages else {}
    return {**means, **{name: value for name, value in measured.items() if name in averages}}


class Runner(ABC):
    """A way to run a federation."""

    @abstractmethod
    def check(self, config: Config) -> None:
        """Check everything that needs no data and no file that an option names.

        Raises
        ------
        ValueError
            If the run folder or the config cannot be used.
        """

    @abstractmethod
    def check_data(self, config: Config) -> None:
        """Read the data of all nodes once. Raises ``DataError`` if data are missing or invalid."""

    @abstractmethod
    def run(self, config: Config) -> None:
        """Run a federation that was checked, and print its results. Raises ``RunFailedError`` if it does not finish."""


ENGINES = ("inline", "ray")
#: The engine of ENGINES that takes less time.
AUTO = "auto"
FLOWER = "Flower's simulation engine"


def launch(overrides: Mapping[str, Any], runner: Runner, output_dir: str) -> Path:
    """Run one federation and print its results.

    Parameters
    ----------
    overrides : mapping
        Keys of the run config that replace the defaults of the app.
    runner : Runner
    output_dir : str
        Where the run folder is created, unless ``overrides`` has ``output-dir``.

    Returns
    -------
    Path
        The run folder.

    Raises
    ------
    ValueError
        Before anything runs, if the config, the run folder or the data are invalid.
    RunFailedError
        If a method did not finish.
    """
    keys = resolve(overrides, output_dir)
    with nullcontext() if overrides.get("name") else new_folder(keys["output-dir"], "", keys["name"]) as folder:
        config = parse(keys | ({"name": folder.name} if folder else {}))
        runner.check(config)
        runner.check_data(config)
        runner.run(config)
        return config.run.folder(0)


@dataclass(frozen=True)
class Simulation(Runner):
    """Simulated nodes.

    Parameters
    ----------
    engine : "auto", "inline" or "ray"
        ``inline`` runs all nodes in this process; ``ray`` runs them in processes of Ray; ``auto`` is the faster one.
    """

    engine: str

    def check(self, config: Config) -> None:
        check_engine(self.engine, config.run, (AUTO, *ENGINES))
        check_machine(self.engine, config.run)
        RunFolder.check(config, run_id=0)
        check_folder(config, config.task)
        if not config.run.resume:
            check_start(config)

    def check_data(self, config: Config) -> None:
        if self.engine == "inline":  # the run finds the data loaded
            loaded_data.clear()
            check_data(config, partial(cached_load, pooled=False))
        else:
            check_data(config)

    def run(self, config: Config) -> None:
        path = config.run.folder(0)
        folder = RunFolder(path, "")
        if not folder.references() and (references := find_references(config)):  # a resumed run has them
            folder.save_references(references)  # before the run, whose report shows them
        begun = time.monotonic()
        engine = self.engine
        if engine == AUTO and not missing_names("engine"):
            engine, reason = faster_engine(config)
            other = next(name for name in ENGINES if name != engine)
            print(f"engine: {engine}, because: {reason} (--engine {other} takes the other one)", flush=True)
        count = len(config.methods)
        label = path.name if count == 1 else f"{path.name}, {count} methods"
        try:
            with one_bar(RunProgress(label, path, count * config.run.rounds)):
                engine = execute(config, engine)
        except RefusedNodesError:
            pass  # conclude() raises it again, below the results
        except (RunEndedError, UnwritableError) as error:
            print(f"\n{error}", file=sys.stderr)
        finally:
            folder.drop_references_without_run()
        conclude(config, engine, begun)


def check_engine(engine: str, run: RunConfig, engines: Sequence[str] = ENGINES) -> None:
    """Raise ``ValueError`` for an unknown engine, or for a run config that the engine cannot run."""
    if engine not in engines:
        raise ValueError(f"engine = {engine!r}: must be one of {', '.join(map(repr, engines))}")
    if engine == "ray":
        run.check_separate_nodes()
    run.check_simulated_nodes()


def check_machine(engine: str, run: RunConfig) -> None:
    """Check that the nodes of a run can work on this machine, or on the Ray cluster that the environment names.

    Raises
    ------
    ValueError
        ``device`` is ``cuda`` without a GPU, or the cluster cannot be reached.
    """
    if engine in ("ray", AUTO) and os.environ.get(RAY_ADDRESS):
        check_named_cluster()
        return
    choose_device(run.device)


def conclude(config: Config, engine: str, begun: float) -> None:
    """Print the results of a run.

    Parameters
    ----------
    config : Config
    engine : str
        Name of the engine, for the message.
    begun : float
        ``time.monotonic()`` at the start, in seconds.

    Raises
    ------
    RunFailedError
        If a method or the report is missing, or every reply of a node was refused.
    """
    path = config.run.folder(0)
    if missing := unfinished(config):
        where = ", ".join(missing)
        raise RunFailedError(f"the run failed in: {where}. See the log above; trained models are in {path}")
    print()
    folder = RunFolder(path, "")
    print(summary_table(folder))
    finals = {label: facts["final"] for label, facts in folder.summary()["methods"].items()}
    for note in below_floors(config.run.task, finals, folder.references()):
        print(f"  {note}")
    for label, method in config.methods.items():
        print(f"  {label}: {method.summary}")
    if remark := _without_main_metric(config):
        print(remark)
    print(f"\nfinished in {format_duration(time.monotonic() - begun)}, engine: {engine}")
    print(f"summary: {path / 'summary.json'}\nreport:  {path / 'report.html'}")
    if refused := refused_text(folder):
        raise RunFailedError(refused)


def _without_main_metric(config: Config) -> str:
    """Why the table of results has no main metric of the task; empty if it has one, or test data are withheld."""
    finals = [facts["final"] for facts in RunFolder(config.run.folder(0), "").summary()["methods"].values()]
    headline = config.task.headline
    if config.run.withhold_test or any(name in final for final in finals for name in headline):
        return ""
    names = sorted({name for final in finals for name in final if name.startswith(("test.", "validation."))})
    reason = (
        f"evaluate gives {', '.join(names)}; name one of them in `headline` of the task's class"
        if names
        else "no evaluation gave a metric; the log above has the reason"
    )
    return f"\nno main metric of the task ({', '.join(headline)}): {reason}"


def unfinished(config: Config) -> list[str]:
    """The methods without results in the run folder; if there are none, ``its report`` if that is missing."""
    path = config.run.folder(0)
    missing = [method for method in config.methods if not RunFolder(path, "").finished(method)]
    return missing or ([] if (path / "report.html").exists() else ["its report"])


def execute(config: Config, engine: str) -> str:
    """Run a federation with the engine ``inline`` (nodes in this process) or ``ray`` (nodes in those of Ray).

    With a version of Flower that lacks what both need, Flower's own simulation engine runs it. Returns the engine.
    """
    color_log(sys.stderr.isatty())
    run, flat = config.run, config.flat()
    if line := fallback("engine"):
        print(line, flush=True)
        cpus, gpus = run.node_cpus, _gpus_per_node(config)
        run_flower_simulation(server_app, client_app, run.num_nodes, flat, cpus=cpus, gpus=gpus)
        return FLOWER
    if engine == "inline":
        nodes = run.num_nodes
        run_inprocess(server_app, client_app, num_nodes=nodes, run_config=flat, errors="reply", batch=run.node_batch)
    else:
        with ray_grid(client_app, run.num_nodes, flat, cpus=run.node_cpus, gpus=_gpus_per_node(config)) as grid:
            run_server(server_app, grid, flat)
    return engine


def _gpus_per_node(config: Config) -> float:
    """The share of a GPU that Ray reserves for each node: as many share one as lets a node work on each core."""
    gpus = 0 if config.run.device == "cpu" else torch.cuda.device_count()
    at_a_time = max(1, usable_cores() // config.run.node_cpus)
    return 1 / ceil(at_a_time / gpus) if gpus else 0.0
