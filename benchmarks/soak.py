"""Soak test: kill and restart nodes, workers and the server while a run continues, then verify its result.

``python -m benchmarks.soak --nodes 20 --rounds 30``. Each reply of the app in ``soak_app`` depends on everything that
the node has trained so far. Afterwards, the run is replayed in one process with the same used replies and the same
trained rounds of each node: the parameters and all private states must be bit-identical.
"""

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from fedapps.clients.state import DiskState
from fedapps.sim.flower_internals import flower_identity
from fedapps.sim.inprocess import InProcessGrid
from fedapps.strategies import BaseStrategy, Profile, RoundStep, Sampler, in_key_order
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode

from fedapps.base.processes import is_alive, usable_cores
from fedapps.deployment.fleet import WORKERS_PER_CORE
from fedapps.deployment.superlink import deployment
from fedapps.runs.checkpoints import DiskCheckpoints

from .faults import FaultyFleet
from .soak_app.client_app import app as client_app
from .soak_app.client_app import key_of
from .soak_app.server_app import initial_arrays

APP = Path(__file__).parent / "soak_app"
_NEWEST = 10**6  # beyond the last round: loads the newest version


@dataclass
class Soak:
    """The faults injected into a fleet.

    Attributes
    ----------
    fleet : FaultyFleet
        The fleet.
    output : Path
        Output folder of the run.
    dice : random.Random
        Generator of the faults.
    pause : float
        Mean number of seconds between two faults.
    faults : Counter
        Number of faults of each kind so far.
    """

    fleet: FaultyFleet
    output: Path
    dice: random.Random
    pause: float
    faults: Counter[str] = field(default_factory=Counter)

    def run(self, server_kills: int) -> None:
        """Run until the end, with faults from the second round on; the server is killed ``server_kills`` times."""
        rounds = int(self.fleet.run_config["rounds"])
        kills = [rounds * (number + 1) // (server_kills + 1) for number in range(server_kills)]
        self.fleet.start()
        self.fleet.submit()
        begun, shown = time.monotonic(), 0
        while not self.fleet.has_ended():
            time.sleep(self.dice.uniform(0.5, 1.5) * self.pause)
            done = len(self.rounds())
            if done != shown:
                left = (time.monotonic() - begun) / done * (rounds - done)
                print(f"round {done}/{rounds}, about {left:.0f} s to go; {_listed(self.faults)}", flush=True)
                shown = done
            if kills and done >= kills[0]:
                kills.pop(0)
                self._kill_server()
            elif done and not self.fleet.has_ended():
                self._disturb()

    def rounds(self) -> list[dict[str, Any]]:
        """What the server has recorded of each finished round."""
        return [
            json.loads(path.read_text(encoding="utf-8")) for path in sorted((self.output / "rounds").glob("*.json"))
        ]

    def _disturb(self) -> None:
        """Inject one fault or restart a node. At most a third of the nodes are down at any time."""
        nodes = range(len(self.fleet.node_configs))
        away = [index for index in nodes if self.fleet.node(index).has_ended]
        present = [index for index in nodes if index not in away]
        if away and (len(away) >= len(nodes) // 3 or self.dice.random() < 0.5):
            self._bring_back(self.dice.choice(away))
        else:
            fault, do = self.dice.choice(
                [
                    ("nodes killed", self.fleet.kill_node),
                    ("nodes killed", self.fleet.kill_node),
                    ("nodes stopped", self.fleet.stop_node),
                    ("workers killed", self.fleet.kill_worker),
                ]
            )
            do(self.dice.choice(present))
            self.faults[fault] += 1

    def _bring_back(self, index: int) -> None:
        self.fleet.start_node(index)
        self.faults["nodes brought back"] += 1

    def _kill_server(self) -> None:
        """Kill and restart the server, restart all nodes (a resumed run waits for them), and resume the run."""
        self.fleet.kill_server()
        self.faults["servers killed"] += 1
        self.fleet.deployed.start_superlink()
        for index in range(len(self.fleet.node_configs)):
            if self.fleet.node(index).has_ended:
                self._bring_back(index)
        self.fleet.submit()


def findings(soak: Soak, folder: Path) -> list[str]:
    """Verify a run that has ended; returns the problems. ``folder`` is for the states of the replay."""
    if not (soak.output / "finished").exists():
        return ["the run did not finish: " + "\n".join(soak.fleet.log_lines[-30:])]
    rounds, expected = soak.rounds(), int(soak.fleet.run_config["rounds"])
    wrong = [] if len(rounds) == expected else [f"{len(rounds)} rounds instead of {expected}"]
    for number, record in enumerate(rounds, 1):
        lost = [reason for _, phase, reason in record["refused"] if phase == "train"]
        if record["asked"] != len(record["used"]) + len(lost):
            wrong.append(
                f"round {number}: {record['asked']} nodes asked, replies used: {record['used']}, refused: {lost}"
            )
    wrong += [f"damaged: {path}" for path in soak.fleet.deployed.folder.rglob("*.corrupt")]
    states = [DiskState(soak.fleet.state(index)).load(_NEWEST) for index in range(len(soak.fleet.node_configs))]
    trained = {key_of(i): {int(n) for n in state["rounds"]} if state else set() for i, state in enumerate(states)}
    for number, record in enumerate(rounds, 1):
        wrong += [f"the state of {key} lacks round {number}" for key in record["used"] if number not in trained[key]]
    used = {number: set(record["used"]) for number, record in enumerate(rounds, 1)}
    again = replay(trained, used, folder)
    ended = DiskCheckpoints(soak.output / "checkpoints").latest()
    assert ended
    if ended.arrays["shared.parameters"].tobytes() != again.tobytes():
        wrong.append("the final parameters differ from the replay's")
    for index, state in enumerate(states):
        theirs = DiskState(_state(folder, index)).load(_NEWEST)
        if {n: a.tobytes() for n, a in (state or {}).items()} != {n: a.tobytes() for n, a in (theirs or {}).items()}:
            wrong.append(f"the private state of {key_of(index)} differs from the replay's")
    return wrong


def replay(trained: Mapping[str, set[int]], used: Mapping[int, set[str]], folder: Path) -> np.ndarray:
    """Replay a run in one process.

    Parameters
    ----------
    trained : mapping
        By node, the rounds in which it trained.
    used : mapping
        By round, the nodes whose replies were used.
    folder : Path
        Where the private states of the replay are stored.

    Returns
    -------
    ndarray
        The final parameters.
    """
    nodes = [{"partition-id": index, "state-dir": str(_state(folder, index))} for index in range(len(trained))]
    strategy = BaseStrategy(sampler=_Trained(trained), weighting="uniform")
    with flower_identity():
        result = strategy.start(_Lossy(used, nodes), initial_arrays(), num_rounds=len(used), evaluate_every=len(used))
    return result.arrays["parameters"].numpy()


@dataclass(frozen=True)
class _Trained(Sampler):
    """Samples the nodes that trained in each round, whether or not their replies were used."""

    rounds: Mapping[str, set[int]]

    def sample(self, profiles: Iterable[Profile], server_round: int, purpose: RoundStep) -> list[Profile]:
        return in_key_order([node for node in profiles if server_round in self.rounds[node.key]])


class _Lossy(InProcessGrid):
    """A grid that drops the replies that were not used."""

    def __init__(self, used: Mapping[int, set[str]], node_configs: list[dict[str, Any]]) -> None:
        super().__init__(client_app, node_configs, {})
        self._used = used
        self._lost: dict[str, Message] = {}

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = list(messages)
        ids = list(super().push_messages(sent))
        for identity, message in zip(ids, sent, strict=True):
            if message.metadata.message_type == "train":
                node = key_of(list(self.get_node_ids()).index(message.metadata.dst_node_id))
                if node not in self._used[int(str(message.content.config_records["config"]["server-round"]))]:
                    self._lost[identity] = message
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._arriving(reply) for reply in super().pull_messages(message_ids)]

    def _arriving(self, reply: Message) -> Message:
        lost = self._lost.get(reply.metadata.reply_to_message_id)
        return Message(Error(ErrorCode.NODE_UNAVAILABLE, "lost"), reply_to=lost) if lost else reply


def _state(folder: Path, index: int) -> Path:
    return folder / f"node-{index}"


def leftovers(folder: Path) -> list[str]:
    """Processes of a fleet that has ended, found by its folder in their command or environment; and temporary files."""
    measured = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            known = b"".join(Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ"))
        except OSError:
            continue
        if os.fsencode(folder) in known and is_alive(pid):
            measured.append(f"process {pid}")
    return measured + [f"file {path}" for path in folder.rglob(".*") if path.is_file()]


def main() -> int:
    """Run the soak test from the command line; returns 0 if no problem was found, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=20, help="number of SuperNodes (default 20)")
    parser.add_argument("--rounds", type=int, default=30, help="number of rounds (default 30)")
    parser.add_argument("--server-kills", type=int, default=2, help="how often to kill the server (default 2)")
    parser.add_argument("--timeout", type=float, default=60.0, help="time limit for a reply in seconds (default 60)")
    most = WORKERS_PER_CORE * usable_cores()
    parser.add_argument("--in-flight", type=int, default=most, help=f"nodes working at the same time (default {most})")
    parser.add_argument("--pause", type=float, default=4.0, help="mean seconds between two faults (default 4)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the faults (default 0)")
    parser.add_argument("--json", default="", help="append what happened to this file, as a JSON line")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fedapps-soak-"))
    config = {
        "nodes": options.nodes,
        "rounds": options.rounds,
        "timeout": options.timeout,
        "in-flight": options.in_flight,
        "output": str(folder / "run"),
    }
    nodes = [{"partition-id": index, "num-partitions": options.nodes} for index in range(options.nodes)]
    begun = time.monotonic()
    with deployment(folder / "fleet") as deployed:
        fleet = FaultyFleet(deployed, APP, config, nodes)
        soak = Soak(fleet, folder / "run", random.Random(options.seed), options.pause)
        soak.run(options.server_kills)
    minutes = (time.monotonic() - begun) / 60
    wrong = findings(soak, folder / "replay") + leftovers(folder / "fleet")
    used = sum(len(record["used"]) for record in soak.rounds())
    refused = Counter(_kind(reason) for record in soak.rounds() for _, _, reason in record["refused"])
    print(f"\n{len(soak.rounds())} rounds in {minutes:.1f} minutes on {options.nodes} nodes; {_listed(soak.faults)}")
    print(f"{used} replies used; refused: {_listed(refused) or 'none'}")
    print("\n".join([f"PROBLEM: {line}" for line in wrong]) or "no problems found", flush=True)
    if options.json:
        happened = {"rounds": len(soak.rounds()), "nodes": options.nodes, "minutes": round(minutes, 1)}
        counts = {"faults": soak.faults, "used": used, "refused": refused, "problems": wrong}
        with Path(options.json).open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(happened | counts) + "\n")
    if wrong:
        print(f"all files are kept in {folder}", file=sys.stderr)
        return 1
    shutil.rmtree(folder)
    return 0


def _kind(reason: str) -> str:
    return "node unavailable" if "Unavailable" in reason else reason.partition("\n")[0]


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))


if __name__ == "__main__":
    sys.exit(main())
