"""FisherExchange: its priors by hand and against the sum over all pairs, refusals, traffic, and resumed runs."""

import re

import numpy as np
import pytest
from fedapps.strategies.algorithms.fisher_exchange import FisherExchange, QuadraticTerm
from fedapps.strategies.base import BaseStrategy
from fedapps.strategies.records import TooFewRepliesError
from fedapps.strategies.replies import count_bytes
from fedapps.strategies.samplers import DropSchedule, Sampler
from fisher_nodes import FOUND, START, SURE, published, staged, stages, steady, trained
from flwr.app import ConfigRecord
from grouped import MemoryCheckpoints
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import arithmetic_app, arrays_of, federate, record_of, same_bits, template_app, template_net

# -- by hand ---------------------------------------------------------------------------------------------------


def test_fedcurv_of_three_nodes_by_hand():
    _, priors = trained(FisherExchange(others_now=1.0))
    # F·θ of the nodes: (1, 0), (6, -4), (-1, 4).
    assert priors == {
        (1, 0): None,
        (1, 1): None,
        (1, 2): None,
        (2, 0): ([2.5, 5.0], [5.0, 0.0]),
        (2, 1): ([1.5, 1.0], [0.0, 4.0]),
        (2, 2): ([3.0, 4.0], [7.0, -4.0]),
    }


def test_a_node_that_misses_a_round_keeps_what_it_published():
    _, priors = trained(
        FisherExchange(others_now=1.0, sampler=DropSchedule(["part-1", "part-2", "part-0"])),
        lambda partition, arrays, config: published([config["server-round"]] * 2, SURE[partition]),
        num_rounds=4,
    )
    assert priors[2, 1] == ([1.5, 1.0], [1.5, 1.0])  # 0 and 2, of round 1
    assert priors[2, 0] == ([0.5, 1.0], [0.5, 1.0])  # 1 has published nothing yet
    assert priors[3, 2] == ([3.0, 4.0], [2 * 1 + 2 * 2, 2 * 4])  # 0 and 1, of round 2
    assert priors[4, 0] == ([2.5, 5.0], [3 * 2.5, 3 * 5.0])  # 1 and 2, of round 3
    assert priors[4, 2] == ([3.0, 4.0], [2 * 1 + 3 * 2, 3 * 4])  # 0 of round 2, 1 of round 3


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        # Node 0: own past (1, 0) at (1, 2); the others' past sums up to (2.5, 5), (5, 0).
        ({"own_past": 1.0}, {1: None, 2: None, 3: ([1, 0], [1, 0]), 4: ([1, 0], [1, 0])}),
        ({"others_past": 1.0}, {1: None, 2: None, 3: ([2.5, 5], [5, 0]), 4: ([2.5, 5], [5, 0])}),
        # Every stage starts without solutions of its own.
        ({"others_now": 1.0}, {1: None, 2: ([2.5, 5], [5, 0]), 3: None, 4: ([2.5, 5], [30, 50])}),
        (
            {"own_past": 0.5, "others_past": 2.0, "others_now": 0.5},
            {
                1: None,
                2: ([1.25, 2.5], [2.5, 0]),
                3: ([0.5 + 5, 10], [0.5 + 10, 0]),
                4: ([0.5 + 5 + 1.25, 10 + 2.5], [0.5 + 10 + 15, 25]),
            },
        ),
    ],
)
def test_the_three_lambdas_of_elastic_transfer_by_hand(weights, expected):
    _, priors = trained(FisherExchange(**weights), staged, num_rounds=4, train_config=stages)
    assert {r: prior for (r, partition), prior in priors.items() if partition == 0} == expected


