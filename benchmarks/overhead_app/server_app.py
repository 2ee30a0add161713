"""Run Flower's FedAvg or ``BaseStrategy``, and measure each round in the same way for both.

A round lasts from one call of ``evaluate_fn`` to the next; both strategies call it after every evaluation.
"""

import json
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
from fedapps.sim.flower_internals import ask_again_after
from fedapps.strategies import BaseStrategy, PackedGrid
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds; write ``rounds.json`` and ``arrays.npz`` into the folder ``output``."""
    config = context.run_config
    if config["as-fedapps"]:
        ask_again_after()
        grid = PackedGrid(grid)
    nodes = int(config["nodes"])
    strategies: dict[str, Strategy] = {
        "flower": FedAvg(min_train_nodes=nodes, min_evaluate_nodes=nodes, min_available_nodes=nodes),
        "fedapps": BaseStrategy(min_nodes=nodes, min_replies=nodes),
    }
    times: list[float] = []

    def note(server_round: int, arrays: ArrayRecord) -> None:
        times.append(time.time())

    result = strategies[str(config["strategy"])].start(
        grid=grid,
        initial_arrays=make_arrays(float(config["megabytes"]), int(config["arrays"])),
        num_rounds=int(config["rounds"]),
        evaluate_fn=note,
    )
    output = Path(str(config["output"]))
    seconds = [after - before for before, after in pairwise(times)]
    np.savez(output / "arrays.npz", *result.arrays.to_numpy_ndarrays())
    measured = {"seconds": seconds, "peak_megabytes": peak_megabytes()}
    (output / "rounds.json").write_text(json.dumps(measured), encoding="utf-8")


def make_arrays(megabytes: float, count: int) -> ArrayRecord:
    """``count`` random float32 arrays of equal length, at least 1, with a total size of ``megabytes``."""
    length = max(1, round(megabytes * 1e6 / 4 / count))
    rng = np.random.default_rng(0)
    return ArrayRecord([rng.normal(size=length).astype(np.float32) for _ in range(count)])


def peak_megabytes() -> float:
    """Peak memory of this process. ``ru_maxrss`` is not used, because it is inherited from the parent process."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("\nVmHWM:")[2].split()[0]) * 1024 / 1e6
