"""The versions of Flower that the project admits: all from the oldest tested one, one tested for each transport."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import flwr
import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.supercore.fab_format_version import normalize_and_validate_fab_format
from packaging.requirements import Requirement
from packaging.version import Version

from fedapps.deployment.superlink import nodes_speak_http
from fedapps.project.writing import new_project

ROOT = Path(__file__).parents[2]
OWN = {"build", "runs", "node_modules"}
PROJECTS = sorted(
    path
    for path in ROOT.rglob("pyproject.toml")
    if not any(part.startswith(".") or part in OWN for part in path.relative_to(ROOT).parts[:-1])
)


def pinned(name: str) -> Version:
    """The version of Flower in a file of constraints."""
    (found,) = re.findall(r"^flwr==(\S+)$", (ROOT / name).read_text(), re.MULTILINE)
    return Version(found)


OLDEST, NEWEST = pinned("constraints-grpc.txt"), pinned("constraints.txt")


def project(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text())


def admitted(path: Path) -> list[Requirement]:
    """All requirements on Flower in a project, those of its extras included."""
    found = project(path).get("project", {})
    listed = [
        *found.get("dependencies", ()),
        *(text for extra in found.get("optional-dependencies", {}).values() for text in extra),
    ]
    return [wanted for wanted in map(Requirement, listed) if wanted.name == "flwr"]


@pytest.mark.parametrize(("tested", "http"), [(OLDEST, False), (NEWEST, True)])
def test_one_version_is_tested_for_each_transport(tested: Version, http: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fedapps.deployment.superlink.version", lambda name: str(tested))
    assert nodes_speak_http() is http


@pytest.mark.parametrize("path", PROJECTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_range_of_a_project_has_no_end(path: Path):
    """With a newer Flower that lacks private names, its own engine and commands work in place of ours."""
    expected = f">={OLDEST.major}.{OLDEST.minor}"
    assert {str(wanted.specifier) for wanted in admitted(path)} <= {expected}
    if "app" in project(path).get("tool", {}).get("flwr", {}):
        assert admitted(path), "Flower reads the oldest version from the requirement"


@pytest.mark.parametrize("path", PROJECTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_flower_takes_the_format_of_a_project(path: Path):
    """Format 1 with the tested version as its target, and the license that the format wants."""
    whole = project(path)
    app = whole.get("tool", {}).get("flwr", {}).get("app")
    if app is None:
        pytest.skip("no Flower app")
    found = normalize_and_validate_fab_format(whole)
    assert (found.fab_format_version, found.flwr_version_target) == (1, str(NEWEST))
    assert found.flwr_version_min == f"{OLDEST.major}.{OLDEST.minor}"
    assert (path.parent / "LICENSE").is_file()


RENAMED = ("TaskIdentity", "create_empty", "_message_id", "recorddict_to_proto", "initial_backoff")


@pytest.mark.slow
@pytest.mark.processes
def test_a_flower_with_other_private_names_runs_in_its_own_simulation_with_the_same_result(tmp_path: Path):
    """A copy of the installed Flower in which some private names have other ones everywhere."""
    own = Path(flwr.__file__).parent
    shutil.copytree(own, tmp_path / "other" / "flwr", ignore=shutil.ignore_patterns("__pycache__"))
    words = re.compile(rf"\b({'|'.join(RENAMED)})\b")
    for path in (tmp_path / "other").rglob("*.py"):
        path.write_text(words.sub(r"\1_2", path.read_text(encoding="utf-8")), encoding="utf-8")
    small = [f"--set={pair}" for pair in ("methods=fedavg", "rounds=1", "num-nodes=2", "epochs=1", "name=run")]
    rows = []
    for folder, paths in (("one", str(ROOT)), ("two", f"{tmp_path / 'other'}:{ROOT}")):
        command = [sys.executable, "-m", "fedapps", "run", "lqr", *small, f"--output-dir={tmp_path / folder}"]
        environment = os.environ | {"PYTHONPATH": paths, "FLWR_TELEMETRY_ENABLED": "0"}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        (row,) = (tmp_path / folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        rows.append({key: value for key, value in json.loads(row).items() if key != "seconds"})
    (line,) = [line for line in done.stdout.splitlines() if " lacks " in line]
    assert "TaskIdentity._run_id" in line
    assert line.endswith(
        "Flower's own simulation engine runs the nodes, and takes longer to start and for each message"
    )
    assert "engine: Flower's simulation engine" in done.stdout
    assert rows[0] == rows[1]


def test_a_new_project_has_the_range_and_the_format(tmp_path: Path):
    new_project(tmp_path / "wet-days", task="rain", method="near-start")
    path = tmp_path / "wet-days" / "pyproject.toml"
    assert {wanted.specifier for wanted in admitted(path)} == {
        wanted.specifier for wanted in admitted(ROOT / "pyproject.toml")
    }
    found = normalize_and_validate_fab_format(project(path))
    assert (found.fab_format_version, found.flwr_version_target) == (1, version("flwr"))
    names = zipfile.ZipFile(io.BytesIO(build_fab_from_disk(path.parent))).namelist()
    assert {"LICENSE", "wet_days/task.py"} <= set(names)
