"""Buffers are averaged and nothing else: what steps, clips, compresses, compares or weighs parameters skips them."""

import numpy as np
import pytest
from fedapps.strategies.aggregation import StreamingMean, stretched
from fedapps.strategies.algorithms.apfl import AdaptiveRates
from fedapps.strategies.algorithms.clustered import ClusteredFedAvg
from fedapps.strategies.algorithms.fisher_exchange import FisherExchange
from fedapps.strategies.algorithms.h_fl import HierarchicalFedAvg
from fedapps.strategies.algorithms.scaffold import Scaffold
from fedapps.strategies.arrays import Buffers
from fedapps.strategies.base import BaseStrategy
from fedapps.strategies.checks import check_values
from fedapps.strategies.compression import Int8, TopK, compression_mod
from fedapps.strategies.optimizers import SGD, AdaGrad, Adam, Momentum, Yogi
from fedapps.strategies.privacy import CentralPrivacy, clip_update
from fedapps.strategies.robust import Krum, Median, MultiKrum, TrimmedMean
from fedapps.strategies.wire import STATISTICS
from flwr.app import MetricRecord, RecordDict
from flwr.client import ClientApp
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from toys import arithmetic_app, arrays_of, federate, record_of, same_bits

OPTIMIZERS = {
    "sgd": lambda: SGD(3.0),
    "momentum": Momentum,
    "nesterov": lambda: Momentum(nesterov=True),
    "adagrad": lambda: AdaGrad(1.0),
    "adam": lambda: Adam(0.1),
    "yogi": lambda: Yogi(0.1),
}
START = {
    "0.weight": np.zeros(2, np.float32),
    "1.running_mean": np.zeros(2, np.float32),
    "1.running_var": np.ones(2, np.float32),
    "1.num_batches_tracked": np.array(0),
}
#: Replies of three nodes whose variances shrink: a step beyond their mean is negative.
VARIANCES = (0.01, 0.02, 0.03)


def shrinks(partition, received, config):
    """Node k returns the parameter k and a variance of (k + 1) / 100."""
    return {
        **received,
        "0.weight": np.full(2, partition, np.float32),
        "1.running_var": np.full(2, VARIANCES[partition], np.float32),
    }, {"num-examples": 1}


def trained(strategy, start=START, work=shrinks, rounds=3, app=None, nodes=3):
    """The shared arrays after the rounds."""
    result = federate(strategy, app or arithmetic_app(work), start, num_nodes=nodes, num_rounds=rounds)
    return arrays_of(result.arrays)


# -- which arrays --------------------------------------------------------------------------------------------


def test_torch_names_the_statistics_of_its_normalisations_as_the_rule_says():
    model = nn.Sequential(nn.BatchNorm1d(2), nn.InstanceNorm2d(2, track_running_stats=True), nn.SyncBatchNorm(2))
    assert {name.rpartition(".")[2] for name, _ in model.named_buffers()} == set(STATISTICS)
    assert all(name in Buffers() for name, _ in model.named_buffers())
    assert not any(name in Buffers() for name, _ in model.named_parameters())


def test_names_count_by_their_last_part_and_patterns_add_to_them():
    buffers = Buffers(("ema.*",))
    assert ["running_var" in buffers, "a.running_variance" in buffers, "ema.w" in buffers] == [True, False, True]
    arrays = {"w": np.zeros(1), "n": np.zeros(1, int), "ema.w": np.zeros(1), "b.running_mean": np.zeros(1)}
    assert list(buffers.parameters(arrays)) == ["w"]


@pytest.mark.parametrize(("pattern", "said"), [("*.emma", "matches no parameter"), ("w", "list of patterns")])
def test_a_pattern_that_cannot_be_meant_is_an_error_before_the_run(pattern, said):
    with pytest.raises(ValueError, match=said):
        trained(BaseStrategy(buffers=[pattern] if pattern != "w" else "w"))


