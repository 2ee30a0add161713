"""Floors of comparisons: what predictions without federated learning score, by hand."""

import csv
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fedapps.tasks.driving.options import Options as DrivingOptions
from fedapps.tasks.driving.task import DrivingTask
from fedapps.tasks.lqr.task import LqrTask
from fedapps.tasks.social.networks import Options as SocialOptions
from fedapps.tasks.social.task import SocialTask
from fedapps.tasks.text.options import Options as TextOptions
from fedapps.tasks.text.task import TextTask
from striped_places import use_tiny_network, write_places
from striped_tasks import task_with
from tiny_encoder import encoder_folder

from fedapps.config.parsing import parse
from fedapps.launch.launch import _over_nodes

MAILS = TextOptions(dataset="mails", labels="ham,spam", validation_share=0.0)


def write_mails(folder, train, test):
    """Files of texts, each given as its label and its text."""
    for name, rows in (("train", train), ("test", test)):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("label", "text"), *rows])
    return folder


def test_the_most_frequent_class_of_a_node_and_of_all(tmp_path):
    """Of six training texts four are ham, of three test texts one."""
    ham, spam = ("ham", "see you at the office"), ("spam", "win a free prize")
    folder = write_mails(tmp_path, 4 * [ham] + 2 * [spam], [ham, spam, spam])
    floors = TextTask(MAILS).node_references(folder, 1)
    expected = {"test.global_accuracy": 1 / 3, "test.global_accuracy.count": 3.0}
    expected |= {"test.local_accuracy": 1 / 3, "test.local_accuracy.count": 3.0}
    assert floors["most frequent class"] == [expected]
    (tfidf,) = floors["TF-IDF, pooled"]
    assert (tfidf["test.global_accuracy"], tfidf["test.local_accuracy"]) == (1.0, 1.0)


def test_a_node_with_other_labels_has_another_floor(tmp_path):
    ham, spam = ("ham", "see you at the office"), ("spam", "win a free prize")
    folder = write_mails(tmp_path, 30 * [ham] + 10 * [spam], 6 * [ham] + 2 * [spam])
    task = TextTask(replace(MAILS, alpha=0.05))
    floors = task.node_references(folder, 4)["most frequent class"]
    assert [floor["test.global_accuracy"] for floor in floors] == [0.75] * 4
    for node, floor in enumerate(floors):
        data = task.load_node(folder, node, 4)
        often = data.splits["train"]["label"].bincount().argmax()
        assert floor["test.local_accuracy"] == float((data.splits["test"]["label"] == often).float().mean())


@pytest.mark.parametrize("train", [[("ham", "hello")] * 4, [("ham", "?"), ("spam", "!")] * 2], ids=["class", "words"])
def test_one_class_and_no_words_have_no_linear_model(tmp_path, train):
    folder = write_mails(tmp_path, train, train)
    assert list(TextTask(MAILS).node_references(folder, 2)) == ["most frequent class"]


def test_a_pretrained_encoder_is_probed_without_training(tmp_path):
    """Two texts that its tokens tell apart; a model with random weights is no reference."""
    ham, spam = ("ham", "one one"), ("spam", "two threes")
    folder = write_mails(tmp_path, 20 * [ham] + 20 * [spam], [ham, spam, spam])
    options = replace(MAILS, model=str(encoder_folder(tmp_path / "model")), max_length=8)
    (probe,) = TextTask(replace(options, frozen_layers=1)).node_references(folder, 1)["linear probe, pooled"]
    assert (probe["test.global_accuracy"], probe["test.global_accuracy.count"]) == (1.0, 3.0)
    assert "linear probe, pooled" not in TextTask(replace(options, weights="random")).node_references(folder, 1)


