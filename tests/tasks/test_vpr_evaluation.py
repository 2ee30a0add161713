"""Recall on common and on own images, and the caches that evaluation uses."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fedapps.tasks.vpr.evaluation import CommonSet
from fedapps.tasks.vpr.training_set import FeatureMapCache, map_shape
from striped_places import SIZE, SPACING
from striped_tasks import SPOTS, evaluated, model_of, task_with

pytestmark = pytest.mark.usefixtures("tiny_network")


def test_recall_by_brute_force(striped):
    task = task_with()
    node, model = task.load_node(striped, 0, 2), model_of(task)
    metrics = evaluated(task, model, node)
    common = node.extra["common"]["test"].images
    described = common.through(model).describe(np.arange(len(common.places)))
    queries, database = common.places.queries, common.places.database
    order = np.linalg.norm(described[queries][:, None] - described[database], axis=2).argsort(axis=1)
    metres = np.linalg.norm(common.places.position[queries][:, None] - common.places.position[database], axis=2)
    hits = np.take_along_axis(metres <= 25, order, axis=1)
    for n in (1, 5, 10):
        assert metrics[f"test.recall_at_{n}"] == pytest.approx(hits[:, :n].any(axis=1).mean())
    assert metrics["train.recall_at_1.count"] == 2 * SPOTS


def test_a_model_is_tested_once_on_what_is_common(striped, monkeypatch):
    task = task_with()
    nodes, model = [task.load_node(striped, partition, 2) for partition in range(2)], model_of(task, 7)
    first = evaluated(task, model, nodes[0])
    monkeypatch.setattr("fedapps.tasks.vpr.evaluation._recalls", lambda *_: {"recall_at_1": -1.0})
    assert evaluated(task, model, nodes[1])["test.recall_at_1"] == first["test.recall_at_1"]
    with torch.no_grad():
        model.pooling.p += 0.5
    assert evaluated(task, model, nodes[1])["test.recall_at_1"] == -1.0


def test_held_out_queries_give_a_local_recall(striped):
    task = task_with(local_share=0.5)
    metrics = evaluated(task, model_of(task), task.load_node(striped, 0, 2))
    assert metrics["local.recall_at_5.count"] == SPOTS
    assert "train.recall_at_5" not in metrics
    assert metrics["train.loss.count"] == SPOTS


def test_negatives_beyond_the_margin_have_no_loss(striped):
    margins = {0.0: 0, 1000.0: 0}  # distances of unit vectors are at most 2
    for margin in margins:
        task = task_with(margin=margin, refresh=5)
        metrics = evaluated(task, model_of(task), task.load_node(striped, 0, 2))
        margins[margin] = metrics["train.zero_loss"]
        assert metrics["train.zero_loss.count"] == metrics["train.loss.count"] == 5
    assert margins[1000.0] == 0 < margins[0.0] < 1


def test_recalls_of_a_random_order_by_hand():
    """Of 5 images, 2 and 1 are correct; the query without a correct one does not count."""
    places = SimpleNamespace(database=np.arange(5))
    common = CommonSet(SimpleNamespace(places=places), [np.array([0, 3]), np.array([], int), np.array([4])])
    assert common.random_recalls() == pytest.approx({"recall_at_1": 0.3, "recall_at_5": 1.0, "recall_at_10": 1.0})
    assert CommonSet(SimpleNamespace(places=places), [np.array([], int)]).random_recalls() == {}


def test_a_drawn_test_keeps_what_its_queries_show(striped):
    """A spot has two images in the database."""
    common = task_with(test_queries=3, test_database=2).load_node(striped, 0, 2).extra["common"]["test"]
    places = common.images.places
    spots = {round(float(east) // SPACING) for east in places.position[places.queries, 0]}
    assert len(places.queries) == 3
    assert len(places.database) == 2 * len(spots) + 2
    assert all(len(rows) == 2 for rows in common.true_rows)


def test_maps_are_kept_while_there_is_room_and_have_the_same_bits_when_made_again(striped):
    node = task_with().load_node(striped, 0, 2)
    places, network = node.extra["training"].images.places, model_of(task_with())
    size = 4 * len(places) * int(np.prod(map_shape(network, *SIZE)))
    kept = FeatureMapCache(size)
    first = kept.of("one", places, SIZE, network)
    assert kept.of("one", places, SIZE, network) is first
    other = kept.of("other", places, SIZE, network)
    again = kept.of("one", places, SIZE, network)
    assert again is not first
    assert torch.equal(first, other)
    assert torch.equal(first, again)
    assert FeatureMapCache(size - 1).of("one", places, SIZE, network) is None
    elsewhere = kept.of("one", places, SIZE, model_of(task_with(), seed=1))
    assert not torch.equal(first, elsewhere)
