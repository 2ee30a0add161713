"""What the page on faults says, done to real processes."""

import re
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from example_apps import EXAMPLES
from fedapps.strategies import Snapshot
from replayed import replay
from robot_page import RobotOfPage
from toys import same_bits

from benchmarks.faults import FaultyFleet
from fedapps.base.processes import descendants
from fedapps.config.parsing import Config, parse
from fedapps.deployment.superlink import Deployment, NodeConfig, deployment
from fedapps.launch.inputs import APP, resolve
from fedapps.runs.checkpoints import DiskCheckpoints
from fedapps.runs.run_folder import RunFolder

pytestmark = [pytest.mark.processes, pytest.mark.slow]

NUMPY = EXAMPLES / "numpy-hierarchy"
LQR = {
    "task": "lqr",
    "methods": "apfl",
    "epochs": 1,
    "spfl.epochs": 1,
    "apfl.epochs": 1,
    "batch-size": 32,
    "collect-after": 0,
}


class FaultyRun(FaultyFleet):
    """A run of this project's app on a fleet, and what it has left so far."""

    def __init__(self, deployed: Deployment, config: Config, node_configs: Sequence[NodeConfig]) -> None:
        super().__init__(deployed, APP, config.flat(), node_configs)
        self.config = config
        self.folder = RunFolder(config.run.folder(0), "")

    @property
    def snapshots(self) -> DiskCheckpoints:
        return self.folder.checkpoints(self.config.run.methods)

    def wait_for_round(self, number: int) -> None:
        """Wait until a round is over, and its snapshot on disk."""
        saved = self.snapshots.folder
        self.wait(lambda: any(int(path.stem[-6:]) >= number for path in saved.glob("round-*.safetensors")))

    def has_finished(self) -> bool:
        return self.folder.finished(self.config.run.methods)

    def refused(self) -> list[tuple[int, str, str]]:
        """Round, node and reason of each reply that was not used."""
        rounds = self._lines("metrics.jsonl")
        return [(line["round"], told["node"], told["reason"]) for line in rounds for told in line["refused"]]

    def trained(self, node: str) -> list[int]:
        """The rounds in which a node's training was used."""
        used = self._lines("nodes.jsonl")
        return [line["round"] for line in used if line["phase"] == "train" and line["node"] == node]

    def ended(self) -> Snapshot:
        """The last round that is on disk in full."""
        latest = self.snapshots.latest()
        assert latest
        return latest

    def _lines(self, name: str) -> list[dict[str, Any]]:
        """What was written of rounds that are on disk in full."""
        return [line for line in self.folder.lines(name) if line["round"] <= self.ended().round]

    def assert_every_round_once(self) -> None:
        rounds = [line["round"] for line in self._lines("metrics.jsonl")]
        assert rounds == list(range(1, self.ended().round + 1)), self.log_lines
        used = [(line["round"], line["phase"], line["node"]) for line in self._lines("nodes.jsonl")]
        assert len(used) == len(set(used)), "a reply was counted twice"

    def replayed(self, folder: Path) -> Snapshot:
        """The end of an undisturbed run in which the lost replies were never asked for."""
        return replay(self.config, self._lines("nodes.jsonl"), self.node_configs, folder, self.ended().round)


@contextmanager
def faulty(
    folder: Path, nodes: int, given: dict[str, Any], *own: NodeConfig, keys: bool = False
) -> Iterator[FaultyRun]:
    """A fleet for a run with this config, with ``own`` node configs or the parts of a world; it ends on the way out.

    With ``keys``, it has TLS and authenticates nodes by their keys.
    """
    config = parse(resolve(given | {"name": "run", "cache-dir": str(folder / "worlds")}, str(folder)))
    configs = own or [{"partition-id": i, "num-partitions": nodes, "keep-model": True} for i in range(nodes)]
    with deployment(folder / "fleet", tls=keys, auth=keys) as deployed:
        yield FaultyRun(deployed, config, configs)


