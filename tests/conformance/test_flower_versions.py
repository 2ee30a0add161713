"""The versions of Flower that the project admits: those of its tests, one for each transport of nodes, and the next."""

import io
import os
import re
import subprocess
import sys
import tomllib
import warnings
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

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


def test_one_version_is_tested_for_each_transport():
    assert not nodes_speak_http(str(OLDEST))
    assert nodes_speak_http(str(NEWEST))


@pytest.mark.parametrize("path", PROJECTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_range_of_a_project_ends_one_release_after_the_tests(path: Path):
    """One release after the tested ones is admitted: ``missing_names`` says at the start what it lacks."""
    expected = f"<{NEWEST.major}.{NEWEST.minor + 2},>={OLDEST.major}.{OLDEST.minor}"
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


@pytest.mark.subprocesses
@pytest.mark.skipif(not os.environ.get("CI"), reason="asks the package index, in CI only")
def test_no_newer_release_is_in_the_range():
    """Where the index can be reached; elsewhere the summary of the tests has a warning."""
    asked = [sys.executable, "-m", "pip", "index", "versions", "flwr", "--disable-pip-version-check"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        warnings.warn(f"newer releases of Flower are unknown: {done.stderr.strip()[-300:]}", stacklevel=1)
        pytest.skip("the package index cannot be reached")
    (listed,) = re.findall(r"^Available versions: (.*)$", done.stdout, re.MULTILINE)
    released = [Version(text) for text in listed.split(", ")]
    wanted = admitted(ROOT / "pyproject.toml")[0].specifier
    untested = [str(release) for release in wanted.filter(released) if release > NEWEST]
    assert not untested, f"flwr {', '.join(untested)}: pin the newest in constraints.txt, run the tests, move the range"
