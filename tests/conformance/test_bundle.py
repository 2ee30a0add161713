"""The Flower app bundle: ``flwr run`` sends every module of the app, including those that .gitignore might match."""

import io
import zipfile
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk

PROJECT = Path(__file__).parents[2]


@pytest.mark.parametrize("package", ["fedapps", "strategies", "clients", "tasks", "sim"])
def test_the_bundle_has_every_module(package: str):
    bundle = zipfile.ZipFile(io.BytesIO(build_fab_from_disk(PROJECT)))
    modules = {path.relative_to(PROJECT).as_posix() for path in (PROJECT / package).rglob("*.py")}
    assert modules
    assert modules <= set(bundle.namelist())
