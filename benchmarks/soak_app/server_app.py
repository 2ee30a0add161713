"""FedAvg with a snapshot after every round; a resubmitted run resumes from the last one."""

import json
from pathlib import Path

import numpy as np
from fedapps.strategies import BaseStrategy, Each, RoundReport, Save, UniformFraction
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from fedapps.base.atomic import write_whole
from fedapps.runs.checkpoints import DiskCheckpoints

PARAMETERS = 50_000

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the remaining rounds; write snapshots, and one file per round into ``output/rounds``."""
    config = context.run_config
    output = Path(str(config["output"]))

    def record(report: RoundReport) -> None:
        used = sorted(node.node for node in report.nodes if node.phase == "train")
        refused = [(refusal.node, refusal.phase, refusal.reason) for refusal in report.refused]
        facts = {"asked": report.train_messages, "used": used, "refused": refused}
        write_whole(output / "rounds" / f"{report.round:06d}.json", json.dumps(facts).encode())

    strategy = BaseStrategy(
        sampler=UniformFraction(float(config["fraction"])),
        weighting="uniform",
        min_nodes=int(config["nodes"]),
        in_flight=int(config["in-flight"]),
        profiles=True,
    )
    strategy.start(
        grid,
        initial_arrays(),
        num_rounds=int(config["rounds"]),
        timeout=float(config["timeout"]),
        evaluate_every=int(config["rounds"]),
        callbacks=[Each(record), Save(DiskCheckpoints(output / "checkpoints"), resume=True)],
    )
    write_whole(output / "finished", b"")


def initial_arrays() -> ArrayRecord:
    """The initial parameters: zeros."""
    return ArrayRecord({"parameters": Array(np.zeros(PARAMETERS, np.float32))})
