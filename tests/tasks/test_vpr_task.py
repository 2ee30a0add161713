"""The nodes of the task: clients of a split, held-out sequences, pooled data, simulated cities."""

import csv
import json
from dataclasses import replace

import pytest
from fedapps.tasks.base import DataError
from fedapps.tasks.vpr.nodes import federation
from fedapps.tasks.vpr.options import Options
from fedapps.tasks.vpr.task import VprTask
from striped_places import write_places
from striped_tasks import SPOTS, evaluated, model_of, task_with

pytestmark = pytest.mark.usefixtures("tiny_network")


def test_a_node_is_a_client_of_the_split_in_the_order_of_keys(striped):
    """Of three cities the last is for the test; within 1000 m of a query lies all of its city."""
    task = task_with()
    nodes = [task.load_node(striped, partition, 2) for partition in range(2)]
    assert [node.key for node in nodes] == ["city-0-00", "city-1-00"]
    assert [node.groups for node in nodes] == [
        {"city": "city-0", "continent": "land-0"},
        {"city": "city-1", "continent": "land-1"},
    ]
    assert [node.count("train") for node in nodes] == [2 * SPOTS] * 2
    assert nodes[0].extra["common"]["test"] is nodes[1].extra["common"]["test"]
    assert nodes[0].extra["common"]["test"].images.places.cities == ("city-2",)


def test_queries_without_a_positive_or_a_negative_are_no_examples(striped):
    """The second drive lies 1 m beside the first, so that each has its own positives; nothing lies beyond 1000 m."""
    assert task_with(near=0.0).load_node(striped, 0, 2).count("train") == 2 * SPOTS
    with pytest.raises(DataError, match="gives 0 clients that have a query to train on, not 2: increase"):
        task_with(far=1000.0).load_node(striped, 0, 2)


def test_a_split_into_another_number_of_clients_is_refused_or_drawn_from(striped):
    with pytest.raises(DataError, match=r"gives 2 clients .* not 3: set num-nodes = 2$"):
        task_with().load_node(striped, 0, 3)
    with pytest.raises(DataError, match=r"not 1: set num-nodes = 2, or vpr.surplus = 'draw' to draw a subset"):
        task_with().load_node(striped, 0, 1)
    with pytest.raises(DataError, match="node 2 of 2"):
        task_with().load_node(striped, 2, 2)
    drawn = task_with(surplus="draw").load_node(striped, 0, 1)
    assert drawn.key in ("city-0-00", "city-1-00")


def test_a_client_of_the_random_split_that_is_near_nothing_is_a_node_without_examples(tmp_path):
    write_places(tmp_path, cities=3, spots=SPOTS)
    table = tmp_path / "places.csv"
    with table.open(newline="") as file:
        head, *rows = csv.reader(file)
    for row in rows:  # only one drive of queries passes where images of the database were taken
        if row[1].startswith("query") and (row[1], row[5]) != ("query-0", "city-0"):
            row[3] = str(float(row[3]) + 5000)
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows])
    task = task_with(split="random")
    found = sorted((task.load_node(tmp_path, partition, 2) for partition in range(2)), key=lambda n: n.count("train"))
    assert [node.count("train") for node in found] == [0, SPOTS]
    metrics = evaluated(task, model_of(task), found[0])
    assert "train.loss" not in metrics


def test_the_random_split_makes_as_many_clients_as_nodes(striped):
    nodes = [task_with(split="random").load_node(striped, partition, 2) for partition in range(2)]
    assert [node.key for node in nodes] == ["client-000", "client-001"]
    assert nodes[0].groups == {}
    assert nodes[0].extra["training"].images.places.cities == ("city-0", "city-1")


def test_the_clustering_split_has_as_many_clients_as_proximity_at_most(striped):
    node = task_with(split="clustering").load_node(striped, 1, 2)
    assert node.groups["city"] == "city-1"
    assert node.count("train") == 2 * SPOTS


def test_a_node_keeps_sequences_of_queries_for_its_own_test(striped):
    node = task_with(local_share=0.5).load_node(striped, 0, 2)
    kept, trained = (set(node.splits[split]["query"].tolist()) for split in ("test", "train"))
    assert (len(kept), len(trained)) == (SPOTS, SPOTS)
    assert kept | trained == set(range(2 * SPOTS))
    places = node.extra["training"].images.places
    assert len({places.track[places.queries][row] for row in kept}) == 1


