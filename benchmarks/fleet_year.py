"""A year of a fleet: simulated robots, each with its own disk, train and compare a model in each of 52 weeks.

Each robot records every week and keeps the logs of four weeks. It holds back the newest log. Its controller changes
all the time (drift). Robots are off now and then, also at a promotion; one joins, one leaves, one comes back with an
empty disk. Twice, half of the robots record commands with the wrong sign. The first time, the gate refuses the model.
The second time, all robots stand still in the week that is held back, where any model is good: it is promoted by
luck, the robots find it out in the next week, and all go back.

    python -m benchmarks.fleet_year --weeks 52 --json rows.json

A row for each week has the loss of the model in use on the logs of that week, which no model has seen, and by how much
the model before would have been better (``fall``), the bytes on the disks, and what went wrong.
"""

import argparse
import json
import logging
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import tomli_w
from fedapps.clients.kept_models import CHAMPIONS, KeptModels
from fedapps.clients.state import StoredState
from fedapps.sim.inprocess import run_inprocess
from fedapps.tasks.lqr.world import COLUMNS, trajectories
from fedapps.tasks.trained import TrainedModel

from fedapps.app.client_app import app as client_app
from fedapps.app.server_app import app as server_app
from fedapps.base.seeding import generator
from fedapps.config.parsing import Config
from fedapps.deployment.gate import generation, steer
from fedapps.registry.tasks import task_class
from fedapps.runs.champions import Registry
from fedapps.runs.run_folder import read_config, read_label

from .commands import new_parser, run, show

METHOD = "fedper"  # robots share the dynamics; the gain stays on each
MARGIN = 0.05
RECIPE = {
    "task": "lqr",
    "methods": METHOD,
    "rounds": 2,
    "evaluate-every": 2,
    "epochs": 10,
    "learning-rate": 0.02,
    "batch-size": 32,
    "collect-after": 0,
    "held-back": 0.25,
    "track-metric": "test.total_loss",
    "gate-margin": MARGIN,
    "gate-group-margin": 3 * MARGIN,
    "node-wait": 0.0,
    "keep-runs": 1,
}
#: Weeks of logs on a robot, rollouts of a week and steps of a rollout.
KEPT, ROLLOUTS, STEPS = 4, 4, 10
STILL = 1e-3
#: The first week has more rounds.
FIRST = {"rounds": 8}


@dataclass
class Fleet:
    """Simulated nodes with a folder each for their data and for what they keep, as deployed nodes have.

    Attributes
    ----------
    folder : Path
    nodes : set of str
        The names of the nodes of the fleet.
    off, off_at_gate : set of str
        Those that are off in all runs, and from the end of the training on.
    """

    folder: Path
    nodes: set[str] = field(default_factory=set)
    off: set[str] = field(default_factory=set)
    off_at_gate: set[str] = field(default_factory=set)

    def simulate(self, config: Config) -> None:
        """Run the app on the nodes that are on."""
        off = self.off | (self.off_at_gate if config.run.gate else set())
        configs = [
            {"data-dir": str(self.folder / "data" / node), "state-dir": str(self.folder / "disks" / node)}
            for node in sorted(self.nodes - off)
        ]
        flat = config.flat() | {"num-nodes": len(configs)}
        run_inprocess(server_app, client_app, node_configs=configs, run_config=flat, errors="reply")

    def disk(self, node: str) -> Path:
        """What a node keeps."""
        return self.folder / "disks" / node

    def champions(self, node: str) -> KeptModels:
        """The models that the program of a node uses."""
        label = Registry.read(self.folder / "champions").label
        return KeptModels.of(self.disk(node), CHAMPIONS, "champions", node, label)

    def models(self, node: str) -> dict[int, TrainedModel]:
        """The models of champions on the disk of a node, by generation."""
        paths = self.champions(node).folder.glob("round-*-generation*")
        return {
            int(path.name.partition("generation")[2].partition("-")[0]): TrainedModel.read(path, task_class)
            for path in paths
        }

    def in_use(self) -> dict[str, int]:
        """The generation that each node uses, 0 for none."""
        return {node: self.champions(node).use(0) for node in sorted(self.nodes)}