@pytest.mark.parametrize(
    ("anchors", "linear"),
    # Node 1 found (3, -1) in stage 0 and (13, 9) in stage 1, each with precision (2, 4).
    [("online", [4 * 13, 8 * 9]), ("separate", [2 * 3 + 2 * 13, -4 + 4 * 9])],
)
def test_online_anchors_move_and_separate_ones_stay(anchors, linear):
    strategy = FisherExchange(own_past=1.0, anchors=anchors)
    _, priors = trained(strategy, staged, num_rounds=5, train_config=stages)
    assert priors[5, 1] == ([4, 8], linear)


def test_the_past_of_a_node_that_was_away_stays():
    def train(partition, arrays, config):
        if partition == 2 and config["stage"] == 1:
            raise RuntimeError("away")
        return staged(partition, arrays, config)

    strategy = FisherExchange(others_past=1.0)
    _, priors = trained(strategy, train, num_rounds=5, train_config=stages)
    assert priors[3, 0] == ([2.5, 5.0], [5.0, 0.0])
    assert priors[5, 0] == ([4 + 0.5, 8 + 1], [52 - 1, 72 + 4])


# -- against the sum over pairs --------------------------------------------------------------------------------


class Scripted(Sampler):
    """Who takes part in each round, by partition."""

    def __init__(self, rounds):
        self.rounds = rounds

    def sample(self, profiles, server_round, purpose):
        chosen = {f"part-{partition}" for partition in self.rounds[server_round - 1]}
        return [profile for profile in profiles if profile.key in chosen]


@st.composite
def federations(draw):
    num_nodes = draw(st.integers(1, 6))
    members = st.sets(st.integers(0, num_nodes - 1), min_size=1)
    weights = st.sampled_from([0.0, 0.05, 0.5, 3.0])
    return (
        num_nodes,
        draw(st.lists(members, min_size=2, max_size=5)),
        draw(st.lists(st.integers(0, 1), min_size=5, max_size=5)),  # whether a round opens a stage
        draw(st.tuples(weights, weights, weights)),
        draw(st.sampled_from(["online", "separate"])),
        draw(st.integers(0, 2**32 - 1)),
        draw(st.integers(0, 12)),  # decades that the precisions span
    )


@settings(max_examples=60, deadline=None)
@given(federations())
def test_two_tensors_pull_as_all_the_pairs_do(federation):
    num_nodes, rounds, opens, (own_past, others_past, others_now), anchors, seed, decades = federation
    stage_of = dict(enumerate(np.cumsum(opens[: len(rounds)]).tolist(), start=1))
    rng = np.random.default_rng(seed)

    def train(partition, arrays, config):
        size = 10.0 ** rng.uniform(-decades, decades / 2, 2)
        precision = (size * (rng.random(2) < 0.9)).astype(np.float32)
        w = rng.normal(size=2).astype(np.float32)
        replies[config["server-round"], partition] = w.astype(np.float64), precision.astype(np.float64)
        return published(w, precision)

    replies = {}
    strategy = FisherExchange(
        own_past=own_past, others_past=others_past, others_now=others_now, anchors=anchors, sampler=Scripted(rounds)
    )
    _, priors = trained(
        strategy,
        train,
        num_nodes=num_nodes,
        num_rounds=len(rounds),
        train_config=lambda r: ConfigRecord({"stage": stage_of[r]}),
    )
    for (server_round, partition), prior in priors.items():
        theta = rng.normal(size=2).astype(np.float32)
        pulls, scale = pairwise(theta.astype(np.float64), server_round, partition, replies, stage_of, strategy)
        gradient = np.zeros(2) if prior is None else np.float32(prior[0]) * theta - np.float32(prior[1])
        # Rounding of P, L, Pθ and the difference, each at most half a unit of float32.
        assert (np.abs(gradient - pulls) <= 4 * np.finfo(np.float32).eps * scale).all()


