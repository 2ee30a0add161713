"""Strategies with robust aggregations: under attack, resumed, in clusters, and where they cannot protect."""

import numpy as np
import pytest
from fedapps.strategies.algorithms.fedvc import IndependentDraws
from fedapps.strategies.algorithms.h_fl import HierarchicalFedAvg
from fedapps.strategies.base import BaseStrategy
from fedapps.strategies.callbacks import TrackedMetric
from fedapps.strategies.privacy import CentralPrivacy
from fedapps.strategies.profiles import Profile
from fedapps.strategies.records import DivergedError, TooFewRepliesError
from fedapps.strategies.replies import Reply
from fedapps.strategies.robust import Krum, Median, MultiKrum, TrimmedMean
from fedapps.strategies.samplers import ProportionalToSize
from fedapps.strategies.speed_samplers import SpeedTiers, Utility
from flwr.app import MetricRecord, RecordDict
from grouped import grouped_app
from toys import arithmetic_app, arrays_of, federate, record_of

from benchmarks.attacks import AttackedGrid, Gaussian, InnerProduct, LittleIsEnough, SignFlip

ROBUST = [Median(), TrimmedMean(0.2), Krum(0.2), MultiKrum(0.2)]
NODES, ATTACKERS = 11, (0, 4)
START = {"w": np.zeros(3, np.float32), "b": np.array(0.0, np.float32)}
TARGETS = np.random.default_rng(0).normal(2.0, 0.1, (NODES, 4)).astype(np.float32)
HONEST = np.delete(TARGETS, ATTACKERS, axis=0)


def towards_target(partition, arrays, config):
    """Go half of the way to the node's target, whose optimum over the honest nodes is their mean."""
    target = {"w": TARGETS[partition, :3], "b": TARGETS[partition, 3]}
    trained = {name: np.asarray(array + np.float32(0.5) * (target[name] - array)) for name, array in arrays.items()}
    return trained, {"num-examples": 5}


def final(aggregation, attack=None, rounds=12, **more):
    attacked = {"attack": attack or SignFlip(), "attackers": ATTACKERS if attack else (), "seed": 1}
    grid = AttackedGrid(arithmetic_app(towards_target), [{}] * NODES, {}, **attacked)
    strategy = BaseStrategy(aggregation=aggregation, **more)
    arrays = arrays_of(strategy.start(grid, record_of(START), num_rounds=rounds).arrays)
    return np.append(arrays["w"], arrays["b"])


def distance(model):
    return float(np.linalg.norm(model - HONEST.mean(axis=0)))


@pytest.mark.parametrize("aggregation", ROBUST, ids=str)
@pytest.mark.parametrize(
    "attack", [SignFlip(10.0), Gaussian(200.0), LittleIsEnough(), LittleIsEnough(1.5), InnerProduct(10.0)], ids=str
)
def test_robust_aggregations_stay_among_the_honest_optima(aggregation, attack):
    model = final(aggregation, attack)
    slack = 0.02  # the way that is left after 12 rounds is 2 / 2^12
    assert (HONEST.min(axis=0) - slack <= model).all()
    assert (model <= HONEST.max(axis=0) + slack).all()
    assert distance(model) < 0.35  # the honest optima are 0.2 from it on average


@pytest.mark.parametrize("attack", [SignFlip(10.0), Gaussian(200.0), InnerProduct(10.0)], ids=str)
def test_the_mean_does_not(attack):
    try:
        assert distance(final(None, attack)) > 4  # further away than the initial model
    except DivergedError:
        return


def test_a_little_moves_the_mean_by_a_little():
    """z deviations of the updates from f of n nodes: f z σ / (n − f) in the limit, if the attackers' mean is honest."""
    shift = HONEST.mean(axis=0) - final(None, LittleIsEnough(1.5), rounds=20)
    np.testing.assert_allclose(shift, len(ATTACKERS) / NODES * 1.5 * HONEST.std(axis=0), rtol=1e-3)


def test_a_small_inner_product_slows_the_mean_but_does_not_turn_it():
    """The nine honest nodes move by 1/2 of the way, the two attackers back by a quarter: 8/22 of it in each round."""
    model = final(None, InnerProduct(0.5), rounds=2)
    np.testing.assert_allclose(model, (1 - (14 / 22) ** 2) * HONEST.mean(axis=0), rtol=1e-5)


@pytest.mark.parametrize("aggregation", ROBUST, ids=str)
def test_the_first_replies_do_not_decide_which_others_count(aggregation):
    """Two of the first three updates are tiny. A bound relative to these would refuse all later ones."""

    def train(partition, arrays, config):
        return {n: a + np.float32(1e-6 if partition < 2 else 1) for n, a in arrays.items()}, {"num-examples": 5}

    strategy = BaseStrategy(aggregation=aggregation, size_bound=100.0)
    result = federate(strategy, arithmetic_app(train), START, num_nodes=NODES, num_rounds=1)
    assert arrays_of(result.arrays)["w"].tolist() == [1.0] * 3


