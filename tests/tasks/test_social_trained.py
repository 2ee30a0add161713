"""A trained rater: scores of scenes, and the same numbers as the evaluation."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from fedapps.tasks.base import DataError
from fedapps.tasks.social.networks import Options
from fedapps.tasks.social.scenes import RatedScene, participant_files, read_participant
from fedapps.tasks.social.task import SocialTask
from fedapps.tasks.social.trained import SocialTrained

from fedapps.base.seeding import torch_seed

SMALL = Options(participants="a;b", source="simulated", world_scenes=20, hidden=8)
BOTH = ("compact", "relational")
#: A robot in an empty, triangular room, as a line of a file has it.
EMPTY = {"robot": {"id": 0}, "humans": [], "objects": [], "links": [], "room": [[-200, -200], [200, -200], [0, 400]]}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("social")
    SocialTask(SMALL).make_world(folder, 2, seed=1)
    return folder


def trained_on(**changes):
    task = SocialTask(replace(SMALL, **changes))
    with torch_seed(0):
        return SocialTrained(task, task.build_model(), task.facts(None))


@pytest.mark.parametrize("graph", BOTH)
def test_scores_have_the_error_of_the_evaluation(world, graph):
    trained = trained_on(graph=graph)
    expected = trained.evaluate(trained.data(world, 0, 2))
    for split in ("validation", "test"):
        scenes = trained.task.scenes(world, ["a"])[split]
        truth = np.array([scene.score for scene in scenes])
        score = trained.score(scenes)
        assert score.dtype == np.float32
        assert ((score - truth) ** 2).mean() / 100**2 == pytest.approx(expected[f"{split}.mse"], rel=1e-5)


def test_a_score_by_hand():
    """Alone, the robot's node has no neighbour but itself: every layer maps its features (1, 0, 0, 0, 0, 0, 0)."""
    trained = trained_on(layers=1, hidden=1)
    with torch.no_grad():
        for layer, (weight, bias) in zip(trained.module.layers, [(0.5, 0.1), (2.0, -0.2)], strict=True):
            layer.weight.fill_(weight)
            layer.bias.fill_(bias)
    assert trained.score(EMPTY).tolist() == pytest.approx([100 * np.tanh(2 * 0.6 - 0.2)], rel=1e-6)


@pytest.mark.parametrize("graph", BOTH)
def test_scenes_come_in_any_form_and_number(world, graph):
    trained = trained_on(graph=graph)
    file = participant_files(world)["a"]
    scenes = read_participant(world, "a")
    score = trained.score(file)
    assert len(score) == len(scenes)
    np.testing.assert_allclose(trained.score(scenes, batch_size=3), score, atol=1e-4)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        del line["score"], line["identifier"]
    np.testing.assert_allclose(trained.score(lines), score, atol=1e-4)
    assert trained.score(lines[0]).shape == (1,)
    assert trained.score([]).shape == (0,)
    elsewhere = trained.score([scenes[0], scenes[0].seen_from(0.5, 0.5)])
    assert elsewhere[0] != elsewhere[1]


def test_bad_scenes_are_named(tmp_path):
    trained = trained_on()
    with pytest.raises(DataError, match="scene 1: missing room; expected score, identifier, room"):
        trained.score([EMPTY, {name: value for name, value in EMPTY.items() if name != "room"}])
    with pytest.raises(DataError, match="scene 0: score = 101; expected a number from 0 to 100"):
        trained.score({**EMPTY, "score": 101})
    (tmp_path / "scenes.json").write_text(json.dumps(EMPTY) + "\n{}\n")
    with pytest.raises(DataError, match=r"scenes.json, line 2: missing room, humans"):
        trained.score(tmp_path / "scenes.json")
    with pytest.raises(DataError, match="batch_size = 0"):
        trained.score(EMPTY, batch_size=0)


ROOM = ((-2.0, -2.0), (2.0, -2.0), (0.0, 4.0))
SCENE = RatedScene("", 0.0, ((1.0, 2.0, 0.5),), ((1.5, 3.0, -1.0),), ((1, 2),), ROOM)


@pytest.mark.parametrize("graph", BOTH)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"humans": ((1.0, 2.0),)}, r"humans of shape \[1, 2\]; expected poses \(x, y, orientation\)"),
        ({"objects": (1.0, 2.0, 0.5)}, r"objects of shape \[3\]; expected poses"),
        ({"humans": ((1.0, 2.0, 90.0),)}, r"humans\[0, 2\] = 90: .* half turns, from -1 to 1; divide degrees by 180"),
        ({"humans": ((1.0, 2.0, np.nan),)}, r"humans\[0, 2\] = nan: must be a finite number"),
        ({"links": ((1, 3),)}, r"links: \(1, 3\); expected a human, 1 to 1, and .* object, up to 2 \(0 is the robot"),
        ({"links": ((0, 1),)}, r"links: \(0, 1\)"),
        ({"links": ((1, 1),)}, r"links: \(1, 1\)"),
        ({"links": ((2, 1),)}, r"links: \(2, 1\)"),
        ({"links": ((1.5, 2),)}, r"links: \(1.5, 2.0\)"),
        ({"links": ((1, 2, 3),)}, r"links of shape \[1, 3\]; expected pairs of nodes"),
        ({"room": ()}, "room: 0 different corners; expected at least 3"),
        ({"room": (*ROOM[:2], ROOM[0])}, "room: 2 different corners; expected at least 3"),
    ],
)
def test_malformed_scenes_are_refused(graph, changes, message):
    trained = trained_on(graph=graph)
    assert trained.score([SCENE, replace(SCENE, humans=(), links=())]).shape == (2,)
    with pytest.raises(DataError, match=f"scene 1, {message}"):
        trained.score([SCENE, replace(SCENE, **changes)])


def test_a_prediction_is_a_score_beside_the_rating_if_there_is_one(world, tmp_path):
    trained = trained_on()
    file = participant_files(world)["b"]
    scenes = read_participant(world, "b")
    rows = list(trained.rows([file]))
    assert [row["identifier"] for row in rows] == [scene.identifier for scene in scenes]
    assert [row["rated"] for row in rows] == [scene.score for scene in scenes]
    np.testing.assert_allclose([row["score"] for row in rows], trained.score(scenes), atol=1e-4)
    assert len(list(trained.rows([world]))) == 2 * len(scenes)
    (tmp_path / "scenes.json").write_text(json.dumps({**EMPTY, "identifier": "x"}) + "\n")
    with pytest.raises(DataError, match=r"no scenes; expected files \*\.json, here or in the folder raw_data"):
        list(trained.rows([tmp_path.parent]))
    (row,) = trained.rows([tmp_path / "scenes.json"])
    assert (row["identifier"], row["rated"]) == ("x", None)


@pytest.mark.parametrize("graph", BOTH)
def test_the_network_to_export_gives_the_scores(graph):
    trained = trained_on(graph=graph)
    network = trained.network()
    assert set(network.dynamic) == set(network.input_names)
    scene = RatedScene("", 0.0, ((1.0, 2.0, 0.5),), (), (), ((-2.0, -2.0), (2.0, -2.0), (0.0, 4.0)))
    graphs = trained.task.graphs.build([scene])
    found = network.module(*(graphs[name] for name in network.input_names))
    np.testing.assert_allclose(100 * found.detach().numpy(), trained.score(scene), atol=1e-4)
