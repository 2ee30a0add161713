"""Cost of secure aggregation: seconds and bytes of a node and of the server in a round, as a ratio to a plain round.

Nodes return what they received, so nothing is measured but the aggregation: messages, encoding, masks and shares. Some
of the nodes drop out after the shares.

    python -m benchmarks.secure_aggregation --nodes 100 --neighbours 0 --dropouts 5
"""

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from fedapps.sim.inprocess import run_inprocess
from fedapps.strategies import BaseStrategy, Each, RoundReport, SecureAggregation, secagg_mod, secagg_query, to_record
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.client import ClientApp
from flwr.serverapp import Grid, ServerApp

from .commands import new_parser, run, show


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its row."""
    parser = new_parser("secure_aggregation", __doc__)
    parser.add_argument("--nodes", type=int, default=10, help="number of nodes (default 10)")
    parser.add_argument("--neighbours", type=int, default=0, help="of each node; 0 = all others (default)")
    parser.add_argument("--dropouts", type=int, default=0, help="nodes that drop out after the shares (default 0)")
    parser.add_argument("--parameters", type=int, default=10**6, help="of the model, float32 (default 1,000,000)")
    parser.add_argument("--rounds", type=int, default=2, help="the last one is measured (default 2)")
    return run(parser, _run, arguments)


def _run(options: argparse.Namespace) -> None:
    plain = measured(None, options.nodes, options.parameters, 0, options.rounds)
    part = SecureAggregation(options.neighbours)
    secure = measured(part, options.nodes, options.parameters, options.dropouts, options.rounds)
    ratios = {f"{name} ratio": secure[name] / plain[name] for name in plain if name != "node [s]"}
    row = {"nodes": options.nodes, "neighbours": options.neighbours or options.nodes - 1, "dropouts": options.dropouts}
    row |= {
        "parameters": options.parameters,
        **secure,
        **{f"plain {name}": value for name, value in plain.items()},
        **ratios,
    }
    show([row], options.json)


def measured(
    part: SecureAggregation | None, nodes: int, parameters: int, dropouts: int, rounds: int
) -> dict[str, float]:
    """The CPU seconds of the busiest node and of the server in the last round, and the bytes of a node that stays."""
    app, seconds, reports = ClientApp(), dict[int, float](), list[RoundReport]()

    @app.train(mods=[secagg_mod])
    def train(message: Message, context: Context) -> Message:
        if part and int(str(context.node_config["partition-id"])) < dropouts:
            raise RuntimeError("dropped out")
        content = {"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)

    app.query("secagg")(secagg_query)

    def timed(message: Message, context: Context) -> Message:
        begun = time.process_time()
        try:
            return app(message, context)
        finally:
            seconds[context.node_id] = seconds.get(context.node_id, 0.0) + time.process_time() - begun

    server, of_server = ServerApp(), list[float]()

    @server.main()
    def run(grid: Grid, context: Context) -> None:
        begun = time.process_time()

        def note(report: RoundReport) -> None:
            nonlocal begun
            reports.append(report)
            of_server.append(time.process_time() - begun - sum(seconds.values()))
            busiest.append(max(seconds.values()))
            seconds.clear()
            begun = time.process_time()

        strategy = BaseStrategy(
            weighting="uniform", secure_aggregation=part, fraction_evaluate=0.0, node_wait=0.0, profiles=False
        )
        arrays = to_record({"w": np.random.default_rng(0).normal(size=parameters).astype(np.float32)})
        strategy.start(grid, arrays, num_rounds=rounds, callbacks=[Each(note)])

    busiest = list[float]()
    client: Any = timed
    run_inprocess(server, client, num_nodes=nodes, errors="reply")
    up = reports[-1].bytes_up / (nodes - dropouts)
    return {
        "node [s]": busiest[-1],
        "server [s]": of_server[-1],
        "bytes up": up,
        "bytes down": reports[-1].bytes_down / nodes,
    }


if __name__ == "__main__":
    sys.exit(main())
