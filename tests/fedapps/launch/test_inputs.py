"""What is found before a run starts."""

from pathlib import Path

import pytest
from fedapps.tasks.lqr.task import LqrOptions, LqrTask

from fedapps.base.errors import DataError
from fedapps.comparison.compare import compare_recipe
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
