"""Central privacy: clipping one by one, noise on the mean, and what both amount to."""

import re
from dataclasses import replace
from math import erf, exp, inf, lgamma, log, log1p, pi, sqrt

import numpy as np
import pytest
from fedapps.strategies.algorithms.fedvc import IndependentDraws, VirtualClients
from fedapps.strategies.arrays import Buffers
from fedapps.strategies.base import BaseStrategy
from fedapps.strategies.compression import Int8
from fedapps.strategies.optimizers import Adam
from fedapps.strategies.privacy import CentralPrivacy, clip_update, delta_of, epsilon, renyi_divergence, sampled_epsilon
from fedapps.strategies.profiles import Profile
from fedapps.strategies.replies import Reply
from fedapps.strategies.samplers import PoissonSampling, ProportionalToSize
from fedapps.strategies.speed_samplers import SpeedTiers
from flwr.app import MetricRecord, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.integrate import quad
from scipy.optimize import minimize_scalar
from scipy.special import log_ndtr, logsumexp
from toys import arithmetic_app, arrays_of, federate, same_bits

START = {"w": np.array([1.0, 2.0], np.float32), "scale": np.array(3.0, np.float32)}


def moves(partition, received, config):
    """Node k moves every number by k + 1."""
    return {name: (a + (partition + 1)).astype(a.dtype) for name, a in received.items()}, {"num-examples": 4}


def uniform(**parts):
    return BaseStrategy(weighting="uniform", **parts)


# -- numbers -------------------------------------------------------------------------------------------------


def test_by_hand_every_update_is_cut_to_the_clip_before_the_mean():
    # updates (1, 1, 1), (2, 2, 2), (3, 3, 3) of norms 1.73, 3.46, 5.2; a clip of 2 sqrt(3) leaves 1, 2, 2
    result = federate(
        uniform(privacy=CentralPrivacy(2 * sqrt(3), 0.0, 3)), arithmetic_app(moves), START, num_nodes=3, num_rounds=1
    )
    np.testing.assert_allclose(result.arrays["w"].numpy(), [1 + 5 / 3, 2 + 5 / 3], rtol=1e-6)
    np.testing.assert_allclose(result.arrays["scale"].numpy(), 3 + 5 / 3, rtol=1e-6)


def test_names_are_matched_whatever_their_order_and_integers_stay_as_they_were_sent():
    sent = {"a": np.zeros(2), "b": np.full(2, 5.0), "n": np.array(3)}
    reply = {"n": np.array(9), "b": np.full(2, 5.0), "a": np.array([3.0, 4.0])}
    found = clip_update(reply, sent, 1.0, Buffers())
    np.testing.assert_allclose(found["a"], [0.6, 0.8])
    assert list(found) == ["a", "b", "n"]
    assert (found["b"] == 5.0).all()
    assert found["n"] == 3


