"""What the champion of a fleet is worth after some generations, on data that grow from one to the next.

In one generation, all nodes train with 30 times the learning rate, a mistake. Four sides have the same rounds and the
same local steps: ``champion`` (``fedapps generation``: each starts from the champion, and the gate decides),
``newest`` (each starts from the last one and is used), ``all`` (one run on the data of the last generation, as many
rounds as all generations, without the mistake) and ``local`` (the same alone on each node). ``end`` is the mean test
metric of the nodes at the end, ``worst`` that of the worst model that was used since the mistake. Test data are the
same all the time; the gate does not see them.

    python -m benchmarks.fleet_worth lqr --seeds 5 --json rows.json
"""

import argparse
import csv
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import tomli_w
from fedapps.sim.inprocess import run_inprocess
from fedapps.tasks.lqr.world import control_weights, trajectories

from fedapps.app.client_app import app as client_app
from fedapps.app.server_app import app as server_app
from fedapps.base.seeding import generator
from fedapps.base.text_files import open_text
from fedapps.config.parsing import Config, parse
from fedapps.deployment.gate import generation
from fedapps.runs.champions import Registry
from fedapps.runs.run_folder import RunFolder

from .commands import add_seeds, new_parser, run, show_methods
from .fleet_year import without_reports, write_rollouts

NODES, GENERATIONS, MISTAKE, FACTOR = 7, 4, 3, 30.0
#: Of every run of a generation.
COMMON = {"rounds": 2, "evaluate-every": 2, "steps": 10, "collect-after": 0, "num-nodes": NODES, "node-wait": 0.0}


@dataclass(frozen=True)
class Data:
    """Data that grow, and how they are learned.

    Parameters
    ----------
    keys : mapping
        Of the run config. The gate compares ``track-metric``.
    metric : str
        Of the test data.
    write : function of a folder, a generation and a seed
        Writes what the nodes have in a generation, counted from 1.
    own : bool
        Whether each node has its own folder (``node-0``, ``node-1``, ...). Otherwise all nodes share one folder.
    """

    keys: Mapping[str, Any]
    metric: str
    write: Callable[[Path, int, int], None]
    own: bool = True


def robots(folder: Path, until: int, seed: int) -> None:
    """Three rollouts for each generation and ten for testing; the gain of a robot is its own."""
    for node, weight in enumerate(control_weights(NODES)):
        rollout = partial(trajectories, weight, horizon=10, start_range=3.0, noise_variance=0.01)
        test = rollout(10, rng=generator(seed, "fleet-worth.test", node))
        new = [rollout(3, rng=generator(seed, "fleet-worth", node, number)) for number in range(until)]
        rollouts = np.concatenate([test, *new])
        write_rollouts(folder / f"node-{node}" / f"robot-{node}.csv", weight, [rollouts], test=len(test))


