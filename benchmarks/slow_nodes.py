"""What slow nodes cost on real processes: a fleet of six SuperNodes, two of which get a fifth of the processor.

The workers of the slow nodes are stopped for four fifths of every second. Three methods train on the same fleet, one
after another: FedAvg that waits for all, with a deadline, and asynchronously (FedBuff). Each row has the seconds until
as many updates are in, and until the training loss is as low as FedAvg's in the middle of its run.

    python -m benchmarks.slow_nodes --rounds 16 --json rows.json
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import accumulate
from pathlib import Path
from typing import Any

from fedapps.config.parsing import parse
from fedapps.deployment.superlink import deployment
from fedapps.launch.app_folder import APP
from fedapps.launch.launch import resolve
from fedapps.runs.run_folder import RunFolder
from fedapps.runs.tables import text_table

from .faults import FaultyFleet

NODES, SLOW = 6, (0, 1)
METHODS = {
    "fedavg": "waits for all",
    "fedavg(run.deadline=8)": "deadline of 8 s",
    "fedavg(run.mode=async,run.buffer=3)": "FedBuff, 3 updates a step",
}
RUN = {
    "task": "lqr",
    "num-nodes": NODES,
    "epochs": 1,
    "batch-size": 32,
    "collect-after": 0,
    "deadline": 3600.0,
    "name": "run",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table."""
    given = parser().parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        rounds = measured(Path(folder), given.rounds, given.factor)
    rows = list(compared(rounds))
    columns = ("method", "updates", "seconds", "seconds to the loss")
    print(text_table(columns, [[str(row[name]) for name in columns] for row in rows]))
    if given.json:
        with Path(given.json).open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    return 0


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.slow_nodes", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=16, help="rounds or steps of each method (default 16)")
    parser.add_argument("--factor", type=float, default=5.0, help="how much slower the two nodes are (default 5)")
    parser.add_argument("--json", default="", help="append the rows to this file, as JSON lines")
    return parser


def measured(folder: Path, rounds: int, factor: float) -> Mapping[str, list[Mapping[str, Any]]]:
    """The lines of ``metrics.jsonl`` of each method, without the last round, which evaluates."""
    given = RUN | {"methods": ",".join(METHODS), "rounds": rounds, "evaluate-every": rounds}
    config = parse(resolve(given | {"cache-dir": str(folder / "worlds")}, str(folder)))
    nodes = [{"partition-id": index, "num-partitions": NODES} for index in range(NODES)]
    with deployment(folder / "fleet") as deployed, ExitStack() as slowed:
        fleet = FaultyFleet(deployed, APP, config.flat(), nodes)
        fleet.start()
        for index in SLOW:
            slowed.enter_context(fleet.slowed(index, factor))
        fleet.submit()
        fleet.wait_until_ended()
    lines = RunFolder(config.run.folder(0), "").lines("metrics.jsonl")
    return {method: [row for row in lines if row["method"] == method and row["round"] < rounds] for method in METHODS}


def compared(rounds: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Seconds of each method to the same number of updates, and to the same training loss."""
    waits = rounds["fedavg"]
    wanted = min(sum(row["replies"] for row in of_method) for of_method in rounds.values())
    target = waits[len(waits) // 2]["train"]["loss"]
    rows: list[dict[str, Any]] = []
    for method, of_method in rounds.items():
        seconds = list(accumulate(row["seconds"] for row in of_method))
        updates = list(accumulate(row["replies"] for row in of_method))
        losses = [row["train"]["loss"] for row in of_method]
        enough = next(i for i, count in enumerate(updates) if count >= wanted)
        low = next((i for i, loss in enumerate(losses) if loss <= target), None)
        facts = {"method": method, "words": METHODS[method], "updates": updates[enough], "loss": target}
        to_loss = None if low is None else round(seconds[low], 1)
        rows.append(facts | {"seconds": round(seconds[enough], 1), "seconds to the loss": to_loss})
    return rows


if __name__ == "__main__":
    sys.exit(main())