# -- the step of the server ----------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
@given(st.lists(st.lists(st.floats(0, 1e6, width=32), min_size=1, max_size=4), min_size=1, max_size=4))
def test_whatever_the_optimizer_a_variance_stays_within_those_of_the_nodes(optimizer, rounds):
    step, current = optimizer(), {"n.running_var": np.ones(1, np.float32)}
    for replies in rounds:
        mean = StreamingMean()
        for weight, value in enumerate(replies, 1):
            mean.add({"n.running_var": np.array([value], np.float32)}, weight)
        current = step.step(current, mean.result())
        assert np.float32(min(replies)) <= current["n.running_var"][0] <= np.float32(max(replies))


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_server_optimizer_moves_parameters_and_not_the_statistics_of_a_normalisation(optimizer):
    def work(partition, received, config):
        arrays, metrics = shrinks(partition, received, config)
        return {**arrays, "0.weight": np.full(2, 0.3 + 0.1 * config["server-round"], np.float32)}, metrics

    found = trained(BaseStrategy(server_optimizer=optimizer()), work=work)
    plain = trained(BaseStrategy(), work=work)
    assert same_bits({n: found[n] for n in START if n[0] == "1"}, {n: plain[n] for n in START if n[0] == "1"})
    assert not np.array_equal(found["0.weight"], plain["0.weight"])


def test_the_models_of_clusters_and_of_the_tiers_above_them_take_no_step_on_buffers_either():
    strategy = HierarchicalFedAvg(
        groups=["key"], intervals=[1], cluster_optimizers=[lambda: Momentum(2.0)], server_optimizer=Momentum(2.0)
    )
    strategy.check_labels = lambda profiles: None
    np.testing.assert_allclose(trained(strategy)["1.running_var"], 0.02, rtol=1e-6)


def test_a_mean_at_twice_its_distance_keeps_its_buffers_and_integers():
    names = ("w", "n.running_var", "n")
    current, mean = (dict(zip(names, map(np.array, values), strict=True)) for values in ((1.0, 1.0, 1), (3.0, 0.2, 5)))
    found = stretched(current, mean, 2.0, Buffers())
    assert {name: float(array) for name, array in found.items()} == {"w": 5.0, "n.running_var": 0.2, "n": 5.0}
    # 2⁻²⁵ − 1/2 − (−1) has no float32
    one, other = ({"w": np.array(value, np.float32)} for value in (-1.0, 2**-25 - 0.5))
    assert stretched(one, other, 2.0, Buffers())["w"] == 2**-24


# -- robust aggregation --------------------------------------------------------------------------------------


@pytest.mark.parametrize("aggregation", [Median(), TrimmedMean(1), Krum(1), MultiKrum(1), MultiKrum(1, 1)])
@given(honest=st.lists(st.floats(0, 1e6, width=32), min_size=4, max_size=6), attack=st.floats(0, 2.0**40, width=32))
def test_one_node_with_plausible_parameters_and_a_wild_variance_moves_no_variance_out_of_the_honest_ones(
    aggregation, honest, attack
):
    aggregate = aggregation.start()
    for value in [attack, *honest]:  # the attacker's parameters are nearest to all others
        w = np.array([0.0 if value == attack else value / 1e6], np.float32)
        aggregate.add({"w": w, "n.running_var": np.array([value], np.float32), "n": np.array([2**40])}, 1.0)
    assert min(honest) <= aggregate.result()["n.running_var"][0] <= max(honest)


@pytest.mark.parametrize("aggregation", [Krum(0), MultiKrum(0, 1)])
def test_krum_measures_no_distance_between_buffers(aggregation):
    # by the variances, node 0 would be alone; by the parameters, it is nearest to both others
    replies = [{"w": np.array([w]), "n.running_var": np.array([v])} for w, v in ((1.0, 900.0), (0.0, 1.0), (2.0, 2.0))]
    aggregate = aggregation.start()
    for reply in replies:
        aggregate.add(reply, 1.0)
    assert aggregate.result()["w"] == 1.0


# -- privacy -------------------------------------------------------------------------------------------------


def test_by_hand_a_buffer_neither_counts_in_the_norm_nor_leaves_its_node():
    sent = {"w": np.zeros(2), "ema": np.zeros(1)}
    found = clip_update({"w": np.array([3.0, 4.0]), "ema": np.full(1, 1e6)}, sent, 1.0, Buffers(("ema",)))
    np.testing.assert_allclose(found["w"], [0.6, 0.8])
    assert found["ema"] == 0
    strategy = BaseStrategy(weighting="uniform", privacy=CentralPrivacy(1.0, 1.0, 3, seed=1), buffers=["ema"])
    start = {"w": np.zeros(2, np.float32), "ema": np.ones(1, np.float32)}
    result = trained(strategy, start, lambda k, received, config: (received, {"num-examples": 1}))
    assert result["ema"] == 1
    assert (result["w"] != 0).all()


