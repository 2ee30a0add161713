"""The task "vpr": nodes that mine triplets in their own images."""

import csv
from dataclasses import replace

import numpy as np
import pytest
import torch
from striped_places import SIZE, SPACING, use_tiny_network, write_places

from clients.training import Phase, run_plan
from sim.seeding import torch_seed
from tasks.base import DataError
from tasks.vpr.augmentation import ColourJitter
from tasks.vpr.features import map_bytes
from tasks.vpr.image_sets import FeatureMapCache
from tasks.vpr.options import Options
from tasks.vpr.task import VprTask
from tasks.vpr.training_set import augmentation_of

OPTIONS = Options(backbone="tiny", height=SIZE[0], width=SIZE[1], radius=1000.0, negatives=3)
SPOTS = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("places")
    write_places(folder, cities=3, spots=SPOTS)
    return folder


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    use_tiny_network(monkeypatch)


def task_with(**changes):
    return VprTask(replace(OPTIONS, **changes))


def model_of(task, seed=0):
    with torch_seed(seed):
        return task.build_model()


def train(task, model, data, epochs, seed=0):
    """As a client trains."""
    with torch_seed(seed):
        plan = [Phase(epochs, 0.01, 4)]
        trained = run_plan(model, plan, lambda size: task.training_batches(model, data, size), task.loss)
    model.eval()
    return trained


def batches_of(task, model, data, size=4, seed=0):
    with torch_seed(seed):
        return list(task.training_batches(model, data, size))


def evaluated(task, model, data):
    model.eval()
    return task.evaluate(model, data, seed=0, final=True).metrics


def same_arrays(one, other):
    return all(torch.equal(one.state_dict()[name], other.state_dict()[name]) for name in one.state_dict())


# -- nodes -------------------------------------------------------------------------------------------------


def test_a_node_is_a_client_of_the_split_in_the_order_of_keys(folder):
    """Of three cities the last is for the test; within 1000 m of a query lies all of its city."""
    task = task_with()
    nodes = [task.load_node(folder, partition, 2) for partition in range(2)]
    assert [node.key for node in nodes] == ["city-0-00", "city-1-00"]
    assert [node.groups for node in nodes] == [
        {"city": "city-0", "continent": "land-0"},
        {"city": "city-1", "continent": "land-1"},
    ]
    assert [node.count("train") for node in nodes] == [2 * SPOTS] * 2
    assert nodes[0].extra["common"]["test"] is nodes[1].extra["common"]["test"]
    assert nodes[0].extra["common"]["test"].images.places.cities == ("city-2",)


def test_queries_without_a_positive_or_a_negative_are_no_examples(folder):
    """The second drive lies 1 m beside the first, so that each has its own positives; nothing lies beyond 1000 m."""
    assert task_with(near=0.0).load_node(folder, 0, 2).count("train") == 2 * SPOTS
    with pytest.raises(DataError, match="gives 0 clients that have a query to train on, not 2: increase"):
        task_with(far=1000.0).load_node(folder, 0, 2)


def test_a_split_into_another_number_of_clients_is_refused_or_drawn_from(folder):
    with pytest.raises(DataError, match=r"gives 2 clients .* not 3: set num-nodes = 2$"):
        task_with().load_node(folder, 0, 3)
    with pytest.raises(DataError, match=r"not 1: set num-nodes = 2, or vpr.surplus = 'draw' to draw a subset"):
        task_with().load_node(folder, 0, 1)
    with pytest.raises(DataError, match="node 2 of 2"):
        task_with().load_node(folder, 2, 2)
    drawn = task_with(surplus="draw").load_node(folder, 0, 1)
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


def test_the_random_split_makes_as_many_clients_as_nodes(folder):
    nodes = [task_with(split="random").load_node(folder, partition, 2) for partition in range(2)]
    assert [node.key for node in nodes] == ["client-000", "client-001"]
    assert nodes[0].groups == {}
    assert nodes[0].extra["training"].images.places.cities == ("city-0", "city-1")