@pytest.mark.parametrize("aggregation", [None, *ROBUST], ids=str)
def test_without_attackers_all_are_near_the_optimum(aggregation):
    assert np.linalg.norm(final(aggregation) - TARGETS.mean(axis=0)) < 0.35


def test_weights_do_not_count():
    def train(partition, arrays, config):
        arrays, metrics = towards_target(partition, arrays, config)
        return arrays, metrics | {"num-examples": 10**6 if partition in ATTACKERS else 5}

    for aggregation in ROBUST:
        strategy = BaseStrategy(aggregation=aggregation)
        result = federate(strategy, arithmetic_app(train), START, num_nodes=NODES, num_rounds=1)
        arrays = arrays_of(result.arrays)
        assert np.array_equal(np.append(arrays["w"], arrays["b"]), final(aggregation, rounds=1))


@pytest.mark.parametrize("aggregation", ROBUST, ids=str)
def test_one_node_with_a_wild_metric_and_count_neither_stops_a_run_nor_chooses_its_best_round(aggregation):
    def evaluate(partition, arrays, config):
        honest = {"accuracy": config["server-round"] / 10, "accuracy.count": 5}
        rogue = {"accuracy": 1.0 / config["server-round"], "accuracy.count": 2**53}
        return {}, {"num-examples": 5, **(rogue if partition == 0 else honest)}

    reports, tracked = [], TrackedMetric("accuracy", mode="max", patience=2)
    app = arithmetic_app(towards_target, evaluate)
    strategy = BaseStrategy(aggregation=aggregation)
    federate(strategy, app, START, num_nodes=6, num_rounds=5, tracked=tracked, on_round=reports.append)
    assert [report.evaluate["accuracy"] for report in reports] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])


def test_every_cluster_is_aggregated_alone():
    # Three nodes of a city move by 1, 2 and 60, and three of another by 4, 5 and 90.
    moves, city = (1, 2, 60, 4, 5, 90), ("oslo", "rome")

    def train(partition, arrays, config):
        return {name: (a + moves[partition]).astype(a.dtype) for name, a in arrays.items()}, {"num-examples": 4}

    app = grouped_app(lambda k: {"group.city": city[k // 3]}, train)
    strategy = HierarchicalFedAvg(groups=("city",), intervals=(0,), aggregation=Median())
    result = federate(strategy, app, START, num_nodes=6, num_rounds=1)
    models = {label: model["w"].tolist() for label, model in strategy.cluster_models().items()}
    assert models == {"oslo": [2.0] * 3, "rome": [5.0] * 3}
    assert arrays_of(result.arrays)["w"].tolist() == [3.5] * 3  # the average of clusters is a mean
    strategy = HierarchicalFedAvg(groups=("city",), intervals=(0,), aggregation=Krum(1))
    with pytest.raises(
        TooFewRepliesError, match=r"round 1, oslo: 3 usable replies, but Krum\(byzantine=1\) needs at l"
    ):
        federate(strategy, app, START, num_nodes=6, num_rounds=1)


def test_a_round_with_too_few_replies_is_an_error_with_the_numbers():
    with pytest.raises(
        TooFewRepliesError, match=r"round 1: 4 usable replies, but Krum\(byzantine=0\.2\) needs at leas"
    ):
        federate(BaseStrategy(aggregation=Krum(0.2)), arithmetic_app(towards_target), START, num_nodes=4, num_rounds=1)


@pytest.mark.parametrize(
    "sampler", [ProportionalToSize(6), Utility(0.3), SpeedTiers(0.3), IndependentDraws(6)], ids=str
)
def test_nodes_that_are_drawn_by_what_they_report_are_refused(sampler):
    """A fifth of the nodes could be most of a round."""
    profiles = [Profile(k, str(k), num_examples=10**6 if k < 4 else 1) for k in range(20)]
    for k, profile in enumerate(profiles):
        metrics = MetricRecord({"loss": 1e6 if k < 4 else 1.0})
        reply = Reply(profile, RecordDict(), {}, metrics, 1, 1)
        sampler.observe(profile, 1.0 if k < 4 else 2.0, reply)
    shares = [np.mean([node.node_id < 4 for node in sampler.sample(profiles, r, "train")]) for r in range(1, 31)]
    assert max(shares) >= 4 / 6
    with pytest.raises(ValueError, match=r"because sampler = .* prefers nodes by what they report"):
        BaseStrategy(aggregation=Median(), sampler=sampler)


def test_central_privacy_needs_the_mean():
    with pytest.raises(ValueError, match=r"its noise is that of a mean, and aggregation = Krum\(byzantine=1\) is none"):
        BaseStrategy(weighting="uniform", privacy=CentralPrivacy(1.0, 1.0, 5), aggregation=Krum(1))