def pairwise(theta, server_round, partition, replies, stage_of, strategy):
    """The gradient as the paper writes it, anchor by anchor, and the size of its terms."""
    pull, scale = np.zeros(2), np.zeros(2)
    stage = stage_of[server_round]
    for other in {who for _, who in replies}:
        last = {stage_of[r]: value for (r, who), value in replies.items() if who == other and r < server_round}
        terms = []
        if stage in last and other != partition:
            terms.append((strategy.others_now, *last[stage]))
        past = [last[s] for s in sorted(last) if s < stage]
        weight = strategy.own_past if other == partition else strategy.others_past
        terms += [(weight, past[-1][0] if strategy.anchors == "online" else w, f) for w, f in past]
        for weight, w, f in terms:
            pull += weight * f * (theta - w)
            scale += weight * f * (np.abs(theta) + np.abs(w))
    return pull, scale


def test_a_node_far_surer_than_the_others_still_feels_them():
    sure = [[1e12, 1e12], [1e-6, 1.0], [1e-6, 2.0]]
    _, priors = trained(FisherExchange(others_now=1.0), lambda k, arrays, config: published([1.0, 3.0], sure[k]))
    np.testing.assert_allclose(priors[2, 0], [[2e-6, 3.0], [2e-6, 9.0]], rtol=1e-7)


# -- without weights or other nodes ----------------------------------------------------------------------------


def followed(partition, arrays, config):
    return published(arrays["w"] / 3 + np.float32(partition + 0.1), SURE[partition], steps=config["server-round"])


def test_all_lambdas_zero_is_fedavg_bit_for_bit_in_arrays_and_messages():
    runs = []
    for strategy in (BaseStrategy(), FisherExchange()):
        seen = []
        arrays = record_of(START)
        app = arithmetic_app(followed, seen=seen)
        result = federate(strategy, app, arrays, num_nodes=3, num_rounds=3)
        runs.append((arrays_of(result.arrays), [sorted(message.content) for message in seen]))
    assert same_bits(runs[0][0], runs[1][0])
    assert runs[0][1] == runs[1][1]


def test_without_weights_nodes_that_know_no_fisher_take_part():
    arrays = record_of({name: tensor.numpy() for name, tensor in template_net().state_dict().items()})
    results = [
        federate(strategy, template_app(lambda k: 3 + k), arrays, num_nodes=2, num_rounds=2)
        for strategy in (BaseStrategy(), FisherExchange())
    ]
    assert same_bits(*(arrays_of(result.arrays) for result in results))


def test_a_single_node_is_held_by_nothing():
    strategy = FisherExchange(others_past=1.0, others_now=1.0)
    _, priors = trained(strategy, num_nodes=1, num_rounds=5, train_config=stages)
    assert set(priors.values()) == {None}


# -- nodes of other projects -----------------------------------------------------------------------------------


def test_a_node_of_numpy_alone_takes_part():
    """Node k has the loss ½ Σ h_k (w − c_k)², whose Fisher information is h_k; the optimum of their sum is known."""
    centre, sharp = np.array([[0.0, 2.0], [4.0, -2.0]]), np.array([[1.0, 3.0], [3.0, 1.0]])
    seen = []

    def train(partition, arrays, config):
        content = seen[-1].content
        w, zero = arrays["w"], record_of({"w": np.zeros(2, np.float32)})
        P = content.get("fisher.prior-precision", zero)["w"].numpy()
        L = content.get("fisher.prior-linear", zero)["w"].numpy()
        for _ in range(200):
            w = w - 0.1 * (sharp[partition] * (w - centre[partition]) + P * w - L).astype(np.float32)
        return published(w, sharp[partition])

    def after(strategy):
        app = arithmetic_app(train, seen=seen)
        return arrays_of(federate(strategy, app, START, num_nodes=2, num_rounds=60).arrays)["w"]

    best = (sharp * centre).sum(0) / sharp.sum(0)
    np.testing.assert_allclose(best, [3.0, 1.0])
    # FedAvg ends in the middle between the nodes, FedCurv nearer to the optimum of both.
    np.testing.assert_allclose(after(BaseStrategy()), [2.0, 0.0], atol=1e-5)
    assert np.abs(after(FisherExchange(others_now=1.0)) - best).max() < np.abs(np.array([2.0, 0.0]) - best).max()


