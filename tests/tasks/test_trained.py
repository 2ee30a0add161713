"""Trained models of any task: the model folder, evaluation with the draws of a run, and the network of a module."""

import json
import os
import shutil
from functools import partial
from typing import ClassVar

import pytest
import torch
from fedapps.tasks import model_folder
from fedapps.tasks.base import DataError, evaluated
from fedapps.tasks.lqr.task import LqrTask, LqrTrained
from fedapps.tasks.model_folder import MAX_CONFIG
from fedapps.tasks.partitioners import added_logits, adjust_logits, own_label_shares
from fedapps.tasks.profiles import PrivateParameters
from fedapps.tasks.trained import Origin, TrainedModel, trained_class
from full_disk import full_disk
from torch import nn

from fedapps.base.atomic import UnwritableError, entries
from fedapps.base.seeding import torch_seed
from fedapps.registry.tasks import task_class
from fedapps.trained.export import export as export_model

ORIGIN = Origin("run", "apfl", "robot-00", 3, 1, 5, 7, 3, 40, metrics={"test.loss": 0.5, "test.list": [1.0, 2.0]})


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    LqrTask().make_world(folder, 1, 0)
    return folder


def trained(kind=TrainedModel, seed=0, **changes):
    task = LqrTask(LqrTask.Options(horizon=6))
    with torch_seed(seed):
        return kind(task, task.build_model(), {"ä": ["µ"]}, ORIGIN, private=PrivateParameters(("policy.*",)), **changes)


def state(model):
    return {name: tensor.tolist() for name, tensor in model.module.state_dict().items()}


# -- the model folder -------------------------------------------------------------------------------------------


def test_a_model_folder_brings_all_of_a_model_back(tmp_path):
    model = trained()
    folder = model.save(tmp_path / "deep" / "model")
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    again = TrainedModel.read(folder, task_class)
    assert (again.task, again.facts, again.origin, again.private) == (
        model.task, model.facts, model.origin, model.private
    )  # fmt: skip
    assert state(again) == state(model)
    assert type(again) is trained_class(model.task) is LqrTrained
    assert not again.module.training


def test_it_takes_the_place_of_another_and_of_nothing_else(tmp_path):
    folder = trained(seed=1).save(tmp_path / "model")
    assert state(TrainedModel.read(trained(seed=2).save(folder), task_class)) == state(trained(seed=2))
    (tmp_path / "empty").mkdir()
    trained().save(tmp_path / "empty")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match=r"other is not empty: choose another folder, or remove it; it has thesis.tex"):
        trained().save(tmp_path / "other")
    assert entries(tmp_path) == ["empty", "model", "other"]


@pytest.mark.parametrize("format", ["save", "onnx", "torch", "safetensors", "huggingface"])
def test_a_model_of_another_library_is_not_replaced(tmp_path, format):
    """A Hugging Face model has a config.json and a model.safetensors, too."""
    content = {"config.json": '{"model_type": "bert"}', "model.safetensors": "weights", "tokenizer.json": "{}"}
    for name, text in content.items():
        (tmp_path / "bert").mkdir(exist_ok=True)
        (tmp_path / "bert" / name).write_text(text)
    write = trained().save if format == "save" else partial(export_model, trained(), format)
    with pytest.raises(ValueError, match=r"bert is not empty: .*has config.json, model.safetensors, tokenizer.json"):
        write(tmp_path / "bert")
    assert {path.name: path.read_text() for path in (tmp_path / "bert").iterdir()} == content
    assert entries(tmp_path) == ["bert"]


@pytest.mark.parametrize("name", ["README.md", ".git", "files/notes", "files/index/notes"])
def test_files_that_came_into_a_model_folder_are_not_deleted(tmp_path, name):
    folder = trained(WithFile).save(tmp_path / "model")
    if name.startswith("files/index"):
        (folder / "files" / "index").unlink()
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    with pytest.raises(ValueError, match=rf"model is not empty: .* it has {name.removesuffix('/notes')}"):
        trained(WithFile).save(folder)
    assert path.read_text() == "mine"
    assert entries(tmp_path) == ["model"]


def test_a_link_in_the_place_of_a_folder_is_refused(tmp_path):
    """``current`` of a node's models leads to the one that programs read."""
    folder = trained(seed=1).save(tmp_path / "model")
    (tmp_path / "current").symlink_to("model")
    with pytest.raises(ValueError, match="current is a link"):
        trained(seed=2).save(tmp_path / "current")
    assert state(TrainedModel.read(tmp_path / "current", task_class)) == state(trained(seed=1))
    assert (tmp_path / "current").readlink() == folder.relative_to(tmp_path)


