"""The ServerApp: run each method to its end, record every round, write the report."""

from collections import Counter
from contextlib import ExitStack, closing
from dataclasses import dataclass
from logging import INFO, WARNING
from typing import Any

from flwr.app import ArrayRecord, Context
from flwr.common import log
from flwr.serverapp import Grid, ServerApp
from torch import nn

from fedapps.base.errors import accept_all_text
from fedapps.base.seeding import torch_seed
from fedapps.clients.base import initial_models
from fedapps.clients.data import loaded_data
from fedapps.config.parsing import Config, parse
from fedapps.methods.base import Method
from fedapps.report import write_report
from fedapps.report.run_data import DEVICES, read_speeds
from fedapps.runs.continual import continual_metrics
from fedapps.runs.run_folder import STARTED, RunFolder
from fedapps.runs.tables import RefusedNodesError, refused_nodes, refused_text, summary_table
from fedapps.runs.tracking import Recorder, Tracking
from fedapps.sim.clock_grid import ClockGrid
from fedapps.sim.flower_internals import ask_again_after, simulates_nodes
from fedapps.sim.inprocess import InProcessGrid
from fedapps.sim.ray_cluster import check_named_cluster
from fedapps.strategies import BaseStrategy, Callback, Each, RequireEvaluations, RoundReport, Run, Save, Track
from fedapps.strategies.packing import PackedGrid
from fedapps.strategies.transport import clock_of

