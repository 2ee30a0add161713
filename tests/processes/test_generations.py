"""Four weeks of a fleet with TLS and node keys: the same models as without any fault, and one in use all the time."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
import tomli_w
from fedapps.tasks.lqr.world import trajectories
from fedapps.tasks.trained import TrainedModel
from safetensors.numpy import load_file
from toys import same_bits

from benchmarks.faults import FaultyFleet, kill
from benchmarks.fleet_year import Fleet, without_reports, write_rollouts
from fedapps.base.processes import descendants
from fedapps.base.seeding import generator
from fedapps.config.parsing import Config
from fedapps.deployment.gate import generation, steer
from fedapps.deployment.submission import CONNECTION
from fedapps.deployment.superlink import deployment
from fedapps.launch.inputs import APP
from fedapps.registry.tasks import task_class
from fedapps.runs.champions import Registry
from fedapps.runs.checkpoints import read_snapshot
from fedapps.runs.run_folder import read_object

pytestmark = [pytest.mark.processes, pytest.mark.slow]

ROBOTS = ("robot-0", "robot-1", "robot-2")
LUCKY, POISONED = 2, 3
WEEKLY = {
    "task": "lqr", "methods": "apfl", "num-nodes": len(ROBOTS), "rounds": 1, "evaluate-every": 1, "epochs": 20,
    "learning-rate": 0.1, "batch-size": 32, "collect-after": 0, "held-back": 0.1, "newest": "new", "keep-runs": 1,
    "track-metric": "test.total_loss", "gate-margin": 0.05, "gate-group-margin": 0.15,
}  # fmt: skip
#: What the last robot asks before it uses a model: the command ends once the file ``hold`` is gone.
ACCEPT = 'touch "$0.asked"; while [ -e "$0.hold" ]; do sleep 0.05; done'


def record(folder: Path, until: int) -> None:
    """Write what the robots have recorded until a week, eight drives a week.

    In one week, most robots record their commands with the wrong sign, except in the last two drives: those are held
    back, so that the gate sees what the model does.
    """
    for node, name in enumerate(ROBOTS):
        drive = partial(trajectories, node + 1.0, horizon=10, start_range=3.0, noise_variance=0.01)
        weeks = [drive(8, rng=generator(0, "weeks", node, week)) for week in range(1, until + 1)]
        if until >= POISONED and node < 2:
            weeks[POISONED - 1][:6, :, 2] *= -1
        write_rollouts(folder / "data" / name / f"{name}.csv", node + 1.0, weeks)


class Looks(threading.Thread):
    """The programs of the robots, which load the model in use all the time: each look must give a whole model."""

    def __init__(self, links: Sequence[Path]) -> None:
        super().__init__(daemon=True)
        self.links, self.over = links, threading.Event()
        self.runs: list[list[str]] = [[] for _ in links]
        self.broken: list[str] = []

    def run(self) -> None:
        while not self.over.wait(0.05):
            for link, runs in zip(self.links, self.runs, strict=True):
                try:
                    run = TrainedModel.read(link, task_class).origin.run
                except (OSError, ValueError) as error:
                    self.broken.append(f"{link}: {error}")
                else:
                    runs += [run] * (runs[-1:] != [run])


def undisturbed(folder: Path) -> Fleet:
    """The same weeks in one process, without faults."""
    fleet, recipe, registry = Fleet(folder, set(ROBOTS)), folder / "weekly.toml", folder / "champions"
    folder.mkdir()
    recipe.write_text(tomli_w.dumps({**WEEKLY, "registry": str(registry)}))
    for week in (1, 2, 3, 4):
        record(folder, week)
        generation(recipe, "", {}, str(folder / "runs"), fleet.simulate)
        if week == LUCKY:
            steer(registry, None, "rollback", "", {}, fleet.simulate)
    return fleet


def decisions(registry: Path) -> list[tuple[bool, object]]:
    """Whether each model was promoted, and the losses of the nodes; a rollback has none."""
    rows = map(read_object, Registry(registry).decisions())
    return [(row["promote"], row.get("nodes")) for row in rows]


def kept_arrays(state: Path) -> dict[str, dict]:
    """All private arrays of a node, by run, method and round."""
    paths = state.glob("weekly-*/*/*/*.safetensors")
    return {f"{path.parts[-4].rpartition('-')[0]}/{path.name}": load_file(path) for path in paths}


def test_four_weeks_with_a_poisoned_model_a_rollback_and_kills(tmp_path: Path) -> None:
    registry, runs, recipe = tmp_path / "champions", tmp_path / "runs", tmp_path / "weekly.toml"
    accept = tmp_path / "accept.sh"
    accept.write_text(ACCEPT)
    hold, asked = (accept.with_name(f"accept.sh.{name}") for name in ("hold", "asked"))
    recipe.write_text(tomli_w.dumps({**WEEKLY, "registry": str(registry)}))
    configs: list[dict[str, str]] = [{"data-dir": str(tmp_path / "data" / name)} for name in ROBOTS]
    configs[2]["accept-model"] = f"sh {accept}"
    with deployment(tmp_path / "fleet", tls=True, auth=True) as deployed, without_reports():
        fleet = FaultyFleet(deployed, APP, {}, configs)
        fleet.start()
        folders = [fleet.state(node) / "models" / "champions" / "champions" / name for node, name in enumerate(ROBOTS)]
        looks = Looks([folder / "current" for folder in folders])

        def in_use() -> list[int]:
            return [int(os.readlink(link).partition("generation")[2].partition("-")[0]) for link in looks.links]

        def promoted() -> list[bool]:
            return [promote for promote, _ in decisions(registry)]

        def submit(config: Config) -> None:
            deployed.run(APP, config.flat(), lambda line: None)

        def kill_command_when(happened: Callable[[], bool]) -> None:
            """Start the weekly command, and kill it with what it has started on the server."""
            words = [sys.executable, "-m", "fedapps", "generation", str(recipe), "--federation", CONNECTION]
            home = {"FLWR_HOME": str(deployed.folder / "flower")}
            with subprocess.Popen([*words, "--output-dir", str(runs)], cwd=APP, env=os.environ | home) as command:
                while not happened():
                    assert command.poll() is None
                    time.sleep(0.02)
                for pid in [*fleet.server(), *descendants(command.pid), command.pid]:
                    os.kill(pid, signal.SIGKILL)

        record(tmp_path, 1)
        generation(recipe, "", {}, str(runs), submit)
        assert in_use() == [1, 1, 1]
        looks.start()

        record(tmp_path, LUCKY)
        asked.unlink()
        hold.touch()
        kill_command_when((registry / "owner.json").exists)
        assert (promoted(), in_use()) == ([True], [1, 1, 1])
        kill_command_when(lambda: asked.exists() and in_use()[:2] == [2, 2])
        for process in (fleet.node(1), fleet.node(2), deployed.superlink):
            kill(process)
        assert (promoted(), in_use()) == ([True, True], [2, 2, 1])

        hold.unlink()
        with closing(sqlite3.connect(deployed.database)) as database, database:  # as after a minute of silence
            first = "(SELECT min(registered_at) FROM node)"
            database.execute(f"UPDATE node SET online_until = 0 WHERE registered_at > {first}")
        deployed.start_superlink()
        steer(registry, None, "rollback", "", {}, submit)
        assert in_use() == [1, 2, 1], "two are off"
        fleet.start_node(1)
        fleet.start_node(2)
        deployed.wait_until_connected()

        record(tmp_path, POISONED)
        generation(recipe, "", {}, str(runs), submit)
        assert in_use() == [1, 1, 1], "the rollback also reaches the nodes that were off"

        record(tmp_path, 4)
        generation(recipe, "", {}, str(runs), submit)
        assert in_use() == [3, 3, 3]
        looks.over.set()
        looks.join()
        twin = undisturbed(tmp_path / "twin")

    assert promoted() == [True, True, False, False, True]
    assert decisions(registry) == decisions(twin.folder / "champions"), "no bit differs"
    assert looks.broken == []
    first, missed = (["weekly-1", *more, "weekly-4"] for more in (["weekly-2", "weekly-1"], []))
    assert looks.runs == [first, first, missed]
    for node, name in enumerate(ROBOTS):
        own = kept_arrays(fleet.state(node))
        expected = kept_arrays(twin.disk(name))
        assert own.keys() == expected.keys()
        assert all(same_bits(arrays, expected[path]) for path, arrays in own.items()), "nothing private is lost"
        assert {path.partition("/")[0] for path in own} == {"weekly-1", "weekly-2", "weekly-4"}
        assert len([*folders[node].iterdir()]) == 4, "two models, the link, and the label of the registry"
    assert [*tmp_path.rglob(".*.fedapps-*")] == [], "no interrupted write is left"
    checkpoints = {path.parent.parent.parent.name: path for path in runs.glob("*/checkpoints/apfl/round-*")}
    assert checkpoints.keys() == {"weekly-1", "weekly-3", "weekly-4"}
    for path in checkpoints.values():
        ours, theirs = (read_snapshot(folder / path.relative_to(runs)) for folder in (runs, twin.folder / "runs"))
        assert same_bits(ours.arrays, theirs.arrays)