def test_where_the_disk_is_full_the_old_model_stays(tmp_path):
    class Large(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(100_000))

    model = trained()
    folder = model.save(tmp_path / "model")
    with full_disk(), pytest.raises(UnwritableError, match="model cannot be written"):
        TrainedModel(LqrTask(), Large()).save(folder)
    assert state(TrainedModel.read(folder, task_class)) == state(model)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


class WithFile(TrainedModel):
    file_sizes: ClassVar = {"index": 9}

    def save_files(self, folder):
        (folder / "index").write_text((self.files / "index").read_text() if self.files else "here")


class TaskWithFile(LqrTask):
    trained_model: ClassVar = f"{__name__}:WithFile"


def test_files_beside_the_weights_go_along(tmp_path):
    first = trained(WithFile).save(tmp_path / "first")
    again = TrainedModel.read(first, lambda name: TaskWithFile)
    assert again.files == first / "files"
    second = again.save(tmp_path / "second")
    assert (second / "files" / "index").read_text() == "here"
    assert again.save(second) == second


# -- the model folder of a stranger -----------------------------------------------------------------------------------


def test_files_that_the_task_does_not_know_are_not_published(tmp_path):
    folder = trained(WithFile).save(tmp_path / "model")
    (folder / "files" / "unknown").write_text("theirs")
    for find_task, known in ((lambda name: TaskWithFile, ["files/index"]), (task_class, [])):
        model = TrainedModel.read(folder, find_task)
        saved = model.save(tmp_path / f"again-{len(known)}")
        exported = export_model(model, "safetensors", tmp_path / f"exported-{len(known)}").folder
        for written, card in ((saved, []), (exported, ["README.md"])):
            files = [str(path.relative_to(written)) for path in written.rglob("*") if path.is_file()]
            assert sorted(files) == sorted(["config.json", "model.safetensors", *known, *card])


def as_link(path, key):
    path.symlink_to(key)


def as_link_of_a_folder(path, key):
    path.symlink_to(key.parent, target_is_directory=True)


def as_folder(path, key):
    path.mkdir()
    (path / "inner").symlink_to(key)


def as_pipe(path, key):
    os.mkfifo(path)


@pytest.mark.parametrize("name", ["files/index", "files/unknown", "files", "config.json", "model.safetensors"])
@pytest.mark.parametrize("become", [as_link, as_link_of_a_folder, as_folder, as_pipe])
def test_links_and_special_files_are_refused(tmp_path, name, become):
    folder = trained(WithFile).save(tmp_path / "model")
    path, key = folder / name, tmp_path / "home" / "key"
    key.parent.mkdir()
    key.write_text("secret")
    if name == "files":
        (path / "index").unlink()
        path.rmdir()
    else:
        path.unlink(missing_ok=True)
        if name != "files/unknown":
            key.write_bytes((trained(WithFile).save(tmp_path / "other") / name).read_bytes())
    become(path, key)
    with pytest.raises(ValueError, match=rf"{name.removesuffix('/inner')}|no model folder"):
        TrainedModel.read(folder, lambda name: TaskWithFile)


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path):
    folder = trained(WithFile).save(tmp_path / "model")
    (folder / "files" / "index").write_bytes(bytes(10))
    with pytest.raises(ValueError, match="files/index has 10 bytes: must have at most 9"):
        TrainedModel.read(folder, lambda name: TaskWithFile)
    os.truncate(folder / "config.json", MAX_CONFIG + 1)
    with pytest.raises(ValueError, match=r"config.json has 67,108,865 bytes: must have at most 67,108,864"):
        TrainedModel.read(folder, task_class)


def test_what_a_classifier_adds_for_its_node_goes_along(tmp_path):
    module, added = trained().module, torch.tensor([0.1, -0.7], dtype=torch.float64)
    adjust_logits(module, added)
    model = TrainedModel(LqrTask(), module)
    again = TrainedModel.read(model.save(tmp_path / "model"), task_class)
    assert torch.equal(added_logits(again.module), added)
    logits, plain = nn.Identity(), torch.zeros(3, 2)
    adjust_logits(logits.eval(), added)
    assert torch.equal(logits(plain), plain)
    with own_label_shares(logits):
        assert torch.equal(logits(plain), plain + added.float())


