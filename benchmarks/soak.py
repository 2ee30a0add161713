"""A fleet under fire: nodes and the server are killed and come back at random while a run goes on.

``python -m benchmarks.soak --nodes 20 --rounds 30``. At the end every round must have been counted once, with the
bits of an undisturbed run of the nodes whose replies were used, and nothing may be left behind.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from safetensors.numpy import load_file

from benchmarks.faults import FaultyFleet
from benchmarks.replay import replay
from fedapps.checkpoints import DiskCheckpoints
from fedapps.config import Config, parse
from fedapps.fleet.deployment import deployment
from fedapps.launch import resolve
from sim.processes import is_alive

METHOD = "apfl"


@dataclass
class Soak:
    """What is done to a fleet, and what came of it."""

    fleet: FaultyFleet
    dice: random.Random
    pause: float
    faults: Counter[str] = field(default_factory=Counter)

    def disturb(self) -> None:
        """One fault, or the return of a node; at most a third of the nodes are away at a time."""
        away = [index for index in self._nodes if self.fleet.node(index).has_ended]
        there = [index for index in self._nodes if index not in away]
        if away and (len(away) >= len(self._nodes) // 3 or self.dice.random() < 0.5):
            self.fleet.start_node(self.dice.choice(away))
            self.faults["nodes brought back"] += 1
        elif self.dice.random() < 0.25:
            self.fleet.stop_node(self.dice.choice(there))
            self.faults["nodes stopped"] += 1
        elif self.dice.random() < 0.25:
            self.fleet.kill_worker(self.dice.choice(there))
            self.faults["workers killed"] += 1
        else:
            self.fleet.kill_node(self.dice.choice(there))
            self.faults["nodes killed"] += 1

    def run(self, server_kills: int) -> None:
        """The whole run, disturbed from its second round on, the server killed as often as that on the way."""
        rounds = self.fleet.config.run.rounds
        kills = [rounds * (number + 1) // (server_kills + 1) for number in range(server_kills)]
        self.fleet.start()
        self.fleet.submit()
        shown = 0
        begun = time.monotonic()
        while not self.fleet.has_ended():
            time.sleep(self.dice.uniform(0.5, 1.5) * self.pause)
            done = len(self.fleet.rounds())
            if done != shown:
                left = (time.monotonic() - begun) / done * (rounds - done)
                print(f"round {done}/{rounds}, about {left:.0f} s to go; {_told(self.faults)}", flush=True)
                shown = done
            if kills and done >= kills[0]:
                kills.pop(0)
                self._kill_server()
            elif done and not self.fleet.has_ended():
                self.disturb()

    def _kill_server(self) -> None:
        """Kill it, start it again, bring all nodes back, because a run that goes on waits for them, and go on."""
        self.fleet.kill_server()
        self.faults["servers killed"] += 1
        self.fleet.deployed.start_superlink()
        for index in self._nodes:
            if self.fleet.node(index).has_ended:
                self.fleet.start_node(index)
                self.faults["nodes brought back"] += 1
        self.fleet.submit(resume=True)

    @property
    def _nodes(self) -> range:
        return range(len(self.fleet.node_configs))


def findings(fleet: FaultyFleet, scratch: Path) -> list[str]:
    """What is wrong with a run that has ended; empty when all is well."""
    wrong = [] if fleet.has_finished() else ["the run has not ended: " + "\n".join(fleet.said[-30:])]
    rounds, lines = fleet.rounds(), fleet.nodes()
    if [line["round"] for line in rounds] != list(range(1, fleet.config.run.rounds + 1)):
        wrong.append(f"rounds lost or counted twice: {[line['round'] for line in rounds]}")
    for reply, times in Counter((line["round"], line["phase"], line["node"]) for line in lines).items():
        if times > 1:
            wrong.append(f"counted {times} times: {reply}")
    for line in rounds:
        refused = sum(told["phase"] == "train" for told in line["refused"])
        if line["train_messages"] != line["replies"] + refused:
            wrong.append(f"round {line['round']}: {line['train_messages']} messages, {line['replies']} used, {refused}")
    wrong += _of_states(fleet)
    if not wrong:
        wrong += _of_replay(fleet, scratch)
    return wrong


def _of_states(fleet: FaultyFleet) -> list[str]:
    wrong = [f"damaged: {path}" for path in fleet.deployed.folder.rglob("*.corrupt")]
    for index in range(len(fleet.node_configs)):
        for path in fleet.state(index):
            try:
                load_file(path)
            except Exception as error:  # whatever it is, it is to be told
                wrong.append(f"{path}: {error}")
    return wrong


def _of_replay(fleet: FaultyFleet, folder: Path) -> list[str]:
    """Differences to the same rounds in one process: in the shared parameters, in the personal models."""
    wrong = []
    again = replay(fleet.config, fleet.nodes(), fleet.node_configs, folder)
    ended = DiskCheckpoints(fleet.folder / "checkpoints" / METHOD).latest()
    assert ended
    for name, array in again.arrays.items():
        if array.tobytes() != ended.arrays[name].tobytes():
            wrong.append(f"{name} is not what the replies that were used give")
    last = {line["node"] for line in fleet.nodes() if line["phase"] == "evaluate" and line["round"] == again.round}
    for index in range(len(fleet.node_configs)):
        ours = {path.parent.name: path for path in fleet.state(index) if path.name == "personal.safetensors"}
        theirs = {path.parent.name: path for path in (folder / f"node-{index}").rglob("personal.safetensors")}
        for key in last & theirs.keys():
            if key not in ours or ours[key].read_bytes() != theirs[key].read_bytes():
                wrong.append(f"the personal model of {key} is not what its training gives")
    return wrong


def left_behind(folder: Path) -> list[str]:
    """Processes that know the folder of a fleet that has ended, and unfinished files in it."""
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            known = b"".join(Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ"))
        except OSError:
            continue
        if os.fsencode(folder) in known and is_alive(pid):
            found.append(f"process {pid}")
    return found + [f"file {path}" for path in folder.rglob(".*") if path.is_file()]


@contextmanager
def soaked(folder: Path, config: Config, seed: int, pause: float) -> Iterator[Soak]:
    """A soak in ``folder``, with nothing started yet."""
    nodes = config.run.num_nodes
    configs = [{"partition-id": index, "num-partitions": nodes} for index in range(nodes)]
    with deployment(folder / "fleet") as deployed:
        yield Soak(FaultyFleet(deployed, config, configs), random.Random(seed), pause)


def settings(nodes: int, rounds: int, timeout: float, folder: Path) -> Config:
    """The run: seconds of work for a node, which personalises every ten rounds."""
    given = {"task": "lqr", "methods": METHOD, "num-nodes": nodes, "rounds": rounds, "epochs": 1, "personal-epochs": 1}
    parts = {"fraction-train": 0.3, "fraction-evaluate": 0.5, "evaluate-every": 10}
    rhythm = parts | {"collect-after": 0, "batch-size": 32}
    patience = {"timeout": timeout, "node-wait": 600.0, "name": "run", "cache-dir": str(folder / "worlds")}
    return parse(resolve(given | rhythm | patience, str(folder)))


def main() -> int:
    """The command line; 0 when nothing was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--server-kills", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=90.0, help="seconds that a round waits for replies")
    parser.add_argument("--pause", type=float, default=6.0, help="mean seconds between two faults")
    parser.add_argument("--seed", type=int, default=0, help="of the faults")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fedapps-soak-"))
    begun = time.monotonic()
    config = settings(given.nodes, given.rounds, given.timeout, folder)
    with soaked(folder, config, given.seed, given.pause) as soak:
        soak.run(given.server_kills)
    minutes = (time.monotonic() - begun) / 60
    wrong = findings(soak.fleet, folder / "replay") + left_behind(folder / "fleet")
    used = Counter(line["phase"] for line in soak.fleet.nodes())
    reasons = Counter(_kind(told["reason"]) for line in soak.fleet.rounds() for told in line["refused"])
    print(f"\n{len(soak.fleet.rounds())} rounds in {minutes:.1f} minutes on {given.nodes} nodes; {_told(soak.faults)}")
    print(f"replies used: {_told(used)}; refused: {_told(reasons) or 'none'}")
    print("\n".join([f"WRONG: {line}" for line in wrong]) or "nothing is wrong", flush=True)
    if wrong:
        print(f"everything is in {folder}", file=sys.stderr)
        return 1
    shutil.rmtree(folder)
    return 0


def _kind(reason: str) -> str:
    return "node unavailable" if "Unavailable" in reason else reason.partition("\n")[0]


def _told(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))


if __name__ == "__main__":
    sys.exit(main())