@pytest.mark.slow
@pytest.mark.skipif("FEDAPPS_DATA" not in os.environ, reason="FEDAPPS_DATA names no folder of real data")
def test_a_linear_model_on_a_tenth_of_ag_news():
    """Reported for all 120,000 texts: 0.92 (Zhang et al. 2015, Table 4); here are 37,856."""
    folder = Path(os.environ["FEDAPPS_DATA"]) / "text" / "agnews"
    floors = TextTask(TextOptions(validation_share=0.7)).node_references(folder, 10)
    assert np.mean([floor["test.global_accuracy"] for floor in floors["TF-IDF, pooled"]]) > 0.88
    assert np.mean([floor["test.global_accuracy"] for floor in floors["most frequent class"]]) == 0.25


def test_a_robot_that_neither_moves_nor_acts(tmp_path):
    header = "robot,control_weight,split,trajectory,step,y,v,u,next_y,next_v\n"
    rows = "r,1,train,0,0,0,0,0,0,0\nr,1,test,1,0,1,2,3,4,2\nr,1,test,1,1,4,2,1,5,0\n"
    (tmp_path / "robot-1.csv").write_text(header + rows)
    (floor,) = LqrTask().node_references(tmp_path, 1)["no motion, no control"]
    # squared errors of the states: 9, 0, 1, 4; of the controls: 9, 1
    assert floor == {"num-examples": 2, "test.state_loss": 3.5, "test.control_loss": 5.0, "test.total_loss": 8.5}


def test_the_mean_score_of_each_stage(tmp_path):
    task = SocialTask(SocialOptions(source="simulated", participants="a,b", world_scenes=20))
    task.make_world(tmp_path, 1, seed=0)
    (floor,) = task.node_references(tmp_path, 1)["mean score"]
    for stage, splits in enumerate(task.load_node(tmp_path, 0, 1).stages, start=1):
        errors = splits["test"]["score"].double() - splits["train"]["score"].double().mean()
        assert floor.pop(f"stage-{stage}.test.mse") == pytest.approx(float((errors**2).mean()), rel=1e-5)
    assert not floor


def test_a_human_that_keeps_its_velocity(tmp_path):
    task = DrivingTask(DrivingOptions(sessions_train=1, sessions_test=1, hidden=4))
    task.make_world(tmp_path, 1, seed=0)
    (floor,) = task.node_references(tmp_path, 1)["constant velocity"]
    data = task.load_node(tmp_path, 0, 1)
    torch.manual_seed(0)
    model = task.build_model()
    torch.nn.init.zeros_(model.controls.weight)
    torch.nn.init.zeros_(model.controls.bias)  # its forecast is no control, with certainty
    measured = task.evaluate(model, data, seed=0, final=False).metrics
    assert floor["test.elbo"] == pytest.approx(measured["test.reconstruction"], rel=1e-5)
    assert floor["test.error_1.5s"] == measured["test.constant_velocity_1.5s"] > 0


def test_a_database_in_random_order(tmp_path, monkeypatch):
    """Every query has k of m images; the first is one of them with probability k / m."""
    use_tiny_network(monkeypatch)
    write_places(tmp_path, cities=3, spots=4)
    task = task_with()
    floor = task.references(tmp_path)["random order"]
    common = task.load_node(tmp_path, 0, 2).extra["common"]["test"]
    size = len(common.images.places.database)
    right = [len(common.true_rows[query]) for query in common.findable]
    assert floor["test.recall_at_1"] == pytest.approx(np.mean(right) / size)
    assert floor["test.recall_at_1"] < floor["test.recall_at_5"] <= floor["test.recall_at_10"] <= 1


@pytest.mark.parametrize(("weighting", "value"), [("uniform", 2.0), ("num-examples", 2.5)])
def test_floors_are_combined_as_the_run_weighs_nodes(weighting, value):
    config = parse({"task": "lqr", "methods": "sfl", "weighting": weighting, "collect-after": 0})
    nodes = [{"num-examples": 1, "test.loss": 1.0}, {"num-examples": 3, "test.loss": 3.0}]
    assert _over_nodes(config, nodes) == {"test.loss": value}
