"""``python -m fedapps fleet``: the same bits as in one process, and nothing left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from safetensors.numpy import load_file
from toys import same_bits

from fedapps.base.processes import descendants, is_alive, runs
from fedapps.config.parsing import parse
from fedapps.launch.inputs import resolve
from fedapps.launch.launch import execute
from fedapps.runs.checkpoints import read_snapshot

pytestmark = [pytest.mark.processes, pytest.mark.slow]

APP = Path(__file__).parents[2]
NODES, ROUNDS = 3, 2
#: A method for each kind of record that nodes keep or send beside parameters: a control variate, a personal model, a
#: choice, prototypes. APFL is in ``test_federation``, FedBN in ``test_examples``.
METHODS = ("scaffold", "ditto", "ifca", "fedproto")


def settings(folder: Path) -> dict[str, Any]:
    given = {"task": "lqr", "methods": "apfl", "num-nodes": NODES, "rounds": ROUNDS, "evaluate-every": ROUNDS}
    training = {"epochs": 1, "spfl.epochs": 1, "apfl.epochs": 1, "batch-size": 32, "collect-after": 0}
    return given | training | {"cache-dir": str(folder / "worlds"), "name": "run"}


@contextmanager
def fleet(folder: Path, *options: str, **more: Any) -> Iterator[subprocess.Popen[str]]:
    """The command, with its output in the file ``output`` of ``folder``; it is ended in any case."""
    recipe = folder / "recipe.toml"
    recipe.write_text(tomli_w.dumps(settings(folder) | more))
    command = [sys.executable, "-m", "fedapps", "fleet", str(recipe), "--output-dir", str(folder), *options]
    with (folder / "output").open("w") as output:
        process = subprocess.Popen(
            command, cwd=APP, text=True, stdout=output, stderr=subprocess.STDOUT, preexec_fn=heed_ctrl_c
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def heed_ctrl_c() -> None:
    """Undo the ignoring of SIGINT that jobs in the background pass on to their children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait_for(happened: Callable[[], Any], process: subprocess.Popen[str], folder: Path) -> Any:
    """What ``happened`` gives, once it is true."""
    while not (result := happened()):
        assert process.poll() is None, said(folder)
        time.sleep(0.05)
    return result


def said(folder: Path) -> str:
    return (folder / "output").read_text()


def named(root: int, command: str) -> list[int]:
    """The processes below ``root`` that run a command of Flower."""
    return [pid for pid in descendants(root) if runs(pid, command)]


def forked_workers(root: int) -> list[int]:
    """The workers of the nodes below ``root`` that are forks of a process with imported libraries."""
    return [worker for server in named(root, "fork-server") for worker in named(server, "flwr-clientapp")]


def assert_nothing_is_left(folder: Path) -> None:
    """No process that has the folder of the fleet in its command or environment, and no temporary file."""
    needle = os.fsencode(folder / "run-fleet")
    deadline = time.monotonic() + 240
    while left := [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if mentions(pid, needle)]:
        assert time.monotonic() < deadline, f"processes left behind: {left}"
        time.sleep(0.1)
    names = {path.name for path in (folder / "run-fleet").iterdir()}
    allowed = {"certificates", "flower", "superlink.log", "superlink.db", "run.log"}
    assert names <= allowed | {f"node-{index}" for index in range(NODES)}
    assert not list((folder / "run-fleet").rglob(".*.fedapps-*")), "interrupted writes"


def mentions(pid: int, needle: bytes) -> bool:
    try:
        known = b"".join(Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ"))
    except OSError:
        return False
    return needle in known and is_alive(pid)


def test_a_fleet_with_tls_and_keys_gives_the_same_bits_as_one_process(tmp_path: Path) -> None:
    images = {"task": "images", "images.dataset": "digits", "images.alpha": 1.0, "optimizer": "sgd", "epochs": 1}
    given = settings(tmp_path) | images | {"methods": ",".join(METHODS), "learning-rate": 0.1, "num-nodes": 2}
    with fleet(tmp_path, "--tls", "--auth", **given) as process:
        assert process.wait() == 0, said(tmp_path)
    output = said(tmp_path)
    assert "(TLS, node keys)" in output
    assert "2 SuperNodes are connected" in output
    assert f"round {ROUNDS}/{ROUNDS} took" in output, "the run's progress is streamed"
    assert output.endswith(f"report:  {tmp_path / 'run' / 'report.html'}\n")
    assert (tmp_path / "run" / "report.html").exists()
    assert_nothing_is_left(tmp_path)

    inline = tmp_path / "inline"
    execute(parse(resolve(given, str(inline))), "inline")
    for method in METHODS:
        last = Path("run") / "checkpoints" / method / f"round-{ROUNDS:06d}.safetensors"
        ours, theirs = read_snapshot(inline / last), read_snapshot(tmp_path / last)
        assert same_bits(ours.arrays, theirs.arrays), method
        states = sorted((inline / "run" / "nodes").glob(f"*/{method}/*/"))
        kept = 2 if method in ("ditto", "fedproto") else 0
        assert len(states) == kept, "nodes keep personal models, and nothing else"
        for index, own in enumerate(states):
            state = tmp_path / "run-fleet" / f"node-{index}" / "state"
            mine = {path.name: load_file(path) for path in own.glob("*.safetensors")}
            deployed = {path.name: load_file(path) for path in state.glob(f"*/{method}/*/*.safetensors")}
            assert mine.keys() == deployed.keys()
            assert all(same_bits(arrays, deployed[name]) for name, arrays in mine.items()), "private states"
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert {line["method"] for line in lines} == set(METHODS)
    assert all(line["train_replies"] == 2 and line["refused"] == [] for line in lines)


def test_ctrl_c_ends_everything(tmp_path: Path) -> None:
    with fleet(tmp_path, **{"num-nodes": 1}) as process:
        wait_for(lambda: forked_workers(process.pid), process, tmp_path)
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130, said(tmp_path)
    assert "fedapps: interrupted; the folder of the run has everything that was trained" in said(tmp_path)
    assert_nothing_is_left(tmp_path)


def test_being_terminated_at_the_start_ends_everything(tmp_path: Path) -> None:
    with fleet(tmp_path, "--tls", **{"num-nodes": 1}) as process:
        wait_for(lambda: named(process.pid, "flower-superlink"), process, tmp_path)
        process.terminate()
        assert process.wait() == 130, said(tmp_path)
    assert_nothing_is_left(tmp_path)


def test_a_supernode_that_dies_at_the_start_is_told_of_and_ends_the_fleet(tmp_path: Path) -> None:
    with fleet(tmp_path, **{"num-nodes": 2}) as process:
        node, *_ = wait_for(lambda: named(process.pid, "flower-supernode"), process, tmp_path)
        os.kill(node, signal.SIGKILL)
        assert process.wait() == 1, said(tmp_path)
    assert "has ended (killed by signal 9); the end of its log, " in said(tmp_path)
    assert str(tmp_path / "run-fleet" / "node-") in said(tmp_path)
    assert not (tmp_path / "run").exists(), "no run was submitted"
    assert_nothing_is_left(tmp_path)
