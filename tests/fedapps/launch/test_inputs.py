"""What is found before a run starts."""

import io
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from fedapps.tasks.lqr.task import LqrOptions, LqrTask

from fedapps.base.errors import DataError
from fedapps.comparison.compare import compare_recipe
from fedapps.launch.inputs import APP, app_folder
from fedapps.launch.launch import Simulation, launch

LQR = {"task": "lqr", "num-nodes": 2, "methods": "fedavg", "collect-after": 0}


def test_a_gpu_that_is_not_there_is_said_before_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    keys = {"device": "cuda"}
    with pytest.raises(ValueError, match="device = 'cuda', but torch finds no GPU"):
        launch(LQR | keys, Simulation("inline"), str(tmp_path))
    with pytest.raises(ValueError, match="device = 'cuda', but torch finds no GPU"):
        compare_recipe(Path("lqr"), overrides=keys, methods=["fedavg"], seeds=1, output_dir=str(tmp_path))


def test_a_plateau_without_validation_examples_is_said_before_the_run(tmp_path):
    LqrTask(LqrOptions(trajectories=2, horizon=2)).make_world(tmp_path / "data", 2, 0)
    given = LQR | {"data-dir": str(tmp_path / "data"), "plateau-patience": 2}
    with pytest.raises(DataError, match="plateau-patience = 2: node robot-00 has no validation examples"):
        launch(given, Simulation("inline"), str(tmp_path / "runs"))


def test_a_held_out_node_that_does_not_exist_is_said_before_the_run(tmp_path):
    LqrTask(LqrOptions(trajectories=2, horizon=2)).make_world(tmp_path / "data", 2, 0)
    given = LQR | {"data-dir": str(tmp_path / "data"), "held-out-nodes": "robot-07,"}
    said = r"held-out-nodes = 'robot-07,': no node has the key robot-07; the nodes are robot-00, robot-01"
    with pytest.raises(DataError, match=said):
        launch(given, Simulation("inline"), str(tmp_path / "runs"))
    with pytest.raises(DataError, match=said):
        compare_recipe(Path("lqr"), overrides=given, methods=["fedavg"], seeds=1, output_dir=str(tmp_path / "runs"))
    assert not (tmp_path / "runs").exists()


# The app that an installed wheel submits: its modules and keys are those of the repository's app.


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


@pytest.mark.slow
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
    own = (APP / "pyproject.toml").read_text()
    described = [line for line in own.splitlines() if line.startswith("description = ")]
    for line in [*described[:1], *own.partition("# BEGIN generated")[2].partition("# END")[0].splitlines()[1:]]:
        assert line in project
