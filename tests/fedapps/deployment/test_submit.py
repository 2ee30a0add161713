"""What a SuperLink gets of a recipe, and what nodes with their own data cannot run."""

import json
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedapps.base.errors import RunFailedError
from fedapps.deployment.fleet import deploy, run_config_text

RECIPE = Path("lane-swap-tuned")  # has a base
FEDERATED = {"methods": "fedavg,apfl"}


def test_a_recipe_with_a_base_becomes_one_flat_file() -> None:
    found = tomllib.loads(run_config_text(RECIPE, FEDERATED | {"num-nodes": 3}))
    assert "base" not in found
    assert found["driving.scenario"] == "lane-swap"
    assert (found["methods"], found["num-nodes"]) == ("fedavg,apfl", 3)
    assert not any(isinstance(value, dict) for value in found.values())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"methods": "cloud,fedavg"}, "cloud trains on the pooled data of all nodes.*--set methods=fedavg"),
        ({"clock-step-seconds": "0.5"}, "clock-step-seconds, clock-devices: must be empty on a fleet"),
        ({"node-batch": 2}, "node-batch = 2: must be 1 where each node has its own process"),
        ({"rounds": 0}, "rounds = 0: must be a whole number at least 1"),
    ],
)
def test_what_nodes_of_a_fleet_cannot_run_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        run_config_text(RECIPE, FEDERATED | changes)


def test_a_method_of_a_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "own.py"
    body = "class Own(Method):\n    name = 'own'\n    line = 'mine'\n"
    own.write_text(f"from fedapps.methods.base import Method\n\n\n{body}")
    monkeypatch.setenv("FEDAPPS_METHODS", str(own))
    with pytest.raises(ValueError, match="own is defined in a file of this machine"):
        run_config_text(RECIPE, {"methods": "own"})


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[list[str]]]:
    """A function that puts a program in place of ``flwr``, and returns the list of the commands that it gets."""

    def pretend(status: str, exit_status: int = 0, line: str = "Successfully started run 12") -> list[list[str]]:
        program, arguments = tmp_path / "flwr.py", tmp_path / "arguments"
        listing = json.dumps({"runs": [{"status": status}]}) if status else "no SuperLink"
        program.write_text(
            f"#!{sys.executable}\nimport json, sys\n"
            f"open({str(arguments)!r}, 'a').write(json.dumps(sys.argv[1:]) + chr(10))\n"
            f"print({listing!r} if sys.argv[1] == 'ls' else {line!r})\n"
            f"sys.exit({exit_status} if sys.argv[1] == 'run' else 0)\n"
        )
        program.chmod(0o700)
        for module in ("fedapps.deployment.submission", "fedapps.deployment.fleet"):
            monkeypatch.setattr(f"{module}.tool", lambda name: str(program))
        return [json.loads(line) for line in arguments.read_text().splitlines()] if arguments.exists() else []

    return pretend


@pytest.mark.parametrize(("federation", "named"), [("fleet", ["fleet"]), ("", [])])
def test_the_run_is_submitted_to_the_federation(
    federation: str,
    named: list[str],
    commands: Callable[..., list[list[str]]],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    commands("finished:completed")
    assert deploy(RECIPE, federation, FEDERATED | {"num-nodes": 3}, stream=True) == 0
    assert "Successfully started run 12" in capfd.readouterr().out
    submitted, asked = commands("")
    assert submitted[2:-1] == [*named, "--stream", "--run-config"]
    assert asked == ["ls", *named, "--run-id", "12", "--format", "json"]
    assert deploy(RECIPE, federation, FEDERATED, stream=False) == 0
    assert [command[0] for command in commands("")] == ["run", "ls", "run"], "nobody waits for the end of the run"
    assert "--stream" not in commands("")[2]


def test_what_is_submitted_has_the_keys_and_the_app(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        assert tomllib.loads(Path(command[-1]).read_text())["num-nodes"] == 3
        assert (Path(command[2]) / "fedapps" / "app" / "client_app.py").exists()
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr("fedapps.deployment.fleet.subprocess.run", run)
    assert deploy(RECIPE, "", FEDERATED | {"num-nodes": 3}, stream=False) == 0


@pytest.mark.parametrize("stream", [True, False])
def test_a_run_that_the_superlink_does_not_take_is_an_error(
    stream: bool, commands: Callable[..., list[list[str]]]
) -> None:
    commands("finished:completed", exit_status=1, line="no such federation")
    with pytest.raises(RunFailedError, match="flwr run ended with exit status 1"):
        deploy(RECIPE, "fleet", FEDERATED, stream=stream)


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("finished:failed", r"run 12 did not complete \(finished:failed\)"),
        ("finished:stopped", r"run 12 did not complete \(finished:stopped\)"),
        ("running", "run 12 goes on.*`flwr log 12 fleet --stream`"),
        ("", "whether run 12 has finished is not known"),
    ],
)
def test_a_streamed_run_that_does_not_complete_is_an_error(
    status: str, reason: str, commands: Callable[..., list[list[str]]]
) -> None:
    commands(status)
    with pytest.raises(RunFailedError, match=reason):
        deploy(RECIPE, "fleet", FEDERATED, stream=True)