def test_validation_clients_are_no_nodes_and_their_pictures_are_not_trained_on(striped):
    task = task_with(validation_clients=1)
    node = task.load_node(striped, 0, 1)
    held = node.extra["common"]["validation"].images.places.cities
    assert {node.groups["city"], *held} == {"city-0", "city-1"}
    pooled = task.load_all(striped)
    assert pooled.extra["training"].images.places.cities == (node.groups["city"],)
    assert "validation.recall_at_1" in evaluated(task, model_of(task), node)


def test_pooled_data_is_all_that_is_no_test_and_a_node_own_folder_has_no_test(striped):
    pooled = task_with().load_all(striped)
    assert pooled.key == striped.name
    assert pooled.count("train") == 2 * 2 * SPOTS
    assert set(pooled.extra["common"]) == {"test"}
    own = task_with().load_own(striped)
    assert own.count("train") == 3 * 2 * SPOTS
    assert own.extra["common"] == {}
    assert set(task_with(test_cities="city-1,elsewhere").load_own(striped).extra["common"]) == {"test"}


def test_made_up_cities_are_read_as_nodes(tmp_path):
    options = Options(
        source="simulated",
        backbone="tiny@body",
        height=16,
        width=24,
        world_cities=2,
        world_test_cities=1,
        world_metres=60.0,
        world_spacing=20.0,
        radius=2000.0,
    )
    task = VprTask(options)
    task.make_world(tmp_path, 2, seed=0)
    assert json.loads((tmp_path / "world.json").read_text())["parameters"]["kilometres"] == 2 * 0.06 / 2
    nodes = [task.load_node(tmp_path, partition, 2) for partition in range(2)]
    assert {node.groups["continent"] for node in nodes} <= {"europe", "america", "asia", "oceania"}
    assert len({node.groups["city"] for node in nodes}) == 2
    test = nodes[0].extra["common"]["test"].images.places
    assert len(test.cities) == 1
    assert test.cities[0] not in {node.groups["city"] for node in nodes}
    assert all(node.count("train") > 0 for node in nodes)


def test_made_up_cities_serve_whatever_is_learned_from_them():
    task = task_with(source="simulated")
    assert task_with(source="simulated", augment="jitter", negatives=9).world_options == task.world_options
    assert task_with(source="simulated", world_cities=9).world_options != task.world_options
    assert all(getattr(task.options, name) == value for name, value in task.world_options.items())


def test_files_are_not_made_up(tmp_path):
    assert not task_with(source="files").has_world
    with pytest.raises(DataError, match="set data-dir to the folder of the images"):
        task_with(source="files").make_world(tmp_path, 2, 0)


@pytest.mark.parametrize(
    ("train_all", "ending"), [(False, ", and its frozen layers stay random: set"), (True, "random weights")]
)
def test_the_log_says_where_weights_are_drawn(striped, caplog, train_all, ending):
    task_with(split_seed=77, train_all=train_all).load_node(striped, 0, 2)  # nobody has read this one before
    (said,) = [record.getMessage() for record in caplog.records if "weights" in record.getMessage()]
    assert said.startswith("vpr.weights = '': tiny@body starts from random weights")
    assert ending in said
    assert ("stay random" in said) is not train_all


@pytest.mark.parametrize("mined", [{"pool": 1}, {"nearest_sequences": 1, "sequence_images": 1}])
def test_every_example_has_a_loss_also_where_few_images_are_mined(tmp_path, mined):
    write_places(tmp_path, cities=3, spots=SPOTS)
    task = task_with(source="files", dataset="table", split="proximity", **mined)
    data = task.load_node(tmp_path, 0, 2)
    assert len(task.example_losses(model_of(task).eval(), data, "train")) == data.count("train") > 0


def test_images_of_random_validation_clients_depend_on_the_number_of_nodes(tmp_path):
    write_places(tmp_path, cities=3, spots=SPOTS)
    options = task_with(source="files", dataset="table", split="random").options
    parts = [federation(tmp_path, replace(options, validation_clients=1), count) for count in (1, 2)]
    first, second = (part.common["validation"].images.name for part in parts)
    assert first != second