from .cost import cost_to_target, simulated_time, slowest_tenth, steps_per_node, traffic
from .privacy import check_statistics, guarantee, spent, unused
from .round_config import RoundConfigs, held_out_results, tracked_results
from .start import begun, start_snapshots, started_arrays
from .strategy import build_strategy, tracked_metric, with_clock, write_devices

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Flower calls this once per run.

    Raises
    ------
    ClusterError
        The nodes are simulated in a Ray cluster that cannot be reached.
    RefusedNodesError
        After the report, if every reply of a node was refused.
    """
    accept_all_text()
    config = parse(context.run_config)
    simulated = isinstance(grid, InProcessGrid) or simulates_nodes(grid)
    if simulated:
        config.run.check_simulated_nodes()
    if isinstance(grid, InProcessGrid):
        initial_models.clear()
    else:
        config.run.check_separate_nodes()
        if simulated:
            check_named_cluster()
        else:
            config.check_real_nodes()
            ask_again_after()
            grid = PackedGrid(grid)
    if config.run.gate:
        from .gate import run_gate  # imports this module

        run_gate(grid, config)
        if isinstance(grid, InProcessGrid):
            loaded_data.clear()
        return
    if config.run.hides:
        log(
            INFO,
            "%s: nodes with their own data send noised or masked updates and no metrics; simulated nodes are evaluated "
            "exactly, which no guarantee covers",
            config.run.hides,
        )
    if config.run.dp != "none":
        for method in config.methods:
            model = initial_model(config, method)
            strategy, initial = strategy_for(config, method, model)
            check_statistics(config.run, method, model, strategy.share(initial))
    if not (config.run.resume and (config.run.folder(context.run_id) / STARTED).exists()):
        check_start(config)
    folder = RunFolder.open(config, context.run_id, durable=not simulated)
    log(INFO, "run folder: %s", folder.path)
    if idle := unused(config.run):
        log(WARNING, "dp = 'none': no update is protected, and %s has no effect", ", ".join(idle))
    with ExitStack() as stack:
        if isinstance(grid, InProcessGrid):
            stack.callback(loaded_data.clear)  # files can change before the next run of this process
        stack.enter_context(folder.owned())
        folder.leave_out_damage()
        config = begun(config, folder)
        trackings = []
        for method in config.methods:
            tracking = stack.enter_context(closing(Tracking(config, folder, method)))
            trackings.append(tracking)
            if folder.finished(method) and folder.checkpoints(method).last_is_whole():
                log(INFO, "method %s has already run to its end", method)
            else:
                run_method(grid, config, folder, method, tracking)
            tracking.finish(tracked_results(folder.summary()["methods"][method]))
        for line in summary_table(folder).splitlines():
            log(INFO, "%s", line)
        report = write_report(folder.path)
        log(INFO, "report: %s", report)
        for tracking in trackings:
            tracking.report(report)
    if refused := refused_text(folder):
        raise RefusedNodesError(refused)


def run_method(grid: Grid, config: Config, folder: RunFolder, method: str, tracking: Tracking) -> None:
    """Run the method of a label from its initial arrays or its last checkpoint to its line in the summary."""
    run = config.run
    log(INFO, "")
    log(INFO, "== %s on %s, seed %s, %s rounds", method, run.task, run.seed, run.rounds)
    checkpoints = folder.checkpoints(method)
    latest = checkpoints.latest()
    last_round = latest.round if latest else 0
    releases = folder.releases(method)
    planned = Counter(releases.by_round()) + Counter(range(last_round + 1, config.last_round(method) + 1))
    if promised := guarantee(config, method, planned):
        log(INFO, "%s", promised)
    folder.drop_after(method, last_round)
    folder.warn_of_gaps(method, last_round)

    strategy, initial = strategy_for(config, method, initial_model(config, method))
    grid = with_clock(grid, run)
    configs = RoundConfigs(config, method, folder.label)

    clock = grid if isinstance(grid, ClockGrid) else None
    first = config.begun.get(method, 0) + 1

    def devices_known(report: RoundReport) -> None:
        if clock and report.round == last_round + 1:
            write_devices(folder.path, clock)

    result = strategy.start(
        grid,
        started_arrays(config, strategy, initial),
        num_rounds=config.last_round(method),
        timeout=run.timeout,
        train_config=configs.train,
        evaluate_config=configs.evaluate,
        evaluate_every=run.evaluate_every,
        callbacks=[
            *([_Reported(config, first), Track(tracked)] if (tracked := tracked_metric(run)) else ()),
            *([Each(devices_known)] if clock else ()),
            Recorder(folder, config, method, config.num_stages),
            *([releases] if run.dp != "none" else ()),
            *([tracking] if config.trackers else ()),
            Save(checkpoints, resume=True),  # a new run has no checkpoints yet
            RequireEvaluations(run.max_failed_evaluations, run.track_metric),
        ],
    )
    facts = summarise(config, folder, method)
    with clock_of(grid).evaluation():
        held_out = held_out_results(strategy, grid, config, method, folder.label, result.arrays, facts["rounds"])
    folder.finish(config, method, facts | held_out)


@dataclass
class _Reported(Callback):
    """Ends a run before its ``first`` round if no node can report the tracked metric."""

    config: Config
    first: int

    def before_training(self, run: Run, server_round: int) -> None:
        if server_round != self.first:
            return
        nodes = [node for node in run.strategy.registry.known.values() if not node.no_data]
        if nodes and all(node.unreported == self.config.run.track_metric for node in nodes):
            raise ValueError(self.config.unreported_text)


def initial_arrays(config: Config, label: str = "") -> ArrayRecord:
    """The part of the untrained model that a method's strategy starts from; the whole model without a label.

    Nodes start their private parameters from the same model, which the seed of the run decides.
    """
    method = config.methods[label] if label else Method()
    return method.initial_arrays(ArrayRecord(initial_model(config, label).state_dict()))


def initial_model(config: Config, label: str = "") -> nn.Module:
    """The untrained model of a method, or of the task without a label."""
    with torch_seed(config.run.seed, "model"):
        method = config.methods[label] if label else Method()
        return config.task_of(method).build_model()


def strategy_for(config: Config, label: str, model: nn.Module) -> tuple[BaseStrategy, ArrayRecord]:
    """The strategy of a method, which knows the buffers of its initial model, and the arrays that it starts from."""
    initial = config.methods[label].initial_arrays(ArrayRecord(model.state_dict()))
    buffers = [name for name, _ in model.named_buffers() if name in initial]
    return build_strategy(config, label, initial.keys(), buffers), initial


def check_start(config: Config) -> None:
    """Check that what the key ``start`` names fits every method, before anything of the run is written.

    Raises
    ------
    ValueError
        As :func:`~fedapps.app.start.start_snapshots` and :func:`~fedapps.app.start.started_arrays`, or a checkpoint
        has other arrays than the model.
    """
    if not config.run.start:
        return
    snapshots = start_snapshots(config)
    for label in config.methods:
        strategy, initial = strategy_for(config, label, initial_model(config, label))
        initial = started_arrays(config, strategy, initial)
        if label in snapshots:
            try:
                strategy.restore(snapshots[label], strategy.share(initial))
            except ValueError as error:
                raise ValueError(f"start = {config.run.start!r}: {label} cannot go on: {error}") from error


def summarise(config: Config, folder: RunFolder, method: str) -> dict[str, Any]:
    """What the summary says of a method: its last evaluation, the time and traffic of its rounds, its refusals."""
    rounds = [row for row in folder.lines("metrics.jsonl") if row["method"] == method]
    evaluated = [row for row in rounds if row["evaluate"]]
    final = evaluated[-1]["evaluate"] if evaluated else {}
    before, since = config.begun.get(method, 0), folder.time_before(method)
    if config.num_stages > 1:
        final = final | continual_metrics(rounds, config.num_stages, rounds=config.run.rounds, begun=before)
        trained = rounds[-1]["train"] if rounds else {}
        final |= {name: value for name, value in trained.items() if name.endswith("_parameters")}
    nodes = [row for row in folder.lines("nodes.jsonl") if row["method"] == method]
    releases = folder.releases(method).by_round()
    final = final | spent(config, method, releases) | traffic(rounds)
    final = final | simulated_time(rounds, since) | slowest_tenth(config.run, nodes, read_speeds(folder.path / DEVICES))
    final = final | cost_to_target(config.run, rounds, nodes, before, since)
    final = final | steps_per_node(nodes, config.run.participants)
    return {
        "rounds": rounds[-1]["round"] if rounds else 0,
        "final": final,
        "privacy": guarantee(config, method, releases),
        "seconds": sum(row["seconds"] for row in rounds),
        "bytes_up": sum(row["bytes_up"] for row in rounds),
        "bytes_down": sum(row["bytes_down"] for row in rounds),
        "refused": sum(len(row["refused"]) for row in rounds),
        "refused_nodes": refused_nodes(rounds, nodes),
    }
