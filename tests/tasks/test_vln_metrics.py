"""Metrics of walks against their definitions, with networkx for distances."""

import math
from dataclasses import replace
from functools import cache
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
import torch
from drawn_houses import EDGES, NAMES, PATHS, POSITIONS, house_graph, path_entry, task_with
from fedapps.strategies.aggregation import MetricMean
from fedapps.tasks.vln.connectivity import Graph
from fedapps.tasks.vln.dataset import Dataset
from fedapps.tasks.vln.evaluation import (
    constant_sentence,
    human_sentences,
    looks_of,
    retrieved_sentences,
    sentence_metrics,
    sentence_references,
    walker_references,
)
from fedapps.tasks.vln.houses import assemble
from fedapps.tasks.vln.instructions import InstructedPath, Vocabulary
from fedapps.tasks.vln.nodes import encode
from fedapps.tasks.vln.options import Options
from fedapps.tasks.vln.task import VlnTask
from fedapps.tasks.vln.walks import METRICS, bleu, bleu_statistics, navigation_metrics
from flwr.app import MetricRecord
from hypothesis import given, settings
from hypothesis import strategies as st

GRAPH = nx.Graph()
GRAPH.add_edges_from((i, j, {"weight": float(np.linalg.norm(POSITIONS[i] - POSITIONS[j]))}) for i, j in EDGES)
DISTANCE = dict(nx.all_pairs_dijkstra_path_length(GRAPH))


@pytest.fixture(scope="module")
def houses():
    return assemble([house_graph()], np.zeros((len(NAMES), 36, 1), dtype=np.float32))


def scores(houses, walks, references):
    def padded(paths):
        table = torch.full((len(paths), max(map(len, paths)) + 2), -1)
        for row, path in enumerate(paths):
            table[row, : len(path)] = torch.tensor(path)
        return table, torch.tensor([len(path) for path in paths])

    return navigation_metrics(houses, *padded(walks), *padded(references))


def by_definition(walk, reference):
    goal, end = reference[-1], walk[-1]
    success = float(DISTANCE[end][goal] < 3)
    length = sum(DISTANCE[a][b] for a, b in pairwise(walk))
    planned = sum(DISTANCE[a][b] for a, b in pairwise(reference))
    shortest = DISTANCE[walk[0]][goal]
    coverage = np.mean([math.exp(-min(DISTANCE[r][p] for p in walk) / 3) for r in reference])
    expected = coverage * planned

    @cache
    def alignment(i, j):
        if i < 0 or j < 0:
            return 0.0 if i == j else math.inf
        return DISTANCE[walk[i]][reference[j]] + min(alignment(i - 1, j), alignment(i, j - 1), alignment(i - 1, j - 1))

    ndtw = math.exp(-alignment(len(walk) - 1, len(reference) - 1) / (3 * len(reference)))
    return {
        "ne": DISTANCE[end][goal],
        "sr": success,
        "osr": float(min(DISTANCE[p][goal] for p in walk) < 3),
        "spl": success * shortest / max(shortest, length, 0.01),
        "cls": coverage * expected / (expected + abs(expected - length)),
        "ndtw": ndtw,
        "sdtw": success * ndtw,
    }


@st.composite
def walks(draw, least=1, most=9):
    path = [draw(st.integers(0, len(NAMES) - 1))]
    for _ in range(draw(st.integers(least - 1, most - 1))):
        path.append(draw(st.sampled_from(sorted(GRAPH[path[-1]]))))
    return path


@settings(max_examples=60, deadline=None)
@given(walks(), walks(least=3))
def test_every_metric_is_what_its_paper_defines(houses, walk, reference):
    found = scores(houses, [walk], [reference])
    for name, value in by_definition(walk, reference).items():
        assert found[name].item() == pytest.approx(value, rel=1e-5, abs=1e-6), name


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(walks(), walks(least=2)), min_size=2, max_size=5))
def test_padding_and_neighbours_in_the_batch_change_nothing(houses, pairs):
    together = scores(houses, *zip(*pairs, strict=True))
    for row, (walk, reference) in enumerate(pairs):
        alone = scores(houses, [walk], [reference])
        assert all(together[name][row] == alone[name][0] for name in METRICS)