def test_a_folder_that_is_replaced_while_it_is_read_is_read_again(tmp_path, monkeypatch):
    old, new = (trained(seed=seed) for seed in (1, 2))
    new.facts = {"new": []}
    folder, built, times = old.save(tmp_path / "model"), model_folder.built, [1]

    def replaced(*arguments):
        if times and times.pop():
            new.save(folder)
        return built(*arguments)

    monkeypatch.setattr(model_folder, "built", replaced)
    again = TrainedModel.read(folder, task_class)
    assert (again.facts, state(again)) == (new.facts, state(new))

    monkeypatch.setattr("fedapps.tasks.trained._PAUSE", 0.0)
    times += [1] * 9
    with pytest.raises(model_folder.ModelFolderError, match="model was replaced at each of 5 attempts to read it"):
        TrainedModel.read(folder, task_class)


def test_a_folder_that_vanishes_while_it_is_read_is_no_model_folder(tmp_path, monkeypatch):
    folder = trained().save(tmp_path / "model")

    def vanished(*_):
        shutil.rmtree(folder)
        raise FileNotFoundError(folder)

    monkeypatch.setattr(model_folder, "built", vanished)
    with pytest.raises(ValueError, match="model is no model folder"):
        TrainedModel.read(folder, task_class)


def test_tensors_that_share_memory_are_stored(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Linear(2, 2)
            self.other = self.one

    folder = TrainedModel(LqrTask(), Tied()).save(tmp_path / "model")
    assert (folder / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda config: config | {"format": 99}, "config.json: format = 99; this version of fedapps reads format 1"),
        (lambda config: {k: v for k, v in config.items() if k != "task"}, r"config\.json: task is missing"),
        (lambda config: config | {"task": "chess"}, "task = 'chess': must be one of"),
        (lambda config: config | {"options": {"sails": 3}}, "lqr.sails: unknown key"),
        (lambda config: config | {"options": {"horizon": 0}}, "lqr.horizon = 0: must be a whole number at least 1"),
    ],
)
def test_a_damaged_config_is_named(tmp_path, change, message):
    folder = trained().save(tmp_path / "model")
    path = folder / "config.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(ValueError, match=message):
        TrainedModel.read(folder, task_class)


def test_damaged_and_missing_files_are_named(tmp_path):
    folder = trained().save(tmp_path / "model")
    (folder / "model.safetensors").write_bytes(b"half")
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
        TrainedModel.read(folder, task_class)
    (folder / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json: no JSON: Expecting"):
        TrainedModel.read(folder, task_class)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="model is no model folder"):
        TrainedModel.read(folder, task_class)


def test_an_origin_of_another_version_is_read_as_far_as_it_is_known():
    assert Origin.read({"run": "a", "weather": "fair"}) == Origin(run="a")


# -- evaluation -------------------------------------------------------------------------------------------------


def test_an_evaluation_has_the_draws_of_the_run_and_leaves_the_others(world):
    seen = []

    class Drawing(LqrTask):
        def evaluate(self, model, data, *, seed, final):
            seen.append((seed, final, torch.rand(()).item(), torch.get_num_threads(), model.training))
            return super().evaluate(model, data, seed=seed, final=final)

    task, threads = Drawing(), torch.get_num_threads()
    module = task.build_model()
    model = TrainedModel(task, module, origin=Origin(seed=7, settings={"node-cpus": 3}))
    data = model.data(world)
    torch.manual_seed(0)
    expected = torch.rand(())
    torch.manual_seed(0)
    first = model.evaluate(world)
    assert torch.rand(()) == expected
    assert first == model.evaluate(data, final=True) == evaluated(task, module, data, run_seed=7, final=False).metrics
    assert [(final, threads) for _, final, _, threads, _ in seen[:2]] == [(True, 3), (True, 3)]
    assert len({(seed, draw) for seed, _, draw, _, _ in seen}) == 1
    assert torch.get_num_threads() == threads
    assert not any(training for *_, training in seen)


def test_without_data_of_its_own_a_model_needs_some(world):
    with pytest.raises(DataError, match="give data, because the model comes from no node whose data are here"):
        trained().evaluate()
    model = trained()
    model.own = model.data(world)
    assert model.evaluate() == model.evaluate(world)


# -- what a task need not write ---------------------------------------------------------------------------------


def test_the_network_of_a_task_without_one_is_found_in_its_data(world):
    model = trained()
    with pytest.raises(ValueError, match="task 'lqr' does not describe its inputs: give data"):
        model.network()
    network = model.network(model.data(world))
    assert (network.input_names, network.dynamic) == (("input",), {"input": {0: "batch"}})
    assert [list(given.shape) for given in network.inputs] == [[2, 3]]
    assert not model.module._forward_pre_hooks


def test_a_task_without_answers_says_so():
    with pytest.raises(NotImplementedError, match="task 'lqr' has no predictions for single examples: use evaluate"):
        list(trained().rows([]))
