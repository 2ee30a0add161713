"""Metrics of walks against their definitions, with networkx for distances."""

import math
from functools import cache
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
import torch
from drawn_houses import EDGES, NAMES, POSITIONS, write_graph
from fedapps.tasks.vln.connectivity import Graph, read_graphs
from fedapps.tasks.vln.houses import assemble
from fedapps.tasks.vln.walks import METRICS, navigation_metrics
from hypothesis import given, settings
from hypothesis import strategies as st

GRAPH = nx.Graph()
GRAPH.add_edges_from((i, j, {"weight": float(np.linalg.norm(POSITIONS[i] - POSITIONS[j]))}) for i, j in EDGES)
DISTANCE = dict(nx.all_pairs_dijkstra_path_length(GRAPH))


@pytest.fixture(scope="module")
def houses(tmp_path_factory):
    folder = tmp_path_factory.mktemp("graph")
    write_graph(folder, "house")
    return assemble([read_graphs(folder)["house"]], np.zeros((len(NAMES), 36, 1), dtype=np.float32))


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
