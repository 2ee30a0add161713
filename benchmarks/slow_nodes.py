"""What slow nodes cost on real processes: a fleet of six SuperNodes, two of which get a fifth of the processor.

The workers of the slow nodes are stopped for four fifths of every second. Three methods train on the same fleet, one
after another: FedAvg that waits for all, then with a deadline of 1.5 times the median seconds of a reply, and FedBuff,
whose steps take three updates where a round takes six, and which takes twice as many. Each row has the seconds until as
many updates are in, and until the training loss is as low as FedAvg's in the middle of its run.

    python -m benchmarks.slow_nodes --rounds 8 --json rows.json
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any

from fedapps.config.parsing import parse
from fedapps.deployment.superlink import deployment
from fedapps.launch.inputs import APP, resolve
from fedapps.runs.run_folder import RunFolder

from .commands import new_parser, run, show
from .faults import FaultyFleet

NODES, SLOW = 6, (0, 1)
#: The paces by their names in the table: keys of the run, and steps in the time of a round of FedAvg.
PACES: dict[str, tuple[dict[str, Any], int]] = {
    "waits for all": ({"deadline": 3600.0}, 1),
    "deadline": ({}, 1),
    "FedBuff": ({"mode": "async", "buffer": 3, "deadline": 3600.0}, 2),
}
RUN = {"task": "lqr", "methods": "fedavg", "num-nodes": NODES, "epochs": 1, "batch-size": 32, "collect-after": 0}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table."""
    parser = new_parser("slow_nodes", __doc__)
    parser.add_argument("--rounds", type=int, default=8, help="rounds of FedAvg (default 8)")
    parser.add_argument("--factor", type=float, default=5.0, help="how much slower the two nodes are (default 5)")
    return run(parser, _run, arguments)


def _run(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        show(compared(measured(Path(folder), options.rounds, options.factor)), options.json)


def measured(folder: Path, rounds: int, factor: float) -> dict[str, list[Mapping[str, Any]]]:
    """The lines of ``metrics.jsonl`` of each pace, without the last round, which evaluates."""
    lines: dict[str, list[Mapping[str, Any]]] = {}
    config = parse(resolve({**RUN, "cache-dir": str(folder / "worlds")}, str(folder)))
    nodes = [{"partition-id": index, "num-partitions": NODES} for index in range(NODES)]
    with deployment(folder / "fleet") as deployed, ExitStack() as slowed:
        fleet = FaultyFleet(deployed, APP, config.flat(), nodes)
        fleet.start()
        for index in SLOW:
            slowed.enter_context(fleet.slowed(index, factor))
        deadline = 0.0
        for pace, (keys, times) in PACES.items():
            name, steps = pace.replace(" ", "-"), rounds * times
            fleet.submit(**{"name": name, "rounds": steps, "evaluate-every": steps, "deadline": deadline, **keys})
            fleet.wait_until_ended()
            ended = RunFolder(Path(config.run.output_dir) / name, "")
            lines[pace] = [row for row in ended.lines("metrics.jsonl") if row["round"] < steps]
            replies = [row["seconds"] for row in ended.lines("nodes.jsonl") if row["phase"] == "train"]
            deadline = deadline or 1.5 * median(replies)
    return lines


def compared(rounds: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Seconds of each pace to the same number of updates, and to the same training loss."""
    waits = next(iter(rounds.values()))
    wanted = min(sum(row["replies"] for row in of_pace) for of_pace in rounds.values())
    loss = waits[len(waits) // 2]["train"]["loss"]
    rows: list[dict[str, Any]] = []
    for pace, of_pace in rounds.items():
        seconds = list(accumulate(row["seconds"] for row in of_pace))
        updates = list(accumulate(row["replies"] for row in of_pace))
        enough = next(i for i, count in enumerate(updates) if count >= wanted)
        low = next((i for i, row in enumerate(of_pace) if row["train"]["loss"] <= loss), None)
        to_loss = None if low is None else round(seconds[low], 1)
        facts = {"pace": pace, "updates": updates[enough], "seconds": round(seconds[enough], 1), "loss": loss}
        rows.append(facts | {"seconds to the loss": to_loss})
    return rows


if __name__ == "__main__":
    sys.exit(main())