def limited(pids: Sequence[int], most: int) -> None:
    """Let processes, and those that they will start, write no more than so many bytes into a file."""
    for pid in pids:
        with suppress(ProcessLookupError):  # one that worked on a message may end just now
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, hard))


def test_nodes_that_are_killed_hang_join_late_or_return_and_a_server_that_is_killed(tmp_path: Path) -> None:
    # It is cut off when all have taken part again, however long that takes.
    with faulty(tmp_path, 4, LQR | {"num-nodes": 3, "rounds": 40, "evaluate-every": 40, "timeout": 60.0}) as fleet:
        fleet.start(3)
        fleet.submit()
        robot = RobotOfPage(fleet.state(0) / "models" / "run" / "apfl" / "robot-00")
        robot.start()
        fleet.wait_for_round(1)
        with fleet.hanging(1):
            fleet.wait_for_message(0)
            fleet.kill_node(0)
            fleet.start_node(3)
            fleet.wait_for_round(2)
        fleet.start_node(0)
        fleet.wait_for_message(2)
        fleet.kill_worker(2)
        nodes = [f"robot-0{index}" for index in range(4)]
        fleet.wait(lambda: all(max(fleet.trained(node), default=0) > 2 for node in nodes) and len(robot.rounds) > 2)
        assert robot.is_alive()
        robot.stop()
        fleet.kill_server()
        done = fleet.ended().round
        fleet.deployed.start_superlink()
        fleet.deployed.wait_until_connected()
        fleet.submit(resume=True)
        fleet.wait_for_round(done + 2)
        fleet.kill_server()

        assert f"resuming after round {done}" in "\n".join(fleet.log_lines)
        assert [row for row in fleet.refused() if row[0] > done] == [], "the server's end costs no reply"
        fleet.assert_every_round_once()
        rounds = range(1, fleet.ended().round + 1)
        told = fleet.refused()
        late = "no reply within 60 s"
        # A worker that ends before it has started its task is replaced; later, the SuperNode replies with an error.
        reasons = ("stopped responding", late)
        killed = [
            number for number, node, reason in told if node == "robot-02" and any(text in reason for text in reasons)
        ]
        assert [number for number in rounds if number not in fleet.trained("robot-02")] == killed, told
        assert min(killed, default=3) > 2, told
        assert 1 in fleet.trained("robot-00"), "who returns is known by its old key"
        assert 2 not in fleet.trained("robot-00")
        assert 2 not in fleet.trained("robot-01"), "held up, and its late reply counts for nothing"
        assert fleet.trained("robot-03")[0] > 1, "who comes late takes part from then on"
        assert any(
            number == 2 and node == "robot-01" and any(text in reason for text in reasons)
            for number, node, reason in told
        )
        assert {node.partition("#")[0] for _, node, _ in told} <= set(nodes)
        assert all(any(text in reason for text in (*reasons, "Node Unavailable")) for _, _, reason in told), told
        assert same_bits(fleet.ended().arrays, fleet.replayed(tmp_path / "replay").arrays)
        assert robot.rounds[0] == 1, "the robot of the node that was killed"
        assert robot.rounds == sorted(set(robot.rounds)), "each model once"


def test_a_node_that_is_killed_between_two_exchanges_of_a_secure_sum_is_not_in_it(tmp_path: Path) -> None:
    given = LQR | {"methods": "fedavg", "num-nodes": 4, "rounds": 1, "deadline": 12.0, "secure-aggregation": True}
    own = [{"partition-id": i, "num-partitions": 4} for i in range(4)]  # 3 must stay
    with faulty(tmp_path, 4, given, *own, keys=True) as fleet:
        fleet.start()
        fleet.submit()
        log = fleet.deployed.node_folder(0) / "supernode.log"
        fleet.wait(lambda: "Receiving: train message" in log.read_text())  # after the shares
        fleet.kill_node(0)
        fleet.wait_until_ended()
        assert fleet.has_finished(), fleet.log_lines
        assert re.search(r"the sum of 3 of 4 nodes, .* 1 dropped out after the shares", "\n".join(fleet.log_lines))
        rows = fleet.folder.lines("nodes.jsonl")
        assert {row["node"] for row in rows} == {"robot-01", "robot-02", "robot-03"}
        plain = parse(fleet.config.flat() | {"secure-aggregation": False})
        expected = replay(plain, rows, own, tmp_path / "replay", 1).arrays
        for name in (name for name in expected if name.startswith("shared.")):
            np.testing.assert_allclose(fleet.ended().arrays[name], expected[name], atol=3 * 10 * 2.0**-21)