def test_the_clustering_split_has_as_many_clients_as_proximity_at_most(folder):
    node = task_with(split="clustering").load_node(folder, 1, 2)
    assert node.groups["city"] == "city-1"
    assert node.count("train") == 2 * SPOTS


def test_a_node_keeps_sequences_of_queries_for_its_own_test(folder):
    node = task_with(local_share=0.5).load_node(folder, 0, 2)
    kept, trained = (set(node.splits[split]["query"].tolist()) for split in ("test", "train"))
    assert (len(kept), len(trained)) == (SPOTS, SPOTS)
    assert kept | trained == set(range(2 * SPOTS))
    places = node.extra["training"].images.places
    assert len({places.track[places.queries][row] for row in kept}) == 1


def test_validation_clients_are_no_nodes_and_their_pictures_are_not_trained_on(folder):
    task = task_with(validation_clients=1)
    node = task.load_node(folder, 0, 1)
    held = node.extra["common"]["validation"].images.places.cities
    assert {node.groups["city"], *held} == {"city-0", "city-1"}
    pooled = task.load_all(folder)
    assert pooled.extra["training"].images.places.cities == (node.groups["city"],)
    assert "validation.recall_at_1" in evaluated(task, model_of(task), node)


def test_pooled_data_is_all_that_is_no_test_and_a_node_own_folder_has_no_test(folder):
    pooled = task_with().load_all(folder)
    assert pooled.key == folder.name
    assert pooled.count("train") == 2 * 2 * SPOTS
    assert set(pooled.extra["common"]) == {"test"}
    own = task_with().load_own(folder)
    assert own.count("train") == 3 * 2 * SPOTS
    assert own.extra["common"] == {}
    assert set(task_with(test_cities="city-1,elsewhere").load_own(folder).extra["common"]) == {"test"}


# -- batches -----------------------------------------------------------------------------------------------


def test_triplets_are_the_hardest_by_the_weights_of_the_model(folder):
    """Against brute force: nearest of those within 10 m, and nearest three of those beyond 25 m."""
    task = task_with()
    node, model = task.load_node(folder, 0, 2), model_of(task)
    training = node.extra["training"]
    inputs = training.images.through(model)
    found = training.triplets(inputs, np.arange(2 * SPOTS), task.options, np.random.default_rng(0))
    everything = np.arange(len(training.images.places))
    described, at = inputs.describe(everything), training.images.places.position
    assert found.queries.tolist() == training.queries.tolist()
    for query, positive, negatives in zip(found.queries, found.positives, found.negatives, strict=True):
        database = training.database
        apart = np.linalg.norm(described[database] - described[query], axis=1)
        metres = np.linalg.norm(at[database] - at[query], axis=1)
        near, far = database[metres <= 10], database[metres > 25]
        assert positive == near[apart[metres <= 10].argmin()]
        assert set(negatives) == set(far[np.argsort(apart[metres > 25])[:3]])


def test_an_epoch_has_every_query_once_with_its_triplet(folder):
    task = task_with()
    node, model = task.load_node(folder, 0, 2), model_of(task)
    batches = batches_of(task, model, node, size=5)
    assert [tuple(batch["maps"].shape) for batch in batches] == [(n, 5, 8, 12, 16) for n in (5, 5, 2)]
    assert all(batch["mask"].all() and batch["mask"].shape[1] == 3 for batch in batches)
    training = node.extra["training"]
    maps = training.images.through(model).maps[torch.from_numpy(training.queries)]
    seen = [
        int((maps == query).all(dim=(1, 2, 3)).nonzero()[0, 0]) for batch in batches for query in batch["maps"][:, 0]
    ]
    assert sorted(seen) == list(range(2 * SPOTS))
    assert seen != list(range(2 * SPOTS))


def test_an_epoch_may_be_limited(folder):
    task = task_with(queries_per_epoch=7, refresh=4)
    batches = batches_of(task, model_of(task), task.load_node(folder, 0, 2), size=2)
    assert [len(batch["mask"]) for batch in batches] == [2, 2, 2, 1]


