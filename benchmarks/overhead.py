"""Overhead of a round on a fleet: ``BaseStrategy`` compared with Flower's ``FedAvg``.

Both strategies use the same SuperLink and SuperNodes, one run after the other. A pair is one run of each; the order
alternates between pairs, so that a slow drift of the machine's speed favours neither. The nodes do almost no work, so
the benchmark measures the cost of everything else. Run it on an otherwise idle machine, because each message starts a
Python process on each node.

Where the time goes: a round has two exchanges of messages, train and evaluate. Flower's SuperNode polls for messages
directly after each reply and then every 3 s, starts a process for each message, unpacks the app, and waits for 1 s when
an array is not there yet. Those of :mod:`fedapps.deployment.supernode` do none of it; ``--flower-nodes`` measures
the reference on Flower's own, and our side with packed arrays and the server's short pauses between two requests for
one, as in :mod:`fedapps.app.server_app`. Flower's grid polls for replies every 3 s, ``BaseStrategy`` after 0.02 s, then
less often, up to every 0.5 s. Each array that is not packed is sent in a separate request to and from the SuperLink.

    python -m benchmarks.overhead --nodes 4 --rounds 10 --megabytes 0.01,10 --pairs 3
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapps.base.report.numbers import number
from fedapps.base.report.tables import text_table
from fedapps.deployment.processes import FleetError
from fedapps.deployment.superlink import Deployment, deployment

from .sides import Row

_HEADER = ("seconds", "first round", "later rounds", "nodes", "fetch", "server", "peak MB")


@dataclass(frozen=True)
class RunTime:
    """Times of one run in seconds. Times of later rounds are means, because Flower's grid polls only every 3 s.

    Attributes
    ----------
    first : float
        Duration of the first round.
    later : float
        Duration of a later round.
    nodes : float
        Time in a later round until the last node has replied, summed over its exchanges.
    fetch : float
        Time in a later round from then until the server has fetched that reply, summed over its exchanges.
    peak : float
        Peak memory of the ServerApp process in megabytes.
    """

    first: float
    later: float
    nodes: float
    fetch: float
    peak: float

    @classmethod
    def read(cls, measured: Mapping[str, Any]) -> "RunTime":
        """Parse the ``rounds.json`` that the ServerApp wrote.

        Raises
        ------
        ValueError
            If it has fewer than two rounds.
        """
        first, *others = measured["rounds"]
        if not others:
            raise ValueError("only one round was measured: at least two are needed, because the first is separate")
        later, nodes, fetch = (fmean(one[part] for one in others) for part in ("seconds", "nodes", "fetch"))
        return cls(first["seconds"], later, nodes, fetch, measured["peak_megabytes"])

    @property
    def server(self) -> float:
        """Time in a later round in which the server neither waits for nodes nor fetches the last reply."""
        return self.later - self.nodes - self.fetch

    def cells(self) -> list[float]:
        """The values in the order of the table's columns."""
        return [self.first, self.later, self.nodes, self.fetch, self.server, self.peak]


@dataclass(frozen=True)
class Pair:
    """One run of each strategy, directly after each other; ``difference`` is that of their final parameters."""

    flower: RunTime
    ours: RunTime
    difference: float

    def ratio(self) -> float:
        """Duration of a later round, ours divided by Flower's; below 1 if ours is faster."""
        return self.ours.later / self.flower.later


def row(nodes: int, megabytes: float, pairs: Sequence[Pair], reference: str) -> Row:
    """The later rounds of one model size as a row of all measurements of speed."""
    ratios = sorted(pair.ratio() for pair in pairs)
    ours, flower = (
        [median(getattr(getattr(pair, side), part) for pair in pairs) for part in ("later", "peak")]
        for side in ("ours", "flower")
    )
    return Row(
        name=f"round of {nodes} nodes, {megabytes:g} MB [s]", side=reference, ours=ours[0], reference=flower[0],
        ratio=median(ratios), least=ratios[0], most=ratios[-1], goal="", setup=f"wall clock; {len(pairs)} pairs",
        ours_megabytes=ours[1], reference_megabytes=flower[1],
    )  # fmt: skip


def report(megabytes: float, pairs: Sequence[Pair], reference: str = "Flower's FedAvg") -> str:
    """The table of one model size: medians over the pairs, and the ratio of the durations."""
    sides = {reference: [pair.flower for pair in pairs], "BaseStrategy": [pair.ours for pair in pairs]}
    rows = [
        [name, *(number(median(column)) for column in zip(*(run.cells() for run in runs), strict=True))]
        for name, runs in sides.items()
    ]
    ratios = sorted(pair.ratio() for pair in pairs)
    return (
        f"{megabytes:g} MB\n{text_table(_HEADER, rows)}\n"
        f"later rounds, ours / Flower's: {median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f} in {len(pairs)} "
        f"pairs); final parameters differ by at most {max(pair.difference for pair in pairs):.1g}"
    )


Settings = dict[str, int | float | str]

