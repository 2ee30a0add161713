"""Graphs as tensors: directions of candidates, shortest paths, and walking with a teacher."""

import json
import shutil

import networkx as nx
import numpy as np
import pytest
import torch
from drawn_houses import (
    EDGES,
    NAMES,
    PATHS,
    POSITIONS,
    house_graph,
    message_of,
    path_entry,
    saved,
    task_with,
    write_graph,
)
from fedapps.tasks.vln.connectivity import (
    VIEW_ELEVATIONS,
    VIEW_HEADINGS,
    Graph,
    directions,
    nearest_view,
    shortest_paths,
    turned,
    unit_vectors,
)
from fedapps.tasks.vln.dataset import main
from fedapps.tasks.vln.evaluation import WALKERS, walk
from fedapps.tasks.vln.houses import assemble
from fedapps.tasks.vln.instructions import END, PAD, InstructedPath, Vocabulary
from fedapps.tasks.vln.nodes import encode
from fedapps.tasks.vln.walks import Walks, observe
from hypothesis import given
from hypothesis import strategies as st

DEGREE = np.pi / 180


@pytest.fixture
def houses():
    """Two houses, the second with its viewpoints in reverse order."""
    first = house_graph("houseA")
    back = np.arange(len(NAMES))[::-1]
    second = Graph(
        "houseB",
        tuple(NAMES[row] for row in back),
        first.positions[back],
        first.navigable[np.ix_(back, back)],
        first.visible[np.ix_(back, back)],
    )
    rng = np.random.default_rng(0)
    features = rng.random((len(NAMES), 36, 5)).astype(np.float32)
    return assemble([first, second], np.concatenate([features, features[back]]))


def as_networkx():
    graph = nx.Graph()
    graph.add_nodes_from(range(len(NAMES)))
    graph.add_edges_from((i, j, {"weight": np.linalg.norm(POSITIONS[i] - POSITIONS[j])}) for i, j in EDGES)
    return graph


def episodes_of(houses, paths, heading=0.0, scan="houseA"):
    told = [
        InstructedPath(scan, str(number), tuple(NAMES[stop] for stop in stops), heading, ("go",))
        for number, stops in enumerate(paths)
    ]
    return encode(told, houses.rows, Vocabulary(("go",)), 80)


# -- directions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "heading", "elevation"),
    [((0, 2, 0), 0, 0), ((2, 0, 0), 90, 0), ((0, -2, 0), 180, 0), ((-2, 0, 2), 270, 45), ((1, 1, -(2**0.5)), 45, -45)],
)
def test_headings_are_clockwise_from_y(offset, heading, elevation):
    found = directions(np.array(offset, dtype=float))
    np.testing.assert_allclose(found, (heading * DEGREE, elevation * DEGREE), atol=1e-12)


@given(st.floats(0, 6.28), st.floats(-1.5, 1.5))
def test_unit_vectors_are_the_inverse_of_directions(heading, elevation):
    found = directions(unit_vectors(np.array(heading), np.array(elevation)))
    assert abs(turned(found[0] - heading)) < 1e-9
    assert abs(found[1] - elevation) < 1e-9


@given(st.floats(0, 6.28), st.floats(-1.5, 1.5))
def test_the_nearest_view_is_the_nearest_of_all_36(heading, elevation):
    """As the agents of R2R look for it: the least root of squared differences of heading and elevation."""
    apart = np.hypot(turned(heading - VIEW_HEADINGS), elevation - VIEW_ELEVATIONS)
    found = nearest_view(np.array(heading), np.array(elevation))
    assert apart[found] == pytest.approx(apart.min(), abs=1e-9)


def test_candidates_of_a_viewpoint_by_hand(houses):
    """v11, at (6, 4), has v07 two metres south, v10 two metres west, and v12 two metres north and two up."""
    here = houses.rows["houseA_v11"]
    there = [houses.names[row].removeprefix("houseA_") for row in houses.neighbour[here][1:4]]
    assert there == ["v07", "v10", "v12"]
    assert houses.neighbour[here][0] == -1
    np.testing.assert_allclose(houses.heading[here][1:4], np.array([180, 270, 0]) * DEGREE, atol=1e-6)
    np.testing.assert_allclose(houses.elevation[here][1:4], np.array([0, 0, 45]) * DEGREE, atol=1e-6)
    assert houses.view[here][1:4].tolist() == [18, 21, 24]
    assert houses.exists[here].tolist() == [True] * 4 + [False] * (houses.exists.shape[1] - 4)


