"""What SuperNodes of one machine cost: when they start, while they are idle, and for a message.

Nodes of ``fedapps`` train `lqr` by FedAvg; Flower's own have a ClientApp of NumPy (``overhead_app``) and Flower's
FedAvg. The first run has a round of all nodes, the second has two. Each round has a message that trains and one that
evaluates; our runs begin with one that asks for the profile. Processor time and memory (proportional set size) are
those of all processes of a node. A run that does not end within its minutes ends the measurement of its side; what
comes after it has no value.

    python -m benchmarks.supernodes --nodes 12
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from fedapps.base.processes import descendants, process_facts
from fedapps.config.parsing import Config, parse
from fedapps.deployment.superlink import Deployment, deployment
from fedapps.launch.inputs import APP, resolve
from fedapps.runs.run_folder import RunFolder

from . import overhead
from .commands import append, new_parser, run, show
from .sides import proportional_megabytes

OURS, FLOWER = "fedapps", "Flower"
RUN = {
    "task": "lqr", "methods": "fedavg", "epochs": 1, "batch-size": 32, "evaluate-every": 1, "collect-after": 0,
}  # fmt: skip
#: Rounds of the first run and of the second.
ROUNDS = (1, 2)
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Row:
    """What a node costs on average; None where it was not measured.

    Attributes
    ----------
    nodes : int
        On the machine.
    side : str
        Whose nodes.
    start : float
        Seconds of processor time until all are connected and idle.
    idle : float
        Milliseconds of processor time in a second without messages, before the first run.
    idle_megabytes : float
        Memory at the end of this time.
    used, used_megabytes : float
        The same directly after the last run. Five minutes later, ours is again as before the first.
    first, later : float
        Seconds of processor time for a message of the first run, and of the second.
    wall : float
        Seconds of a later round by the clock.
    """

    nodes: int
    side: str
    start: float
    idle: float
    idle_megabytes: float
    used: float | None = None
    used_megabytes: float | None = None
    first: float | None = None
    later: float | None = None
    wall: float | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table."""
    parser = new_parser("supernodes", __doc__)
    parser.add_argument("--nodes", type=int, default=12, help="number of SuperNodes (default 12)")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long idle nodes are measured (default 60)")
    parser.add_argument("--minutes", type=float, default=20.0, help="the longest time of a run (default 20)")
    return run(parser, _run, arguments)


def _run(options: argparse.Namespace) -> None:
    rows = []
    for side in (OURS, FLOWER):
        with tempfile.TemporaryDirectory(prefix="fedapps-supernodes-") as folder:
            rows.append(asdict(measured(options.nodes, side, options.seconds, options.minutes, Path(folder))))
        append(rows[-1:], options.json)  # each side at once: the other one may fail
    show(rows, "")


def measured(nodes: int, side: str, seconds: float, minutes: float, folder: Path) -> Row:
    """Start nodes, let them wait, run twice, let them wait again."""
    with deployment(folder / "fleet", plain=side == FLOWER) as fleet:
        fleet.start_superlink()
        fleet.start_supernodes([{"partition-id": index, "num-partitions": nodes} for index in range(nodes)])
        _wait_until_idle(fleet)
        start = _processor_seconds(fleet) / nodes
        row = Row(nodes, side, start, *_waiting(fleet, seconds))
        print(row, flush=True)
        for rounds in ROUNDS:
            try:
                with _at_most(60 * minutes):
                    cost, wall = (_of_ours if side == OURS else _of_flower)(fleet, nodes, rounds, folder)
            except TimeoutError:
                print(f"{side}: a run with {rounds} rounds did not end within {minutes:g} minutes", flush=True)
                return row
            row = replace(row, first=cost) if row.first is None else replace(row, later=cost)
            row = replace(row, wall=wall)
            print(row, flush=True)
        _wait_until_idle(fleet)
        used, used_megabytes = _waiting(fleet, seconds)
        return replace(row, used=used, used_megabytes=used_megabytes)


def _of_ours(fleet: Deployment, nodes: int, rounds: int, folder: Path) -> tuple[float, float]:
    """Seconds of processor time for a message of ``lqr``, and seconds of a round by the clock."""
    config = _config(nodes, rounds, f"run-{rounds}", folder)
    # The messages of the rounds, and one message that asks for the profile.
    cost = _cost(fleet, APP, config.flat(), nodes * (1 + 2 * rounds))
    lines = RunFolder(Path(config.run.output_dir) / config.run.name, "").lines("metrics.jsonl")
    return cost, fmean(line["seconds"] for line in lines)


def _config(nodes: int, rounds: int, name: str, folder: Path) -> Config:
    keys = {**RUN, "num-nodes": nodes, "rounds": rounds, "name": name, "cache-dir": str(folder / "worlds")}
    return parse(resolve(keys, str(folder)))


def _of_flower(fleet: Deployment, nodes: int, rounds: int, folder: Path) -> tuple[float, float]:
    """The same for the app that computes with NumPy."""
    config = {
        "strategy": "flower", "nodes": nodes, "rounds": rounds, "arrays": 4, "megabytes": 0.01,
        "as-fedapps": False, "output": str(fleet.folder),
    }  # fmt: skip
    cost = _cost(fleet, overhead.APP, config, nodes * 2 * rounds)
    return cost, fmean(json.loads((fleet.folder / "rounds.json").read_text(encoding="utf-8"))["seconds"])


def _cost(fleet: Deployment, app: Path, run_config: dict[str, Any], messages: int) -> float:
    """Seconds of processor time of the nodes for each message of a run."""
    before, lines = _processor_seconds(fleet), list[str]()
    fleet.run(app, run_config, lines.append)
    if any("ERROR" in line for line in lines):
        raise RuntimeError("\n".join(["the run failed; its log:", *lines]))
    return (_processor_seconds(fleet) - before) / messages


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Raise ``TimeoutError`` in the main thread after these seconds."""

    def end(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _wait_until_idle(fleet: Deployment) -> None:
    """Wait until at most every fourth node has something to compute: a node goes on to start after it has connected."""
    busy = float(len(fleet.nodes))
    while busy > len(fleet.nodes) / 4:
        looks = []
        for _ in range(10):
            time.sleep(0.5)
            states = [facts[0] for pid in _processes(fleet) if (facts := process_facts(pid))]
            looks.append(states.count("R"))
        busy = fmean(looks)


def _waiting(fleet: Deployment, seconds: float) -> tuple[float, float]:
    """Milliseconds of processor time of a node in a second, and its megabytes, while there are no messages."""
    before, begun = _processor_seconds(fleet), time.monotonic()
    time.sleep(seconds)
    spent = 1000 * (_processor_seconds(fleet) - before) / (time.monotonic() - begun)
    return spent / len(fleet.nodes), sum(map(proportional_megabytes, _processes(fleet))) / len(fleet.nodes)


def _processes(fleet: Deployment) -> list[int]:
    """The processes of all nodes."""
    roots = [node.process.pid for node in fleet.nodes]
    return [*roots, *descendants(*roots)]


def _processor_seconds(fleet: Deployment) -> float:
    """What the processes of all nodes have spent so far, with those of their children that have ended."""
    facts = [process_facts(pid) for pid in _processes(fleet)]
    return sum(sum(map(int, fields[11:15])) for fields in facts if fields) / _TICK


if __name__ == "__main__":
    sys.exit(main())
