"""The toy problems of papers, and the table of published numbers that shows them."""

import logging
import sys

import numpy as np
import pytest
import torch

from benchmarks import published, toys
from benchmarks.results import Estimate, Result
from benchmarks.toys import WORLDS, Toy, errors, registered, subspace_distance


@pytest.fixture
def known():
    logging.getLogger("flwr").setLevel(logging.ERROR)
    with registered():
        yield


def test_a_round_of_fedavg_drifts_as_worked_out_by_hand(known):
    """From θ = 1 with rate .1: 1 - .1 * 3 = .7 and .7 - .1 * 2.4 = .46 with θ² + θ, 1.2 with -θ; the mean is .83."""
    keys = {"num-nodes": 2, "weighting": "uniform", "steps": 2, "rounds": 1, "learning-rate": 0.1}
    assert errors(Toy("drift: fedavg", "fedavg", keys)) == pytest.approx([0.83])


def test_q_ffl_ends_where_its_objective_is_least(known):
    """3 θ³ = (4 - θ)³ at θ = 4 / (1 + 3^(1/3))."""
    keys = {"num-nodes": 4, "weighting": "uniform", "epochs": 1, "rounds": 40, "learning-rate": 0.5}
    assert errors(Toy("fair: q-ffl", "q-ffl(q=1)", keys)) == pytest.approx([4 - 4 / (1 + 3 ** (1 / 3))], abs=1e-3)


def test_the_task_is_known_only_while_it_is_registered():
    before = list(sys.path)
    with registered():
        assert sys.path[:-1] == before
    assert sys.path == before


def test_every_run_has_its_own_name_and_a_world():
    names = [toy.name for toy in toys.toys()]
    assert len(set(names)) == len(names)
    assert {name.partition(":")[0] for name in names} == WORLDS.keys()


@pytest.mark.parametrize(
    ("angle", "distance"), [(0.0, 0.0), (np.pi / 6, 0.5), (np.pi / 2, 1.0)], ids=["same", "30 degrees", "orthogonal"]
)
def test_the_distance_of_subspaces_is_the_sine_of_their_largest_angle(angle, distance):
    true = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    turned = torch.tensor([[2.0, 0.0], [0.0, np.cos(angle)], [0.0, np.sin(angle)]], dtype=torch.float64)
    assert subspace_distance(turned, true) == pytest.approx(distance, abs=1e-9)


def test_the_points_have_their_deviation_and_the_regression_has_no_noise():
    points = list(WORLDS["points"](2.0, 40, 0))
    assert np.std([node["goal"] for node in points]) == pytest.approx(2, rel=0.1)
    assert np.mean([((node["h"] - node["goal"]) ** 2).mean() for node in points]) == pytest.approx(1, rel=0.1)
    (node,) = WORLDS["representation"](1.0, 1, 0)
    on_true = node["x"] @ node["goal"]
    assert np.abs(on_true @ np.linalg.lstsq(on_true, node["y"])[0] - node["y"]).max() < 1e-9


def test_an_order_holds_if_every_difference_does(monkeypatch):
    values = {"a": [1.0, 1.1], "b": [2.0, 2.1], "c": [2.0, 2.2], "once": [0.5], "again": [0.7]}
    known = Result("toys", "", methods={name: {"error": Estimate.of(of)} for name, of in values.items()})
    monkeypatch.setattr(published, "result", lambda name: known)
    assert published.ordered("toys", "error", ["a", "b"]) == "holds"
    assert published.ordered("toys", "error", ["a", "b", "c"]) == "within noise"
    assert published.ordered("toys", "error", ["a", "b"], ["b", "a"]) == "does not hold"
    assert published.ordered("toys", "error", ["once", "again"]) == "holds"
    assert published.ordered("toys", "error", ["again", "once"]) == "does not hold"


def test_the_gains_over_fedavg_stand_beside_the_published_ones(monkeypatch):
    values = {"fedavg(run.learning-rate=1)": [0.5, 0.6], "ditto": [0.7, 0.8], "fedala": [0.4, 0.5], "spfl": [1.0, 1.0]}
    known = Result("d", "", methods={name: {"local_accuracy": Estimate.of(of)} for name, of in values.items()})
    monkeypatch.setattr("benchmarks.ranks.result", lambda name: known)
    small = {"fedavg": [0.5, 0.6], "local": [0.6, 0.7], "ditto": [0.4, 0.8], "fedper(x=1)": [0.7, 0.7]}
    further = Result("own", "", methods={name: {"local_accuracy": Estimate.of(of)} for name, of in small.items()})
    monkeypatch.setattr(published, "result", {"cifar10-own": further}.get)
    rows = {row.split("`")[1]: row for row in published.gains().splitlines()}
    assert rows["local"] == "| `local` | – | – | +.10 ± .00 | |"
    assert rows["ditto"] == "| `ditto` | +.12, +.21 | +.20 ± .00 | +.05 ± 1.91 | −.05 ± 1.91 |"
    assert rows["fedala"] == "| `fedala` | +.12, +.24 | −.10 ± .00 | – | – |"
    assert rows["fedper"] == "| `fedper` | +.12, +.18 | – | +.15 ± .64 | +.05 ± .64 |"


def test_the_accuracy_in_silos_stands_beside_the_published_one(monkeypatch):
    rows = [{"curves": {"test.global_accuracy": [[2, 0.4], [24, 0.656]]}}]
    monkeypatch.setattr(published, "result", {"s": Result("s", "", rows=rows)}.get)
    assert published.silos("s") == ".656 [.625] after 24 rounds"


def test_what_a_speaker_says_stands_beside_the_published_statistics(monkeypatch):
    names = ("length", "length_variance", "sentences", "sentences_variance", "apart")
    values = {
        "people": [[29.0], [150.0], [2.4], [1.2], [0.0]],
        "speaker": [[20.0, 22.0], [9.0, 9.0], [2.0] * 2, [0.5] * 2, [0.3] * 2],
    }
    rows = [{"who": who, **dict(zip(names, of, strict=True))} for who, of in values.items()]
    monkeypatch.setattr(published, "result", {"d": Result("d", "", rows=rows)}.get)
    people, speaker = published.described("d").splitlines()
    assert people == "| people | 29.0 [29.6] | 150.0 [155.7] | 2.4 [2.4] | 1.2 [1.2] |  |"
    assert speaker == "| speaker | 21.0 ± 12.7 [21.9] | 9.0 [20.9] | 2.0 [2.4] | .5 [.5] | .30 |"


def test_the_argument_of_a_tuned_method(monkeypatch):
    labels = ("moon(mu=0,run.learning-rate=1): adapted", "moonlight(mu=3)", "moon(mu=0.5,run.learning-rate=1)")
    monkeypatch.setattr(published, "result", lambda name: Result("d", "", methods={label: {} for label in labels}))
    assert published.argument("d", "moon", "mu") == "0.5"
