"""The benchmark of what users run: the job of the peers, the cost of a command, and the table."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers import __main__ as peers

pytestmark = pytest.mark.subprocesses

#: A process with a child that computes for .3 s, and that does not wait for it.
HAS_A_CHILD = """
import os, time
if not (child := os.fork()):
    while time.process_time() < .3:
        pass
    os._exit(0)
os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
print("done")
time.sleep(1)
"""
PROGRAM = """
from job import Job, network
job = Job.read()
assert (len(job.nodes), job.drawn, job.batch, job.seed) == (10, 10, 20, 0)
assert all(images.shape[1:] == (64,) and abs(images.mean()) < 0.2 for images, _ in job.nodes)
job.finish(network())
"""


@pytest.mark.slow
def test_the_time_of_processes_that_a_command_starts_counts() -> None:
    cost, output = peers.measured([sys.executable, "-c", HAS_A_CHILD])
    assert output == "done\n"
    assert cost.cpu >= 0.25
    assert cost.megabytes > 1


def test_a_command_that_fails_is_an_error_with_its_last_line() -> None:
    with pytest.raises(RuntimeError, match="exit status 3:\nno data"):
        peers.measured([sys.executable, "-c", "print('no data'); raise SystemExit(3)"])


def test_the_job_has_every_training_image_once_and_the_test_images(tmp_path: Path) -> None:
    peers.write_job(tmp_path / "job.npz", 100, "scaffold", 7, 1)
    with np.load(tmp_path / "job.npz") as job:
        assert sum(len(job[f"x{node}"]) for node in range(100)) + len(job["x"]) == 1797
        assert json.loads(str(job["settings"]))["rounds"] == 7


@pytest.mark.slow
def test_rows_of_our_command_and_of_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(peers.__file__).parent
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "job.py").write_text((folder / "job.py").read_text())
    peer = peers.Peer(str(tmp_path / "program.py"), ("fedavg",), lambda: Path(sys.executable))
    monkeypatch.setattr(peers, "PEERS", {"peer": peer})
    path = tmp_path / "rows.json"
    sizes = ["--nodes", "10", "--methods", "fedavg", "--few", "1", "--many", "3", "--pairs", "1", "--sides", "peer"]
    assert peers.main([*sizes, "--json", str(path)]) == 0
    ours, theirs = (json.loads(line) for line in path.read_text().splitlines())
    assert (ours["side"], theirs["side"], theirs["lines"]) == ("fedapps", "peer", 5)
    assert ours["accuracy"][0] > 0.2 > theirs["accuracy"][0] - 0.2
    assert ours["ratio"] == 1


def test_a_time_that_is_too_short_to_be_measured_has_a_ratio() -> None:
    assert [peers._ratio(0.5, theirs) for theirs in (0.25, 0.5, 0.0)] == [2.0, 1.0, math.inf]
    assert peers._ratio(0.0, 0.0) == 1


@pytest.mark.slow
def test_a_side_that_does_not_exist_is_named() -> None:
    command = [sys.executable, "-m", "benchmarks.peers", "--sides", "flukes"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "flukes: expected some of fedapps, Ray, Flower" in done.stderr


def test_what_an_earlier_side_left_behind_is_not_counted() -> None:
    burn = "import time\nwhile time.process_time() < 1: pass"
    with subprocess.Popen([sys.executable, "-c", burn]) as left:
        os.waitid(os.P_PID, left.pid, os.WEXITED | os.WNOWAIT)  # ended, and still there
        cost, _ = peers.measured(["true"])
    assert cost.cpu < 0.5