def test_by_hand(houses):
    """From v00 to v03, but one stop too short: 4 m of 6 m, and v02 is 2 m from the goal."""
    found = {name: value.item() for name, value in scores(houses, [[0, 1, 2]], [[0, 1, 2, 3]]).items()}
    coverage = (3 + math.exp(-2 / 3)) / 4
    assert found == pytest.approx(
        {
            "ne": 2.0,
            "sr": 1.0,
            "osr": 1.0,
            "spl": 1.0,
            "cls": coverage * 6 * coverage / (6 * coverage + abs(6 * coverage - 4)),
            "ndtw": math.exp(-2 / 12),
            "sdtw": math.exp(-2 / 12),
        }
    )


def test_success_is_strictly_within_three_metres():
    """Two viewpoints exactly 3 m apart, and two a little less."""
    joined = np.ones((2, 2), dtype=bool) ^ np.eye(2, dtype=bool)
    for metres, success in ((3.0, 0.0), (2.999, 1.0)):
        graph = Graph("pair", ("a", "b"), np.array([[0, 0, 0], [0, metres, 0]]), joined, joined)
        pair = assemble([graph], np.zeros((2, 36, 1), dtype=np.float32))
        found = scores(pair, [[0]], [[0, 1]])
        assert found["sr"].item() == found["osr"].item() == success


@settings(max_examples=20, deadline=None)
@given(walks(least=2))
def test_the_reference_itself_scores_one(houses, path):
    found = scores(houses, [path], [path])
    assert found["ne"].item() == 0
    for name in ("sr", "osr", "cls", "ndtw", "sdtw"):
        assert found[name].item() == pytest.approx(1), name


# Floors and ceilings: walkers, sentences that no speaker made, and BLEU of several houses.


def described(*texts):
    """A path with these instructions."""
    entry = path_entry("houseA", PATHS[0], 0)
    return InstructedPath("houseA", "0", tuple(entry["path"]), 0.0, texts)


# -- walkers ---------------------------------------------------------------------------------------------------


def test_the_shortest_path_is_the_ceiling(homes):
    found = task_with().references(homes)
    assert list(found) == ["random", "random walk", "forward", "shortest path"]
    for row in found.values():
        assert set(row) == {f"{split}.{metric}" for split in ("val_seen", "val_unseen") for metric in METRICS}
    assert {found["shortest path"][f"{split}.{m}"] for split in ("val_seen", "val_unseen") for m in ("sr", "spl")} == {
        1
    }
    assert found["shortest path"]["val_unseen.ne"] == 0


def test_a_walker_by_hand():
    """Facing east from v00, straight on leads to v11: that is the goal of one path, and 6 m from that of the other.

    From v11 the way to v10 and v09 and v08 is 2 m each.
    """
    east = np.pi / 2
    entries = [path_entry("houseA", stops, 0, heading=east) for stops in ((0, 1, 2, 3, 7, 11), (0, 4, 8))]
    paths = tuple(InstructedPath("houseA", "0", tuple(e["path"]), east, ("go",)) for e in entries)
    dataset = Dataset(
        None, {"houseA": house_graph("houseA")}, {"train": {}, "val_seen": {}, "val_unseen": {"houseA": paths}}
    )
    found = walker_references(dataset, Options())["forward"]
    assert found["val_unseen.ne"] == pytest.approx((0 + 6) / 2)
    assert found["val_unseen.sr"] == 0.5


def test_references_cover_the_houses_that_are_nodes(homes):
    assert {name.partition(".")[0] for name in task_with(houses="seen").references(homes)["forward"]} == {"val_seen"}
    unseen = task_with(houses="unseen").references(homes)
    assert {name.partition(".")[0] for name in unseen["forward"]} == {"val_unseen"}
    assert unseen["forward"].items() <= task_with().references(homes)["forward"].items()


def test_references_depend_on_the_sample_seed_alone(homes):
    first = task_with().references(homes)
    torch.manual_seed(7)
    assert task_with(ablation="no-instructions").references(homes) == first
    assert task_with(sample_seed=1).references(homes)["random walk"] != first["random walk"]
    assert task_with(sample_seed=1).references(homes)["forward"] == first["forward"]


# -- sentences -------------------------------------------------------------------------------------------------