def test_central_privacy_refuses_the_statistics_of_a_normalisation_before_the_run_and_names_the_remedy():
    with pytest.raises(ValueError, match=r"1.running_mean and 1 more.*nn.GroupNorm"):
        trained(BaseStrategy(weighting="uniform", privacy=CentralPrivacy(1.0, 1.0, 3)))
    kept = BaseStrategy(weighting="uniform", privacy=CentralPrivacy(1.0, 1.0, 3, statistics="keep"))
    assert (trained(kept)["1.running_var"] == 1).all()
    trained(
        BaseStrategy(weighting="uniform", privacy=CentralPrivacy(1.0, 1.0, 3), shared=["0.*"]),
        work=lambda partition, received, config: (received, {"num-examples": 1}),
    )


# -- what compares, weighs or compresses ---------------------------------------------------------------------


@pytest.mark.parametrize("compression", [Int8(), TopK(0.01)])
def test_buffers_are_not_compressed_and_declared_ones_are_named_in_the_message(compression):
    start = {"w": np.zeros(4, np.float32), "ema": np.zeros(2, np.float32), "n.running_var": np.zeros(2, np.float32)}
    moved = {name: np.array([1.0, 1 / 3, 0.1, 0.0], np.float32)[: len(array)] for name, array in start.items()}
    seen = []
    inner = arithmetic_app(lambda *_: (moved, {"num-examples": 1}), seen=seen)
    app = ClientApp(mods=[compression_mod])

    @app.train()
    def train(message, context):
        return inner(message, context)

    strategy = BaseStrategy(compression=compression, buffers=["ema"])
    found = trained(strategy, start, rounds=1, app=app, nodes=2)
    assert same_bits({n: found[n] for n in ("ema", "n.running_var")}, {n: moved[n] for n in ("ema", "n.running_var")})
    assert seen[0].content["config"]["buffers"] == ["ema"]
    assert not np.array_equal(found["w"], moved["w"])


def test_rates_follow_the_deviation_of_parameters_alone():
    strategy = AdaptiveRates()
    trained(strategy, rounds=1)
    assert strategy.rates == {"0.weight": 1.0}


def test_a_buffer_has_no_control_variate():
    def work(partition, received, config):
        arrays, metrics = shrinks(partition, received, config)
        return arrays, {**metrics, "scaffold.length": 0.5}

    strategy = Scaffold()
    trained(strategy, work=work, rounds=1)
    # the mean of (0 − k) / 0.5 over the nodes k
    assert {name: control.tolist() for name, control in strategy.control.items()} == {
        "0.weight": [-2.0, -2.0], "1.running_mean": [0.0, 0.0], "1.running_var": [0.0, 0.0],
    }  # fmt: skip


def test_clusters_follow_the_updates_of_parameters_alone():
    strategy = ClusteredFedAvg(profiles=True, num_clusters=2)
    work = lambda k, received, config: (  # noqa: E731
        {
            **received,
            "0.weight": received["0.weight"] + np.float32(1 if k < 2 else -1),
            "1.running_var": np.full(2, [1e6, 0, 1e6, 0][k], np.float32),
        },
        {"num-examples": 1},
    )
    trained(strategy, work=work, rounds=1, nodes=4)
    assert strategy.labels["part-0"] == strategy.labels["part-1"] != strategy.labels["part-2"]


def test_fisher_terms_are_those_of_parameters_alone():
    def work(partition, received, config):
        arrays, metrics = shrinks(partition, received, config)
        precision = {name: np.ones_like(a) for name, a in received.items() if a.dtype.kind == "f"}
        parts = {"arrays": record_of(arrays), "metrics": MetricRecord(metrics)}
        return RecordDict({**parts, "fisher.precision": record_of(precision)})

    seen = []
    strategy = FisherExchange(others_now=1.0)
    trained(strategy, rounds=2, app=arithmetic_app(work, seen=seen))
    priors = [m.content["fisher.prior-precision"] for m in seen if "fisher.prior-precision" in m.content]
    assert priors
    assert all(list(prior) == ["0.weight"] for prior in priors)


def test_a_negative_variance_of_a_node_is_refused():
    sent, wrong = {"n.running_var": np.ones(2)}, {"n.running_var": np.array([1.0, -1e-9])}
    assert check_values(sent, wrong) == "a variance is below 0: n.running_var"
    assert check_values(sent, {"n.running_var": np.zeros(2)}) is None