def drivers(source: Path, folder: Path, until: int, seed: int) -> None:
    """From five trials of each block on, in the order of their recording; the last fifth is for testing."""
    with open_text(source / "driving" / "hitl_traffic_weaving.csv.xz") as file:
        head, *rows = csv.reader(file)
    for node in range(NODES):
        trials: dict[str, list[list[str]]] = {}
        for row in rows:
            if row[head.index("block")] == str(node):
                trials.setdefault(row[0], []).append(row)
        names = list(trials)
        test = names[len(names) - len(names) // 5 :]
        train = names[: len(names) - len(test)]
        train = train[: 5 + (len(train) - 5) * (until - 1) // (GENERATIONS - 1)]
        lines = [
            [*row, split] for split, of in (("train", train), ("test", test)) for name in of for row in trials[name]
        ]
        _write_csv(folder / f"node-{node}" / "trials.csv", [[*head, "split"], *lines])


def pedestrians(source: Path, folder: Path, until: int, seed: int) -> None:
    """The first part of each recording; its validation part is for testing."""
    for path in (source / "pedestrians").glob("*/*.txt.xz"):
        with open_text(path) as file:
            lines = file.read().splitlines()
        if path.parent.name == "train":
            lines.sort(key=lambda line: float(line.split()[0]))
            lines = lines[: len(lines) * (1 + until) // (1 + GENERATIONS)]
        target = folder / path.parent.name / path.stem
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("\n".join(lines) + "\n")


def texts(source: Path, folder: Path, until: int, seed: int) -> None:
    """Fifty texts for each generation and a hundred for testing; each node has its own shares of the four topics."""
    with open_text(source / "text" / "agnews" / "train_partial.csv.xz") as file:
        rows = list(csv.reader(file))
    rng = generator(seed, "fleet-worth.texts")
    by_topic = [
        list(rng.permutation([i for i, row in enumerate(rows) if row[0] == str(topic)])) for topic in (1, 2, 3, 4)
    ]
    for node in range(NODES):
        topics = rng.choice(4, size=100 + 50 * GENERATIONS, p=rng.dirichlet(np.ones(4)))
        own = [rows[by_topic[topic].pop()] for topic in topics]
        _write_csv(folder / f"node-{node}" / "test.csv", own[:100])
        _write_csv(folder / f"node-{node}" / "train.csv", own[100 : 100 + 50 * until])


def _write_csv(path: Path, rows: Sequence[Sequence[str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


def data_of(name: str, source: Path) -> Data:
    """The data of a name; ``source`` is the folder of the published data sets."""
    gate = {"gate-margin": 0.02, "gate-group-margin": 0.1}
    driving = {
        "task": "driving",
        "methods": "fedavg",
        "driving.validation-share": 0.2,
        "track-metric": "validation.elbo",
    }
    driving |= gate
    if name == "lqr":
        keys = {
            "task": "lqr",
            "methods": "fedper",
            "learning-rate": 0.02,
            "batch-size": 32,
            "held-back": 0.2,
            "steps": 40,
        }
        return Data(keys | gate | {"track-metric": "test.total_loss"}, "test.total_loss", robots)
    if name == "drivers":
        return Data(driving | {"driving.scenario": "trials"}, "test.elbo", partial(drivers, source))
    if name == "pedestrians":
        seen = {"driving.history": 8, "driving.min-history": 8, "driving.horizon": 12, "driving.samples": 1}
        keys = driving | seen | {"driving.scenario": "pedestrians", "batch-size": 64, "track-metric": "validation.ade"}
        return Data(keys, "test.ade", partial(pedestrians, source), own=False)
    keys = {
        "task": "text",
        "methods": "fedavg",
        "text.dataset": "agnews",
        "text.vocabulary": "file",
        "text.glove": str(source / "text" / "glove" / "glove.6B.50d.subset.txt.xz"),
        "text.vocabulary-size": 3000,
        "text.embedding-width": 50,
        "text.hidden": 16,
        "text.max-length": 32,
        "held-back": 0.2,
        "track-metric": "test.local_accuracy",
        "track-mode": "max",
        "learning-rate": 0.02,
    }
    return Data(keys | gate, "test.local_accuracy", partial(texts, source))


@dataclass
class Side:
    """One side with a seed: its runs, and what its nodes keep."""

    folder: Path
    data: Data
    keys: Mapping[str, Any]
    now: Path = field(default_factory=Path)

    def simulate(self, config: Config) -> None:
        """Run the app on the nodes, with the data of the generation."""
        configs = [
            {"partition-id": node, "num-partitions": NODES, "state-dir": str(self.folder / "disks" / str(node))}
            | ({"data-dir": str(self.now / f"node-{node}")} if self.data.own else {})
            for node in range(NODES)
        ]
        run_inprocess(server_app, client_app, node_configs=configs, run_config=config.flat(), errors="reply")

    def run(self, name: str, **more: Any) -> Path:
        """Train, and return the folder of the run."""
        keys = {**self.keys, "name": name, "output-dir": str(self.folder), **more}
        if not self.data.own:
            keys["data-dir"] = str(self.now)
        self.simulate(parse(keys))
        return self.folder / name

    def next_generation(self, number: int, **more: Any) -> Path:
        """Train from the champion, let the gate decide, and return the folder of the champion's run."""
        registry = self.folder / "champions"
        recipe = self.folder / "recipe.toml"
        recipe.parent.mkdir(parents=True, exist_ok=True)
        recipe.write_text(tomli_w.dumps({**self.keys, "name": "run", "registry": str(registry)}))
        if not self.data.own:
            more["data-dir"] = str(self.now)
        generation(recipe, "", more, str(self.folder), self.simulate)
        champions = Registry.read(registry)
        return Path(champions.of(champions.champion).run)


def measured(run: Path, metric: str) -> float:
    """The mean of a metric over the nodes at the end of a run."""
    (facts,) = RunFolder(run, "").summary()["methods"].values()
    return float(facts["final"][metric])


def compared(data: Data, seed: int, folder: Path) -> dict[str, dict[str, float]]:
    """``end`` and ``worst`` of each side that has generations, ``end`` of the others."""
    keys = {**COMMON, **data.keys, "seed": seed}
    champion, newest, whole = (Side(folder / name, data, keys) for name in ("champion", "newest", "whole"))
    used: dict[str, list[float]] = {"champion": [], "newest": []}
    last = ""
    for number in range(1, GENERATIONS + 1):
        now = folder / "data" / str(number)
        data.write(now, number, seed)
        champion.now = newest.now = whole.now = now
        mistake = {"learning-rate": FACTOR * data.keys.get("learning-rate", 0.001)} if number == MISTAKE else {}
        used["champion"].append(measured(champion.next_generation(number, **mistake), data.metric))
        last = str(newest.run(f"run-{number}", start=last, **mistake))
        used["newest"].append(measured(Path(last), data.metric))
    worse = min if data.keys.get("track-mode") == "max" else max
    sides = {name: {"end": of[-1], "worst": worse(of[MISTAKE - 1 :])} for name, of in used.items()}
    rounds = {"rounds": GENERATIONS * COMMON["rounds"], "evaluate-every": GENERATIONS * COMMON["rounds"]}
    sides["all"] = {"end": measured(whole.run("all", **rounds), data.metric)}
    sides["local"] = {"end": measured(whole.run("local", methods="local", **rounds), data.metric)}
    return sides


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark: each side of each seed."""
    parser = new_parser("fleet_worth", __doc__)
    add_seeds(parser)
    parser.add_argument("data", choices=("lqr", "drivers", "pedestrians", "texts"))
    parser.add_argument("--data-dir", type=Path, default=Path(), help="folder of the published data sets")
    return run(parser, _run, arguments)


def _run(options: argparse.Namespace) -> None:
    logging.disable(logging.WARNING)  # a line for every round
    data = data_of(options.data, options.data_dir.absolute())
    methods: dict[str, dict[str, list[float]]] = {}
    with without_reports():
        for seed in range(options.seeds):
            with TemporaryDirectory() as folder:
                for side, metrics in compared(data, seed, Path(folder)).items():
                    for metric, value in metrics.items():
                        methods.setdefault(side, {}).setdefault(metric, []).append(value)
            print(f"seed {seed}: {methods}", flush=True)
    show_methods(methods, options.json)


if __name__ == "__main__":
    sys.exit(main())
