"""The app on Ray: the same bits as in one process, also when the server is killed on the way, and in ``flwr run``.

The method has a private state on its nodes and its updates are summed securely.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedapps.sim.inprocess import run_server
from fedapps.sim.ray_nodes import ray_grid
from flower_runs import Fleet, flower_run
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.client import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedapps.base.processes import descendants, is_alive
from fedapps.config.keys import for_flower
from fedapps.config.parsing import parse
from fedapps.launch.inputs import app_folder, resolve
from fedapps.launch.launch import execute
from fedapps.runs.checkpoints import read_snapshot

pytestmark = pytest.mark.processes

APP = Path(__file__).parents[2]
ROUNDS = 4
METHOD = "spfl"


def settings(folder: Path, **more: Any) -> dict[str, Any]:
    given = {
        "task": "lqr",
        "methods": METHOD,
        "num-nodes": 3,
        "rounds": ROUNDS,
        "epochs": 4,
        "spfl.epochs": 2,
        "batch-size": 32,
        "learning-rate": 0.01,
        "collect-after": 0,
        "server-optimizer": "momentum",
        "secure-aggregation": True,
        "cache-dir": str(folder / "worlds"),
        "name": "run",
    }
    return given | more


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of an undisturbed run in one process."""
    folder = tmp_path_factory.mktemp("inline")
    execute(parse(resolve(settings(folder), str(folder))), "inline")
    return folder / "run"


def start(folder: Path, **more: Any) -> subprocess.Popen[str]:
    pairs = [f"--set={key}={json.dumps(value)}" for key, value in settings(folder, **more).items()]
    command = [sys.executable, "-m", "fedapps", "run", "--engine", "ray", "--output-dir", str(folder), *pairs]
    return subprocess.Popen(command, cwd=APP, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def rounds_done(run: Path) -> int:
    path = run / "metrics.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def final_arrays(run: Path) -> dict[str, np.ndarray]:
    return dict(read_snapshot(run / "checkpoints" / METHOD / f"round-{ROUNDS:06d}.safetensors").arrays)


def metrics(run: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        # The messages of a resumed run name one attempt more.
        for name in ("seconds", "bytes_down", "train_bytes_down"):
            row.pop(name, None)
        (cohort,) = row["strategy"]["secagg"]
        for exchange in cohort["exchanges"].values():
            del exchange["seconds"]
    return rows


def assert_same(run: Path, other: Path) -> None:
    mine, theirs = final_arrays(run), final_arrays(other)
    assert mine.keys() == theirs.keys()
    for name in mine:
        np.testing.assert_array_equal(mine[name], theirs[name], err_msg=name)
    assert metrics(run) == metrics(other)


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 240
    while left := [pid for pid in pids if is_alive(pid)]:
        assert time.monotonic() < deadline, f"processes left behind: {left}"
        time.sleep(0.1)


def ended_in_a_round(folder: Path, ending: signal.Signals, done: int, **more: Any) -> str:
    """Start the run, send it a signal after ``done`` rounds, and return its output."""
    process = start(folder, **more)
    with process:
        try:
            while rounds_done(folder / "run") < done:
                assert process.poll() is None, process.stdout.read() if process.stdout else ""
                time.sleep(0.02)
            everything = descendants(process.pid)
            process.send_signal(ending)
            output, _ = process.communicate()
        finally:
            process.terminate()
    wait_until_gone(everything)
    assert process.returncode == (130 if ending == signal.SIGTERM else -ending), output
    assert done <= rounds_done(folder / "run") < ROUNDS
    return output


@pytest.mark.slow
def test_a_run_ended_twice_in_a_round_gives_the_same_bits_on_ray_as_in_one_process(
    undisturbed: Path, tmp_path: Path
) -> None:
    output = ended_in_a_round(tmp_path, signal.SIGTERM, 1)
    assert "Resume a run with --set name=NAME --set resume=true" in output, output
    output = ended_in_a_round(tmp_path, signal.SIGKILL, 2, resume=True)
    assert "resuming after round" in output
    with start(tmp_path, resume=True) as last:
        output, _ = last.communicate()
    assert last.returncode == 0, output
    assert "report" in output
    assert_same(tmp_path / "run", undisturbed)
    assert (tmp_path / "run" / "report.html").exists()
    assert (tmp_path / "run" / "summary.json").exists()


def test_flwr_run_gives_the_same_bits(undisturbed: Path, tmp_path: Path) -> None:
    config = for_flower(parse(resolve(settings(tmp_path), str(tmp_path))).flat())
    lines: list[str] = []
    with app_folder() as app:
        flower_run(app, config, Fleet(num_nodes=3), home=tmp_path / "flwr", show=lines.append)
    assert_same(tmp_path / "run", undisturbed)


def test_a_node_whose_worker_is_killed_replies_from_another(tmp_path: Path) -> None:
    def kill_the_first(message: Message, context: Context) -> Message:
        with suppress(FileExistsError):
            (tmp_path / "killed").mkdir()
            os.kill(os.getpid(), signal.SIGKILL)
        node = int(context.node_config["partition-id"])
        return Message(RecordDict({"metrics": MetricRecord({"partition": node})}), reply_to=message)

    app, replies = ClientApp(), list[Message]()
    app.train()(kill_the_first)
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        messages = [Message(RecordDict(), dst_node_id=node, message_type="train") for node in grid.get_node_ids()]
        replies.extend(grid.send_and_receive(messages))

    with ray_grid(app, 3, {}) as grid:
        run_server(server_app, grid)
    assert (tmp_path / "killed").exists()
    assert sorted(reply.content["metrics"]["partition"] for reply in replies) == [0, 1, 2]