APP = Path(__file__).with_name("overhead_app")
STRATEGIES = ("flower", "fedapps")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print the tables; returns 1 if a run failed or the final models differ, else 0."""
    options = parser().parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="fedapps-overhead-") as folder, ExitStack() as stack:
            fleets = [stack.enter_context(deployment(Path(folder) / "ours"))]
            if options.flower_nodes:
                fleets.append(stack.enter_context(deployment(Path(folder) / "reference", plain=True)))
            _measure(fleets, options)
    except FleetError as error:
        print(f"overhead: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def parser() -> argparse.ArgumentParser:
    """The parser of the command line; it refuses values that are out of range."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead", description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=_at_least(2), default=4, help="number of SuperNodes (default 4)")
    parser.add_argument(
        "--rounds", type=_at_least(2), default=10, help="rounds per run; the first is reported separately (default 10)"
    )
    parser.add_argument(
        "--megabytes", type=_sizes, default=[0.01, 10.0], help="model sizes, separated by commas (default 0.01,10)"
    )
    parser.add_argument("--arrays", type=_at_least(1), default=20, help="number of arrays in the model (default 20)")
    parser.add_argument(
        "--flower-nodes", choices=STRATEGIES, help="run the reference on Flower's own SuperNodes, with this strategy"
    )
    parser.add_argument("--json", default="", help="append the rows to this file, as JSON lines")
    parser.add_argument("--pairs", type=_at_least(1), default=3, help="runs per strategy and model size (default 3)")
    return parser


def _measure(fleets: Sequence[Deployment], options: argparse.Namespace) -> None:
    """Measure both sides; ours is that of the first fleet, and the reference that of the last."""
    strategy, reference = options.flower_nodes or STRATEGIES[0], "Flower's FedAvg"
    if options.flower_nodes:
        reference = f"{'on' if strategy == STRATEGIES[1] else reference + ' on'} Flower's SuperNodes"
    settings: Settings = {"nodes": options.nodes, "arrays": options.arrays, "as-fedapps": False}
    sides: dict[str, tuple[Deployment, Settings]] = {
        STRATEGIES[0]: (fleets[-1], {"strategy": strategy}),
        STRATEGIES[1]: (fleets[0], {"strategy": STRATEGIES[1], "as-fedapps": bool(options.flower_nodes)}),
    }
    for fleet in fleets:
        fleet.start_superlink()
        fleet.start_supernodes([{"partition-id": i, "num-partitions": options.nodes} for i in range(options.nodes)])
        print(
            f"{options.nodes} SuperNodes are connected; the first run installs the app and is not measured", flush=True
        )
        _run(fleet, settings | {"strategy": STRATEGIES[0], "rounds": 2, "megabytes": options.megabytes[0]})
    for megabytes in options.megabytes:
        run = settings | {"rounds": options.rounds, "megabytes": megabytes}
        pairs = [_pair(sides, run, STRATEGIES if i % 2 == 0 else STRATEGIES[::-1]) for i in range(options.pairs)]
        print(f"\n{report(megabytes, pairs, reference)}", flush=True)
        if options.json:
            with Path(options.json).open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(asdict(row(options.nodes, megabytes, pairs, reference))) + "\n")


def _pair(sides: Mapping[str, tuple[Deployment, Settings]], settings: Settings, order: Iterable[str]) -> Pair:
    runs = {side: _run(sides[side][0], settings | sides[side][1]) for side in order}
    (theirs, their_arrays), (ours, our_arrays) = (runs[side] for side in STRATEGIES)
    both = list(zip(their_arrays, our_arrays, strict=True))
    difference = max(float(np.abs(a - b).max()) for a, b in both)
    if not all(np.allclose(a, b, atol=1e-6) for a, b in both):
        raise FleetError(f"the final parameters of the two strategies differ by {difference:g}")
    return Pair(theirs, ours, difference)


def _run(fleet: Deployment, settings: Settings) -> tuple[RunTime, list[NDArray[Any]]]:
    """Measure one run; returns its times and final arrays. Raises ``FleetError`` with the log if the run failed."""
    log: list[str] = []
    with tempfile.TemporaryDirectory(dir=fleet.folder) as output:
        fleet.run(APP, settings | {"output": output}, log.append)
        measured = Path(output, "rounds.json")
        if not measured.exists():
            superlink = (
                (fleet.folder / "superlink.log").read_text(errors="replace", encoding="utf-8").splitlines()[-20:]
            )
            raise FleetError("\n".join(["the run failed; its log:", *log, "end of the SuperLink's log:", *superlink]))
        run_time = RunTime.read(json.loads(measured.read_text(encoding="utf-8")))
        with np.load(Path(output, "arrays.npz")) as saved:
            arrays = [saved[name] for name in saved.files]
    print(f"{settings['strategy']}: {run_time.later:.2f} s per round", flush=True)
    return run_time, arrays


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
        raise argparse.ArgumentTypeError(f"{text}: must be numbers above 0, separated by commas")
    return sizes


if __name__ == "__main__":
    sys.exit(main())