def test_on_the_same_draws_the_model_is_that_of_flowers_wrapper(monkeypatch):
    start = {"w": np.array([1.0, 2.0], np.float32), "v": np.zeros((2, 3), np.float32)}
    np.random.seed(5)  # noqa: NPY002 - Flower draws from the global state
    wrapped = DifferentialPrivacyServerSideFixedClipping(FedAvg(min_available_nodes=3), 0.7, 2.0, 3)
    theirs = federate(wrapped, arithmetic_app(moves), start, num_nodes=3, num_rounds=2)
    draws = np.random.RandomState(5)
    monkeypatch.setattr(CentralPrivacy, "generator", lambda *which: draws)
    ours = federate(
        uniform(privacy=CentralPrivacy(2.0, 0.7, 3)), arithmetic_app(moves), start, num_nodes=3, num_rounds=2
    )
    for name, array in theirs.arrays.items():
        np.testing.assert_allclose(ours.arrays[name].numpy(), array.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("weighting", ["uniform", "num-examples"])
def test_an_infinite_clip_without_noise_is_fedavg_bit_for_bit_if_all_replies_arrive(weighting):
    def far(partition, received, config):
        arrays, metrics = moves(partition, received, config)
        return {**arrays, "v": np.array([0.1 * (partition + 1)])}, metrics  # 1e8 + (0.2 - 1e8) is rounded

    start = {**START, "v": np.array([1e8])}
    plain = federate(uniform(), arithmetic_app(far), start, num_nodes=3, num_rounds=1)
    strategy = BaseStrategy(weighting=weighting, privacy=CentralPrivacy(inf, 0.0, 3))
    guarded = federate(strategy, arithmetic_app(far), start, num_nodes=3, num_rounds=1)
    assert same_bits(arrays_of(plain.arrays), arrays_of(guarded.arrays))


@pytest.mark.parametrize(("expected", "step"), [(8, 1.5), (4, 3.0)])
def test_by_hand_the_sum_is_divided_by_the_expected_weight_and_weights_are_capped(expected, step):
    # updates 1, 2, 3 with weights 4, 4, 4, capped at 2: (2 + 4 + 6) / 8, and / 4 if more replied than expected
    privacy = CentralPrivacy(inf, 0.0, expected_weight=expected, max_weight=2.0)
    result = federate(BaseStrategy(privacy=privacy), arithmetic_app(moves), START, num_nodes=3, num_rounds=1)
    np.testing.assert_allclose(result.arrays["w"].numpy(), START["w"] + step, rtol=1e-6)


# -- properties ----------------------------------------------------------------------------------------------

numbers = arrays(np.float32, 4, elements=st.floats(-1e6, 1e6, width=32))


@given(sent=numbers, reply=numbers, clip=st.floats(1e-3, 1e4))
def test_what_enters_the_mean_never_moves_by_more_than_the_clip(sent, reply, clip):
    found = clip_update({"w": reply}, {"w": sent}, clip, Buffers())["w"]
    # float64 rounds numbers of 1e6 to 1e-10
    assert np.linalg.norm(found - sent.astype(np.float64)) <= clip * (1 + 1e-6)


@given(sent=numbers, reply=numbers)
def test_what_is_short_enough_passes_untouched(sent, reply):
    assert same_bits(clip_update({"w": reply}, {"w": sent}, inf, Buffers()), {"w": reply.astype(np.float64)})


def estimate(privacy, updates, weights, sent):
    """The estimated mean without noise, from replies that are limited one by one."""
    mean = replace(privacy, noise=0.0).mean("newest", sent, 1, Buffers())
    for update, weight in zip(updates, weights, strict=True):
        arrays = {"w": sent["w"] + update}
        reply = Reply(Profile.unknown(1), RecordDict(), arrays, MetricRecord(), weight, weight)
        reply = privacy.limit(reply, sent, Buffers())
        mean.add(reply.arrays, reply.weight)
    return mean.result()["w"]


@given(
    nodes=st.lists(st.tuples(arrays(np.float64, 3, elements=st.floats(-1e3, 1e3)), st.floats(0.1, 1e3)), min_size=1),
    sent=arrays(np.float64, 3, elements=st.floats(-10, 10)),
    clip=st.floats(0.01, 1e3),
    max_weight=st.floats(0.1, 10),
    expected=st.floats(0.5, 100),
    dropped=st.integers(0, 1000),
)
@example([(np.ones(3), 5.0)], np.zeros(3), 1.0, 1.0, 10.0, 0)
def test_no_node_changes_the_estimate_by_more_than_its_capped_and_clipped_update(
    nodes, sent, clip, max_weight, expected, dropped
):
    privacy = CentralPrivacy(clip, 1.0, expected, max_weight)
    without = [node for index, node in enumerate(nodes) if index != dropped % len(nodes)]
    found = [estimate(privacy, [u for u, _ in group], [w for _, w in group], {"w": sent}) for group in (nodes, without)]
    assert privacy.deviation == pytest.approx(max_weight * clip / expected)  # noise 1 is one such change
    assert np.linalg.norm(found[0] - found[1]) <= privacy.deviation * (1 + 1e-6) + 1e-9


@pytest.mark.parametrize("n", [3, 10, 100])
def test_a_mean_over_actual_replies_moves_twice_as_far_as_the_estimate(n):
    # n - 1 nodes move by the clip in one direction, and the node that may be absent in the other
    sent, clip = {"w": np.zeros(1)}, 2.0
    updates = [np.array([clip])] * (n - 1) + [np.array([-clip])]
    privacy = CentralPrivacy(clip, 1.0, n)
    moved = abs(estimate(privacy, updates, [1] * n, sent) - estimate(privacy, updates[:-1], [1] * (n - 1), sent))
    assert moved == pytest.approx(clip / n)
    assert abs(np.mean(updates) - np.mean(updates[:-1])) == pytest.approx(2 * clip / n)


@settings(max_examples=20, deadline=None)
@given(noise=st.floats(0.1, 10), clip=st.floats(0.1, 10), count=st.integers(0, 5), expected=st.floats(0.5, 10))
def test_the_noise_has_the_deviation_it_should_have_whatever_the_number_of_replies(noise, clip, count, expected):
    like = {"w": np.zeros(20_000), "n": np.zeros(3, np.int64)}
    mean = CentralPrivacy(clip, noise, expected, seed=1).mean("newest", like, 1, Buffers())
    for _ in range(count):
        mean.add(like, 1.0)
    drawn = mean.result()
    deviation = noise * clip / expected
    assert drawn["w"].std() == pytest.approx(deviation, rel=5 / sqrt(40_000))
    assert abs(drawn["w"].mean()) < 5 * deviation / sqrt(20_000)
    assert not drawn["n"].any()
    assert not np.shares_memory(drawn["n"], like["n"])


# -- noise ---------------------------------------------------------------------------------------------------


def noisy(seed):
    privacy = CentralPrivacy(1.0, 1.0, 3, seed=seed)
    return federate(uniform(privacy=privacy), arithmetic_app(moves), START, num_nodes=3, num_rounds=2)


@pytest.mark.parametrize(
    ("clip", "noise", "expected", "level", "ratio"),
    # two updates of 10,000 ones have norm 100, and their estimated mean 200 / W; noise of z S / W on each number has
    # norm 100 z S / W
    [(100.0, 0.01, 2, "INFO", 0.5), (100.0, 1.0, 4, "WARNING", 50), (400.0, 0.01, 2, "INFO", 2)],
)
def test_the_log_has_epsilon_and_the_norm_of_the_noise_beside_that_of_the_mean(
    clip, noise, expected, level, ratio, caplog
):
    def one(partition, received, config):
        return {"w": received["w"] + 1}, {"num-examples": 1}

    caplog.set_level("INFO", "flwr")
    strategy = uniform(privacy=CentralPrivacy(clip, noise, expected, seed=0))
    federate(strategy, arithmetic_app(one), {"w": np.zeros(10_000)}, num_nodes=2, num_rounds=2)
    lines = [record for record in caplog.records if record.getMessage().startswith("central privacy: ")]
    assert [record.levelname for record in lines] == [level] * 2
    pattern = r"the noise has ([\d.]+) times the norm .* epsilon is at most (\S+) at delta 1e-05 after (\d) rounds"
    found = [re.search(pattern, record.getMessage()).groups() for record in lines]
    for number, (times, spent, rounds) in enumerate(found, start=1):
        assert float(times) == pytest.approx(ratio, rel=0.1)
        assert float(spent) == pytest.approx(epsilon(noise, number, 1e-5), rel=1e-2)
        assert int(rounds) == number


def test_clipping_without_noise_logs_nothing(caplog):
    caplog.set_level("INFO", "flwr")
    federate(uniform(privacy=CentralPrivacy(1.0, 0.0, 2)), arithmetic_app(moves), START, num_nodes=2, num_rounds=1)
    assert "central privacy" not in caplog.text


def test_noise_repeats_with_a_seed_and_never_without():
    same, again, other, free, free_again = (arrays_of(noisy(seed).arrays) for seed in (1, 1, 2, None, None))
    assert same_bits(same, again)
    assert not same_bits(same, other)
    assert not same_bits(free, free_again)


def test_each_round_has_other_noise():
    privacy = CentralPrivacy(1.0, 1.0, 3, seed=1)
    drawn = [float(privacy.generator(server_round).normal()) for server_round in (1, 2, 3)]
    assert len({*drawn, float(np.random.default_rng([1, 1]).normal())}) == 4, "other draws of the seed and round differ"
    first = replace(privacy, seed=0)
    assert first.generator(1).normal() == first.generator(1).normal()


def test_a_round_without_replies_adds_noise_alone():
    reports = []
    strategy = uniform(privacy=CentralPrivacy(1.0, 1.0, 3, seed=1), sampler=PoissonSampling(0.0))
    result = federate(strategy, arithmetic_app(moves), START, num_nodes=3, num_rounds=1, on_round=reports.append)
    generator = CentralPrivacy(1.0, 1.0, 3, seed=1).generator(1)
    for name, start in START.items():
        expected = start + generator.normal(0, 1 / 3, start.shape)
        np.testing.assert_allclose(result.arrays[name].numpy(), expected, rtol=1e-6)
    assert reports[0].replies == 0


def test_the_noise_comes_before_the_servers_step():
    # Adam moves a number by its learning rate at most, however large the noise is
    privacy = CentralPrivacy(1.0, 1e6, 3, seed=1)
    result = federate(
        uniform(privacy=privacy, server_optimizer=Adam(0.1)), arithmetic_app(moves), START, num_nodes=3, num_rounds=1
    )
    assert np.abs(result.arrays["w"].numpy() - START["w"]).max() < 1.1


@pytest.mark.parametrize("bound", [0.0, 100.0])
def test_no_node_decides_whether_the_updates_of_others_count(bound):
    """Nodes 0 and 2 send small updates. A bound relative to these would refuse the updates of the other nodes."""

    def mean_update(*, replies):
        def train(partition, received, config):
            if partition == 2 and not replies:
                raise RuntimeError("no reply")
            step = 0.01 if partition in (0, 2) else 1.5
            return {"w": received["w"] + np.array([step, 0], np.float32)}, {"num-examples": 1}

        strategy = uniform(size_bound=bound, privacy=CentralPrivacy(1.0, 0.0, 5))
        result = federate(strategy, arithmetic_app(train), {"w": np.zeros(2, np.float32)}, num_nodes=5, num_rounds=1)
        return float(result.arrays["w"].numpy()[0])

    assert mean_update(replies=True) == pytest.approx((0.01 + 1 + 0.01 + 1 + 1) / 5)
    assert mean_update(replies=False) == pytest.approx((0.01 + 1 + 1 + 1) / 5)


# -- what cannot be guarded ----------------------------------------------------------------------------------


def test_nodes_that_are_chosen_by_what_others_report_are_refused():
    with pytest.raises(ValueError, match=r"because sampler = SpeedTiers\(.*chooses nodes by what others report"):
        uniform(privacy=CentralPrivacy(1.0, 1.0, 2), sampler=SpeedTiers(0.5, 0))


def test_a_node_is_drawn_once_a_round_at_most():
    for part in ({"privacy": CentralPrivacy(1.0, 1.0, 2)}, {"compression": Int8()}):
        with pytest.raises(ValueError, match="needs a sampler of distinct nodes such as ProportionalToSize"):
            VirtualClients(sampler=IndependentDraws(2), steps=1, **part)
    VirtualClients(sampler=ProportionalToSize(2), steps=1, privacy=CentralPrivacy(1.0, 1.0, 2))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clip": 0.0}, "clip = 0.0: must be above 0"),
        ({"clip": float("nan")}, "clip = nan"),
        ({"clip": inf}, "must be finite if noise is above 0, here 1.0"),
        ({"noise": -1.0}, "noise = -1.0: must be finite and at least 0"),
        ({"noise": inf}, "noise = inf"),
        ({"expected_weight": 0.0}, "expected_weight = 0.0: must be finite and above 0"),
        ({"max_weight": inf}, "max_weight = inf: must be finite and above 0"),
        ({"seed": -1}, "seed = -1: must be an integer of at least 0"),
        ({"seed": 1.5}, "seed = 1.5: must be an integer of at least 0"),
        ({"clipping": "nobody"}, "clipping = 'nobody': must be one of 'server', 'nodes'"),
    ],
)
def test_parameters_out_of_range_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(CentralPrivacy(1.0, 1.0, 3), **changes)