def test_triplets_are_mined_anew_with_the_weights_of_the_moment(folder):
    task = task_with(refresh=6)
    node = task.load_node(folder, 0, 2)

    def epoch(changed):
        model, batches = model_of(task), []
        with torch_seed(0):
            for batch in task.training_batches(model, node, 6):
                batches.append(batch["maps"])
                if changed:
                    model.trained.load_state_dict(model_of(task, 1).trained.state_dict())
        return batches

    (first, second), (same, other) = epoch(False), epoch(True)
    assert torch.equal(first, same)
    assert torch.equal(second[:, 0], other[:, 0])
    assert not torch.equal(second[:, 1:], other[:, 1:])


def test_a_virtual_client_trains_on_the_rows_it_drew(folder):
    task = task_with()
    node = task.load_node(folder, 0, 2)
    drawn = torch.tensor([3, 3, 3, 0, 3])
    virtual = replace(node, splits={"train": {"query": drawn}})
    batches = batches_of(task, model_of(task), virtual, size=2)
    assert [len(batch["maps"]) for batch in batches] == [2, 2, 1]
    queries = torch.cat([batch["maps"][:, 0] for batch in batches])
    assert sorted((queries == queries[i]).all(dim=(1, 2, 3)).sum().item() for i in range(5)) == [1, 4, 4, 4, 4]


def test_batches_need_the_model(folder):
    task = task_with()
    node = task.load_node(folder, 0, 2)
    for read in (task.batches, task.examples):
        with pytest.raises(NotImplementedError, match="mines its"):
            read(node, "train", 2)


@pytest.mark.parametrize(
    ("changes", "images", "maps"),
    [
        ({"augment": "jitter"}, 1, 4),
        ({"augment": "jitter", "augmented": "all"}, 5, 0),
        ({"augment": "jitter-crop", "maps_megabytes": 0}, 5, 0),
        ({"maps_megabytes": 0}, 5, 0),
        ({}, 0, 5),
    ],
)
def test_only_what_is_augmented_goes_through_the_frozen_layers_again(folder, changes, images, maps):
    task = task_with(**changes)
    model = model_of(task)
    (batch, *_) = batches_of(task, model, task.load_node(folder, 0, 2))
    assert (batch["images"].shape[1] if "images" in batch else 0) == images
    assert (batch["maps"].shape[1] if "maps" in batch else 0) == maps
    assert torch.isfinite(task.loss(model, batch))


def test_of_augmented_queries_the_other_pictures_stay_as_they_are(folder):
    """With nothing kept all images come as images, of which only half of the queries are others."""
    node = task_with(maps_megabytes=0).load_node(folder, 0, 2)
    plain, changed = (
        batches_of(task, model_of(task), node, size=12)[0]["images"]
        for task in (task_with(maps_megabytes=0), task_with(maps_megabytes=0, augment="jitter"))
    )
    assert torch.equal(plain[:, 1:], changed[:, 1:])
    others = (plain[:, 0] != changed[:, 0]).flatten(1).any(dim=1).sum()
    assert 0 < others < 12


def test_every_client_has_a_jitter_of_its_own():
    options = replace(OPTIONS, augment="client-jitter")
    one, same, other = ((augmentation_of(options, key).steps[0]) for key in ("a", "a", "b"))
    assert one == same != other
    assert one.brightness < ColourJitter().brightness


# -- training ----------------------------------------------------------------------------------------------


def test_training_finds_places_that_an_untrained_model_does_not(folder):
    task = task_with()
    node, model = task.load_node(folder, 0, 2), model_of(task)
    before, frozen = evaluated(task, model, node), {n: t.clone() for n, t in model.frozen.state_dict().items()}
    first = train(task, model, node, 1)
    last = train(task, model, node, 11)
    after = evaluated(task, model, node)
    assert (first.steps, last.steps) == (3, 33)
    assert last.loss < first.loss
    assert after["train.loss"] < before["train.loss"]
    assert after["train.recall_at_1"] > before["train.recall_at_1"] + 0.2
    assert after["train.zero_loss"] > before["train.zero_loss"]
    assert all(torch.equal(frozen[name], tensor) for name, tensor in model.frozen.state_dict().items())


