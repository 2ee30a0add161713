"""VirtualClients: what nodes are told, how they are drawn and counted, and FedAvg as the equal case."""

from collections import Counter
from fractions import Fraction
from itertools import combinations, permutations

import numpy as np
import pytest
from fedapps.strategies.algorithms.fedvc import IndependentDraws, VirtualClients
from fedapps.strategies.base import BaseStrategy
from fedapps.strategies.optimizers import Adam
from fedapps.strategies.profiles import ExampleLimits, Profile
from fedapps.strategies.samplers import ProportionalToSize, UniformFraction
from flwr.app import ConfigRecord
from grouped import grouped_app
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from toys import arrays_of, federate, same_bits

START = {"w": np.array([0.3, -1.7], np.float32)}


def sized(sizes):
    return lambda partition: {"num-examples": sizes[partition]}


def add(partition, arrays, config):
    """Node k moves by k + 1 and says that it has 10^k examples."""
    return {"w": arrays["w"] + np.float32(partition + 1)}, {"num-examples": 10**partition, "loss": float(partition)}


def train_configs(seen):
    return [dict(m.content["config"]) for m in seen if m.metadata.message_type == "train"]


@pytest.mark.parametrize(("work", "told"), [({"examples": 64}, "virtual-examples"), ({"steps": 64}, "steps")])
def test_every_node_is_told_the_same_work(work, told):
    seen, reports = [], []
    strategy = VirtualClients(sampler=ProportionalToSize(2), **work)
    app = grouped_app(sized([5, 5000, 50]), add, seen=seen)
    federate(
        strategy, app, START, num_nodes=3, num_rounds=2, train_config=ConfigRecord({"lr": 0.5}), on_round=reports.append
    )
    configs = train_configs(seen)
    assert len(configs) == 4
    assert all((c[told], c["lr"], c["virtual-draw"]) == (64, 0.5, 0) for c in configs)
    assert {c["server-round"] for c in configs} == {1, 2}
    assert not any(told in m.content["config"] for m in seen if m.metadata.message_type == "evaluate")
    assert [r.strategy for r in reports] == [{"virtual-clients": 2, "nodes": 2, told: 64}] * 2


def test_all_count_alike_by_hand():
    """Also a node that draws the ten examples from its two, where no node may have more than its profile states."""
    limits = ExampleLimits(may_grow=False)
    strategy = VirtualClients(sampler=ProportionalToSize(3), examples=10, example_limits=limits)
    result = federate(strategy, grouped_app(sized([1, 2, 100]), add), START, num_nodes=3, num_rounds=1)
    np.testing.assert_allclose(arrays_of(result.arrays)["w"], START["w"] + 2, rtol=1e-6)
    assert result.train_metrics_clientapp[1]["loss"] == 1
    assert strategy.report.replies == 3


def test_a_node_drawn_more_than_once_is_more_than_one_client():
    seen, reports = [], []
    strategy = VirtualClients(sampler=IndependentDraws(4, seed=1), examples=8)
    app = grouped_app(sized([1, 1_000_000]), add, seen=seen)
    result = federate(strategy, app, START, num_nodes=2, num_rounds=1, on_round=reports.append)
    assert [c["virtual-draw"] for c in train_configs(seen)] == [0, 1, 2, 3]
    np.testing.assert_allclose(arrays_of(result.arrays)["w"], START["w"] + 2, rtol=1e-6)
    assert reports[0].strategy == {"virtual-clients": 4, "nodes": 1, "virtual-examples": 8}


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=5), draws=st.integers(1, 6), seed=st.integers(0, 99))
def test_every_draw_is_a_training_of_its_own_with_the_same_weight(sizes, draws, seed):
    """The step is the mean over the draws, and a node that is drawn k times trains k times."""

    def train(partition, arrays, config):
        return {"w": arrays["w"] + np.float32(update(partition, config["virtual-draw"]))}, {"num-examples": 1}

    def update(node, draw):
        return 1 + 7 * node + 0.5 * draw

    sampler = IndependentDraws(draws, seed)
    strategy = VirtualClients(sampler=sampler, steps=1)
    result = federate(strategy, grouped_app(sized(sizes), train), START, num_nodes=len(sizes), num_rounds=1)
    profiles = [Profile(k, f"part-{k:04d}", size) for k, size in enumerate(sizes)]
    drawn = Counter(int(node.key.removeprefix("part-")) for node in sampler.sample(profiles, 1, "train"))
    updates = [update(node, draw) for node, times in drawn.items() for draw in range(times)]
    assert len(updates) == draws
    np.testing.assert_allclose(arrays_of(result.arrays)["w"], START["w"] + np.mean(updates), rtol=1e-5)