@dataclass
class Year:
    """The weeks of a fleet of robots.

    Parameters
    ----------
    folder : Path
    weeks : int
        At least 6. What happens to the fleet is spread over them.
    seed : int
    robots : int
        In the first week.
    """

    folder: Path
    weeks: int
    seed: int = 0
    robots: int = 10

    def __post_init__(self) -> None:
        self.fleet = Fleet(self.folder, {f"robot-{number}" for number in range(self.robots)})
        self.registry = self.folder / "champions"
        self.recipe = self.folder / "week.toml"
        self.recipe.write_text(tomli_w.dumps({**RECIPE, "registry": str(self.registry), "seed": self.seed}))
        self.logs: dict[str, list[np.ndarray]] = {}
        #: By run and node, the gain that the node kept of it.
        self.gains: dict[str, dict[str, np.ndarray]] = {"": {}}
        #: The name of the run of each champion, by generation.
        self.champions: dict[int, str] = {}
        self.joins, self.poisoned, self.leaves, self.empty, self.lucky = (
            round(share * self.weeks) for share in (0.15, 0.34, 0.45, 0.6, 0.8)
        )

    def rows(self) -> Iterator[dict[str, Any]]:
        """Live through the weeks: what happened in each."""
        for week in range(1, self.weeks + 1):
            happened = self._changed(week)
            self._record(week)
            fall = self._fall()
            if fall["fall"] > MARGIN:
                self._roll_back(week)
                happened.append("all went back")
            before = self.fleet.in_use()
            first = FIRST if week == 1 else {}
            path = generation(self.recipe, "", first, str(self.folder / "runs"), self.fleet.simulate)
            decision = json.loads(max((self.registry / "decisions").glob("*.json")).read_text())
            yield {
                "week": week,
                "nodes": len(self.fleet.nodes),
                "off": len(self.fleet.off | self.fleet.off_at_gate),
                "happened": ", ".join(happened),
                "promoted": decision["promote"],
                **fall,
                "lost": len(self._lost(path)),
                "misled": len(self._misled(before)),
                "node_bytes": mean(map(_bytes, map(self.fleet.disk, self.fleet.nodes))),
                "server_bytes": _bytes(self.folder / "runs") + _bytes(self.registry),
            }

    def _changed(self, week: int) -> list[str]:
        """Let robots join, leave, come back with an empty disk, and be off."""
        happened, fleet = [], self.fleet
        if week == self.joins:
            fleet.nodes.add(f"robot-{self.robots}")
            happened.append("one joins")
        if week == self.leaves:
            fleet.nodes.remove("robot-1")
            happened.append("one leaves")
        if week == self.empty:
            shutil.rmtree(fleet.disk("robot-2"))
            for kept in self.gains.values():
                kept.pop("robot-2", None)
            happened.append("one has an empty disk")
        if week in (self.poisoned, self.lucky):
            happened.append("poisoned" if week == self.poisoned else "poisoned, held back still")
        nodes = sorted(fleet.nodes)
        fleet.off = {nodes[week % len(nodes)]} if week % 3 == 0 else set()
        fleet.off_at_gate = {nodes[(week + 1) % len(nodes)]} if week % 2 == 0 else set()
        return happened

    def _record(self, week: int) -> None:
        """Write the logs of a week beside the earlier logs that a robot keeps."""
        poisoned = week in (self.poisoned, self.lucky)
        for index, node in enumerate(sorted(self.fleet.nodes)):
            own = int(node.rpartition("-")[2])
            weight = (1.0 + own) * 2.0 ** (week / self.weeks)  # a drift by a factor of two in a year
            rollouts = trajectories(
                weight,
                ROLLOUTS,
                STEPS,
                start_range=STILL if week == self.lucky else 3.0,
                noise_variance=0.01,
                rng=generator(self.seed, "fleet-year", own, week),
            )
            logs = self.logs[node] = [*self.logs.get(node, ()), rollouts][-KEPT:]
            wrong = np.array([1.0, 1.0, -1.0 if poisoned and index % 2 == 0 else 1.0, 1.0, 1.0])
            write_rollouts(
                self.folder / "data" / node / f"{node}.csv", weight, [*(one * wrong for one in logs[:-1]), rollouts]
            )
            write_rollouts(self.folder / "new" / node / f"{node}.csv", weight, [rollouts], test=ROLLOUTS)

    def _fall(self) -> dict[str, float]:
        """The mean loss of the model in use on the new logs, and by how much that of the model before is lower."""
        losses, falls = [], []
        registry = Registry.read(self.registry)
        champion = registry.champion
        earlier = {one.generation for one in registry.generations if one.generation < champion}
        for node in sorted(self.fleet.nodes - self.fleet.off):
            models = self.fleet.models(node)
            if self.fleet.champions(node).use(0) != champion or champion not in models:
                continue
            loss = {
                number: float(np.mean(model.evaluate(self.folder / "new" / node)["test.total_loss"]))
                for number, model in models.items()
            }
            losses.append(loss[champion])
            falls += [loss[champion] - of for number, of in loss.items() if number in earlier]
        return {"loss": mean(losses) if losses else 0.0, "fall": mean(falls) if falls else 0.0}

    def _roll_back(self, week: int) -> None:
        """Roll all robots back. One robot is off; the next generation rolls it back."""
        off, self.fleet.off = self.fleet.off, {sorted(self.fleet.nodes)[0]}
        steer(self.registry, None, "rollback", "", {}, self.fleet.simulate)
        self.fleet.off = off

    def _lost(self, run: Path) -> list[str]:
        """The robots without the gain that they learned in this run, or in the last one before in which they took part,
        and those whose model in use has another.
        """
        label = read_label(run / "label")
        started = Path(str(read_config(run)["start"])).name
        self.gains[run.name] = dict(self.gains[started])
        lost = []
        for node in sorted(self.fleet.nodes - self.fleet.off):
            state = StoredState.of(self.fleet.disk(node), label, METHOD, node).load(10**6)
            if state is None:
                lost.append(node)
            else:
                self.gains[run.name][node] = state["policy.K"]
        self.champions |= {one.generation: Path(one.run).name for one in Registry.read(self.registry).generations}
        for node, used in self.fleet.in_use().items():
            if used:
                gain = self.fleet.models(node)[used].module.state_dict()["policy.K"]
                if not np.array_equal(self.gains[self.champions[used]][node], gain.numpy()):
                    lost.append(node)
        return lost

    def _misled(self, before: dict[str, int]) -> list[str]:
        """The robots that use another model than they should: the champion, or that of before if they were off, or have
        no gain of the champion's run.
        """
        registry = Registry.read(self.registry)
        on = self.fleet.nodes - self.fleet.off - self.fleet.off_at_gate
        wanted = before | {
            node: registry.target(node) for node in on & self.gains[self.champions[registry.champion]].keys()
        }
        return [node for node, used in self.fleet.in_use().items() if used != wanted[node]]


