"""The command of a SuperNode and how often it polls."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tomli_w
from flwr.common.config import parse_config_args

from fedapps.base.processes import free_port
from fedapps.deployment import supernode
from fedapps.deployment.flower_command import LIBRARIES
from fedapps.deployment.supernode import SuperNode


@pytest.mark.parametrize("seconds", [0.0, -1.0, 3.5, float("nan")])
def test_a_poll_interval_out_of_range_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match=r"poll interval = .* s: must be above 0 and at most Flower's 3 s"):
        SuperNode(poll_interval=seconds)


def test_many_nodes_poll_less_often_and_import_nothing_beforehand() -> None:
    assert SuperNode.on_this_machine(1) == SuperNode(LIBRARIES, 0.2)
    assert SuperNode.on_this_machine(10_000) == SuperNode((), 1.0)


def test_without_a_private_name_of_flower_its_own_command_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    called: list[list[str]] = []
    monkeypatch.delattr("flwr.supernode.nodestate.in_memory_nodestate.CLIENT_APP_CRASHED_ERROR")
    monkeypatch.delattr("flwr.common.config.parse_config_args")
    monkeypatch.setattr(supernode, "load_command", lambda name: lambda: called.append(list(sys.argv)))
    monkeypatch.setattr(sys, "argv", ["supernode", "0.2", "torch", "--insecure", "--node-config", "a=1"])
    monkeypatch.setenv("PATH", "/bin")
    supernode.main()
    assert called == [["flower-supernode", "--insecure", "--node-config", "a=1"]]
    assert os.environ["PATH"] == f"{Path(sys.executable).parent}:/bin", "where flower-supernode looks for its SuperExec"
    (line,) = capsys.readouterr().err.splitlines()
    assert "CLIENT_APP_CRASHED_ERROR" in line
    assert line.endswith("Flower's own flower-supernode runs, whose workers import torch again for every message")
    supernode.check_options(["--node-config", "max-epochs=none", "--port", "x"])  # nobody can read the config here


@pytest.mark.parametrize("joined", [False, True])
def test_a_node_config_in_a_file_is_read_as_every_file_that_people_write(tmp_path: Path, joined: bool) -> None:
    paths = {"data-dir": '/data/"car" 7 = é', "cache": "C:\\data\\", "name": '😀\\"\x7f\n'}
    values = paths | {"partition-id": 3, "send-errors": True, "a.b": 0.5}
    (tmp_path / "node.toml").write_text(tomli_w.dumps(values), encoding="utf-16")
    given = [
        "--insecure",
        *([f"--node-config={tmp_path}/node.toml"] if joined else ["--node-config", f"{tmp_path}/node.toml"]),
    ]
    config = SuperNode().command(given)[-1].removeprefix("--node-config=")
    assert parse_config_args([config]) == values


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a = [1]", r"--node-config .*node\.toml: a = \[1\]: must be a finite number, a string, true or false"),
        (b"a = 1\nb = '\xe9'", r"node\.toml, line 2, byte 11: 0xe9 is not UTF-8"),
        (b"a" + b".a" * 99 + b" = 1", r"--node-config .*node\.toml: a\.a.*: tables are nested in more than 20 others"),
        (b"'a b' = 1", r"the key 'a b': must be of letters from A to Z, digits, hyphens and underscores"),
        (b"'' = 1", "the key '': must be of letters"),
        (b"'#' = 1", "the key '#': must be of letters"),
        (b"'a.' = 1", r"the key 'a\.': must be of letters"),
        (b"a = 1\n'a.b' = 2", r"a is a value and has keys of its own: a\.b"),
    ],
)
def test_a_node_config_that_cannot_be_read(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "node.toml").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        SuperNode().command(["--node-config", str(tmp_path / "node.toml")])


@pytest.mark.slow
@pytest.mark.subprocesses
def test_nothing_is_left_of_a_node_that_cannot_start_as_a_job_in_the_background(tmp_path: Path) -> None:
    """Jobs in the background ignore SIGINT, with which Flower's SuperExec ends itself after its node."""
    (tmp_path / "flower").mkdir()
    command = SuperNode(()).command([
        "--superlink", f"127.0.0.1:{free_port()}", "--insecure", "--max-retries", "1", "--port", str(free_port())
    ])  # fmt: skip
    with (tmp_path / "log").open("w") as log:
        started = subprocess.Popen(
            command, stdout=log, stderr=log, env=os.environ | {"FLWR_HOME": str(tmp_path / "flower")},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN), start_new_session=True,
        )  # fmt: skip
    assert started.wait(60) != 0
    while any(session == started.pid for session in map(session_of, running())):
        time.sleep(0.1)
    said = (tmp_path / "log").read_text()
    assert "Failed to initialize the connection to the SuperLink" in said or "Exit Code" in said
    assert "Traceback" not in said


def running() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


@pytest.mark.slow
@pytest.mark.subprocesses
def test_the_command_of_a_supernode_starts_without_the_libraries_of_its_workers() -> None:
    python, *words = SuperNode().command(["--help"])
    helped = subprocess.run([python, "-X", "importtime", *words], capture_output=True, text=True)
    assert helped.returncode == 0, helped.stderr
    assert "--superlink" in helped.stdout
    imported = {line.rpartition("|")[2].strip() for line in helped.stderr.splitlines()}
    assert "flwr" in imported
    assert "torch" in LIBRARIES
    assert not imported & set(LIBRARIES)
