"""The app that an installed wheel submits: its modules and keys are those of the repository's app."""

import io
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from fedapps.launch.inputs import APP, app_folder

BESIDE = ("strategies", "clients", "tasks", "sim")
BUNDLE = """
import sys, tomllib
from flwr.cli.build import build_fab_from_disk
from fedapps.launch.inputs import app_folder
with app_folder() as app:
    open(sys.argv[1], "wb").write(build_fab_from_disk(app))
print(app.exists())
"""


def test_in_the_repository_it_is_the_repository():
    with app_folder() as app:
        assert app == APP
    assert (APP / "pyproject.toml").is_file()


@pytest.mark.subprocesses
def test_of_a_wheel_it_has_every_module_and_key_and_is_removed(tmp_path: Path) -> None:
    installed = tmp_path / "site" / "fedapps"
    no_source = shutil.ignore_patterns("__pycache__")
    shutil.copytree(APP / "fedapps", installed, ignore=no_source)
    for folder in BESIDE:
        shutil.copytree(APP / folder, installed / folder, ignore=no_source)
    bundle = tmp_path / "app.fab"
    done = subprocess.run(
        [sys.executable, "-c", BUNDLE, str(bundle)],
        env={"PYTHONPATH": str(installed.parent), "PATH": "", "FLWR_TELEMETRY_ENABLED": "0"},
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "False"
    with zipfile.ZipFile(io.BytesIO(bundle.read_bytes())) as held:
        names = set(held.namelist())
        project = held.read("pyproject.toml").decode()
    assert {path.relative_to(installed.parent).as_posix() for path in installed.rglob("*.py")} <= names
    keys = (APP / "pyproject.toml").read_text().partition("# BEGIN generated")[2].partition("# END")[0]
    for line in keys.splitlines()[1:]:
        assert line in project