def test_one_draw_of_one_node_is_fedavg_bit_for_bit():
    app, parts = grouped_app(sized([6]), add), {"num_nodes": 1, "num_rounds": 3}
    ours = federate(VirtualClients(sampler=IndependentDraws(1), examples=6), app, START, **parts)
    fedavg = federate(BaseStrategy(), app, START, **parts)
    assert same_bits(arrays_of(ours.arrays), arrays_of(fedavg.arrays))


@pytest.mark.parametrize("optimizer", [None, lambda: Adam(0.05)])
def test_equal_nodes_that_all_take_part_are_fedavg_bit_for_bit(optimizer):
    def train(partition, arrays, config):
        moved = {"w": arrays["w"] + np.float32(0.1 * partition) * np.cos(arrays["w"])}
        return moved, {"num-examples": 6, "loss": float(partition)}

    app = grouped_app(sized([6] * 7), train)
    parts = {"num_nodes": 7, "num_rounds": 4}

    def stepping():
        return {"server_optimizer": optimizer()} if optimizer else {}

    ours = federate(VirtualClients(sampler=ProportionalToSize(7), examples=6, **stepping()), app, START, **parts)
    fedavg = federate(BaseStrategy(**stepping()), app, START, **parts)
    assert same_bits(arrays_of(ours.arrays), arrays_of(fedavg.arrays))
    assert ours.train_metrics_clientapp == fedavg.train_metrics_clientapp


# -- independent draws -----------------------------------------------------------------------------------------


def nodes(sizes):
    return [Profile(100 - k, f"part-{k}", size) for k, size in enumerate(sizes)]


SKEWED = [32, 16, 8, 4, 2, 2]


def shares_of(sampler, sizes, rounds):
    """How often each node is drawn in a number of rounds."""
    counts = Counter(node.key for r in range(rounds) for node in sampler.sample(nodes(sizes), r, "train"))
    return [counts[f"part-{k}"] for k in range(len(sizes))]


def shares_of_distinct(sizes, draws):
    """The expected shares of nodes that are drawn one after another from those that are left, by enumeration."""
    shares = [Fraction(0)] * len(sizes)
    for order in permutations(range(len(sizes)), draws):
        left, probability = sum(sizes), Fraction(1)
        for node in order:
            probability *= Fraction(sizes[node], left)
            left -= sizes[node]
        for node in order:
            shares[node] += probability / draws
    return [float(share) for share in shares]


@pytest.mark.parametrize("draws", [1, 3, 8])
def test_independent_draws_are_in_proportion_to_the_examples(draws):
    rounds = 1600
    counts = shares_of(IndependentDraws(draws, seed=3), [*SKEWED, 0], rounds)
    assert counts[-1] == 0
    expected = np.array(SKEWED) / sum(SKEWED) * draws * rounds
    assert chisquare(counts[:-1], expected).pvalue > 0.01
    # The test can fail: it tells independent from distinct draws.
    others = shares_of(ProportionalToSize(3, seed=3), SKEWED, rounds)
    assert chisquare(others, np.array(SKEWED) / sum(SKEWED) * sum(others)).pvalue < 1e-9