@contextmanager
def without_reports() -> Iterator[None]:
    """Draw no reports: nobody reads those of these runs, and drawing them takes longer than the training."""
    with ExitStack() as stack:
        for module in ("app.server_app", "deployment.gate"):
            stack.enter_context(patch(f"fedapps.{module}.write_report", lambda path: path))
        yield


def write_rollouts(path: Path, weight: float, weeks: Sequence[np.ndarray], test: int = 1) -> None:
    """Write the rollouts of some weeks as a file of the task lqr; the first ``test`` of each week are for testing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [",".join(COLUMNS)]
    for week, rollouts in enumerate(weeks):
        for index, rollout in enumerate(rollouts):
            split = "test" if index < test else "train"
            for step, values in enumerate(rollout):
                numbers = ",".join(f"{value:.9g}" for value in values)
                lines.append(f"0,{weight:.9g},{split},{week * len(rollouts) + index},{step},{numbers}")
    path.write_text("\n".join(lines) + "\n")


def _bytes(folder: Path) -> int:
    """The bytes of the files below a folder; links to one file count once."""
    files = {status.st_ino: status.st_size for path in folder.rglob("*") if (status := path.lstat()).st_nlink}
    return sum(files.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table."""
    parser = new_parser("fleet_year", __doc__)
    parser.add_argument("--weeks", type=int, default=52, help="generations, at least 6 (default 52)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the logs and of the training (default 0)")
    return run(parser, _run, arguments)


def _run(options: argparse.Namespace) -> None:
    logging.getLogger("flwr").setLevel(logging.ERROR)  # a line for every round
    rows = []
    with TemporaryDirectory() as folder, without_reports():
        for row in Year(Path(folder), options.weeks, options.seed).rows():
            rows.append(row)
            print(f"week {row['week']} of {options.weeks}", flush=True)
    show(rows, options.json)


if __name__ == "__main__":
    sys.exit(main())