def test_a_node_that_sleeps_delays_no_other_and_a_killed_server_goes_on(tmp_path: Path) -> None:
    pace = {"mode": "async", "buffer": 3, "node-wait": 10.0}
    given = {"methods": "fedavg", "num-nodes": 4, "rounds": 3, "evaluate-every": 3, "deadline": 15.0}
    with faulty(tmp_path, 4, LQR | given | pace) as fleet:
        fleet.start()
        fleet.submit()
        fleet.wait_for_round(1)
        with fleet.hanging(3):
            fleet.wait_for_round(2)
            fleet.kill_server()
            done = fleet.ended().round
            fleet.deployed.start_superlink()
            fleet.deployed.wait_until_connected()
            fleet.submit(resume=True)
            fleet.wait_until_ended()
            assert f"resuming after round {done}" in "\n".join(fleet.log_lines)
            assert fleet.has_finished(), fleet.log_lines  # while the node sleeps, and long before its time is over
        rows = fleet.folder.lines("metrics.jsonl")
        assert [(row["round"], row["replies"]) for row in rows] == [(1, 3), (2, 3), (3, 3)]
        assert all(fleet.trained(f"robot-0{index}") for index in range(3))
        assert not any("no reply within 3600 s" in reason for _, _, reason in fleet.refused())


TEXT = {
    "task": "text",
    "methods": "fedvocab",
    "num-nodes": 2,
    "epochs": 1,
    "fedvocab.adapt-epochs": 1,
    "collect-after": 0,
}
SMALL = {"text.source": "simulated", "text.hidden": 8, "text.world-examples": 40}


def test_full_disks_and_damaged_states(tmp_path: Path) -> None:
    with faulty(tmp_path, 2, TEXT | SMALL | {"rounds": 3, "evaluate-every": 3}) as fleet:
        fleet.start()
        fleet.submit()
        fleet.wait_for_round(1)
        node = fleet.node(0).process.pid
        for _ in range(2):  # a process that was started while the others were limited is found the second time
            limited([node, *descendants(node)], 200_000)
        (state,) = fleet.state(1).rglob("round-*.safetensors")
        state.write_bytes(b"damaged")
        fleet.wait_for_round(2)
        limited([node, *descendants(node)], resource.RLIM_INFINITY)
        limited(fleet.server(), 20_000)
        fleet.wait_until_ended()
        assert not fleet.has_finished(), fleet.log_lines
        assert "cannot be written (File too large); what was kept before is still there" in "\n".join(fleet.log_lines)
        fleet.submit(resume=True)
        fleet.wait_until_ended()
        assert fleet.has_finished(), fleet.log_lines
        fleet.assert_every_round_once()

        assert fleet.trained("client-001") == [1, 2, 3], "a damaged state costs no round"
        assert [path.name for path in fleet.deployed.folder.rglob("*.corrupt")] == ["round-000001.safetensors.corrupt"]
        assert "round-000001.safetensors is damaged" in fleet.node(1).log.read_text()
        ((number, node_key, reason),) = fleet.refused()
        assert (number, node_key) == (2, "client-000")
        assert "cannot be written (File too large)" in reason
        assert "Traceback" not in reason
        unfinished = list(fleet.deployed.folder.rglob(".*.fedapps-*"))
        assert unfinished == [], "no interrupted write is left"
