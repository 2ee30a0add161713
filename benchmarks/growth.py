"""How the cost of a round grows with the number of nodes and with the number of rounds.

The nodes do nothing: they return what they received. The grid is that of the in-process engine. Times are CPU times.

    python -m benchmarks.growth --nodes 1000 10000 100000 --cohort 100
    python -m benchmarks.growth --rounds 10000
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedapps.runs.checkpoints import DiskCheckpoints
from fedapps.runs.tables import number, text_table
from sim.direct_arrays import direct_arrays
from sim.inprocess import InProcessGrid, flower_identity
from strategies.arrays import to_record
from strategies.base import BaseStrategy
from strategies.samplers import UniformFraction
from strategies.wire import KEY, NUM_EXAMPLES, PROFILE

_ROUNDS = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its tables."""
    given = parser().parse_args(arguments)
    if given.nodes:
        rows = [(str(nodes), *map(number, of_nodes(nodes, min(given.cohort, nodes)))) for nodes in given.nodes]
        print(text_table(("nodes", "profiles [s]", "round [s]"), rows), flush=True)
    if given.rounds:
        seconds = of_rounds(given.rounds)
        tenths = [seconds[given.rounds * i // 10 : given.rounds * (i + 1) // 10] for i in range(10)]
        rows = [(str(given.rounds * i // 10 + 1), number(median(tenth) * 1000)) for i, tenth in enumerate(tenths)]
        print(text_table(("from round", "round [ms]"), rows), flush=True)
    return 0


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[], help="numbers of connected nodes")
    parser.add_argument("--cohort", type=int, default=100, help="nodes that train in a round (default 100)")
    parser.add_argument("--rounds", type=int, default=0, help="rounds of a run of two nodes with checkpoints")
    return parser


def of_nodes(nodes: int, cohort: int) -> tuple[float, float]:
    """Seconds to learn the profiles of all nodes, and seconds of a later round in which ``cohort`` of them train."""
    strategy = BaseStrategy(sampler=UniformFraction(cohort / nodes), evaluate_sampler=UniformFraction(0.0))
    grid, seconds = InProcessGrid(echo(), [{}] * nodes, {}), []
    with flower_identity(), direct_arrays():
        begun = time.process_time()
        strategy.registry.connected(grid)
        profiles = time.process_time() - begun
        strategy.start(grid, _model(), num_rounds=_ROUNDS, on_round=lambda _: seconds.append(time.process_time()))
    return profiles, median(after - before for before, after in pairwise(seconds))


def of_rounds(rounds: int) -> list[float]:
    """Seconds of each round of two nodes that train and evaluate, with a snapshot after every round."""
    seconds: list[float] = []
    with tempfile.TemporaryDirectory() as folder, flower_identity(), direct_arrays():
        BaseStrategy().start(
            InProcessGrid(echo(), [{}] * 2, {}),
            _model(),
            num_rounds=rounds,
            checkpoints=DiskCheckpoints(Path(folder)),
            on_round=lambda _: seconds.append(time.process_time()),
        )
    return [after - before for before, after in pairwise(seconds)]


def echo() -> ClientApp:
    """Nodes that return what they received."""
    app = ClientApp()

    @app.query("profile")
    def profile(message: Message, context: Context) -> Message:
        facts: dict[str, str | int] = {KEY: f"node-{context.node_config['partition-id']}", NUM_EXAMPLES: 10}
        return Message(RecordDict({PROFILE: ConfigRecord({**facts})}), reply_to=message)

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
