"""The copy of an app that is submitted."""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import tomli_w
from fedapps.sim import flower_internals
from flwr.cli.build import build_fab_from_disk

from fedapps.base.errors import RunFailedError
from fedapps.deployment import credentials
from fedapps.deployment.credentials import make_certificates
from fedapps.deployment.fleet import deploy, run_config_text
from fedapps.deployment.submission import copy_app, submission

PYPROJECT = """
[project]
name = "small"
version = "1.0.0"
dependencies = ["flwr"]

[tool.flwr.app]
publisher = "small"
{included}

[tool.flwr.app.components]
serverapp = "small.server:app"
clientapp = "small.client:app"
"""
FILES = [
    "LICENSE", "README.md", ".hidden/kept.py", ".venv/lib/module.py", "lib/a.py", "runs/one/summary.json",
    "small/__init__.py", "small/__pycache__/server.py", "small/build/inner.py", "small/client.py", "small/lib/inner.py",
    "small/notes.txt", "small/secret.py", "small/server.py", "small/table.json", "small/test_server.py",
    "small/weights.bin", "venv-2/lib/module.py",
]  # fmt: skip
IGNORED = "runs/\nvenv-2/\nsecret.py\n# comment\n"


@pytest.mark.parametrize("included", ["", 'fab-include = ["/small/**/*.py"]'], ids=["all", "fab-include"])
def test_the_copy_makes_the_same_bundle_as_the_app(tmp_path: Path, included: str) -> None:
    app, copy = tmp_path / "app", tmp_path / "copy"
    for name in FILES:
        (app / name).parent.mkdir(parents=True, exist_ok=True)
        (app / name).write_text(f'"{name}"\n')
    (app / "pyproject.toml").write_text(PYPROJECT.format(included=included))
    (app / ".gitignore").write_text(IGNORED)
    (app / "linked.py").symlink_to(app / "small" / "server.py")
    copy_app(app, copy)
    assert build_fab_from_disk(copy) == build_fab_from_disk(app)
    left = {path.relative_to(copy).as_posix() for path in copy.rglob("*") if path.is_file()}
    assert {"pyproject.toml", "LICENSE", "small/server.py"} <= left
    assert not [name for name in left if "venv" in name or name.startswith("runs") or name == "linked.py"]


def test_the_modules_of_the_app_that_was_used_last_are_imported_and_those_of_others_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert flower_internals.last_app() is None
    for number, name in enumerate(("a.small.1.old", "a.small.2.new")):
        (tmp_path / "apps" / name).mkdir(parents=True)
        (tmp_path / "apps" / name / "small_app.py").write_text(f"NUMBER = {number}\n")
        record = tmp_path / "apps" / f".{name}.imported"
        record.write_text('["small_app"]')
        os.utime(record, (number, number))
    last = flower_internals.last_app()
    assert last
    folder, import_app = last
    assert folder.name == "a.small.2.new"
    import_app()
    assert sys.modules["small_app"].NUMBER == 1
    flower_internals._forget_other_apps(folder)
    assert "small_app" in sys.modules
    flower_internals._forget_other_apps(folder.with_name("a.small.1.old"))
    assert "small_app" not in sys.modules
    assert str(folder) not in sys.path


def test_each_process_of_an_app_adds_what_it_has_imported_to_the_modules_of_earlier_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path / "app")  # type: ignore[no-untyped-call]
    (tmp_path / "app").mkdir()
    (tmp_path / ".app.imported").touch()  # left by a power failure
    for name in ("part_of_app", "later_part_of_app"):
        (tmp_path / "app" / f"{name}.py").touch()
        before = set(sys.modules)
        import_module(name)
        flower_internals._write_imported(tmp_path / "app", before)
    assert json.loads((tmp_path / ".app.imported").read_bytes()) == ["part_of_app", "later_part_of_app"]
    for name in ("part_of_app", "later_part_of_app"):
        del sys.modules[name]


def test_without_the_patterns_of_flower_the_app_itself_is_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr("flwr.common.constant.FAB_INCLUDE_PATTERNS")
    command = submission(tmp_path / "app", tmp_path, {"rounds": 1})
    assert command[1:3] == ["run", str(tmp_path / "app")]
    line = "lacks flwr.common.constant:FAB_INCLUDE_PATTERNS: flwr run gets the app's own folder, and takes longer"
    assert line in capsys.readouterr().out