def test_the_same_seed_gives_the_same_bits_whatever_was_kept(folder):
    task = task_with()
    one, other = model_of(task), model_of(task)
    train(task, one, task.load_node(folder, 0, 2), 2)
    fresh = VprTask(replace(OPTIONS, maps_megabytes=1023))  # of other options: read and kept for itself
    train(fresh, other, fresh.load_node(folder, 0, 2), 2)
    assert same_arrays(one, other)
    train(task, one, task.load_node(folder, 0, 2), 1, seed=1)
    train(task, other, task.load_node(folder, 0, 2), 1, seed=2)
    assert not same_arrays(one, other)


def test_training_on_kept_maps_is_training_on_images_but_for_rounding(folder):
    losses, models = [], []
    for task in (task_with(), task_with(maps_megabytes=0)):
        models.append(model_of(task))
        losses.append(train(task, models[-1], task.load_node(folder, 0, 2), 2).loss)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    for name, tensor in models[0].state_dict().items():
        torch.testing.assert_close(tensor, models[1].state_dict()[name], rtol=1e-3, atol=1e-5)


# -- evaluation --------------------------------------------------------------------------------------------


def test_recall_by_brute_force(folder):
    task = task_with()
    node, model = task.load_node(folder, 0, 2), model_of(task)
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


def test_a_model_is_tested_once_on_what_is_common(folder, monkeypatch):
    task = task_with()
    nodes, model = [task.load_node(folder, partition, 2) for partition in range(2)], model_of(task, 7)
    first = evaluated(task, model, nodes[0])
    monkeypatch.setattr("tasks.vpr.evaluation._recalls", lambda *_: {"recall_at_1": -1.0})
    assert evaluated(task, model, nodes[1])["test.recall_at_1"] == first["test.recall_at_1"]
    with torch.no_grad():
        model.pooling.p += 0.5
    assert evaluated(task, model, nodes[1])["test.recall_at_1"] == -1.0


def test_held_out_queries_give_a_local_recall(folder):
    task = task_with(local_share=0.5)
    metrics = evaluated(task, model_of(task), task.load_node(folder, 0, 2))
    assert metrics["local.recall_at_5.count"] == SPOTS
    assert "train.recall_at_5" not in metrics
    assert metrics["train.loss.count"] == SPOTS


def test_a_drawn_test_keeps_what_its_queries_show(folder):
    """A spot has two images in the database."""
    common = task_with(test_queries=3, test_database=2).load_node(folder, 0, 2).extra["common"]["test"]
    places = common.images.places
    spots = {round(float(east) // SPACING) for east in places.position[places.queries, 0]}
    assert len(places.queries) == 3
    assert len(places.database) == 2 * len(spots) + 2
    assert all(len(rows) == 2 for rows in common.true_rows)


def test_maps_are_kept_while_there_is_room_and_have_the_same_bits_when_made_again(folder):
    node = task_with().load_node(folder, 0, 2)
    places, network = node.extra["training"].images.places, model_of(task_with())
    size = len(places) * map_bytes(network, *SIZE)
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


# -- a made-up world ---------------------------------------------------------------------------------------


def test_made_up_cities_are_read_as_nodes(tmp_path):
    options = Options(
        source="simulated",
        backbone="tiny",
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
def test_the_log_says_where_weights_are_drawn(folder, caplog, train_all, ending):
    task_with(split_seed=77, train_all=train_all).load_node(folder, 0, 2)  # nobody has read this one before
    (said,) = [record.getMessage() for record in caplog.records if "weights" in record.getMessage()]
    assert said.startswith("vpr.weights = '': tiny starts from random weights")
    assert ending in said
    assert ("stay random" in said) is not train_all
