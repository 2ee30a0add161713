"""Comparisons on a Ray cluster of three nodes on this machine, one of which is killed."""

import json
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from fedapps.sim.matrix import run_matrix
from fedapps.sim.ray_cluster import RayCluster
from small_runs import LQR

from fedapps.base.processes import descendants
from fedapps.comparison.compare import compare_recipe

pytestmark = [pytest.mark.processes, pytest.mark.slow]

ROUNDS = 60


@pytest.fixture
def cluster() -> Iterator[Any]:
    """The cluster's head, which this process connects to, and two nodes with one core each."""
    from ray.cluster_utils import Cluster

    (Path(tempfile.gettempdir()) / "ray").mkdir(exist_ok=True)  # which Ray's own utility expects
    shared = {"include_dashboard": False, "object_store_memory": 80 * 2**20}
    made = Cluster(initialize_head=True, head_node_args={**shared, "num_cpus": 0})
    made.workers = [made.add_node(**shared, num_cpus=1) for _ in range(2)]
    try:
        yield made
    finally:
        made.shutdown()


def compare(folder: Path, **where: Any) -> dict[str, Any]:
    """The content of ``compare.json``; runs take a few seconds each."""
    changes = {"rounds": ROUNDS, "evaluate-every": ROUNDS, "epochs": 5, "cache-dir": str(folder / "worlds")}
    given = {key: value for key, value in (LQR | changes).items() if key != "name"}
    made = compare_recipe(
        Path("lqr"), methods=["sfl", "apfl"], seeds=1, overrides=given, output_dir=str(folder / "runs"), **where
    )
    found: dict[str, Any] = json.loads((made / "compare.json").read_text())
    return found


def results(found: dict[str, Any]) -> list[Any]:
    """All numbers of the runs but the bytes to the nodes: messages of a resumed run name one attempt more."""
    for row in found["rows"]:
        del row["metrics"]["bytes_down_per_client_round"]
    rows: list[Any] = found["rows"]
    return rows


def test_a_comparison_has_the_same_numbers_also_when_a_node_is_killed(
    cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = compare(tmp_path / "here", jobs=1)

    ended = Event()

    def kill() -> None:
        while not (logs := logs_under_way(tmp_path / "there")):
            if ended.wait(0.05):
                return
        node, worker = node_that_writes(logs[0], cluster.workers)
        os.kill(worker, signal.SIGSTOP)  # otherwise the run could end before Ray has removed the node
        try:
            cluster.remove_node(node, allow_graceful=False)
        finally:
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)

    killer = Thread(target=kill)
    killer.start()
    try:
        there = compare(tmp_path / "there", cluster=cluster.address)
    finally:
        ended.set()
        killer.join()
    assert results(there) == results(here)
    logs = sorted((tmp_path / "there" / "runs").glob("*/logs/*.log"))
    begun = [log.read_text().count("run folder: ") for log in logs]
    assert sorted(begun) == [1, 2], "one run lost its node, began again and was resumed"
    assert "[2/2]" in capsys.readouterr().out
    with RayCluster(cluster.address) as workers, pytest.raises(json.JSONDecodeError, match=r"^Expecting property name"):
        run_matrix([{"s": "1"}, {"s": "{"}], json.loads, cluster=workers)


def logs_under_way(folder: Path) -> list[Path]:
    """The logs of the runs that have finished two rounds and are far from their end."""
    files = folder.glob("runs/*/*/metrics.jsonl")
    running = [file.parent for file in files if 2 <= file.read_text().count("\n") < ROUNDS / 2]
    return [run.parent / "logs" / f"{run.name}.log" for run in running]


def node_that_writes(log: Path, nodes: list[Any]) -> tuple[Any, int]:
    """The Ray node below whose process a process has the log open, and that process."""
    for node in nodes:
        raylet = node.all_processes["raylet"][0].process.pid
        for worker in descendants(raylet):
            if os.path.realpath(f"/proc/{worker}/fd/1") == str(log):
                return node, worker
    raise AssertionError(f"no node writes {log}")