def test_an_observation_is_relative_to_where_the_agent_faces(houses):
    here = torch.tensor([houses.rows["houseA_v11"]] * 2)
    seen = observe(houses, here, torch.tensor([0, 3]))  # north, east
    assert seen.candidate_angles[:, 0].eq(0).all()
    assert seen.candidates[:, 0].eq(0).all()
    assert torch.equal(seen.candidates[0, 1], houses.features[here[0], 18])
    sine_cosine = [(np.sin(a), np.cos(a)) for a in np.array([180, 270, 0]) * DEGREE]
    np.testing.assert_allclose(seen.candidate_angles[0, 1:4, :2], sine_cosine, atol=1e-6)
    sine_cosine = [(np.sin(a), np.cos(a)) for a in np.array([90, 180, -90]) * DEGREE]
    np.testing.assert_allclose(seen.candidate_angles[1, 1:4, :2], sine_cosine, atol=1e-6)
    # View 3 looks east, straight ahead of the second agent.
    np.testing.assert_allclose(seen.view_angles[1, 15], [0, 1, 0, 1], atol=1e-6)
    np.testing.assert_allclose(seen.view_angles[0, 15], [1, 0, 0, 1], atol=1e-6)


# -- distances -------------------------------------------------------------------------------------------------


def test_distances_are_those_of_networkx(houses):
    expected = nx.floyd_warshall_numpy(as_networkx(), nodelist=range(len(NAMES)))
    np.testing.assert_allclose(shortest_paths(house_graph()).distance, expected)
    for scan in ("houseA", "houseB"):
        rows = torch.tensor([houses.rows[f"{scan}_{name}"] for name in NAMES])
        found = houses.distances(rows.repeat_interleave(len(rows)), rows.repeat(len(rows)))
        np.testing.assert_allclose(found.view(len(rows), -1), expected, rtol=1e-6)


def test_the_candidate_towards_a_goal_shortens_the_way_by_its_edge(houses):
    rows = torch.arange(len(NAMES))
    here, goal = rows.repeat_interleave(len(rows)), rows.repeat(len(rows))
    candidate = houses.towards(here, goal)
    assert (candidate == 0).equal(here == goal)
    apart = here != goal
    here, goal, candidate = here[apart], goal[apart], candidate[apart]
    following = houses.neighbour[here, candidate]
    edge = (houses.positions[following] - houses.positions[here]).norm(dim=1)
    torch.testing.assert_close(houses.distances(following, goal) + edge, houses.distances(here, goal))
    assert torch.equal(houses.candidate_to(here, following), candidate)


def test_a_viewpoint_without_neighbours_can_only_stop():
    lonely = Graph("house", ("a", "b", "c"), np.eye(3), np.zeros((3, 3), bool), np.zeros((3, 3), bool))
    houses = assemble([lonely], np.zeros((3, 36, 2), dtype=np.float32))
    assert houses.exists.sum(dim=1).tolist() == [1, 1, 1]
    assert torch.isinf(houses.distances(torch.tensor([0]), torch.tensor([1])))
    assert not shortest_paths(lonely).distance.diagonal().any()


# -- walking ---------------------------------------------------------------------------------------------------


def test_the_teacher_follows_the_described_path_and_stops_at_its_end(houses):
    episodes = episodes_of(houses, PATHS)
    walks = Walks(houses, episodes)
    rewards = []
    for _ in range(10):
        if len(walks.active):
            rewards.append(walks.step(walks.teacher()))
    trail, length = walks.trails()
    assert torch.equal(length, episodes["path_length"])
    assert torch.equal(trail[:, : episodes["path"].shape[1]], episodes["path"])
    assert rewards[0].tolist() == [1, 1, -1, 1, 1, 1]  # the third path is a detour: its first move leads away
    assert rewards[-1].tolist() == [2.0]  # that of the one longest path


def test_the_teacher_leads_back_by_the_shortest_path(houses):
    """Along a detour 0, 4, 5, 1, 2 of RxR: on it the next viewpoint, off it straight to the goal."""
    walks = Walks(houses, episodes_of(houses, [(0, 4, 5, 1, 2)]))
    row = houses.rows
    assert houses.neighbour[row["houseA_v00"], walks.teacher()].tolist() == [row["houseA_v04"]]
    assert walks.step(houses.candidate_to(walks.here, torch.tensor([row["houseA_v01"]]))).tolist() == [1.0]
    assert houses.neighbour[walks.here, walks.teacher()].tolist() == [row["houseA_v02"]]
    assert walks.step(houses.candidate_to(walks.here, torch.tensor([row["houseA_v05"]]))).tolist() == [-1.0]
    assert houses.neighbour[walks.here, walks.teacher()].tolist() == [row["houseA_v01"]]


@pytest.mark.parametrize(("stops", "reward"), [((0, 1, 2, 3), -2.0), ((0, 1), 2.0)])
def test_stopping_is_rewarded_within_three_metres(houses, stops, reward):
    walks = Walks(houses, episodes_of(houses, [stops]))
    assert walks.step(torch.zeros(1, dtype=torch.int64)).tolist() == [reward]
    assert not len(walks.active)