@pytest.mark.parametrize(
    ("weights", "level", "logged"),
    [
        ({}, "WARNING", "own_past, others_past and others_now are 0, so this is FedAvg: one must be above 0"),
        ({"own_past": 0.05, "others_now": 1.0}, "INFO", "penalties: own past 0.05, others now 1"),
    ],
)
def test_the_log_has_the_penalties_and_warns_if_there_are_none(weights, level, logged, caplog):
    caplog.set_level("INFO", "flwr")
    FisherExchange(**weights).summary()
    assert [record.levelname for record in caplog.records if logged in record.getMessage()] == [level]


@pytest.mark.parametrize("key", ["own_past", "others_past", "others_now"])
@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
def test_a_lambda_below_zero_or_not_finite_is_an_error(key, value):
    with pytest.raises(ValueError, match=f"{key} = {value}: must be a finite number, at least 0"):
        FisherExchange(**{key: value})


@pytest.mark.parametrize(("key", "allowed"), [("anchors", "'online', 'separate'"), ("estimator", "'per-sample', ")])
def test_an_unknown_choice_is_an_error_that_lists_the_known(key, allowed):
    with pytest.raises(ValueError, match=f"{key} = 'other': must be one of {allowed}"):
        FisherExchange(**{key: "other"})


def test_a_stage_that_is_no_integer_is_an_error():
    with pytest.raises(ValueError, match="config stage = '2': must be an integer"):
        trained(FisherExchange(others_now=1.0), train_config=ConfigRecord({"stage": "2"}))


def reply_with(precision):
    reply = published(FOUND[2], SURE[2])
    if precision is None:
        del reply["fisher.precision"]
    else:
        reply["fisher.precision"] = record_of(precision)
    return reply


@pytest.mark.parametrize(
    ("precision", "reason"),
    [
        (None, "no ArrayRecord of this name in the reply"),
        ({"w": np.array([1, -1], np.float32)}, "values are below 0: w"),
        ({"w": np.array([1, np.nan], np.float32)}, r"values are not finite: w \(1 of 2\)"),
        ({"w": np.array([np.inf, 1], np.float32)}, r"values are not finite: w \(1 of 2\)"),
        ({"w": np.ones(3, np.float32)}, r"w is \[3\] instead of \[2\]"),
        ({"w": np.ones(2)}, "w is float64 instead of float32"),
        ({"v": np.ones(2, np.float32)}, "missing w; unexpected v"),
        ({"w": np.ones(2, np.float32), "steps": np.array(1)}, "unexpected steps"),
        ({}, "missing w"),
    ],
)
def test_a_precision_that_cannot_be_used_is_refused_and_the_round_goes_on(precision, reason):
    reports = []

    def train(partition, arrays, config):
        return reply_with(precision) if partition == 2 else steady(partition, arrays, config)

    result, priors = trained(FisherExchange(profiles=True, others_now=1.0), train, on_round=reports.append)
    for report in reports:
        (refusal,) = report.refused
        assert refusal.node == "part-2"
        assert re.search(reason, refusal.reason)
        assert refusal.reason.startswith("fisher.precision: ")
        assert report.replies == 2
        assert report.bytes_up > 0
    np.testing.assert_array_equal(arrays_of(result.arrays)["w"], [2.0, 0.5])  # of nodes 0 and 1
    assert priors[2, 0] == ([2.0, 4.0], [6.0, -4.0])
    assert priors[2, 2] == ([3.0, 4.0], [7.0, -4.0])  # the refused node is still held by the others


def test_a_refused_reply_leaves_what_the_node_published_before():
    def train(partition, arrays, config):
        bad = partition == 2 and config["server-round"] == 2
        return reply_with({"w": np.array([-1, -1], np.float32)}) if bad else steady(partition, arrays, config)

    _, priors = trained(FisherExchange(others_now=1.0), train, num_rounds=3)
    assert priors[3, 0] == ([2.5, 5.0], [5.0, 0.0])