def test_sentences_of_the_speaker_stage(homes):
    """The moves of the unseen paths are those of two training paths, which have the same words."""
    task = task_with(stage="speaker", ablation="angles-only")
    found = task.references(homes)
    assert list(found) == ["constant sentence", "retrieved sentence", "one person"]
    assert all(set(row) == {"val_seen.bleu", "val_unseen.bleu"} for row in found.values())
    assert found["retrieved sentence"]["val_unseen.bleu"] == pytest.approx(100)
    assert found["constant sentence"]["val_unseen.bleu"] < 100
    assert found == task.references(homes)


def test_one_person_against_the_others_by_hand():
    """Four of five words, three of four pairs, two of three, one of two; the shorter reference has seven words."""
    split = {"houseA": (described("a b c d e", "a b c d f g h", "z z z z z z z z"), described("alone"))}
    dataset = Dataset(None, {}, {"train": {}, "val_seen": {}, "val_unseen": split})
    found = sentence_references(dataset, Options(stage="speaker"))
    expected = 100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25 * np.exp(1 - 7 / 5)
    assert found == {"one person": {"val_unseen.bleu": pytest.approx(expected)}}


def test_the_constant_sentence_fits_most_training_paths():
    most = described("go to the sofa and wait", "go to the sofa", "from")
    assert constant_sentence([most] * 3 + [described("walk on")], 0) == ["go", "to", "the", "sofa", "and", "wait"]


def test_the_sentence_of_the_path_that_looks_the_same(homes):
    task = task_with(stage="speaker")
    data = task.load_node(homes, 0, 3)
    paths = data.extra["paths"]["train"]
    looks = looks_of(data.extra["houses"], data.splits["train"])
    assert looks.shape == (4, 7 * 4 + 6)
    found = retrieved_sentences(looks, paths, looks[[2, 0]])
    assert found == [human_sentences(paths)[0][place] for place in (2, 0)]


def test_the_look_of_a_path_by_hand():
    """One metre of features per viewpoint, and the first move goes north, straight on and level."""
    features = np.broadcast_to(np.arange(13.0)[:, None, None], (13, 36, 1)).astype(np.float32)
    houses = assemble([house_graph("houseA")], features)
    entry = path_entry("houseA", (0, 4, 8), 0)
    path = InstructedPath("houseA", "0", tuple(entry["path"]), 0.0, ("go", "walk"))
    longer = replace(path, path_id="1", path=tuple(path_entry("houseA", (0, 4, 8, 4, 0), 1)["path"]))
    look = looks_of(houses, encode([path, longer], houses.rows, Vocabulary(()), 80))
    assert look.shape == (2, 29)
    assert look[1, -1] == pytest.approx((0 + 4 + 8 + 4 + 0) / 5)
    assert look[0, :4].tolist() == pytest.approx([0, 1, 0, 1], abs=1e-6)  # sine and cosine of heading and elevation
    assert look[0, -1] == pytest.approx((0 + 4 + 8) / 3)


# -- BLEU of several houses ------------------------------------------------------------------------------------


def test_bleu_over_houses_is_bleu_of_the_joined_corpus():
    first = [described("a b c d e f", "a b c d"), described("e f g h i")]
    second = [described("a b c d e")]
    said = [["a", "b", "c", "d", "x", "y"], ["e", "f", "g", "h"]], [["a", "b", "c", "d"]]
    mean = MetricMean(VlnTask.metric_means)
    houses = [sentence_metrics("val_seen", words, paths) for words, paths in zip(said, (first, second), strict=True)]
    for metrics in houses:
        assert MetricMean.refusal_reason(MetricRecord(metrics), VlnTask.metric_means) is None
        mean.add(MetricRecord(metrics), 1.0)
    found = mean.result()
    joined = sentence_metrics("val_seen", said[0] + said[1], first + second)
    assert found["val_seen.bleu"] == pytest.approx(joined["val_seen.bleu"])
    assert found["val_seen.bleu.count"] == 3
    by_paths = sum(metrics["val_seen.bleu"] * metrics["val_seen.bleu.count"] for metrics in houses) / 3
    assert abs(found["val_seen.bleu"] - by_paths) > 0.1


def test_impossible_statistics_give_no_bleu():
    possible = bleu_statistics([list("abcd")], [[list("abcd")]])
    assert bleu(possible) == pytest.approx(100)
    for place in range(4, 9):
        assert bleu(np.where(np.arange(10) == place, 0.0, possible)) == 0