def test_after_a_move_the_agent_faces_the_view_it_went_to(houses):
    walks = Walks(houses, episodes_of(houses, [(0, 1, 2), (0, 4, 8)], heading=200 * DEGREE))
    assert walks.facing.tolist() == [7, 7]
    walks.step(walks.teacher())
    assert walks.facing.tolist() == [3, 0]


def test_walkers_stop_after_their_moves_and_the_teacher_at_the_goal(houses):
    episodes = episodes_of(houses, PATHS, heading=90 * DEGREE)
    scores = {name: walk(houses, episodes, walker, np.random.default_rng(0)) for name, walker in WALKERS.items()}
    assert scores["shortest path"]["sr"].tolist() == [1.0] * len(PATHS)
    assert scores["shortest path"]["ndtw"].tolist() == [1.0] * len(PATHS)
    assert scores["random"]["sr"].mean() < 1
    # East along the wall to the corner and on: v00, v01, v02, v03, v07, v11 are five moves.
    straight = walk(
        houses, episodes_of(houses, [(0, 1, 2, 3, 7, 11)], 90 * DEGREE), WALKERS["forward"], np.random.default_rng(0)
    )
    assert straight["ndtw"].tolist() == [1.0]


def test_paths_are_encoded_with_their_texts(houses):
    entry = path_entry("houseA", PATHS[0], 5, texts=2)
    path = InstructedPath(entry["scan"], "5", tuple(entry["path"]), 6.2, tuple(entry["instructions"]))
    episodes = encode([path, path], houses.rows, Vocabulary(("walk", "go")), 80, weight=0.2)
    assert episodes["record"].tolist() == [0, 0, 1, 1]
    assert episodes["length"].tolist() == [12, 11, 12, 11]
    assert episodes["tokens"].shape == (4, 12)
    assert episodes["tokens"][1, -2:].tolist() == [END, PAD]
    assert episodes["facing"].tolist() == [0] * 4  # 355 degrees
    assert episodes["weight"].tolist() == pytest.approx([0.2] * 4)


# A deployed node, whose folder has one house.


@pytest.fixture
def own_folder(homes, tmp_path):
    """An unseen house: its graph and features, and no instructions."""
    folder = tmp_path / "own"
    write_graph(folder, "houseC")
    shutil.copy(homes / "features.npz", folder)
    return folder


def test_a_deployed_house_explores_without_a_word_of_its_people(own_folder, words, speaker):
    task = task_with(vocabulary_file=words, stage="pre-exploration", **speaker)
    data = task.load_own(own_folder)
    assert (data.key, data.groups["seen"], data.count("train")) == ("houseC", "false", 5)
    assert set(data.splits) == {"train"}
    assert task.evaluate(task.build_model_for(data), data, seed=0, final=False).metrics == {}
    torch.manual_seed(5)
    agent = task.build_model()
    saved(agent, own_folder / "agent.safetensors")
    with_agent = task_with(vocabulary_file=words, stage="pre-exploration", agent_file="agent.safetensors", **speaker)
    mine = with_agent.build_model_for(data).state_dict()
    assert all(torch.equal(tensor, mine[name]) for name, tensor in agent.state_dict().items())
    entries = [path_entry("houseC", PATHS[0], 1)]
    (own_folder / "R2R_train.json").write_text(json.dumps(entries))
    data = task.load_own(own_folder)
    assert (data.groups["seen"], data.count("train")) == ("true", 3)


def test_the_words_of_a_folder_are_those_of_a_run_without_a_file(homes, tmp_path, capsys):
    file = tmp_path / "words.txt"
    main([str(homes), str(file), "--size", "30"])
    shared = task_with().load_node(homes, 0, 3).extra["vocabulary"]
    assert Vocabulary.read(file) == shared
    again = task_with(vocabulary_file=str(file)).load_node(homes, 0, 3)
    assert again.extra["vocabulary"] == shared
    with pytest.raises(SystemExit):
        main([str(tmp_path), str(file)])
    assert f"error: {tmp_path}: " in capsys.readouterr().err
    write_graph(tmp_path / "graph", "houseC")
    with pytest.raises(SystemExit):
        main([str(tmp_path / "graph"), str(file)])
    assert "has no training instructions whose words could be the vocabulary" in capsys.readouterr().err
    assert Vocabulary.read(file) == shared


def test_what_a_deployed_house_lacks(own_folder, words):
    task = task_with(vocabulary_file=words)
    said = message_of(task.load_own, own_folder)
    assert "house houseC has no training instructions, which vln.stage = 'agent' needs" in said
    assert "vln.vocabulary-file = ''" in message_of(task_with().load_own, own_folder)
    assert "vln.stage = 'pre-exploration': house houseC trains on paths that a speaker labels" in message_of(
        task_with(vocabulary_file=words, stage="pre-exploration").load_own, own_folder
    )
    write_graph(own_folder, "houseD")
    assert "graphs of 2 houses; expected the node's one" in message_of(task.load_own, own_folder)