def test_only_nodes_that_clip_are_told_the_norm():
    assert CentralPrivacy(2.0, 1.0, 3).train_config() == {}
    assert CentralPrivacy(2.0, 1.0, 3, clipping="nodes").train_config() == {"clipping_norm": 2.0}


# -- the budget ----------------------------------------------------------------------------------------------


def test_the_delta_of_epsilon_0_is_the_distance_of_two_normal_distributions():
    assert delta_of(1.0, 0.0) == pytest.approx(erf(0.5 / sqrt(2)))


@pytest.mark.parametrize("mu", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("eps", [0.1, 1.0, 5.0])
def test_delta_is_the_integral_that_defines_it(mu, eps):
    x = np.linspace(-30, 40, 700_001)
    p, q = (np.exp(-((x - m) ** 2) / 2) / sqrt(2 * np.pi) for m in (mu, 0.0))
    expected = np.maximum(p - exp(eps) * q, 0).sum() * (x[1] - x[0])
    assert delta_of(mu, eps) == pytest.approx(expected, abs=1e-7)


def test_delta_is_exact_to_six_digits_and_an_upper_bound_where_a_probability_underflows():
    exact = 0.5 - exp(800 + log_ndtr(-40.0))
    assert exact <= delta_of(40.0, 800.0) == pytest.approx(exact, rel=1e-7)


@given(noise=st.floats(0.05, 50), rounds=st.integers(1, 2000), delta=st.floats(1e-9, 0.1))
@example(50.0, 1, 0.1)  # δ is below 0.1 for ε = 0
def test_epsilon_is_the_smallest_and_below_the_renyi_bound(noise, rounds, delta):
    found, mu = epsilon(noise, rounds, delta), sqrt(rounds) / noise
    assert 0 <= found <= mu * mu / 2 + mu * sqrt(2 * log(1 / delta))
    assert delta_of(mu, found) <= delta * (1 + 1e-6)
    if found > 0:
        assert delta_of(mu, found * (1 - 1e-6)) >= delta * (1 - 1e-6)


def test_no_noise_is_no_privacy_and_no_round_costs_nothing():
    assert epsilon(0.0, 1, 1e-5) == inf
    assert epsilon(5e-324, 1, 1e-5) == inf
    assert epsilon(1e-10, 1, 1e-5) == pytest.approx(0.5e20)
    assert epsilon(1.0, 0, 1e-5) == epsilon(0.0, 0, 1e-5) == 0.0
    assert epsilon(1.0, 4, 1e-5) == epsilon(0.5, 1, 1e-5) == epsilon(1.0, 1, 1e-5, sensitivity=2.0)
    with pytest.raises(ValueError, match="delta = 0"):
        epsilon(1.0, 1, 0)


# Privacy amplification by Poisson sampling: divergences and ε against other ways to compute them.


# noise, probability, rounds, delta: ε of dp-accounting 0.6.0, PLDAccountant().compose(event).get_epsilon(delta) and
# RdpAccountant(orders).compose(event).get_epsilon(delta), with
# event = SelfComposedDpEvent(PoissonSampledDpEvent(probability, GaussianDpEvent(noise)), rounds)
# orders = list(1 + np.geomspace(1e-2, 1e3, 1500))
DP_ACCOUNTING = {
    (1.0, 0.1, 20, 1e-5): (3.59074, 4.22408),
    (1.0, 0.5, 20, 1e-5): (15.12327, 16.57517),
    (0.5, 0.1, 20, 1e-5): (15.59676, 18.12870),
    (1.1, 0.01, 1000, 1e-5): (1.51537, 1.71173),
    (4.0, 0.001, 10_000, 1e-6): (0.09337, 0.10081),
    (0.3, 0.2, 10, 1e-5): (49.02057, 55.02717),
    (1.0, 0.05, 100, 1e-3): (2.19353, 2.68729),
    (10.0, 0.3, 200, 1e-6): (1.90705, 2.05142),
    (2.0, 0.25, 15, 1e-5): (2.43627, 2.72922),
}

probabilities = st.floats(1e-4, 0.999)


def by_binomial_sum(noise, probability, order):
    """Mironov et al. 2019, Section 3.3, for integer orders."""
    terms = [
        lgamma(order + 1) - lgamma(k + 1) - lgamma(order - k + 1)
        + (order - k) * log1p(-probability) + k * log(probability) + (k * k - k) / (2 * noise**2)
        for k in range(order + 1)
    ]  # fmt: skip
    return float(logsumexp(terms)) / (order - 1)


def by_quadrature(noise, probability, order):
    """The integral that defines the divergence, by SciPy's adaptive quadrature."""

    def integrand(x):
        ratio = 1 - probability + probability * exp((2 * x - 1) / (2 * noise**2))
        return exp(order * log(ratio) - (x / noise) ** 2 / 2) / (noise * sqrt(2 * pi))

    low, high = -12 * noise, order + 12 * noise
    value, _ = quad(integrand, low, high, points=[0.0, 0.5, order], limit=500, epsabs=0, epsrel=1e-11)
    return log(value) / (order - 1)


# -- the divergence of one round -----------------------------------------------------------------------------


def test_by_hand_the_divergence_of_order_2():
    # 1 - q² + q² e^(1/σ²) for order 2: the second moment of the ratio of the densities
    assert renyi_divergence(2.0, 0.3, 2.0) == pytest.approx(log(1 - 0.09 + 0.09 * exp(0.25)), rel=1e-12)


@settings(deadline=None)
@given(noise=st.floats(0.05, 50), probability=probabilities, order=st.integers(2, 60))
def test_at_integer_orders_it_is_the_binomial_sum(noise, probability, order):
    expected = by_binomial_sum(noise, probability, order)
    assert renyi_divergence(noise, probability, order) == pytest.approx(expected, rel=1e-9, abs=1e-13)


@pytest.mark.parametrize("order", [1.05, 1.4, 2.3, 4.7])
@pytest.mark.parametrize("probability", [0.01, 0.2, 0.9])
@pytest.mark.parametrize("noise", [0.3, 1.0, 3.0])
def test_at_other_orders_it_is_the_integral(noise, probability, order):
    expected = by_quadrature(noise, probability, order)
    assert renyi_divergence(noise, probability, order) == pytest.approx(expected, rel=1e-7)


# RdpAccountant([order]).compose(PoissonSampledDpEvent(probability, GaussianDpEvent(noise)))._rdp[0] of dp-accounting


@given(noise=st.floats(0.1, 50), order=st.floats(1.01, 50))
def test_with_a_probability_of_almost_1_it_is_that_of_the_gaussian_mechanism(noise, order):
    assert renyi_divergence(noise, 1 - 1e-12, order) == pytest.approx(order / (2 * noise**2), rel=1e-6)


# -- epsilon -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", DP_ACCOUNTING, ids=str)
def test_epsilon_is_between_the_two_of_dp_accounting(case):
    # At orders that are no integers, dp-accounting adds the absolute values of an alternating series: up to 0.2 % more.
    noise, probability, rounds, delta = case
    tight, renyi = DP_ACCOUNTING[case]
    found = epsilon(noise, rounds, delta, sampling_probability=probability)
    assert 1.07 * tight < found < 1.23 * tight
    assert 0.998 * renyi < found < renyi * (1 + 1e-4)


@pytest.mark.parametrize("case", [case for case in DP_ACCOUNTING if case[1] >= 0.05], ids=str)
def test_epsilon_is_the_minimum_over_all_orders_to_four_digits(case):
    noise, probability, rounds, delta = case

    def bound(order):
        spent = rounds * by_quadrature(noise, probability, order)
        return spent + log1p(-1 / order) - (log(delta) + log(order)) / (order - 1)

    expected = minimize_scalar(bound, bounds=(1.05, 12), method="bounded", options={"xatol": 1e-6}).fun
    assert sampled_epsilon(noise, {1: rounds}, delta, probability) == pytest.approx(expected, rel=5e-5)


@settings(deadline=None, max_examples=50)
@given(noise=st.floats(0.01, 100), rounds=st.integers(1, 5000), delta=st.floats(1e-9, 0.1), probability=probabilities)
def test_sampling_never_makes_privacy_weaker(noise, rounds, delta, probability):
    found = epsilon(noise, rounds, delta, sampling_probability=probability)
    assert 0 <= found <= epsilon(noise, rounds, delta)
    assert found <= epsilon(noise, rounds, delta, sampling_probability=(1 + probability) / 2) * (1 + 1e-4) + 1e-9


@settings(deadline=None, max_examples=50)
@given(noise=st.floats(0.5, 10), draws=st.lists(st.integers(0, 4), min_size=1, max_size=5), probability=probabilities)
def test_releases_of_the_same_draw_are_one_with_less_noise(noise, draws, probability):
    found = epsilon(noise, draws, 1e-5, sampling_probability=probability)
    assert found >= epsilon(noise, sum(draws), 1e-5, sampling_probability=probability) * (1 - 1e-4)
    assert epsilon(noise, draws, 1e-5) == epsilon(noise, sum(draws), 1e-5)
    if len(draws) == 1 and draws[0]:
        alone = epsilon(noise / sqrt(draws[0]), 1, 1e-5, sampling_probability=probability)
        assert found == pytest.approx(alone, rel=1e-9, abs=1e-12)


def test_by_hand_two_draws_one_of_them_released_twice():
    both = [renyi_divergence(z, 0.2, 3.0) for z in (2.0, 2.0 / sqrt(2))]
    bound = sum(both) + log1p(-1 / 3) - (log(0.01) + log(3)) / 2
    assert sampled_epsilon(2.0, {1: 1, 2: 1}, 0.01, 0.2) <= bound
    with pytest.raises(ValueError, match=r"releases = \[1, -1\]"):
        epsilon(1.0, [1, -1], 1e-5)


def test_the_noise_counts_in_units_of_the_sensitivity():
    halved = epsilon(2.0, 20, 1e-5, sensitivity=2.0, sampling_probability=0.1)
    assert halved == epsilon(1.0, 20, 1e-5, sampling_probability=0.1)


def test_sampling_counts_for_nothing_where_noise_is_negligible():
    assert sampled_epsilon(0.01, {1: 1}, 1e-5, 0.1) == sampled_epsilon(0.03, {1: 1, 4: 1}, 1e-5, 0.1) == inf
    assert epsilon(0.01, 1, 1e-5, sampling_probability=0.1) == epsilon(0.01, 1, 1e-5)


@pytest.mark.parametrize("probability", [0.0, -0.1, 1.1, float("nan")])
def test_a_probability_out_of_range_is_named(probability):
    with pytest.raises(ValueError, match=f"sampling_probability = {probability}: must be above 0 and at most 1"):
        epsilon(1.0, 1, 1e-5, sampling_probability=probability)
