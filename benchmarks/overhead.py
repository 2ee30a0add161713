"""Overhead of a round on a fleet: our SuperNodes compared with Flower's own.

A pair is one run on each of two fleets; the order alternates between pairs, so that a slow drift of the machine's speed
favours neither. The nodes do almost no work, so the benchmark measures the cost of everything else. Run it on an
otherwise idle machine, because each message starts a Python process on each of Flower's nodes. The first run on a fleet
installs the app and is not measured; of later ones, the first round is left out, and the others are averaged, because
Flower's grid polls only every 3 s.

Where the time goes: a round has two exchanges of messages, train and evaluate. Flower's SuperNode polls for messages
directly after each reply and then every 3 s, starts a process for each message, unpacks the app, and waits for 1 s when
an array is not there yet. Those of :mod:`fedapps.deployment.supernode` do none of it; our side also has packed arrays
and the server's short pauses between two requests for one, as in :mod:`fedapps.app.server_app`. Flower's grid polls for
replies every 3 s, ``BaseStrategy`` after 0.02 s, then less often, up to every 0.5 s. Each array that is not packed is
sent in a separate request to and from the SuperLink.

    python -m benchmarks.overhead --nodes 4 --rounds 10 --megabytes 10 --pairs 3
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapps.deployment.processes import FleetError
from fedapps.deployment.superlink import Deployment, deployment

from .commands import new_parser, run
from .sides import alternate, compare, show

APP = Path(__file__).with_name("overhead_app")
OURS = "fedapps"


@dataclass(frozen=True)
class Run:
    """Mean seconds of a later round, peak megabytes of the ServerApp's process, and the final arrays of a run."""

    later: float
    peak: float
    arrays: list[NDArray[Any]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table."""
    parser = new_parser("overhead", __doc__)
    parser.add_argument("--nodes", type=int, default=4, help="number of SuperNodes, at least 2 (default 4)")
    parser.add_argument("--rounds", type=int, default=10, help="rounds of a run, at least 2 (default 10)")
    parser.add_argument("--megabytes", type=float, default=10.0, help="size of the model (default 10)")
    parser.add_argument("--arrays", type=int, default=20, help="number of arrays in the model (default 20)")
    parser.add_argument(
        "--flower-nodes", choices=("flower", OURS), default=OURS, help="strategy on Flower's SuperNodes (default ours)"
    )
    parser.add_argument("--pairs", type=int, default=3, help="runs on each fleet (default 3)")
    return run(parser, _run, arguments)


def _run(options: argparse.Namespace) -> None:
    reference = f"{'on' if options.flower_nodes == OURS else 'FedAvg of Flower on'} Flower's SuperNodes"
    strategies = {OURS: OURS, reference: options.flower_nodes}
    settings = {"nodes": options.nodes, "arrays": options.arrays, "megabytes": options.megabytes}
    with (
        tempfile.TemporaryDirectory(prefix="fedapps-overhead-") as folder,
        deployment(Path(folder) / "ours") as ours,
        deployment(Path(folder) / "reference", plain=True) as theirs,
    ):
        sides = {}
        for (side, strategy), fleet in zip(strategies.items(), (ours, theirs), strict=True):
            fleet.start_superlink()
            fleet.start_supernodes([{"partition-id": i, "num-partitions": options.nodes} for i in range(options.nodes)])
            config = settings | {"strategy": strategy, "as-fedapps": side == OURS}
            measured(fleet, config | {"rounds": 2})
            sides[side] = partial(measured, fleet, config | {"rounds": options.rounds})
        runs = alternate(sides, options.pairs)
    for pair in zip(*runs.values(), strict=True):
        if not all(np.allclose(a, b, atol=1e-6) for a, b in zip(*(one.arrays for one in pair), strict=True)):
            raise FleetError("the final parameters of the two sides differ")
    name = f"round of {options.nodes} nodes, {options.megabytes:g} MB [s]"
    seconds = {side: [one.later for one in of_side] for side, of_side in runs.items()}
    peaks = {side: median(one.peak for one in of_side) for side, of_side in runs.items()}
    show(compare(name, seconds, OURS, "wall clock", peaks), options.json)


def measured(fleet: Deployment, config: Mapping[str, Any]) -> Run:
    """Measure one run; raises ``FleetError`` with its log if it failed."""
    log: list[str] = []
    with tempfile.TemporaryDirectory(dir=fleet.folder) as output:
        fleet.run(APP, {**config, "output": output}, log.append)
        written = Path(output, "rounds.json")
        if not written.exists():
            superlink = (fleet.folder / "superlink.log").read_text(errors="replace", encoding="utf-8").splitlines()
            raise FleetError("\n".join(["the run failed; its log:", *log, "end of the SuperLink's:", *superlink[-20:]]))
        facts = json.loads(written.read_text(encoding="utf-8"))
        with np.load(Path(output, "arrays.npz")) as saved:
            arrays = [saved[name] for name in saved.files]
    later = fmean(facts["seconds"][1:])
    whose = "our" if config["as-fedapps"] else "Flower's"
    print(f"{config['strategy']} on {whose} SuperNodes: {later:.2f} s per round", flush=True)
    return Run(later, facts["peak_megabytes"], arrays)


if __name__ == "__main__":
    sys.exit(main())
