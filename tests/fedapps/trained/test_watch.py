"""The reader of kept models: each model once, no waiting, and the last good one in whatever a fault leaves."""

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from unittest import mock

import pytest
import torch
from damaged_files import bounded, damaged, write
from fedapps.clients.kept_models import KeptModels
from fedapps.tasks.lqr.task import LqrTask
from fedapps.tasks.trained import Origin, TrainedModel
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_folders import files_of

import fedapps
from fedapps.registry.tasks import task_class
from fedapps.trained.watch import ModelWatch

FAST = 0.001  # seconds
READ = TrainedModel.read


def keep(folder, number):
    task = LqrTask(LqrTask.Options())
    return KeptModels(folder).keep(TrainedModel(task, task.build_model(), origin=Origin(round=number)), "train")


def test_models_come_as_they_arrive_and_each_once(tmp_path):
    with fedapps.watch(tmp_path / "models", poll=FAST) as models:
        assert models.newest() is None
        for number in (1, 2, 3):
            path = keep(tmp_path / "models", number)
            model = next(models)
            assert model.origin.round == number
            assert models.newest() is None
            stored = TrainedModel.read(path, task_class).module
            assert all(map(torch.equal, model.module.parameters(), stored.parameters()))


def test_a_model_that_nobody_took_is_replaced(tmp_path, monkeypatch):
    keep(tmp_path, 1)
    read, started = [], threading.Event()

    def reading(*given):
        read.append(READ(*given))
        started.set()
        return read[-1]

    monkeypatch.setattr(TrainedModel, "read", reading)
    with ModelWatch(tmp_path, FAST) as models:
        while len(read) < 1:
            started.wait()
        keep(tmp_path, 2)
        while len(read) < 2:
            started.wait()
        while (model := models.newest()) is None or model.origin.round < 2:
            pass
        assert models.newest() is None


def test_nobody_waits_while_a_model_is_read(tmp_path, monkeypatch):
    keep(tmp_path, 1)
    begun, go_on = threading.Event(), threading.Event()

    def slowly(*given):
        begun.set()
        go_on.wait()
        return READ(*given)

    monkeypatch.setattr(TrainedModel, "read", slowly)
    with ModelWatch(tmp_path, FAST) as models:
        begun.wait()
        assert [models.newest() for _ in range(3)] == [None] * 3, "control steps while the disk is slow"
        go_on.set()
        assert next(models).origin.round == 1


def halved(path):
    os.truncate(path, path.stat().st_size // 2)


def changed(config, **values):
    config.write_text(json.dumps(json.loads(config.read_text()) | values))


#: A step of a tokenizer that asks for the second text of a pair, which panics for a text alone.
SECOND_OF_ONE = {
    "type": "TemplateProcessing", "single": [{"Sequence": {"id": "B", "type_id": 0}}], "pair": [], "special_tokens": {},
}  # fmt: skip
#: What a fault does to a model folder, and what the log says of it.
DAMAGE = {
    "half of the weights": (lambda path: halved(path / "model.safetensors"), "model.safetensors is damaged"),
    "half of the config": (lambda path: halved(path / "config.json"), "config.json: no JSON"),
    "no weights": (lambda path: (path / "model.safetensors").unlink(), "is no model folder"),
    "empty config": (lambda path: os.truncate(path / "config.json", 0), "config.json: no JSON"),
    "dangling link": (shutil.rmtree, "is no model folder"),
    "unknown format": (lambda path: (path / "config.json").write_text('{"format": 99}'), "format = 99; this version"),
    "unknown task": (lambda path: changed(path / "config.json", task="tram"), "task = 'tram': must be one of"),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_model_that_cannot_be_read_is_reported_once_and_the_next_one_comes(tmp_path, caplog, how):
    keep(tmp_path, 1)
    polls = []

    class Counted(ModelWatch):
        def _look(self):
            super()._look()
            polls.append(1)

    with Counted(tmp_path, FAST) as models:
        assert next(models).origin.round == 1
        damage, said = DAMAGE[how]
        broken = keep(tmp_path / "other", 2)
        damage(broken)
        (tmp_path / "link").symlink_to(broken)
        (tmp_path / "link").replace(tmp_path / "current")
        seen = len(polls)
        while len(polls) < seen + 5:
            assert models.newest() is None
        keep(tmp_path, 3)
        assert next(models).origin.round == 3
    (line,) = [record.getMessage() for record in caplog.records]
    assert said in line
    assert line.endswith("the last model stays in use")


def test_a_model_that_becomes_whole_is_read(tmp_path, caplog):
    path = keep(tmp_path, 1)
    (path / "config.json").rename(tmp_path / "config.json")
    with ModelWatch(tmp_path, FAST) as models:
        while not caplog.records:
            assert models.newest() is None
        (tmp_path / "config.json").rename(path / "config.json")
        assert next(models).origin.round == 1


def test_a_copy_without_links_is_followed(tmp_path):
    copy = tmp_path / "copy"
    for number in (1, 2):
        keep(tmp_path / "models", number)
    shutil.copytree(tmp_path / "models", copy)
    assert not (copy / "current").is_symlink()
    with ModelWatch(copy, FAST) as models:
        assert next(models).origin.round == 2


def test_what_is_missing_is_said_once(tmp_path, caplog):
    with ModelWatch(tmp_path / "models", FAST) as models:
        while not caplog.records:
            assert models.newest() is None
        keep(tmp_path / "models", 1)
        next(models)
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path / 'models' / 'current'} does not exist: waiting for a model of the node"
    ]


