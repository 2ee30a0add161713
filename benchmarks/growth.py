"""How the cost of a round grows with the numbers of nodes, parameters and rounds.

The nodes do nothing: they return what they received. The grid is that of the in-process engine. Times are CPU times.
A new process measures the peak memory of each size. For rounds, memory is the resident set after each tenth of them.

    python -m benchmarks.growth --nodes 1000 10000 100000
    python -m benchmarks.growth --devices 1000 10000 100000
    python -m benchmarks.growth --parameters 10000 1000000 10000000
    python -m benchmarks.growth --rounds 10000 --plot growth.png
"""

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from fedapps.sim.clock_grid import ClockGrid, Reading
from fedapps.sim.devices import DayNight, LogNormal, Uniform, drawn
from fedapps.sim.flower_internals import direct_arrays, flower_identity
from fedapps.sim.inprocess import InProcessGrid
from fedapps.strategies import BaseStrategy, BufferedAsync, Each, Save, UniformFraction, to_record
from fedapps.strategies.wire import KEY, NUM_EXAMPLES, PROFILE, PROFILE_QUERY
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from matplotlib.figure import Figure

from fedapps.base.report.metrics import plot_styles
from fedapps.runs.checkpoints import DiskCheckpoints

from .commands import append, new_parser, run, show
from .sides import peak_megabytes, resident_megabytes

