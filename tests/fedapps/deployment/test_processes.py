"""Commands of ``flwr`` in one process."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from installed_commands import environment_with

from fedapps.deployment.processes import FleetError, FlwrCommands

pytestmark = pytest.mark.subprocesses

#: A ``flwr`` that does what its first argument says.
FLWR = """
import json, os, sys

calls = 0

def main():
    global calls
    calls += 1
    kind, *words = sys.argv[1:]
    if kind == "ls":
        print("a warning", file=sys.stderr)
        print(json.dumps({"nodes": [{"calls": calls, "pid": os.getpid(), "words": words}]}), file=sys.__stdout__)
    elif kind == "busy":  # the database is locked twice
        print(json.dumps({"nodes": [1]}) if calls > 2 else "database is locked")
    elif kind == "fails":
        print("no such node", file=sys.stderr)
        sys.exit(3)
    elif kind == "says why":
        sys.exit("why")
    elif kind == "raises":
        raise KeyError("surprise")
    elif kind == "dies":
        os._exit(7)
"""


@pytest.fixture
def flwr(tmp_path: Path) -> Iterator[FlwrCommands]:
    commands = FlwrCommands(environment_with(tmp_path / "installed", "flwr_double", FLWR, ["flwr = flwr_double:main"]))
    yield commands
    commands.close()


def never() -> None:
    pass


def test_all_commands_run_in_one_process_and_warnings_are_no_output(flwr: FlwrCommands) -> None:
    (first,), (second,) = (flwr.query("ls", "a b", key="nodes", check=never) for _ in range(2))
    assert (first["calls"], second["calls"]) == (1, 2)
    assert first["pid"] == second["pid"] != os.getpid()
    assert first["words"] == ["a b", "fedapps", "--format", "json"]


def test_a_command_that_fails_is_told_and_the_next_one_runs(flwr: FlwrCommands) -> None:
    for kind, status, text in (("fails", 3, "no such node\n"), ("says why", 1, "why\n"), ("raises", 1, "KeyError")):
        done = flwr.run(kind)
        assert done.returncode == status
        assert done.stderr.startswith(text)
    assert flwr.run("ls").returncode == 0


def test_a_query_is_repeated_until_it_succeeds(flwr: FlwrCommands, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    assert flwr.query("busy", key="nodes", check=never) == [1]
    assert pauses == [1.0, 1.0]
    with pytest.raises(FleetError, match="flwr fails failed: no such node"):
        flwr.query("fails", key="nodes", check=never)


def test_a_process_that_ends_is_an_error_and_nothing_is_left(flwr: FlwrCommands) -> None:
    with pytest.raises(FleetError, match=r"flwr dies ended its process \(exit status 7\)"):
        flwr.run("dies")


def test_closing_ends_the_process(flwr: FlwrCommands) -> None:
    (found,) = flwr.query("ls", key="nodes", check=never)
    flwr.close()
    assert not Path(f"/proc/{found['pid']}").exists()
    flwr.close()


def test_a_check_that_raises_stops_the_query(flwr: FlwrCommands) -> None:
    def ended() -> None:
        raise FleetError("the SuperLink has ended")

    with pytest.raises(FleetError, match="the SuperLink has ended"):
        flwr.query("ls", key="nodes", check=ended)
