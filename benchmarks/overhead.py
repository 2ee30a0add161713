"""Seconds of a round on a fleet: ours beside Flower's own FedAvg.

One SuperLink and its SuperNodes serve both, one run after the other; a pair is a run of each, and the order within
it changes from pair to pair, so that a machine that grows slower favours neither. Clients hardly work: what is
measured is what a round costs around their work. The machine should have nothing else to do: every message starts a
Python process on every node.

Where the time goes. A round is two exchanges of messages, train and evaluate. A SuperNode looks for a message right
after it has replied and every 3 s from then on, and starts a process for what it finds. The last one to reply looks
before the server can have sent it anything: so an exchange takes 3 s and the start of a process at least, whatever the
strategy. Beyond that, Flower's grid looks for replies every 3 s and an exchange ends at one of its looks; ours
looks again after 0.02 s, and every 0.5 s in the end. Every array is a request of its own, to and from the SuperLink.

    python -m benchmarks.overhead --nodes 4 --rounds 10 --megabytes 0.01,10 --pairs 3
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapps.deployment.processes import FleetError
from fedapps.deployment.superlink import Deployment, deployment

from .paired import Pair, Took, report

Settings = dict[str, int | float | str]

APP = Path(__file__).with_name("overhead_app")
STRATEGIES = ("flower", "fedapps")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, and return the exit status: 1 when a run failed or the models differ."""
    given = parser().parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="fedapps-overhead-") as folder, deployment(Path(folder)) as fleet:
            _measure(fleet, given)
    except FleetError as error:
        print(f"overhead: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line; values out of range end it with what is allowed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead", description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=_at_least(2), default=4, help="SuperNodes (default 4)")
    parser.add_argument("--rounds", type=_at_least(2), default=10, help="of each run; the first is told apart")
    parser.add_argument(
        "--megabytes", type=_sizes, default=[0.01, 10.0], help="sizes of the model, comma between (default 0.01,10)"
    )
    parser.add_argument("--arrays", type=_at_least(1), default=20, help="in how many arrays the model is (default 20)")
    parser.add_argument("--pairs", type=_at_least(1), default=3, help="runs of each strategy and size (default 3)")
    return parser


def _measure(fleet: Deployment, given: argparse.Namespace) -> None:
    fleet.start_superlink()
    fleet.start_supernodes([{"partition-id": i, "num-partitions": given.nodes} for i in range(given.nodes)])
    print(f"{given.nodes} SuperNodes are connected; a first run unpacks the app on them and is not counted", flush=True)
    settings = {"nodes": given.nodes, "arrays": given.arrays}
    _run(fleet, settings | {"strategy": STRATEGIES[0], "rounds": 2, "megabytes": given.megabytes[0]})
    for megabytes in given.megabytes:
        run = settings | {"rounds": given.rounds, "megabytes": megabytes}
        pairs = [_pair(fleet, run, STRATEGIES if i % 2 == 0 else STRATEGIES[::-1]) for i in range(given.pairs)]
        print(f"\n{report(megabytes, pairs)}", flush=True)


def _pair(fleet: Deployment, settings: Settings, order: Iterable[str]) -> Pair:
    runs = {strategy: _run(fleet, settings | {"strategy": strategy}) for strategy in order}
    (theirs, their_arrays), (ours, our_arrays) = (runs[strategy] for strategy in STRATEGIES)
    both = list(zip(their_arrays, our_arrays, strict=True))
    difference = max(float(np.abs(a - b).max()) for a, b in both)
    if not all(np.allclose(a, b, atol=1e-6) for a, b in both):
        raise FleetError(f"the two strategies end with other parameters: they differ by {difference:g}")
    return Pair(theirs, ours, difference)


def _run(fleet: Deployment, settings: Settings) -> tuple[Took, list[NDArray[Any]]]:
    """What the rounds took, and the arrays they ended with. Raises ``FleetError`` with the log where the run failed."""
    log: list[str] = []
    with tempfile.TemporaryDirectory(dir=fleet.folder) as output:
        fleet.run(APP, settings | {"output": output}, log.append)
        told = Path(output, "rounds.json")
        if not told.exists():
            superlink = (fleet.folder / "superlink.log").read_text(errors="replace").splitlines()[-20:]
            raise FleetError("\n".join(["the run has failed; its log:", *log, "the SuperLink's:", *superlink]))
        took = Took.read(json.loads(told.read_text()))
        with np.load(Path(output, "arrays.npz")) as saved:
            arrays = [saved[name] for name in saved.files]
    print(f"{settings['strategy']}: {took.later:.2f} s a round", flush=True)
    return took, arrays


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value}: must be at least {least}")
        return value

    return number


def _sizes(text: str) -> list[float]:
    try:
        sizes = [float(size) for size in text.split(",")]
    except ValueError:
        sizes = [0.0]
    if not all(0 < size < inf for size in sizes):
        raise argparse.ArgumentTypeError(f"{text}: must be numbers above 0, comma between")
    return sizes


if __name__ == "__main__":
    sys.exit(main())
