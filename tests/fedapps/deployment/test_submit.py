"""What a SuperLink gets of a recipe, and what nodes with their own data cannot run."""

import subprocess
import tomllib
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


@pytest.mark.parametrize(("federation", "named"), [("fleet", ["fleet"]), ("", [])])
def test_the_run_is_submitted_to_the_federation(
    federation: str, named: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        assert tomllib.loads(Path(command[-1]).read_text())["num-nodes"] == 3
        assert (Path(command[2]) / "fedapps" / "app" / "client_app.py").exists()
        return subprocess.CompletedProcess(command, len(commands) - 1)

    monkeypatch.setattr("fedapps.deployment.processes.subprocess.run", run)
    given = FEDERATED | {"num-nodes": 3}
    assert deploy(RECIPE, federation, given, stream=True) == 0
    assert commands[0][3:-1] == [*named, "--stream", "--run-config"]
    with pytest.raises(RunFailedError, match="flwr run ended with exit status 1"):
        deploy(RECIPE, federation, given, stream=False)
    assert "--stream" not in commands[1]
