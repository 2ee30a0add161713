"""The task as a whole: worlds, nodes and stages, batches, learning, what is drawn, and options that make no sense."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fedapps.tasks.base import DataError
from fedapps.tasks.social.graphs import compact_graphs
from fedapps.tasks.social.networks import Options
from fedapps.tasks.social.scenes import RatedScene, read_participant
from fedapps.tasks.social.task import SocialTask, scene_to_draw
from torch.nn.functional import mse_loss
from toys import learn

SMALL = Options(participants="a,b;c,d", source="simulated", world_scenes=40, hidden=8)
BOTH = ("compact", "relational")
SQUARE = ((-1.1, -1.0), (1.1, -1.0), (1.1, 0.8), (-1.1, 0.8))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("social")
    SocialTask(SMALL).make_world(folder, 2, seed=1)
    return folder


def model_of(task):
    torch.manual_seed(0)
    return task.build_model()


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# -- where data comes from -------------------------------------------------------------------------------------


def test_recorded_ratings_are_never_made_up(tmp_path):
    task = SocialTask(replace(SMALL, source="recorded"))
    assert Options().source == "recorded"
    assert not task.has_world
    with pytest.raises(
        DataError, match=r"source = 'recorded' .*: set data-dir to the folder .*, or set social.source = 'simul"
    ):
        task.make_world(tmp_path, 2, seed=0)
    assert not list(tmp_path.iterdir())
    assert SocialTask(SMALL).has_world


def test_a_participant_without_test_scenes(tmp_path):
    room = [[100 * x, 100 * y] for x, y in SQUARE]
    scene = {"score": 50, "robot": {"id": 0}, "humans": [], "objects": [], "links": [], "room": room}
    lines = [{**scene, "identifier": str(i), "split": "train" if i < 5 else "validation"} for i in range(6)]
    (tmp_path / "a.json").write_text("\n".join(map(json.dumps, lines)))
    task = SocialTask(replace(SMALL, participants="a", source="recorded"))
    data = task.load_node(tmp_path, 0, 1)
    assert {split: data.count(split) for split in ("train", "validation", "test")} == {
        "train": 10, "validation": 1, "test": 0,  # with mirror images
    }  # fmt: skip
    found = task.evaluate(model_of(task), data, seed=0, final=True)
    assert list(found.metrics) == ["validation.mse"]
    assert found.traces == {}


def test_a_world_is_for_the_nodes_of_the_option(tmp_path):
    with pytest.raises(
        DataError, match=r"participants = 'a,b;c,d' lists the participants of 2 nodes, but num-nodes is 3: set num-"
    ):
        SocialTask(SMALL).make_world(tmp_path, 3, seed=0)
    with pytest.raises(DataError, match="set num-nodes = 2"):
        SocialTask(SMALL).load_node(tmp_path, 0, 3)


def test_a_world_has_its_own_options_alone(world, tmp_path):
    task = SocialTask(replace(SMALL, together=True, graph="relational", augment=False, split_seed=3, hidden=9))
    assert task.world_options == SocialTask(SMALL).world_options
    task.make_world(tmp_path, 2, seed=1)
    written = [{path.name: path.read_bytes() for path in folder.iterdir()} for folder in (world, tmp_path)]
    assert written[0] == written[1]
    assert SocialTask(replace(SMALL, world_scenes=41)).world_options != task.world_options


# -- nodes and stages ------------------------------------------------------------------------------------------


def test_a_node_meets_its_participants_one_after_another(world):
    task = SocialTask(SMALL)
    assert task.num_stages == 2
    node = task.load_node(world, 1, 2)
    assert (node.key, node.groups) == ("client-2", {"participants": "c+d"})
    assert len(node.stages) == 2
    for stage, participant in enumerate("cd"):
        data = node.at(stage)
        assert [data.count(split) for split in ("train", "validation", "test")] == [2 * 28, 6, 6]
        scores = {scene.score for scene in read_participant(world, participant)}
        assert {round(100 * score) for score in data.splits["test"]["score"].tolist()} <= scores
    assert equal(node.splits["train"], node.at(0).splits["train"])
    assert not equal(node.splits["test"], node.at(1).splits["test"])


def test_all_of_a_nodes_participants_together(world):
    task = SocialTask(replace(SMALL, together=True, participants="a,b,c;d"))
    assert task.num_stages == 1
    node = task.load_node(world, 0, 2)
    assert node.stages == ()
    assert [node.count(split) for split in ("train", "validation", "test")] == [3 * 2 * 28, 3 * 6, 3 * 6]


def test_pooled_data_has_the_same_stages(world):
    task = SocialTask(SMALL)
    pooled = task.load_all(world)
    assert (pooled.key, len(pooled.stages)) == ("pooled", 2)
    for stage in range(2):
        nodes = [task.load_node(world, partition, 2).at(stage) for partition in range(2)]
        scores = torch.cat([node.splits["test"]["score"] for node in nodes])
        assert torch.equal(pooled.at(stage).splits["test"]["score"], scores)
    assert SocialTask(replace(SMALL, together=True)).load_all(world).count("train") == 4 * 2 * 28


def test_a_deployed_node_has_a_folder_of_its_own(world, tmp_path):
    for name, source in (("d", "d"), ("new", "a")):
        (tmp_path / f"{name}.json").write_bytes((world / f"{source}.json").read_bytes())
    node = SocialTask(SMALL).load_all(tmp_path)
    assert (node.key, len(node.stages)) == ("d+new", 2)
    (tmp_path / "new.json").unlink()
    with pytest.raises(DataError, match=r"expected 2 files <participant>.json, .* found d.json. Add or remove files"):
        SocialTask(SMALL).load_all(tmp_path)


def test_the_split_does_not_depend_on_options_of_the_graph(world):
    nodes = [SocialTask(replace(SMALL, graph=graph)).load_node(world, 0, 2) for graph in BOTH]
    for split in ("train", "validation", "test"):
        assert torch.equal(nodes[0].splits[split]["score"], nodes[1].splits[split]["score"])
    less = SocialTask(replace(SMALL, train_fraction=0.25, augment=False)).load_node(world, 0, 2)
    assert torch.equal(less.splits["train"]["score"], nodes[0].splits["train"]["score"][:7])
    assert equal(less.splits["test"], nodes[0].splits["test"])


# -- learning --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("graph", BOTH)
def test_batches_lose_nothing_but_padding(world, graph):
    task = SocialTask(replace(SMALL, graph=graph))
    data, model = task.load_node(world, 0, 2), model_of(task)
    torch.manual_seed(7)
    trimmed = list(task.batches(data, "train", 16))
    torch.manual_seed(7)
    whole = list(super(SocialTask, task).batches(data, "train", 16))
    assert [len(batch["score"]) for batch in trimmed] == [16, 16, 16, 8]
    for small, large in zip(trimmed, whole, strict=True):
        assert torch.equal(small["score"], large["score"])
        assert sum(map(torch.numel, small.values())) <= sum(map(torch.numel, large.values()))
        torch.testing.assert_close(task.loss(model, small), task.loss(model, large))


@pytest.mark.parametrize("graph", BOTH)
def test_metrics_are_mean_squared_errors_of_scores_from_0_to_1(world, graph):
    task = SocialTask(replace(SMALL, graph=graph))
    data, model = task.load_node(world, 0, 2), model_of(task)
    evaluation = task.evaluate(model, data, seed=0, final=False)
    assert evaluation.traces == {}
    for split in ("validation", "test"):
        inputs = dict(data.splits[split])
        scores = inputs.pop("score")
        expected = mse_loss(model(**inputs), scores).item()
        assert evaluation.metrics[f"{split}.mse"] == pytest.approx(expected, rel=1e-5)
        assert scores.min() >= 0
        assert scores.max() <= 1


@pytest.mark.slow
@pytest.mark.parametrize("graph", BOTH)
def test_a_taste_is_learned(world, graph):
    task = SocialTask(replace(SMALL, graph=graph, layers=3))
    data, model = task.load_node(world, 0, 2), model_of(task)
    mean = data.splits["train"]["score"].mean()
    naive = mse_loss(mean.expand(data.count("test")), data.splits["test"]["score"]).item()
    learn(task, model, data, epochs=60, rate=5e-3, batch_size=16)
    assert task.evaluate(model, data, seed=0, final=False).metrics["test.mse"] < 0.6 * naive


# -- what is drawn ---------------------------------------------------------------------------------------------


def test_the_scene_to_draw_has_three_interactions_and_few_bodies():
    def scene(name, humans, links):
        pairs = tuple((1, other) for other in range(2, 2 + links))
        return RatedScene(name, 50.0, ((1.0, 1.0, 0.0),) * humans, (), pairs, SQUARE)

    most, chosen, same, fewer = scene("4", 9, 5), scene("2", 5, 3), scene("3", 5, 4), scene("1", 3, 2)
    assert scene_to_draw([most, same, chosen, fewer]) is chosen
    assert scene_to_draw([fewer, scene("0", 0, 0)]) is fewer


@pytest.mark.parametrize("graph", BOTH)
def test_the_learned_score_throughout_a_scene(world, graph):
    task = SocialTask(replace(SMALL, graph=graph))
    humans, objects = ((0.6, 0.5, 1.0), (-0.5, 0.25, 0.5)), ((0.75, -0.5, 0.0),)
    scene = RatedScene("1", 70.0, humans, objects, ((1, 2), (2, 3)), SQUARE)
    data = replace(task.load_node(world, 0, 2), extra={"scene": scene})
    model = model_of(task)
    drawn = task.evaluate(model, data, seed=0, final=True).traces
    assert {name: array.shape for name, array in drawn.items()} == {
        "scene.room": (4, 2),
        "scene.humans": (2, 3),
        "scene.objects": (1, 3),
        "scene.links": (2, 2),
        "scene.x": (9,),
        "scene.y": (8,),
        "scene.score": (8, 9),
        "scene.inside": (8, 9),
        "scene.truth": (),
    }
    np.testing.assert_array_equal(drawn["scene.links"], [[0, 1], [1, 2]])
    np.testing.assert_allclose(drawn["scene.x"], np.arange(-1, 1.1, 0.25))
    np.testing.assert_allclose(drawn["scene.y"], np.arange(-1, 0.8, 0.25))
    assert drawn["scene.truth"] == 0.7
    assert drawn["scene.inside"][1:].all()
    for row, column in ((2, 6), (4, 4)):
        x, y = drawn["scene.x"][column], drawn["scene.y"][row]
        moved = replace(
            scene,
            humans=tuple((a - x, b - y, turn) for a, b, turn in humans),
            objects=tuple((a - x, b - y, turn) for a, b, turn in objects),
            room=tuple((a - x, b - y) for a, b in SQUARE),
        )
        expected = model(**task.graphs.build([moved])).item()
        assert drawn["scene.score"][row, column] == pytest.approx(min(max(expected, 0), 1), abs=1e-5)


def test_a_node_draws_a_scene_that_it_is_tested_on_last(world):
    node = SocialTask(SMALL).load_node(world, 0, 2)
    scene = node.extra["scene"]
    graph = compact_graphs([scene], "cartesian")["nodes"][0]
    tested = node.at(1).splits["test"]["nodes"]
    assert any(torch.equal(other[: len(graph)], graph) for other in tested)
    assert len(scene.links) > 0


# -- options that make no sense --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("participants", "message"),
    [
        (
            "a,b;c",
            r"all nodes must have the same number of participants, but a,b has 2; c has 1; .* social.together = true",
        ),
        ("a,b;b,c", "b occurs twice; name each once"),
        ("a,,b", "'' is not a valid name; use letters"),
        ("a;../b", "'../b' is not a valid name"),
    ],
)
def test_participants_that_make_no_sense(participants, message):
    with pytest.raises(DataError, match=f"participants = '{participants}': {message}"):
        SocialTask(Options(participants=participants))


def test_a_node_that_the_option_does_not_list(world):
    with pytest.raises(DataError, match="node 2 of 2: expected an index from 0 to 1"):
        SocialTask(SMALL).load_node(world, 2, 2)


# -- published data --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif("FEDAPPS_DATA" not in os.environ, reason="FEDAPPS_DATA names no folder of real data")
@pytest.mark.parametrize("graph", BOTH)
def test_one_persons_ratings_are_learned(graph):
    task = SocialTask(Options(participants="c", graph=graph, geometry="polar"))
    data = task.load_node(Path(os.environ["FEDAPPS_DATA"]) / "socnav1", 0, 1)
    assert [data.count(split) for split in ("train", "validation", "test")] == [2 * 417, 90, 90]
    model = model_of(task)
    learn(task, model, data, epochs=12, rate=5e-3, batch_size=32)
    evaluation = task.evaluate(model, data, seed=0, final=True)
    naive = data.splits["test"]["score"].var(correction=0).item()
    assert evaluation.metrics["test.mse"] < 0.75 * naive
    assert evaluation.traces["scene.inside"].any()