def test_too_few_usable_precisions_fail_the_round():
    with pytest.raises(TooFewRepliesError, match=r"part-0: fisher\.precision: no ArrayRecord"):
        trained(FisherExchange(profiles=True, others_now=1.0), lambda k, arrays, config: reply_with(None))


@pytest.mark.parametrize("weights", [{"others_now": 0.5}, {"own_past": 0.1, "others_past": 0.5, "others_now": 0.5}])
def test_bytes_of_a_node_do_not_depend_on_how_many_there_are(weights):
    def train(partition, arrays, config):
        return published([partition, -partition], [partition, 1])

    down, up = set(), set()
    for num_nodes in (3, 10, 100):
        seen, reports = [], []
        federate(
            FisherExchange(**weights),
            arithmetic_app(train, seen=seen),
            START,
            num_nodes=num_nodes,
            num_rounds=4,
            evaluate_every=4,
            train_config=lambda r: ConfigRecord({"stage": r // 3}),
            on_round=reports.append,
        )
        down |= {
            count_bytes(message.content)
            for message in seen
            if message.metadata.message_type == "train" and message.content["config"]["server-round"] == 2
        }
        second = reports[1]
        assert second.bytes_down == num_nodes * min(down)
        up.add(second.bytes_up / num_nodes)
        assert second.strategy["fisher"]["published"] == num_nodes
    assert len(down) == len(up) == 1


@pytest.mark.parametrize("cut_after", [1, 2, 3, 4])
@pytest.mark.parametrize("anchors", ["online", "separate"])
def test_a_resumed_run_sends_and_ends_bit_for_bit_the_same(cut_after, anchors):
    options = {"train_config": stages}

    def held(partition, arrays, config):
        server_round = config["server-round"]
        return published(arrays["w"] / 3 + np.float32(partition / 7), np.array(SURE[partition]) / (3 * server_round))

    def strategy():
        weights = {"own_past": 0.05, "others_past": 0.5, "others_now": 0.3}
        return FisherExchange(**weights, anchors=anchors, sampler=DropSchedule(["part-1", "part-0", "part-2"]))

    whole, parts = MemoryCheckpoints(), MemoryCheckpoints()
    result, priors = trained(strategy(), held, num_rounds=5, checkpoints=whole, **options)
    trained(strategy(), held, num_rounds=cut_after, checkpoints=parts, **options)
    again, later = trained(strategy(), held, num_rounds=5, checkpoints=parts, resume=True, **options)
    assert same_bits(arrays_of(again.arrays), arrays_of(result.arrays))
    assert later == {key: prior for key, prior in priors.items() if key[0] > cut_after}
    assert same_bits(parts.latest().arrays, whole.latest().arrays)


def test_keys_and_names_of_any_form_survive_a_restart():
    before = FisherExchange(others_now=1.0)
    for key in ("node.1", "a/b %2E", "ü"):
        arrays = {"enc.0.weight": np.ones(2, np.float32), "fisher.now.x": np.ones((), np.float32)}
        before._now[key] = (arrays, arrays)
    after = FisherExchange(others_now=1.0)
    after.load_state(before.state())
    assert same_bits(after.state(), before.state())
    assert sorted(after._now) == sorted(before._now)


def test_terms_of_a_parameter_without_dimensions_are_arrays():
    term = QuadraticTerm.around({"scale": np.array(2.0)}, {"scale": np.array(3.0)})
    both = QuadraticTerm.weighted([(1.0, term), (0.5, term)])
    kinds = {type(part[name]) for of in (term, both) for part in (of.precision, of.linear) for name in part}
    assert kinds == {np.ndarray}, "numbers have no dtype when a snapshot is read again"
    assert (both.precision["scale"], both.linear["scale"]) == (4.5, 9.0)