def test_distinct_draws_are_not_in_proportion():
    """Of three draws from six nodes, the node with half of the examples has less than a third."""
    assert shares_of_distinct([1, 1, 2], 2) == [7 / 24, 7 / 24, 10 / 24]  # 1/2 (1/6 + 5/12) and 1/2 (5/12 + 5/12)
    expected = shares_of_distinct(SKEWED, 3)
    assert expected[0] == pytest.approx(0.315, abs=5e-4)
    counts = np.array(shares_of(ProportionalToSize(3, seed=3), SKEWED, 4000))
    np.testing.assert_allclose(counts / counts.sum(), expected, atol=0.01)


def test_distinct_draws_of_equal_nodes_are_the_cohorts_of_fedavg():
    """All cohorts of the size are equally likely."""
    cohorts = list(combinations([f"part-{k}" for k in range(5)], 2))
    for sampler in (ProportionalToSize(2, seed=3), UniformFraction(0.4, seed=3)):
        drawn = [sampler.sample(nodes([6] * 5), r, "train") for r in range(2000)]
        counts = Counter(tuple(node.key for node in cohort) for cohort in drawn)
        assert sorted(counts) == cohorts
        assert chisquare([counts[cohort] for cohort in cohorts]).pvalue > 0.01


def test_a_draw_depends_on_seed_and_round_and_not_on_ids_or_order():
    profiles = nodes([3, 1, 4, 1, 5])
    renamed = [Profile(k, p.key, p.num_examples) for k, p in enumerate(reversed(profiles))]
    draw = [p.key for p in IndependentDraws(6, seed=1).sample(profiles, 2, "train")]
    assert draw == sorted(draw) == [p.key for p in IndependentDraws(6, seed=1).sample(renamed, 2, "train")]
    assert draw != [p.key for p in IndependentDraws(6, seed=1).sample(profiles, 3, "train")]
    assert draw != [p.key for p in IndependentDraws(6, seed=2).sample(profiles, 2, "train")]
    assert draw != [p.key for p in IndependentDraws(6, seed=1).sample(profiles, 2, "evaluate")]


def test_training_draws_are_those_of_published_results():
    sampler = IndependentDraws(4, seed=3)
    drawn = [[p.key for p in sampler.sample(nodes(range(10, 100, 10)), r, "train")] for r in (1, 2, 3, 4)]
    assert drawn == [[f"part-{k}" for k in round_] for round_ in ("4555", "1278", "2348", "2258")]


def test_an_unknown_size_counts_as_the_mean():
    drawn = [p.key for r in range(2000) for p in IndependentDraws(4).sample(nodes([2, None, 4]), r, "train")]
    assert abs(drawn.count("part-1") / len(drawn) - 3 / 9) < 0.03


@pytest.mark.parametrize("sizes", [[], [0, 0]])
def test_without_examples_nobody_is_drawn(sizes):
    assert IndependentDraws(4).sample(nodes(sizes), 1, "train") == []


# -- bad input -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "examples = 0, steps = 0: exactly one of them must be above 0"),
        ({"examples": 2, "steps": 2}, "exactly one of them"),
        ({"examples": -1}, "examples = -1: must be an integer of at least 0"),
        ({"steps": 1.5}, "steps = 1.5: must be an integer"),
        ({"steps": True}, "steps = True: must be an integer"),
        (
            {"steps": 2, "weighting": "num-examples"},
            "weighting = 'num-examples': must be 'uniform', because virtual clients all have equal weights; leave",
        ),
    ],
)
def test_bad_parameters_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        VirtualClients(sampler=ProportionalToSize(1), **options)


@pytest.mark.parametrize("count", [0, 1.5])
def test_a_bad_number_of_draws_is_refused(count):
    with pytest.raises(ValueError, match=r"count = .*: must be an integer of at least 1"):
        IndependentDraws(count)


def test_a_config_that_asks_for_other_work_is_refused():
    with pytest.raises(ValueError, match="train_config has steps = 9, but the strategy sets it to 5"):
        federate(
            VirtualClients(sampler=ProportionalToSize(1), steps=5),
            grouped_app(sized([1]), add),
            START,
            num_nodes=1,
            num_rounds=1,
            train_config=ConfigRecord({"steps": 9}),
        )
