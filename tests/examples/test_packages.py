"""The packages of ``examples/`` in this process: found by name, compared, and FedAvg where they must be."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from extension_packages import PACKAGES, ROOT, environment_with
from flwr.app import Context, RecordDict
from lean_environment import run_tool
from toys import same_bits

from fedapps.app.client_app import profile_record
from fedapps.cli.commands import main
from fedapps.config.keys import described
from fedapps.config.parsing import ConfigError, parse
from fedapps.launch.inputs import resolve
from fedapps.launch.launch import execute
from fedapps.registry.methods import method_names
from fedapps.registry.tasks import task_names
from fedapps.runs.checkpoints import read_snapshot

pytestmark = [pytest.mark.slow, pytest.mark.subprocesses]
RECIPE = ROOT / "examples" / "tabular-task" / "recipes" / "digits.toml"
QUICK = {
    "task": "tabular",
    "num-nodes": 3,
    "rounds": 1,
    "epochs": 2,
    "evaluate-every": 1,
    "collect-after": 0,
    "optimizer": "sgd",
    "learning-rate": 0.05,
    "batch-size": 16,
    "tabular.dataset": "breast-cancer",
    "tabular.alpha": 5.0,
}


@pytest.mark.parametrize("name", PACKAGES)
def test_the_tests_of_the_package_pass(name: str, installed: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-o", "addopts=", "--import-mode=importlib"]
    folder = ROOT / "examples" / name
    assert " passed" in run_tool(*command, folder=folder, environment=environment_with(installed))


def test_they_are_known_while_they_are_installed_and_not_before(request: pytest.FixtureRequest) -> None:
    assert "fedsam" not in method_names()
    request.getfixturevalue("plugins")
    assert method_names()[-1] == "fedsam"
    assert task_names()[-1] == "tabular"
    assert "tabular.alpha" in described()["task tabular"]
    assert "fedsam.radius" in described()["method fedsam"]


def test_compare_runs_them_beside_ours(plugins: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quick = "num-nodes=3 rounds=2 epochs=1 evaluate-every=1 tabular.dataset=breast-cancer tabular.partition=iid"
    given = [f"--set={pair}" for pair in [*quick.split(), f"cache-dir={tmp_path / 'worlds'}"]]
    methods = "fedavg,fedsam,fedbn,fedprox(mu=0.1)"
    options = ["--methods", methods, "--seeds", "1", "--jobs", "1", "--output-dir", str(tmp_path / "runs")]
    json_path = tmp_path / "compare.json"
    varied = ["--vary", "tabular.shift=0,2", "--json", str(json_path)]
    assert main(["compare", str(RECIPE), *options, *given, *varied]) == 0, capsys.readouterr().err
    compared = json.loads(json_path.read_text())["varied"]
    assert [part["point"] for part in compared] == [{"tabular.shift": 0}, {"tabular.shift": 2}]
    for part in compared:
        assert list(part["table"]) == methods.split(",")
        assert all(0 <= row["accuracy"]["mean"] <= 1 for row in part["table"].values())
    same, shifted = ({m: row["accuracy"]["mean"] for m, row in part["table"].items()} for part in compared)
    assert min(same.values()) > 0.85
    assert shifted["fedbn"] != shifted["fedavg"]


@pytest.mark.parametrize(
    ("method", "more"),
    [("fedsam(radius=0)", {"rounds": 2}), ("scaffold", {})],
    ids=["fedsam-without-a-radius", "scaffold-in-round-1"],
)
def test_they_are_fedavg_bit_for_bit_where_they_must_be(
    method: str, more: dict[str, Any], plugins: Path, tmp_path: Path
) -> None:
    given = QUICK | more | {"cache-dir": str(tmp_path / "worlds"), "methods": f"fedavg,{method}", "name": "run"}
    config = parse(resolve(given, str(tmp_path)))
    execute(config, "inline")
    final = f"round-{config.run.rounds:06d}.safetensors"
    arrays = [read_snapshot(tmp_path / "run" / "checkpoints" / m / final).arrays for m in ("fedavg", method)]
    shared = [{n: a for n, a in found.items() if n.startswith("shared.")} for found in arrays]
    assert shared[0]
    assert same_bits(*shared)


def test_nodes_answer_the_profile_query_under_fedbn_where_profiles_have_no_model(plugins: Path, tmp_path: Path) -> None:
    given = {"task": "lqr", "num-nodes": 3, "collect-after": 0, "cache-dir": str(tmp_path), "methods": "fedbn"}
    node = {"partition-id": 0, "num-partitions": 3}
    record = profile_record(Context(1, 1, node, RecordDict(), given))
    assert (record["key"], record["num-examples"]) == ("robot-00", 1080)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tabular.alpha": -1}, "tabular.alpha = -1.0: must be a number above 0"),
        ({"tabular.aplha": 1.0}, "tabular.aplha: unknown key; did you mean 'tabular.alpha'?"),
        ({"methods": "fedsam(rate=1)"}, "fedsam.rate: unknown key; known keys: fedsam.radius"),
        ({"fedsam.radius": -1}, "fedsam.radius = -1.0: must be a number at least 0"),
        ({"methods": "scaffold", "optimizer": "adam"}, "optimizer = 'adam': must be 'sgd' with scaffold"),
        ({"methods": "scaffold", "dp": "local"}, "leave out of methods scaffold"),
        ({"extra": "tabular.alpha = 2.0"}, "extra: tabular.alpha: set this beside extra"),
    ],
)
def test_bad_keys_of_other_packages_are_told_like_ours(given: dict[str, Any], said: str, plugins: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        parse({"methods": "fedavg"} | QUICK | given)
    assert said in str(caught.value)
