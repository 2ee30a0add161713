"""What a user runs, beside what users of other libraries run: the same job with the peers' own commands.

Each side runs in a new process: ``fedapps run images-digits``, or a program of this folder in an environment that has
the peer. All have the same images on the same nodes, the same network, the same number of SGD steps, one thread for
each operation of torch, and one evaluation after the last round. A side runs with few and with many rounds: the
difference gives the cost of a round, and what is left of the shorter run is the start. Processor time and memory
(proportional set size) are those of all processes of the side. A loop of torch alone shows what the steps cost.

    python -m benchmarks.peers
    python -m benchmarks.peers --nodes 100 --methods scaffold --sides fluke --pairs 1
"""

import argparse
import ctypes
import io
import json
import os
import subprocess
import sys
import tempfile
import time
import tokenize
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from fedapps.tasks.base import Batch
from fedapps.tasks.images.options import Options
from fedapps.tasks.images.task import ImagesTask
from torch import Tensor

from benchmarks.commands import append, new_parser, run, show
from benchmarks.environments import environment
from benchmarks.sides import proportional_megabytes
from fedapps.base.processes import process_facts
from fedapps.results import RunResult

_PR_SET_CHILD_SUBREAPER = 36  # prctl(2): what a child leaves behind becomes our child, so that we can count it
_TICK = os.sysconf("SC_CLK_TCK")
OURS, OURS_RAY, FLOWER, LOOP = "fedapps", "fedapps, Ray", "Flower", "loop of torch"
DRAWN = 10
_FOLDER = Path(__file__).parent
_SETTINGS: Mapping[str, object] = {
    "epochs": 2, "batch-size": 20, "optimizer": "sgd", "learning-rate": 0.1, "collect-after": 0, "track-metric": "",
    "images.model": "mlp", "images.partition": "iid", "images.test-share": 0.0, "images.validation-share": 0.0,
    "images.min-examples": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Peer:
    """A library beside ours: its program in this folder, the methods that it has, how its environment is made."""

    program: str
    methods: tuple[str, ...]
    python: Callable[[], Path]


PEERS = {
    FLOWER: Peer("on_flower.py", ("fedavg",), lambda: Path(sys.executable)),
    "pfl-research": Peer("on_pfl.py", ("fedavg", "scaffold"), partial(environment, "pfl==0.6.0")),
    "fluke": Peer("on_fluke.py", ("fedavg", "scaffold", "ditto"), partial(environment, "fluke-fl==0.8.1")),
    "FedLab": Peer("on_fedlab.py", ("fedavg", "scaffold"), partial(environment, "fedlab==1.3.0")),
    "BlazeFL": Peer(
        "on_blazefl.py", ("fedavg",), partial(environment, "blazefl[contrib,reproducibility]==2.0.3", "python3.13")
    ),
    LOOP: Peer("on_torch.py", ("fedavg",), lambda: Path(sys.executable)),
}


@dataclass(frozen=True)
class Cost:
    """What a command took: seconds of all its processes and by the clock, megabytes at most, and its accuracy."""

    cpu: float
    wall: float
    megabytes: float
    accuracy: float


@dataclass(frozen=True)
class Row:
    """One side.

    Attributes
    ----------
    nodes : int
    method, side : str
    cpu, wall : float
        Medians of the milliseconds of a round.
    ratio, least, most : float
        Median and range, over pairs, of our processor time of a round divided by this side's.
    start : float
        Median of the seconds from the start of the command to its first round, by the clock.
    megabytes : float
        Median of the peaks.
    accuracy : list of float
        After the longer run, one for each seed.
    lines : int
        Lines of code, or settings, that a user writes.
    """

    nodes: int
    method: str
    side: str
    cpu: float
    wall: float
    ratio: float
    least: float
    most: float
    start: float
    megabytes: float
    accuracy: list[float]
    lines: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table."""
    parser = new_parser("peers", __doc__)
    parser.add_argument("--nodes", default="10,100", help="numbers of nodes, of which ten train in a round")
    parser.add_argument("--methods", default="fedavg,scaffold,ditto", help="some of these (default: all)")
    parser.add_argument("--few", type=int, default=5, help="rounds of the shorter run (default 5)")
    parser.add_argument("--many", type=int, default=85, help="rounds of the longer run (default 85)")
    parser.add_argument(
        "--pairs", type=int, default=5, help="pairs of runs of each side, with seeds 0, 1, ... (default 5)"
    )
    parser.add_argument("--sides", default="", help="names of sides, separated by semicolons (default: all libraries)")
    return run(parser, _run, arguments)


def _run(options: argparse.Namespace) -> None:
    names = [name for name in options.sides.split(";") if name] or [OURS_RAY, *(name for name in PEERS if name != LOOP)]
    if unknown := sorted(set(names) - {OURS_RAY, *PEERS}):
        raise ValueError(f"--sides: {', '.join(unknown)}: expected some of {OURS_RAY}, {', '.join(PEERS)}")
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        _measure(options, names)
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0)


def _measure(options: argparse.Namespace, names: Sequence[str]) -> None:
    pythons: dict[str, Path] = {}
    for name in filter(PEERS.__contains__, names):
        try:
            pythons[name] = PEERS[name].python()
        except RuntimeError as error:
            print(f"{name} left out: {error}", file=sys.stderr)
    rows = []
    for nodes, method in product(map(int, options.nodes.split(",")), options.methods.split(",")):
        sides = {OURS: partial(ours, nodes, method, "inline")}
        if OURS_RAY in names:
            sides[OURS_RAY] = partial(ours, nodes, method, "ray")
        for name, python in pythons.items():
            if method in PEERS[name].methods:
                sides[name] = partial(theirs, nodes, method, PEERS[name], python)
        group = list(map(asdict, _rows(nodes, method, sides, (options.few, options.many), options.pairs)))
        append(group, options.json)  # each group at once: an hour of measurements outlives an interruption
        rows += group
    show(rows, "")


def _rows(
    nodes: int, method: str, sides: Mapping[str, Callable[[int, int], Cost]], rounds: tuple[int, int], pairs: int
) -> list[Row]:
    """Measure the sides in alternating order."""
    costs: dict[str, list[tuple[Cost, Cost]]] = {name: [] for name in sides}
    for side in sides.values():
        side(1, 0)  # compiles bytecode
    for pair in range(pairs):
        for name in list(sides)[:: 1 if pair % 2 == 0 else -1]:
            few, many = (sides[name](count, pair) for count in rounds)
            costs[name].append((few, many))
            each = 1000 * _each(few.cpu, many.cpu, rounds)
            progress = f"{nodes} nodes, {method}, pair {pair + 1} of {pairs}: {name} {each:.1f} ms a round"
            print(f"{progress}, accuracy {many.accuracy:.3f}", file=sys.stderr, flush=True)
    mine = [_each(few.cpu, many.cpu, rounds) for few, many in costs[OURS]]
    rows = []
    for name, measured_pairs in costs.items():
        cpu = [_each(few.cpu, many.cpu, rounds) for few, many in measured_pairs]
        wall = [_each(few.wall, many.wall, rounds) for few, many in measured_pairs]
        start = [few.wall - rounds[0] * each for (few, _), each in zip(measured_pairs, wall, strict=True)]
        ratios = sorted(_ratio(a, b) for a, b in zip(mine, cpu, strict=True))
        rows.append(
            Row(
                nodes, method, name, 1000 * median(cpu), 1000 * median(wall), median(ratios), ratios[0], ratios[-1],
                median(start), median(many.megabytes for _, many in measured_pairs),
                [many.accuracy for _, many in measured_pairs],
                _lines(PEERS[name].program) if name in PEERS else len(_settings(nodes, method, 1, 0)),
            )
        )  # fmt: skip
    return rows


def _each(few: float, many: float, rounds: tuple[int, int]) -> float:
    """What one round adds."""
    return (many - few) / (rounds[1] - rounds[0])


def _ratio(ours: float, theirs: float) -> float:
    """Our time in theirs: 1 for equal ones, infinite where theirs is too short to be measured."""
    return 1.0 if ours == theirs else ours / theirs if theirs else inf


def ours(nodes: int, method: str, engine: str, rounds: int, seed: int) -> Cost:
    """The cost of ``fedapps run``."""
    with tempfile.TemporaryDirectory() as folder:
        settings = _settings(nodes, method, rounds, seed)
        words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        command = [sys.executable, "-m", "fedapps", "run", "images-digits", "--engine", engine, "--output-dir", folder]
        cost, _ = measured([*command, *words])
        run = RunResult(next(path for path in Path(folder).iterdir() if path.is_dir()))
        return replace(cost, accuracy=float(run.metrics["test.global_accuracy"].iloc[0]))


def _settings(nodes: int, method: str, rounds: int, seed: int) -> dict[str, object]:
    """The keys of our run; all nodes have the same test images, so one evaluates."""
    return dict(_SETTINGS) | {
        "methods": method, "weighting": "uniform" if method == "scaffold" else "num-examples", "num-nodes": nodes,
        "fraction-train": DRAWN / nodes, "fraction-evaluate": 1 / nodes,
        "rounds": rounds, "evaluate-every": rounds, "seed": seed,
    }  # fmt: skip


def theirs(nodes: int, method: str, peer: Peer, python: Path, rounds: int, seed: int) -> Cost:
    """The cost of a program of this folder."""
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job.npz"
        write_job(job, nodes, method, rounds, seed)
        cost, output = measured([str(python), str(_FOLDER / peer.program), str(job)])
    result = next(line for line in reversed(output.splitlines()) if line.startswith('{"accuracy"'))
    return replace(cost, accuracy=json.loads(result)["accuracy"])  # Ray may log after it


def write_job(path: Path, nodes: int, method: str, rounds: int, seed: int) -> None:
    """Write the file that the programs read: the images of each node in our run, and the settings."""
    with tempfile.TemporaryDirectory() as folder:
        task = ImagesTask(
            Options("digits", model="mlp", partition="iid", test_share=0.0, validation_share=0.0, min_examples=1)
        )
        task.make_world(Path(folder), nodes, 0)
        data = [task.load_node(Path(folder), node, nodes) for node in range(nodes)]
    normalised = task.build_model_for(data[0]).normalised  # as in our runs
    arrays: dict[str, Any] = {}
    for node, one in enumerate(data):
        arrays[f"x{node}"], arrays[f"y{node}"] = _flat(one.splits["train"], normalised)
    arrays["x"], arrays["y"] = _flat(data[0].extra["common"], normalised)  # type: ignore[arg-type]
    settings = {
        "method": method, "rounds": rounds, "drawn": DRAWN, "epochs": _SETTINGS["epochs"],
        "batch": _SETTINGS["batch-size"], "rate": _SETTINGS["learning-rate"], "seed": seed,
    }  # fmt: skip
    np.savez(path, settings=json.dumps(settings), **arrays)


def _flat(batch: Batch, normalised: Callable[[Tensor], Tensor]) -> tuple[np.ndarray, np.ndarray]:
    return normalised(batch["image"]).flatten(1).numpy(), batch["label"].numpy()


def measured(command: Sequence[str]) -> tuple[Cost, str]:
    """Run a command with one thread for each operation of torch; its cost without accuracy, and what it printed.

    Raises
    ------
    RuntimeError
        It failed; the message has its last lines.
    """
    quiet = {
        "OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }  # fmt: skip
    begun, seconds, peak = time.perf_counter(), dict[int, float](), 0.0
    earlier = set(_descendants())  # what another side has left to us, which nobody waits for
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=os.environ | quiet)
        ended, looks = False, 0
        while not ended:
            # Until it is waited for, a process that has ended still shows its processor time.
            ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
            pids = [pid for pid in _descendants() if pid not in earlier]
            seconds |= {pid: used for pid in pids if (used := _seconds(pid)) is not None}
            if looks % 4 == 0:
                peak = max(peak, sum(map(proportional_megabytes, pids)))
            looks += 1
            time.sleep(0.05)
        wall = time.perf_counter() - begun
        status = process.wait()
        output.seek(0)
        text = output.read()
    if status:
        last = "\n".join(text.splitlines()[-15:])
        raise RuntimeError(f"{' '.join(command)} failed with exit status {status}:\n{last}")
    return Cost(sum(seconds.values()), wall, peak, float("nan")), text


def _descendants() -> list[int]:
    """The processes below this one."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        if fields := process_facts(int(name)):
            children.setdefault(int(fields[1]), []).append(int(name))
    below, left = [], [os.getpid()]
    while left:
        nearest = children.get(left.pop(), [])
        below += nearest
        left += nearest
    return below


def _seconds(pid: int) -> float | None:
    fields = process_facts(pid)
    return (int(fields[11]) + int(fields[12])) / _TICK if fields else None


def _lines(program: str) -> int:
    """The lines of a program with code, without its docstrings."""
    source = (_FOLDER / program).read_text(encoding="utf-8")
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in skipped and not token.string.startswith('"""'):
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines)


if __name__ == "__main__":
    sys.exit(main())
