"""A robot's loop: the program of ``examples/``, and the lines of the page on deployment."""

import importlib.util
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from fedapps.clients.kept_models import KeptModels
from fedapps.tasks.lqr.task import LqrTask
from fedapps.tasks.trained import Origin, trained_class
from model_folders import driving
from robot_page import RobotOfPage, StoppedError, loop_of_page

import fedapps

EXAMPLE = Path(__file__).parents[2] / "examples" / "robot_loop" / "robot_loop.py"


def of_round(number, gain=0.5):
    task = LqrTask(LqrTask.Options())
    module = task.build_model()
    with torch.no_grad():
        module.policy.K.fill_(gain)
    return trained_class(task)(task, module, origin=Origin(round=number))


class Scripted:
    """What a watch gives: the first model, then in each control step a new model or None."""

    def __init__(self, first, *later):
        self.first, self.later = first, list(later)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        assert not self.later, "the program ended early"

    def __next__(self):
        return self.first

    def newest(self):
        return self.later.pop(0)


def test_the_program_uses_each_model_from_its_step_on(monkeypatch, capsys):
    spec = importlib.util.spec_from_file_location("robot_loop", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    controls = []
    monkeypatch.setattr(example.Robot, "sense", lambda robot: [1.0, 0.0])
    monkeypatch.setattr(example.Robot, "act", lambda robot, control: controls.append(float(control[0])))
    models = Scripted(of_round(1, 0.5), None, None, of_round(4, 2.0), None, of_round(5, 3.0))
    monkeypatch.setattr(example.fedapps, "watch", lambda folder: models)
    example.main(["FOLDER", "--rate", "1e6", "--models", "3"])
    assert controls == [-0.5, -0.5, -2.0, -2.0, -3.0]
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines[:3]] == [f"model of round {number}" for number in (1, 4, 5)]
    assert lines[3].startswith("the longest of all control steps took ")


def test_the_loop_of_the_page_changes_its_model(tmp_path, monkeypatch):
    monkeypatch.setattr(fedapps, "watch", partial(fedapps.watch, poll=0.001))
    robot = RobotOfPage(tmp_path / "models")
    robot.start()
    for number in (1, 2):
        KeptModels(tmp_path / "models").keep(of_round(number), "train")
        while robot.rounds[-1:] != [number]:
            robot.join(0.001)
            assert robot.is_alive()
    robot.stop()
    assert robot.rounds == [1, 2]


def test_the_loop_of_the_page_drives_a_car(tmp_path, monkeypatch):
    """With the controller as it is, and with a model that comes while it drives."""
    monkeypatch.setattr(fedapps, "watch", partial(fedapps.watch, poll=0.001))
    kept, model, used = KeptModels(tmp_path), driving(), []
    kept.keep(model, "train")

    def act(control):
        forecast = names["controller"].forecast
        if forecast not in used:
            used.append(forecast)
            kept.keep(model, "train")
        assert control.shape == (2,)
        if len(used) == 2:
            raise StoppedError

    cars = np.array([[0.0, 5.0, 0.0, 20.0], [3.5, 0.0, 0.0, 20.0], [0.0, 60.0, 0.0, 0.0]])[: model.task.setting.cars]
    names = {"folder": tmp_path, "sense": lambda: (cars, np.zeros((len(cars), 2))), "act": act}
    with pytest.raises(StoppedError):
        exec(loop_of_page(), names)