_ROUNDS = 5
_COHORT = 100  # nodes that train in a round, or devices at a time
_SENDERS = 10


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its tables."""
    parser = new_parser("growth", __doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[], help="numbers of connected nodes")
    parser.add_argument("--devices", type=int, nargs="+", default=[], help="numbers of devices in simulated time")
    parser.add_argument("--parameters", type=int, nargs="+", default=[], help="sizes of the model")
    parser.add_argument("--rounds", type=int, default=0, help="rounds of a run of two nodes with checkpoints")
    parser.add_argument("--plot", default="", metavar="FILE", help="draw the tables as a picture")
    return run(parser, _run, arguments)


def _run(options: argparse.Namespace) -> None:
    logging.getLogger("flwr").setLevel(logging.ERROR)  # a line for every round
    tables = []
    for table in measured(options):
        columns = {table.what: table.sizes, **table.costs, "memory [MB]": table.memory}
        show([dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)], "")
        tables.append(table)
    append(map(asdict, tables), options.json)
    if options.plot:
        draw(tables, Path(options.plot))


def measured(options: argparse.Namespace) -> Iterator["Growth"]:
    """The tables that the command line asks for, one after another."""
    if options.nodes:
        profiles, rounds = zip(*map(of_nodes, options.nodes), strict=True)
        memory = [_peak(partial(of_nodes, nodes)) for nodes in options.nodes]
        yield Growth("nodes", options.nodes, {"profiles [s]": profiles, "round [s]": rounds}, memory)
    if options.devices:
        profiles, steps = zip(*map(of_devices, options.devices), strict=True)
        memory = [_peak(partial(of_devices, devices)) for devices in options.devices]
        yield Growth("devices", options.devices, {"profiles [s]": profiles, "step [s]": steps}, memory)
    if options.parameters:
        seconds = [of_parameters(count) for count in options.parameters]
        memory = [_peak(partial(of_parameters, count)) for count in options.parameters]
        yield Growth("parameters", options.parameters, {f"round of {_SENDERS} nodes [s]": seconds}, memory)
    if options.rounds:
        firsts = [options.rounds * tenth // 10 for tenth in range(11)]
        seconds, memory = of_rounds(options.rounds, firsts[1:])
        medians = [1000 * median(seconds[first:end]) for first, end in pairwise(firsts)]
        yield Growth("from round", [first + 1 for first in firsts[:-1]], {"round [ms]": medians}, memory)


def _peak(work: Callable[[], object]) -> float | None:
    return peak_megabytes(partial(_quiet, work))


def _quiet(work: Callable[[], object]) -> Callable[[], object]:
    logging.getLogger("flwr").setLevel(logging.ERROR)
    return work


@dataclass(frozen=True)
class Growth:
    """Costs by the size of something: lists in the order of ``sizes``, one per kind of cost and one of megabytes."""

    what: str
    sizes: Sequence[int]
    costs: Mapping[str, Sequence[float]]
    memory: Sequence[float | None]


def draw(tables: Sequence[Growth], path: Path) -> None:
    """Draw the costs side by side. Where sizes differ by more than a factor of 20, both axes are logarithmic."""
    figure = Figure(figsize=(4 * len(tables), 3.2), layout="constrained")
    for axes, table in zip(np.atleast_1d(figure.subplots(1, len(tables))), tables, strict=True):
        styles = plot_styles(list(table.costs))
        for name, costs in table.costs.items():
            axes.plot(table.sizes, costs, color=styles[name].colour, marker=styles[name].marker, label=name)
        if max(table.sizes) > 20 * min(table.sizes) and table.what != "from round":
            axes.set(xscale="log", yscale="log")
        else:
            axes.set_ylim(bottom=0)
        axes.set_xlabel(table.what)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    figure.savefig(path, dpi=120)


def of_nodes(nodes: int) -> tuple[float, float]:
    """Seconds to learn the profiles of all nodes, and seconds of a later round in which at most a hundred train."""
    strategy = BaseStrategy(fraction_train=min(_COHORT / nodes, 1.0), fraction_evaluate=0.0, profiles=True)
    return _timed(strategy, InProcessGrid(echo(), [{}] * nodes, {}))


def of_devices(devices: int) -> tuple[float, float]:
    """As :func:`of_nodes` in simulated time: steps of half as many updates as devices that are at work."""
    reading = Reading(PROFILE_QUERY, key=_key, steps=lambda _: 5.0, size=lambda _: 10**6)
    fleet = drawn(devices, 0, LogNormal(1.0, 1.5), Uniform(1.0, 10.0), None, DayNight(devices, 8.0, 24.0, 0))
    concurrency = min(_COHORT, devices)
    strategy = BufferedAsync(
        concurrency=concurrency, buffer=(concurrency + 1) // 2, fraction_evaluate=0.0, profiles=True
    )
    return _timed(strategy, ClockGrid(InProcessGrid(echo(), [{}] * devices, {}), fleet, reading))


def _timed(strategy: BaseStrategy, grid: Grid) -> tuple[float, float]:
    """Seconds to learn the profiles of all nodes, and the median seconds of a later round."""
    seconds: list[float] = []
    with flower_identity(), direct_arrays():
        begun = time.process_time()
        strategy.registry.connected(grid)
        profiles = time.process_time() - begun
        strategy.start(
            grid, _model(), num_rounds=_ROUNDS, callbacks=[Each(lambda _: seconds.append(time.process_time()))]
        )
    return profiles, median(after - before for before, after in pairwise(seconds))


def _key(reply: Message) -> str:
    record = reply.content[PROFILE]
    assert isinstance(record, ConfigRecord)
    return str(record[KEY])


def of_parameters(count: int) -> float:
    """Seconds of a round of ten nodes whose model has ``count`` parameters in ten arrays, the first round left out."""
    model = to_record({f"layer-{number}": np.zeros(count // 10, np.float32) for number in range(10)})
    strategy, seconds = BaseStrategy(evaluate_sampler=UniformFraction(0.0)), []
    with flower_identity(), direct_arrays():
        grid = InProcessGrid(echo(), [{}] * _SENDERS, {})
        strategy.start(grid, model, num_rounds=_ROUNDS, callbacks=[Each(lambda _: seconds.append(time.process_time()))])
    return median(after - before for before, after in pairwise(seconds))


def of_rounds(rounds: int, look_after: Sequence[int]) -> tuple[list[float], list[float | None]]:
    """Seconds of each round of two nodes that train and evaluate, with a snapshot after every round.

    Also the resident megabytes of the process after the rounds ``look_after``, which ascend.
    """
    seconds: list[float] = []
    resident: dict[int, float | None] = {}

    def look(_: object) -> None:
        seconds.append(time.process_time())
        if len(seconds) in look_after:
            resident[len(seconds)] = resident_megabytes()

    with tempfile.TemporaryDirectory() as folder, flower_identity(), direct_arrays():
        BaseStrategy().start(
            InProcessGrid(echo(), [{}] * 2, {}),
            _model(),
            num_rounds=rounds,
            callbacks=[Each(look), Save(DiskCheckpoints(Path(folder)))],
        )
    return [after - before for before, after in pairwise(seconds)], [resident[number] for number in look_after]


def echo() -> ClientApp:
    """Nodes that return what they received."""
    app = ClientApp()

    @app.query("profile")
    def profile(message: Message, context: Context) -> Message:
        facts: dict[str, Any] = {KEY: f"node-{context.node_config['partition-id']}", NUM_EXAMPLES: 10}
        return Message(RecordDict({PROFILE: ConfigRecord(facts)}), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        metrics = MetricRecord({NUM_EXAMPLES: 10, "loss": 0.5})
        return Message(RecordDict({"arrays": message.content["arrays"], "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        metrics = MetricRecord({NUM_EXAMPLES: 10, "loss": 0.5, "accuracy": 0.5})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def _model() -> ArrayRecord:
    return to_record({"weight": np.zeros((10, 10), np.float32)})


if __name__ == "__main__":
    sys.exit(main())