def test_no_error_of_a_folder_ends_the_watch(tmp_path, caplog, monkeypatch):
    path = keep(tmp_path, 1)
    errors = [
        KeyError("facts"), RecursionError("deep"), ImportError("no module torchvision"), MemoryError("out of memory"),
        torch.OutOfMemoryError("CUDA out of memory"),
    ]  # fmt: skip
    left = iter(errors)

    def read(*given):
        for error in left:
            raise error
        return READ(*given)

    monkeypatch.setattr(TrainedModel, "read", read)
    with ModelWatch(tmp_path, FAST) as models:
        assert next(models).origin.round == 1
    said = [f"{path}: {type(error).__name__}: {error}; the last model stays in use" for error in errors]
    assert [record.getMessage() for record in caplog.records] == said
    assert [record.exc_info[1] for record in caplog.records] == errors


def test_what_ends_the_thread_is_raised_by_the_caller(tmp_path, monkeypatch):
    class Stopped(BaseException):
        """As a panic of a library that is no ``Exception``."""

    keep(tmp_path, 1)
    monkeypatch.setattr(TrainedModel, "read", mock.Mock(side_effect=Stopped))
    with ModelWatch(tmp_path, FAST) as models:
        with pytest.raises(Stopped):
            next(models)
        with pytest.raises(Stopped):
            models.newest()


def test_a_tokenizer_that_panics_is_reported(tmp_path, caplog):
    """The library in Rust raises a class that is no ``Exception``, which ended the thread without a word."""
    folder = write(tmp_path / "panics", files_of("text with BERT"))
    changed(folder / "files" / "tokenizer.json", post_processor=SECOND_OF_ONE)
    (tmp_path / "current").symlink_to(folder)
    with ModelWatch(tmp_path, FAST) as models:
        while not caplog.records:
            assert models.newest() is None
        (tmp_path / "current").unlink()
        keep(tmp_path, 1)
        assert next(models).origin.round == 1
    assert "tokenizer.json: expected the JSON of a tokenizer: the tokenizer cannot be used" in caplog.text


def test_a_loop_over_the_models_ends_when_the_watch_is_closed(tmp_path):
    models = ModelWatch(tmp_path, FAST)
    threading.Timer(0.01, models.close).start()
    assert list(models) == []


@pytest.mark.parametrize("poll", [0, -1, float("nan")])
def test_the_poll_is_above_0(tmp_path, poll):
    with pytest.raises(ValueError, match="must be above 0 seconds"):
        ModelWatch(tmp_path, poll)


@pytest.mark.slow
@pytest.mark.subprocesses
def test_a_robot_needs_no_flower(tmp_path):
    keep(tmp_path, 7)
    program = (
        "import sys, fedapps; model = next(fedapps.watch(sys.argv[1])); "
        "print(model.origin.round, sorted({name.partition('.')[0] for name in sys.modules} & {'flwr', 'ray', 'grpc'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": str(Path(fedapps.__file__).parents[1])},
    )  # fmt: skip
    assert done.stdout == "7 []\n", done.stderr


@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_a_folder_holds_the_watch_goes_on_with_the_last_model(tmp_path_factory, data):
    """Truncated, missing, wrong and huge files. The looks are taken here, without the thread."""
    folder = tmp_path_factory.mktemp("watched")
    broken = write(folder / "broken", damaged(files_of("lqr"), data.draw))
    with mock.patch.object(threading.Thread, "start"):
        models = ModelWatch(folder, FAST)
    keep(folder, 1)
    models._look()
    (folder / "link").symlink_to(broken)
    (folder / "link").replace(folder / "current")
    with bounded():
        models._look()
    assert models.newest() is not None
    keep(folder, 9)
    models._look()
    assert models.newest().origin.round == 9