# What a SuperLink gets of a recipe, and what nodes with their own data cannot run.


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
        listing = json.dumps({"runs": [{"status": status.removeprefix("away, ")}]}) if status else "no SuperLink"
        program.write_text(
            f"#!{sys.executable}\nimport json, sys\n"
            f"open({str(arguments)!r}, 'a').write(json.dumps(sys.argv[1:]) + chr(10))\n"
            f"given = open({str(arguments)!r}).read()\n"
            f"listing = {listing!r}.replace('running', 'finished:completed') if 'log' in given else {listing!r}\n"
            f"listing = '' if {status.startswith('away')} and given.count('--run-id') == 1 else listing\n"
            f"print(listing if sys.argv[1] == 'ls' else {line!r})\n"
            f"sys.exit({exit_status} if sys.argv[1] == 'run' else 0)\n"
        )
        program.chmod(0o700)
        monkeypatch.setattr("fedapps.deployment.fleet._PAUSE", 0.0)
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
    deploy(RECIPE, federation, FEDERATED | {"num-nodes": 3}, stream=True)
    assert "Successfully started run 12" in capfd.readouterr().out
    submitted, asked = commands("")
    assert submitted[2:-1] == [*named, "--stream", "--run-config"]
    assert asked == ["ls", *named, "--run-id", "12", "--format", "json"]
    deploy(RECIPE, federation, FEDERATED, stream=False)
    assert [command[0] for command in commands("")] == ["run", "ls", "run"], "nobody waits for the end of the run"
    assert "--stream" not in commands("")[2]


def test_what_is_submitted_has_the_keys_and_the_app(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        assert tomllib.loads(Path(command[-1]).read_text())["num-nodes"] == 3
        assert (Path(command[2]) / "fedapps" / "app" / "client_app.py").exists()
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr("fedapps.deployment.fleet.subprocess.run", run)
    deploy(RECIPE, "", FEDERATED | {"num-nodes": 3}, stream=False)


@pytest.mark.parametrize("stream", [True, False])
def test_a_run_that_the_superlink_does_not_take_is_an_error(
    stream: bool, commands: Callable[..., list[list[str]]]
) -> None:
    commands("finished:completed", exit_status=1, line="no such federation")
    with pytest.raises(RunFailedError, match="flwr run ended with exit status 1"):
        deploy(RECIPE, "fleet", FEDERATED, stream=stream)


@pytest.mark.parametrize("federation", ["fleet", ""])
def test_nothing_is_submitted_with_an_expired_certificate(
    federation: str, commands: Callable[..., list[list[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands("finished:completed")
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    ca = make_certificates(tmp_path, days=1).ca
    table = {"default": "fleet", "fleet": {"address": "127.0.0.1:1", "root-certificates": str(ca)}, "other": {}}
    (tmp_path / "config.toml").write_text(tomli_w.dumps({"superlink": table}))
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    with mock.patch.object(credentials, "datetime", now=lambda tz: tomorrow):
        with pytest.raises(
            ValueError, match=rf"root-certificates = '{ca}' in .*: expired on {tomorrow:%Y-%m-%d}; make"
        ):
            deploy(RECIPE, federation, FEDERATED, stream=True)
        assert not commands("")
        deploy(RECIPE, "other", FEDERATED, stream=False)
    deploy(RECIPE, federation, FEDERATED, stream=False)


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("finished:failed", r"run 12 did not complete \(finished:failed\)"),
        ("finished:stopped", r"run 12 did not complete \(finished:stopped\)"),
        ("", "whether run 12 has finished is not known"),
    ],
)
def test_a_streamed_run_that_does_not_complete_is_an_error(
    status: str, reason: str, commands: Callable[..., list[list[str]]]
) -> None:
    commands(status)
    with pytest.raises(RunFailedError, match=reason):
        deploy(RECIPE, "fleet", FEDERATED, stream=True)


@pytest.mark.parametrize("exit_status", [0, 1])
@pytest.mark.parametrize(("status", "asked"), [("running", ["ls"]), ("away, running", ["ls", "ls"])])
def test_a_run_whose_log_breaks_is_followed_to_its_end(
    status: str, asked: list[str], exit_status: int, commands: Callable[..., list[list[str]]]
) -> None:
    """Also if the SuperLink is away for a moment, which is what breaks a log."""
    commands(status, exit_status)
    deploy(RECIPE, "fleet", FEDERATED, stream=True)
    assert [command[0] for command in commands("")] == ["run", *asked, "log", "ls"]
    assert commands("")[-2] == ["log", "12", "fleet", "--stream"]
