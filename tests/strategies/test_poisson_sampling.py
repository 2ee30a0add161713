"""Poisson sampling: inclusion probabilities, independence, and rounds with few nodes or none."""

from math import sqrt

import numpy as np
import pytest
from fedapps.strategies.algorithms.adaptive_rates import AdaptiveRates
from fedapps.strategies.algorithms.fedweit import FedWeIT
from fedapps.strategies.algorithms.fisher_exchange import FisherExchange
from fedapps.strategies.algorithms.hierarchical import HierarchicalFedAvg
from fedapps.strategies.base import BaseStrategy
from fedapps.strategies.nodes.profiles import Profile
from fedapps.strategies.nodes.samplers import PoissonSampling, UniformFraction
from fedapps.strategies.optimizers import Adam
from fedapps.strategies.rounds.records import TooFewRepliesError
from grouped import grouped_app
from hypothesis import given
from hypothesis import strategies as st
from toys import arithmetic_app, arrays_of, federate, same_bits

START = {"w": np.array([1.0, 2.0], np.float32)}
ROUNDS = 4000


def fleet(count):
    return [Profile(index, f"car-{index}", 10) for index in range(count)]


def drawn(sampler, nodes, server_round):
    return {node.key for node in sampler.sample(nodes, server_round, "train")}


def moves(partition, received, config):
    return {name: (a + (partition + 1)).astype(a.dtype) for name, a in received.items()}, {"num-examples": 4}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [5, None])
@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_each_node_takes_part_with_the_probability_and_independently_of_the_others(probability, seed):
    sampler, nodes = PoissonSampling(probability, seed), fleet(4)
    taken = np.array([[n.key in drawn(sampler, nodes, r) for n in nodes] for r in range(ROUNDS)], float)
    error = 5 * sqrt(probability * (1 - probability) / ROUNDS)
    np.testing.assert_allclose(taken.mean(0), probability, atol=error)
    np.testing.assert_allclose(np.cov(taken.T), probability * (1 - probability) * np.eye(4), atol=error)
    # the size of the cohort is binomial: its variance is that of independent draws
    assert taken.sum(1).var() == pytest.approx(4 * probability * (1 - probability), rel=0.15)


@given(seed=st.integers(0, 2**40), server_round=st.integers(0, 100), count=st.integers(1, 12), left=st.integers(0, 11))
def test_a_node_that_is_added_or_removed_changes_no_other_draw(seed, server_round, count, left):
    sampler, nodes = PoissonSampling(0.5, seed), fleet(count)
    others = [node for index, node in enumerate(nodes) if index != left % count]
    left_key = nodes[left % count].key
    assert drawn(sampler, others, server_round) == drawn(sampler, nodes, server_round) - {left_key}


def test_draws_without_a_seed_do_not_repeat():
    sampler = PoissonSampling(0.5, seed=None)
    assert drawn(sampler, fleet(64), 1) != drawn(sampler, fleet(64), 1)


@pytest.mark.parametrize(("probability", "count"), [(0.0, 0), (1.0, 9)])
def test_nobody_and_everybody(probability, count):
    for seed in (3, None):
        assert len(drawn(PoissonSampling(probability, seed), fleet(9), 1)) == count


def test_with_a_probability_of_1_it_is_fedavg_bit_for_bit():
    results = [
        federate(BaseStrategy(sampler=sampler), arithmetic_app(moves), START, num_nodes=3, num_rounds=2).arrays
        for sampler in (UniformFraction(1.0), PoissonSampling(1.0))
    ]
    assert same_bits(*map(arrays_of, results))


@pytest.mark.parametrize(
    "make",
    [
        lambda **parts: BaseStrategy(server_optimizer=Adam(0.1), **parts),
        AdaptiveRates,
        FisherExchange,
        FedWeIT,
        lambda **parts: HierarchicalFedAvg(groups=("city",), intervals=(1,), **parts),
    ],
    ids=["base", "adaptive", "fisher", "fedweit", "hierarchical"],
)
def test_a_round_that_draws_no_node_leaves_the_parameters_as_they_are(make):
    strategy = make(sampler=PoissonSampling(0.0), min_replies=2)
    app = grouped_app(lambda k: {"group.city": "oslo"}, moves)
    result = federate(strategy, app, START, num_nodes=3, num_rounds=2)
    assert same_bits(arrays_of(result.arrays), START)


def test_a_round_needs_no_more_replies_than_nodes_were_drawn():
    sampler = PoissonSampling(0.5, seed=0)
    sizes = [len(sampler.sample([Profile(k, f"part-{k}") for k in range(3)], r, "train")) for r in range(1, 9)]
    assert min(sizes) < 3
    reports = []
    strategy = BaseStrategy(sampler=sampler, min_replies=3)
    federate(strategy, arithmetic_app(moves), START, num_nodes=3, num_rounds=8, on_round=reports.append)
    assert [report.replies for report in reports] == sizes


def fails(partition, received, config):
    raise RuntimeError("no update")


def test_a_drawn_node_that_does_not_reply_is_still_missed():
    with pytest.raises(TooFewRepliesError, match="round 1: 0 usable replies, but min-replies is 3"):
        federate(
            BaseStrategy(sampler=PoissonSampling(1.0), min_replies=3), arithmetic_app(fails), START,
            num_nodes=3, num_rounds=1,
        )  # fmt: skip


def test_no_round_fails_without_replies_if_none_is_needed():
    result = federate(BaseStrategy(min_replies=0), arithmetic_app(fails), START, num_nodes=3, num_rounds=2)
    assert same_bits(arrays_of(result.arrays), START)
