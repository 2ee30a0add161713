"""The Flower app bundle: ``flwr run`` sends every module of the app, including those that .gitignore might match."""

import io
import zipfile
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk

from fedapps.deployment.submission import copy_app

PROJECT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The paths of all files in the bundle."""
    copy = tmp_path_factory.mktemp("copy") / "app"
    copy_app(PROJECT, copy)
    return set(zipfile.ZipFile(io.BytesIO(build_fab_from_disk(copy))).namelist())


@pytest.mark.parametrize("package", ["fedapps", "strategies", "clients", "tasks", "sim"])
def test_the_bundle_has_every_module(package: str, bundled: set[str]):
    modules = {path.relative_to(PROJECT).as_posix() for path in (PROJECT / package).rglob("*.py")}
    assert modules
    assert modules <= bundled
