"""Workers that are forks of a process with imported libraries."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from installed_commands import environment_with

pytestmark = pytest.mark.subprocesses

#: A command that writes what it finds into the file of its first argument.
PROBE = """
import atexit, json, os, sys, weakref
import numpy

weakref.finalize(main := lambda: work(), open, __file__ + ".taken-apart", "w")

def work():
    path, *words = sys.argv[1:]
    if "--killed" in words and not os.path.exists(path + ".killed"):
        open(path + ".killed", "w").close()
        os.kill(os.getpid(), 9)
    found = {
        "command": sys.argv[0], "words": words, "parent": os.getppid(), "input": sys.stdin.read(),
        "library": "colorsys" in sys.modules, "app": "fedapps" in sys.modules, "draw": int(numpy.random.randint(2**31)),
        "name": open("/proc/self/comm").read().strip(),
    }
    def write():
        with open(path + ".part", "w") as file:
            json.dump(found, file)
        os.rename(path + ".part", path)
    atexit.register(write)
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment in which the command ``probe`` is installed."""
    return environment_with(tmp_path / "installed", "probe", PROBE, ["probe = probe:main"])


@pytest.fixture
def server(environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-P", "-m", "fedapps.deployment.flower_command", "probe", "no_such_module", "colorsys"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True, env=environment) as process:
        yield process


def call(server: subprocess.Popen[str], path: Path, *words: str) -> dict[str, Any]:
    assert server.stdin
    server.stdin.write(json.dumps([str(path), *words]) + "\n")
    server.stdin.flush()
    while not path.exists():
        assert server.poll() is None
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_every_call_is_a_new_process_that_finds_the_libraries_imported(
    server: subprocess.Popen[str], tmp_path: Path
) -> None:
    first, second, third = (call(server, tmp_path / name, "a b", "--c") for name in ("one", "two", "three"))
    assert len({first["parent"], second["parent"], third["parent"], server.pid}) == 4
    assert (first["command"], first["words"], first["name"]) == ("probe", ["a b", "--c"], "probe")
    assert first["input"] == "", "a worker cannot read the requests of others"
    assert first["library"]
    assert third["library"]
    assert not third["app"], "the app is loaded from what the server sent"
    assert len({first["draw"], second["draw"], third["draw"]}) == 3, "generators do not share a seed"
    wait_for_the_end(server, first["parent"], second["parent"], third["parent"])
    assert not list(tmp_path.rglob("*.taken-apart")), "a worker does not take apart what it did not make"


def wait_for_the_end(server: subprocess.Popen[str], *pids: int) -> None:
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert server.poll() is None


def test_a_call_whose_process_is_killed_is_repeated(server: subprocess.Popen[str], tmp_path: Path) -> None:
    undisturbed, killed = call(server, tmp_path / "one"), call(server, tmp_path / "two", "--killed")
    wait_for_the_end(server, undisturbed["parent"])  # it ends with its call
    assert [killed["parent"]] == children(server.pid), "the second call came to the fork with the libraries"
    assert (killed["words"], killed["name"]) == (["--killed"], "probe")


def children(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


@pytest.mark.parametrize(("end", "imported"), [("release", True), ("kill", False)])
def test_the_libraries_are_released_after_a_time_without_calls_and_imported_again(
    environment: dict[str, str], tmp_path: Path, end: str, imported: bool
) -> None:
    code = f"server._RELEASE_AFTER = {0.2 if end == 'release' else 1000}; server.serve('probe', ['colorsys'])"
    command = [sys.executable, "-P", "-c", f"from fedapps.deployment import flower_command as server; {code}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True, env=environment) as server:
        assert call(server, tmp_path / "first")["library"]
        if end == "kill":
            (with_libraries,) = children(server.pid)
            os.kill(with_libraries, signal.SIGKILL)
        while children(server.pid):
            assert server.poll() is None
        assert call(server, tmp_path / "second")["library"] == imported
        assert call(server, tmp_path / "third")["library"]
        assert server.stdin
        server.stdin.close()


def test_without_libraries_nothing_stays_in_memory(environment: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "fedapps.deployment.flower_command", "probe"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True, env=environment) as server:
        worker = call(server, tmp_path / "one")
        assert not worker["library"]
        wait_for_the_end(server, worker["parent"])
        assert not children(server.pid)
        assert server.stdin
        server.stdin.close()


def test_the_server_ends_with_its_standard_input(server: subprocess.Popen[str], tmp_path: Path) -> None:
    call(server, tmp_path / "one")
    assert server.stdin
    server.stdin.close()
    assert server.wait() == 0


def test_a_fork_has_what_is_imported_and_without_it_the_command_is_started(tmp_path: Path) -> None:
    code = """
import json, os, signal, sys
from fedapps.deployment.flower_command import Fork

def serve():
    print("colorsys" in sys.modules, *map(json.loads, sys.stdin), flush=True)

import colorsys
fork = Fork("command", serve)
assert fork.start(["a b", "--c"]) is None
assert fork.start([]) is None
os.close(fork._calls)
print(os.waitpid(fork.pid, 0)[1], flush=True)
ended = Fork("command", serve)
os.kill(ended.pid, signal.SIGKILL)
os.waitpid(ended.pid, 0)
print(ended.start(["--token", "x"]), flush=True)
os._exit(0)
"""
    output = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert output.splitlines() == ["True ['a b', '--c'] []", "0", "['command', '--token', 'x']"]
