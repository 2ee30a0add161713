"""Data for choosing settings: validation data of every task, and no test data."""

from dataclasses import replace

import pytest
import torch
from fedapps.tasks.base import DataError, NodeData
from fedapps.tasks.driving.data import with_validation
from fedapps.tasks.driving.options import Options as DrivingOptions
from fedapps.tasks.driving.task import DrivingTask
from fedapps.tasks.lqr import world as lqr
from fedapps.tasks.lqr.task import LqrOptions, LqrTask
from fedapps.tasks.social.task import SocialTask
from fedapps.tasks.text.options import Options as TextOptions
from fedapps.tasks.text.task import TextTask
from fedapps.tasks.vpr.options import Options as VprOptions
from fedapps.tasks.vpr.task import VprTask

DRIVING = DrivingOptions(sessions_train=5, sessions_test=2, hidden=8, latent=2, samples=2)


@pytest.fixture(scope="module")
def robots(tmp_path_factory):
    folder = tmp_path_factory.mktemp("robots")
    lqr.write_world(folder, 2, seed=0, count=5, horizon=5)
    return folder


@pytest.fixture(scope="module")
def drivers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drivers")
    DrivingTask(DRIVING).make_world(folder, 2, seed=4)
    return folder


def held_out(task, share=0.2):
    return type(task)(replace(task.options, validation_share=share))


def test_the_last_steps_of_a_robots_training_are_held_out(robots):
    plain = LqrTask().load_node(robots, 0, 2)
    task = held_out(LqrTask(), 0.3)
    node = task.load_node(robots, 0, 2)
    assert [node.count(split) for split in ("train", "validation", "test")] == [14, 6, 5]  # ⌊.3 · 20⌋ of 4 rollouts
    joined = torch.cat([node.splits[split]["inputs"] for split in ("train", "validation")])
    assert torch.equal(joined, plain.splits["train"]["inputs"])
    assert torch.equal(node.splits["test"]["inputs"], plain.splits["test"]["inputs"])
    assert {split: len(rows) for split, rows in node.extra["control-weights"].items()} == {
        "train": 14, "validation": 6, "test": 5,
    }  # fmt: skip
    assert task.node_profile(robots, 0, 2).num_examples == 14
    assert task.world_options == LqrTask().world_options
    assert held_out(LqrTask(), 0.04).load_node(robots, 0, 2).count("validation") == 0  # rounded down


def test_files_with_a_validation_split_keep_it(robots, tmp_path):
    text = (robots / "robot-00.csv").read_text().replace(",train,0,", ",validation,0,")
    (tmp_path / "robot-00.csv").write_text(text)
    node = held_out(LqrTask(), 0.9).load_node(tmp_path, 0, 1)
    assert [node.count(split) for split in ("train", "validation")] == [15, 5]


def test_whole_sessions_of_a_driver_are_held_out(drivers):
    plain, task = DrivingTask(DRIVING), held_out(DrivingTask(DRIVING))
    before, node = plain.load_node(drivers, 0, 2), task.load_node(drivers, 0, 2)
    joined = torch.cat([node.splits[split]["history"] for split in ("train", "validation")])
    assert torch.equal(joined, before.splits["train"]["history"])
    assert node.count("validation") > 0
    assert node.count("test") == before.count("test")
    # No session is collected again from the initial state of one that validates.
    (who,), (met_before,) = node.extra["encounters"], before.extra["encounters"]
    assert (len(who.train), len(met_before.train), len(who.test)) == (4, 5, 2)
    assert torch.equal(who.train.session, met_before.train.session[:4])
    assert task.node_profile(drivers, 0, 2).num_examples == node.count("train")
    assert task.world_options == plain.world_options


def test_sessions_that_already_validate_stay(drivers):
    from fedapps.tasks.driving.data import read_folder

    recording = with_validation(read_folder(drivers), 0.2)
    assert with_validation(recording, 0.6) == recording
    assert with_validation(recording, 0.0) == recording


def test_a_driver_is_scored_on_validation_windows_only(drivers):
    task = held_out(DrivingTask(DRIVING))
    data = task.without_test(task.load_node(drivers, 0, 2))
    torch.manual_seed(0)
    model = task.build_model()
    metrics = task.evaluate(model, data, seed=0, final=True).metrics
    assert {name.partition(".")[0] for name in metrics} == {"validation"}  # no closed loop from held-out states either
    assert task.validation_metric in metrics
    # The scores are those that the same windows have as a test.
    as_test = replace(data, splits={"train": data.splits["train"], "test": data.splits["validation"]})
    tested = task.evaluate(model, as_test, seed=0, final=False).metrics
    assert metrics["validation.elbo"] == pytest.approx(tested["test.elbo"], rel=0.1)  # other draws of z


def test_a_task_drops_its_test_data_wherever_they_are(robots):
    tensors = {"x": torch.zeros(3)}
    splits = {"train": tensors, "validation": tensors, "test": tensors}
    kept = {"train": tensors, "validation": tensors}
    staged = SocialTask().without_test(NodeData("a", splits, extra={"scene": object()}, stages=(splits, splits)))
    assert (staged.splits, staged.stages, staged.extra) == (kept, (kept, kept), {})
    text = TextTask().without_test(NodeData("a", splits, extra={"vocabulary": "words", "common_test": "texts"}))
    assert (text.splits, text.extra) == (kept, {"vocabulary": "words"})
    common = {"test": "images", "validation": "others"}
    vpr = VprTask().without_test(NodeData("a", splits, extra={"training": "own", "common": common}))
    assert (vpr.splits, vpr.extra) == (kept, {"training": "own", "common": {"validation": "others"}})
    node = held_out(LqrTask()).load_node(robots, 0, 2)
    assert set(LqrTask().without_test(node).splits) == {"train", "validation"}


def test_a_task_says_which_metric_decides_or_what_is_missing():
    tasks = (LqrTask(), DrivingTask(), SocialTask(), TextTask(), VprTask(VprOptions(validation_cities="oslo")))
    assert [task.validation_metric for task in tasks] == [
        "validation.total_loss", "validation.elbo", "validation.mse", "validation.accuracy", "validation.recall_at_1",
    ]  # fmt: skip
    for task in (VprTask(), TextTask(TextOptions(validation_share=0.0))):
        with pytest.raises(DataError, match="test data must not choose them"):
            task.validation_metric  # noqa: B018


def test_options_that_hold_out_are_those_of_the_task():
    for task in (LqrTask, DrivingTask):
        assert held_out(task()).options == replace(task.Options(), **task.validation_options)
    assert LqrOptions().validation_share == 0
