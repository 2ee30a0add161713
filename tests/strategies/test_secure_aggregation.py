"""Secure aggregation: exact sums with dropouts, what the server saw, whole federations."""

from itertools import count

import numpy as np
import pytest
from fedapps.strategies import (
    BaseStrategy,
    Callback,
    CentralPrivacy,
    Closing,
    Each,
    HeldOut,
    HierarchicalFedAvg,
    IndependentDraws,
    Int8,
    Median,
    PoissonSampling,
    SecureAggregation,
    SpeedTiers,
    TooFewRepliesError,
    UniformFraction,
    Utility,
    VirtualClients,
)
from fedapps.strategies.arrays import Buffers
from fedapps.strategies.masking import Cohort, split_secret
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from masked_rounds import SeenGrid, masked_strategy, run_masked, updates_app
from scipy.stats import chi2
from scripted_grid import ScriptedGrid
from toys import arrays_of, record_of, same_bits

pytestmark = pytest.mark.usefixtures("flower_identity")
START = {"w": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4), "b": np.zeros((), np.float32)}


def change(partition, received):
    rng = np.random.default_rng(partition)
    return {name: rng.normal(0, 0.3, array.shape).astype(np.float32) for name, array in received.items()}


def expected(part, nodes, survivors):
    """The mean of the survivors' integers, summed in Python."""
    encoding, sums = part.plan(nodes)[2], 0
    for partition in survivors:
        trained = {name: START[name] + update for name, update in change(partition, START).items()}
        rounding = np.random.default_rng(partition)
        sums = sums + encoding.encode(START, trained, Buffers(), 1, {}, rounding, rounding).astype(object)
    total = np.array([int(value) % 2**32 for value in sums], np.uint32)
    return encoding.decode(total, START, Buffers())[0]


@pytest.mark.parametrize(
    ("nodes", "neighbours", "dropouts"),
    [
        (3, 0, {}),
        (10, 0, {}),
        (10, 0, {"keys": [1]}),
        (10, 0, {"shares": [1, 4]}),
        (10, 0, {"masked": [0, 4, 9]}),
        (10, 0, {"unmask": [2, 5, 9]}),
        (10, 0, {"shares": [3], "masked": [7], "unmask": [8]}),
        (10, 4, {}),
        (10, 4, {"masked": [6]}),
        (50, 0, {"keys": [3], "shares": [4, 5], "masked": [6, 49], "unmask": [0, 1]}),
        # Of a node and its 12 neighbours, drawn at random, 10 must stay: three of them can leave.
        (50, 12, {"keys": [3], "shares": [4], "masked": [49], "unmask": [0]}),
        (50, 0, {"masked": range(16)}),
    ],
)
def test_the_sum_is_that_of_the_survivors_integers(nodes, neighbours, dropouts):
    part = SecureAggregation(neighbours, clip=4.0)
    arrays, strategy, _ = run_masked(part, updates_app(change, dropouts), START, nodes)
    gone = {node for step in ("keys", "shares", "masked") for node in dropouts.get(step, ())}
    survivors = sorted(set(range(nodes)) - gone)
    assert same_bits(arrays_of(arrays), expected(part, nodes, survivors))
    assert strategy.report.replies == len(survivors)


def test_a_node_whose_neighbours_have_all_dropped_out_before_training_needs_no_shares():
    """Nobody has added a mask for node 0."""
    gone = set()

    class Apart(SeenGrid):
        def push_messages(self, messages):
            messages = list(messages)
            for asked in (m.content["secagg"] for m in messages if m.metadata.message_type == "query.secagg"):
                if asked["step"] == "shares":
                    keys = tuple(asked["keys"][begin : begin + 64] for begin in range(0, 7 * 64, 64))
                    gone.update(Cohort(asked["session"], keys, 2, 2).neighbours_of(0))
            return super().push_messages(messages)

    part, app = SecureAggregation(2, threshold=0.5, clip=4.0), updates_app(change, {"shares": gone})
    grid = Apart(app, [{"secagg-min-threshold": 0.5}] * 7)
    result = masked_strategy(part).start(grid, record_of(START), num_rounds=1)
    assert same_bits(arrays_of(result.arrays), expected(part, 7, set(range(1, 7)) - gone))


# -- too few nodes ----------------------------------------------------------------------------------------------------


def asked(grid, step):
    return [m for m in grid.sent if "secagg" in m.content and m.content["secagg"].get("step") == step]


@pytest.mark.parametrize("step", ["keys", "shares", "masked"])
def test_with_one_node_fewer_than_the_threshold_the_round_ends_and_no_share_is_released(step):
    # 7 of 10 must stay. Who drops out before the keys are there does not count.
    gone = [0, 3, 5, 9] if step != "keys" else range(8)
    app, grids = updates_app(change, {step: gone}), []
    with pytest.raises(TooFewRepliesError, match=r"secure aggregation: \d nodes are left, but \d are needed"):
        run_masked(SecureAggregation(), app, START, 10, grids=grids)
    assert not asked(grids[0], "unmask")


def test_with_one_node_fewer_in_one_neighbourhood_the_round_ends():
    nodes, grids = 12, []
    first, *_ = run_masked(SecureAggregation(4), updates_app(change), START, nodes)
    assert first
    # 4 of each 5 must stay: of any two that are gone, some pair has a common neighbour
    with pytest.raises(TooFewRepliesError, match=r"\d nodes are left, but 4 are needed"):
        run_masked(SecureAggregation(4), updates_app(change, {"masked": range(5)}), START, nodes, grids=grids)
    assert not asked(grids[0], "unmask")


def test_with_one_node_fewer_in_the_last_exchange_the_masks_stay():
    app = updates_app(change, {"unmask": [0, 3, 5, 9]})
    with pytest.raises(TooFewRepliesError, match="6 shares of a secret: 7 are needed"):
        run_masked(SecureAggregation(), app, START, 10)


def test_fewer_than_min_replies_are_not_unmasked():
    grids = []
    with pytest.raises(TooFewRepliesError, match="8 nodes are left, but 9 are needed"):
        run_masked(SecureAggregation(), updates_app(change, {"masked": [1, 2]}), START, 10, min_replies=9, grids=grids)
    assert not asked(grids[0], "unmask")


def test_two_nodes_are_too_few():
    with pytest.raises(TooFewRepliesError, match="2 nodes are left, but 3 are needed"):
        run_masked(SecureAggregation(), updates_app(change), START, 2)


# -- the mean ---------------------------------------------------------------------------------------------------------


def test_the_mean_is_that_of_fedavg_up_to_the_rounding():
    arrays, *_ = run_masked(SecureAggregation(clip=4.0, bits=16), updates_app(change), START, 9)
    plain = {name: START[name] + np.mean([change(n, START)[name] for n in range(9)], 0) for name in START}
    for name, array in arrays_of(arrays).items():
        assert np.abs(array - plain[name]).max() <= 4.0 * 2.0**-15


def test_weights_by_examples_up_to_a_maximum_and_metrics_travel_in_the_sum():
    examples, loss = [1, 2, 5, 1000], [0.5, 1.0, 9.0, 2.0]
    app = updates_app(change, metrics=lambda n: {"num-examples": examples[n], "loss": loss[n], "accuracy": 0.1})
    part = SecureAggregation(clip=4.0, max_weight=10, metrics={"loss": 4.0})
    arrays, strategy, grid = run_masked(part, app, START, 4, weighting="num-examples")
    weights = np.array([1, 2, 5, 10])
    for name, array in arrays_of(arrays).items():
        mean = np.average([change(n, START)[name] for n in range(4)], axis=0, weights=weights)
        np.testing.assert_allclose(array, START[name] + mean, atol=1e-5)
    # the third is clipped to 4; the accuracy stays on the nodes, and so does what each of them says
    assert strategy.report.train == {
        "num-examples": 18, "loss": pytest.approx(np.average([0.5, 1.0, 4.0, 2.0], weights=weights), abs=1e-5)
    }  # fmt: skip
    assert {(node.num_examples, len(node.metrics)) for node in strategy.report.nodes} == {(1.0, 0)}
    replies = [content for _, kind, content in grid.seen if kind == "train"]
    assert all(list(content) == ["secagg.masked"] for content in replies)


def test_buffers_have_a_scale_of_their_own_and_the_counter_of_a_normalisation_stays():
    start = {
        "w": np.zeros(2, np.float32),
        "bn.running_var": np.ones(2, np.float32),
        "bn.num_batches_tracked": np.array(5),
    }

    def update(partition, received):
        return {"w": np.ones(2, np.float32), "bn.running_var": np.full(2, 3.0 * partition), "bn.num_batches_tracked": 1}

    part = SecureAggregation(clip=2.0, buffer_clip=5.0, bits=20)
    arrays = arrays_of(run_masked(part, updates_app(update), start, 3)[0])
    np.testing.assert_allclose(arrays["bn.running_var"], 1 + (0 + 3 + 5) / 3, atol=5 * 2.0**-19)
    assert arrays["bn.num_batches_tracked"] == 5


def test_an_integer_array_is_refused():
    with pytest.raises(ValueError, match="array 'steps' is int64"):
        run_masked(SecureAggregation(), updates_app(lambda *_: {}), {"steps": np.array([1])}, 3)


def test_noise_of_the_nodes_is_that_of_the_sum():
    start = {"w": np.zeros(4000, np.float32)}
    part = SecureAggregation(clip=1.0, noise=2.0)
    arrays, *_ = run_masked(part, updates_app(lambda *_: {"w": np.zeros(4000)}), start, 10)
    # 7 of 10 must stay, 10 did: √(10/7) times z clip in the sum
    assert abs(arrays_of(arrays)["w"].std() * 10 / 2.0 - np.sqrt(10 / 7)) < 0.05


def test_an_update_that_is_not_finite_adds_nothing():
    def update(partition, received):
        return {"w": np.full(2, np.nan if partition == 1 else 1.0)}

    arrays, strategy, _ = run_masked(SecureAggregation(), updates_app(update), {"w": np.zeros(2, np.float32)}, 4)
    np.testing.assert_allclose(arrays_of(arrays)["w"], 1.0, atol=1e-5)
    assert strategy.report.train["num-examples"] == 3


# -- what the server sees ---------------------------------------------------------------------------------------------


def uniform(values):
    """The p-value of a chi-square test that all upper bytes are equally frequent."""
    counts = np.bincount((values >> np.uint32(24)).astype(int), minlength=256)
    statistic = np.square(counts - values.size / 256).sum() / (values.size / 256)
    return chi2.sf(statistic, 255)


def vectors(grid):
    """The masked vectors by node id and round of sending."""
    return [(node, arrays_of(content["secagg.masked"])["sum"]) for node, kind, content in grid.seen if kind == "train"]


def test_a_masked_vector_is_uniform_whatever_the_update():
    start = {"w": np.zeros(1_000_000, np.float32)}
    for size in (0.0, 1e-3):
        app = updates_app(lambda _, received, size=size: {"w": np.full(received["w"].size, size)})
        seen = [vector for _, vector in vectors(run_masked(SecureAggregation(), app, start, 3)[2])]
        assert len(seen) == 3
        assert all(uniform(vector) > 0.001 for vector in seen)
        assert abs(np.corrcoef(*(vector.astype(float) for vector in seen[:2]))[0, 1]) < 0.005


def test_two_masked_vectors_of_a_node_are_independent():
    start = {"w": np.zeros(1000, np.float32)}
    app = updates_app(lambda *_: {"w": np.zeros(1000)})
    seen = vectors(run_masked(SecureAggregation(), app, start, 3, rounds=2)[2])
    for node in {node for node, _ in seen}:
        one, other = (vector for number, vector in seen if number == node)
        assert np.mean(one == other) < 0.01


# -- rounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["keys", "shares", "masked", "unmask"])
def test_a_server_that_dies_after_an_exchange_repeats_the_round_with_new_keys(step):
    class Killed(SeenGrid):
        alive = False

        def push_messages(self, messages):
            messages = list(messages)
            secagg = messages[0].content.get("secagg", {}) if messages else {}
            if not self.alive and secagg and secagg.get("step", "masked") == step:
                self.alive = True
                super().send_and_receive(messages)  # the nodes have answered
                raise KeyboardInterrupt
            return super().push_messages(messages)

    class Releases(Callback):
        rounds = ()

        def before_training(self, run, server_round):
            self.rounds += (server_round,)

    releases, grid = Releases(), Killed(updates_app(change), [{}] * 4)
    for attempt in range(2):
        strategy = masked_strategy(SecureAggregation(clip=4.0))
        run = lambda: strategy.start(grid, record_of(START), num_rounds=1, callbacks=[releases])  # noqa: B023, E731
        if attempt == 0:
            with pytest.raises(KeyboardInterrupt):
                run()
        else:
            result = run()
    assert same_bits(arrays_of(result.arrays), expected(SecureAggregation(clip=4.0), 4, range(4)))
    assert releases.rounds == (1, 1)
    answers = [content["secagg"] for _, _, content in grid.seen if "secagg" in content]
    keys = [answer["keys"] for answer in answers if "keys" in answer]
    assert len(keys) == len(set(keys)) == 8


def test_a_round_closes_with_over_selection_and_who_is_late_has_dropped_out():
    app = updates_app(change)
    grid = ScriptedGrid(app, 8, lambda partition, training: 50.0 if partition == 2 and not training else 1.0)
    closing = Closing(over_selection=1.3)
    strategy = masked_strategy(SecureAggregation(clip=4.0), closing=closing, sampler=UniformFraction(0.75))
    reports = []
    strategy.start(grid, record_of(START), num_rounds=3, callbacks=[Each(reports.append)])
    assert [report.replies for report in reports] == [6, 6, 6]


def test_the_records_have_the_exchanges():
    _, strategy, _ = run_masked(SecureAggregation(), updates_app(change, {"shares": [1]}), START, 5)
    (secagg,) = strategy._secure_info()["secagg"]
    assert (secagg["cohort"], secagg["neighbours"], secagg["threshold"]) == ("", 4, 4)
    exchanges = secagg["exchanges"]
    assert {name: (of["asked"], of["answered"]) for name, of in exchanges.items()} == {
        "keys": (5, 5), "shares": (5, 4), "masked": (4, 4), "unmask": (4, 4)
    }  # fmt: skip
    assert exchanges["masked"]["bytes_up"] > 4 * 14 * 4
    assert {refusal.node for refusal in strategy.report.refused} == {"node-3"}
    assert strategy.report.bytes_up >= sum(of["bytes_up"] for of in exchanges.values())


# -- what it cannot be combined with ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"aggregation": Median()}, "aggregation = Median.*compares single updates"),
        ({"compression": Int8()}, "compression = Int8.*integers already"),
        ({"privacy": CentralPrivacy(1.0, 1.0, 4)}, "privacy = CentralPrivacy.*nodes clip and add noise"),
        ({"sampler": Utility(0.5, 0)}, "sampler = Utility.*by what each of them reports"),
        ({"sampler": SpeedTiers(0.5, 0)}, "sampler = SpeedTiers.*by what each of them reports"),
        ({"weighting": "num-examples"}, "weighting = num-examples.*needs a max_weight above 1"),
        ({"weighting": lambda examples: 1.0}, "weighting = .*nodes weigh the same, or by their examples"),
        ({"closing": Closing(deadline=1.0, late="fold")}, "closing = late 'fold'.*in no sum"),
        ({"train_metrics_aggr_fn": lambda *_: None}, "train_metrics_aggr_fn.*reads single replies"),
        ({"fraction_evaluate": 0.5}, "evaluate_sampler = .*a reply shows the metrics of its node"),
        (
            {"closing": Closing(1.3), "secure_aggregation": SecureAggregation(noise=1.0)},
            "closing = .*another can take its place",
        ),
        ({"held_out": HeldOut(keys=["a"])}, "held_out = .*a reply shows the metrics of its node"),
        ({"arrayrecord_key": "weights"}, "arrayrecord_key.*nodes read 'arrays' and 'config'"),
    ],
)
def test_parts_that_need_more_than_the_sum_are_refused_by_name(arguments, message):
    with pytest.raises(ValueError, match=f"secure_aggregation = SecureAggregation.*cannot be used with {message}"):
        BaseStrategy(**{"weighting": "uniform", "secure_aggregation": SecureAggregation(), **arguments})
    with pytest.raises(ValueError, match="weighting = uniform, because max_weight = 5 weighs nodes by their examples"):
        BaseStrategy(weighting="uniform", secure_aggregation=SecureAggregation(max_weight=5))


CITIES = {"groups": ["city"], "intervals": [2], "weighting": "uniform", "node_wait": 0.0}


def in_cities(app, cities):
    """The app, whose nodes say in which city they are."""

    @app.query("profile")
    def profile(message, context):
        partition = int(context.node_config["partition-id"])
        content = {"key": f"node-{partition}", "num-examples": 1, "group.city": cities[partition]}
        return Message(RecordDict({"profile": ConfigRecord(content)}), reply_to=message)

    return app


def test_each_cluster_that_is_large_enough_has_a_sum_of_its_own():
    """Nodes 0, 2, 4, 6 in one city, 1, 3, 5 in another, of which one drops out, and 7 alone."""
    app = in_cities(updates_app(change, {"masked": [5]}), "abababac")
    part, grid = SecureAggregation(clip=4.0), SeenGrid(app, [{}] * 8)
    strategy = HierarchicalFedAvg(secure_aggregation=part, **CITIES)
    strategy.start(grid, record_of(START), num_rounds=1)
    models = strategy.cluster_models()
    assert models.keys() == {"a"}
    assert same_bits(models["a"], expected(part, 4, [0, 2, 4, 6]))
    assert strategy.round_info()["replies"] == {"a": 4}
    assert [of["cohort"] for of in strategy._secure_info()["secagg"]] == ["a", "b", "c"]
    assert {message.metadata.dst_node_id for message in asked(grid, "unmask")} == {2, 4, 6, 8}  # of partitions 0 to 6
    with pytest.raises(ValueError, match="cannot be used with this strategy, because its clusters exist only where"):
        HierarchicalFedAvg(secure_aggregation=SecureAggregation(noise=1.0), **CITIES)


def test_a_late_node_of_a_cluster_that_has_closed_is_in_no_sum():
    """The clusters are summed one after another: the reply of node 0 arrives while the second one is open."""
    app, reports = in_cities(updates_app(change), "aaaabbbb"), []
    part = SecureAggregation(clip=4.0)
    grid = ScriptedGrid(app, 8, lambda partition, training: {0: 9.5, 7: 4.8}.get(partition, 1.0))
    strategy = HierarchicalFedAvg(secure_aggregation=part, closing=Closing(deadline=5.0), **CITIES)
    strategy.start(grid, record_of(START), num_rounds=1, callbacks=[Each(reports.append)])
    assert [late.node for late in reports[0].dropped] == ["node-0"]
    for city, nodes in (("a", [1, 2, 3]), ("b", [4, 5, 6, 7])):
        for name, array in expected(part, 4, nodes).items():
            np.testing.assert_allclose(strategy.cluster_models()[city][name], array, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_a_round_that_draws_fewer_than_three_nodes_by_chance_changes_nothing(seed):
    sampler, reports = PoissonSampling(0.3, seed), []
    strategy = masked_strategy(SecureAggregation(clip=4.0), sampler=sampler, min_replies=0, fraction_evaluate=0.0)
    grid = SeenGrid(updates_app(change), [{}] * 6)
    strategy.start(grid, record_of(START), num_rounds=8, callbacks=[Each(reports.append)])
    replies = [report.replies for report in reports]
    assert len(replies) == 8
    assert 0 in replies
    assert all(count == 0 or count >= 3 for count in replies)


def test_an_own_strategy_that_reads_replies_is_refused_and_one_that_reads_the_mean_is_not():
    class Reads(BaseStrategy):
        def fold(self, reply, aggregate):
            print(reply.profile.key)

    class Steps(BaseStrategy):
        def close_round(self, server_round, current, aggregate):
            return aggregate

    with pytest.raises(ValueError, match=r"it reads single replies \(fold\)"):
        Reads(weighting="uniform", secure_aggregation=SecureAggregation())
    Steps(weighting="uniform", secure_aggregation=SecureAggregation())


def test_a_node_that_gets_several_messages_is_refused():
    strategy = VirtualClients(
        sampler=IndependentDraws(9), steps=1, fraction_evaluate=0.0, secure_aggregation=SecureAggregation()
    )
    with pytest.raises(ValueError, match="a node gets several messages in a round, but it has one mask"):
        strategy.start(SeenGrid(in_cities(updates_app(change), "aaa"), [{}] * 3), record_of(START), num_rounds=1)


@pytest.mark.parametrize(
    "arguments", [{"neighbours": 1}, {"neighbours": -1}, {"threshold": 0.4}, {"threshold": 1.0}, {"bits": 32}]
)
def test_parameters_out_of_range_are_refused(arguments):
    ((name, value),) = arguments.items()
    with pytest.raises(ValueError, match=f"{name} = {value}"):
        SecureAggregation(**arguments)


def test_a_sum_over_more_nodes_than_fit_is_refused_before_any_message():
    grid = SeenGrid(updates_app(change), [{}] * 5)
    with pytest.raises(ValueError, match="a sum over 5 nodes of weight up to 1 needs 33 bits"):
        masked_strategy(SecureAggregation(bits=30)).start(grid, record_of(START), num_rounds=1)
    assert not grid.sent


@pytest.mark.parametrize(("nodes", "expected"), [(3, (2, 3)), (10, (9, 7)), (64, (63, 43)), (1000, (8, 7))])
def test_neighbours_and_threshold_follow_from_the_number_of_nodes(nodes, expected):
    part = SecureAggregation(7 if nodes == 1000 else 0, bits=20)
    assert part.plan(nodes)[:2] == expected


# -- replies that do not follow the protocol --------------------------------------------------------------------------


class Spoilt(SeenGrid):
    """The vector of one node has more than it may, and its weight is another."""

    more, weight = 2**30, 0

    def _answer(self, message):
        reply = super()._answer(message)
        if message.metadata.message_type == "train" and message.metadata.dst_node_id == 2:
            total = arrays_of(reply.content["secagg.masked"])["sum"].copy()
            total[:-1] += np.uint32(self.more)
            total[-1:] += np.uint32(self.weight % 2**32)
            reply.content["secagg.masked"] = record_of({"sum": total})
        return reply


def test_a_rogue_node_moves_the_mean_no_further_than_the_clip():
    grid, start = Spoilt(updates_app(lambda *_: {"w": np.zeros(1000)}), [{}] * 5), {"w": np.zeros(1000, np.float32)}
    result = masked_strategy(SecureAggregation(clip=1.0)).start(grid, record_of(start), num_rounds=1)
    assert np.linalg.norm(arrays_of(result.arrays)["w"]) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("weight", [-4, 1, 1000])
def test_a_sum_with_an_impossible_weight_ends_the_round(weight):
    grid = Spoilt(updates_app(change), [{}] * 4)
    grid.weight = weight if weight != -4 else -5
    with pytest.raises(TooFewRepliesError, match="a node sent a wrong update: the sum has the weight"):
        masked_strategy(SecureAggregation()).start(grid, record_of(START), num_rounds=1)


def test_shares_of_another_key_end_the_round(monkeypatch):
    calls = count()

    def split(secret, *more):
        return split_secret(bytes(31) + b"1" if next(calls) == 0 else secret, *more)

    monkeypatch.setattr("fedapps.strategies.secure_node.split_secret", split)
    with pytest.raises(TooFewRepliesError, match="the shares of a key are wrong"):
        run_masked(SecureAggregation(), updates_app(change, {"masked": [0]}), START, 4)


def test_the_sum_of_two_nodes_is_not_read_whatever_the_threshold_says():
    nodes = [{"secagg-min-threshold": 0.5}] * 3
    with pytest.raises(TooFewRepliesError, match="2 nodes are left, but 3 are needed"):
        run_masked(SecureAggregation(threshold=0.5), updates_app(change, {"masked": [1]}), START, nodes)


def test_a_node_with_another_run_config_than_most_has_no_part():
    class Other(SeenGrid):
        def _answer(self, message):
            reply = super()._answer(message)
            if message.metadata.dst_node_id == 2 and "config" in reply.content["secagg"]:
                reply.content["secagg"]["config"] = bytes(32)
            return reply

    strategy = masked_strategy(SecureAggregation())
    with pytest.raises(TooFewRepliesError, match="2 nodes are left, but 3 are needed"):
        strategy.start(Other(updates_app(change), [{}] * 3), record_of(START), num_rounds=1)
    (refused,) = strategy.report.refused
    assert (refused.node, refused.reason) == ("node-2", "secure aggregation: its run config is not that of most nodes")


@pytest.mark.parametrize("spoil", ["more", "dtype", "shape", "name", "metrics"])
def test_a_reply_that_is_no_masked_vector_is_refused(spoil):
    class Rogue(SeenGrid):
        def _answer(self, message):
            reply = super()._answer(message)
            if message.metadata.message_type == "train" and message.metadata.dst_node_id == 2:
                total = arrays_of(reply.content["secagg.masked"])["sum"]
                content = {
                    "more": {"sum": total, "another": total},
                    "dtype": {"sum": total.astype(np.int64)},
                    "shape": {"sum": total[1:]},
                    "name": {"other": total},
                    "metrics": {"sum": total},
                }[spoil]
                more = {"metrics": MetricRecord({"loss": 1.0})} if spoil == "metrics" else {}
                reply.content = RecordDict({"secagg.masked": record_of(content), **more})
            return reply

    grid = Rogue(updates_app(change), [{}] * 4)
    strategy = masked_strategy(SecureAggregation(clip=4.0))
    result = strategy.start(grid, record_of(START), num_rounds=1)
    assert same_bits(arrays_of(result.arrays), expected(SecureAggregation(clip=4.0), 4, [1, 2, 3]))
    assert [refusal.node for refusal in strategy.report.refused] == ["node-2"]


@pytest.mark.parametrize(
    ("step", "changes"),
    [
        ("keys", {"keys": bytes(64)}),  # of low order
        ("keys", {"keys": b"short"}),
        ("keys", {"keys": 7}),
        ("keys", {"keys": "of the next node"}),
        ("shares", {"shares": [b"one"]}),
        ("shares", {"shares": 7}),
        ("unmask", {"of-survivors": 7}),
        ("unmask", {"of-survivors": [b"short"] * 4}),
    ],
)
def test_a_node_with_a_malformed_answer_has_dropped_out(step, changes):
    class Rogue(SeenGrid):
        keys = b""

        def _answer(self, message):
            reply = super()._answer(message)
            asked, node = message.content.get("secagg", {}), message.metadata.dst_node_id
            if asked.get("step") == "keys" and node == 2:
                self.keys = reply.content["secagg"]["keys"]
            if asked.get("step") == step and node == 3:
                copied = {"keys": self.keys} if changes.get("keys") == "of the next node" else changes
                reply.content["secagg"] = ConfigRecord({**reply.content["secagg"], **copied})
            return reply

    grid = Rogue(updates_app(change), [{}] * 4)
    result = masked_strategy(SecureAggregation(clip=4.0)).start(grid, record_of(START), num_rounds=1)
    nodes = range(4) if step == "unmask" else [0, 2, 3]
    assert same_bits(arrays_of(result.arrays), expected(SecureAggregation(clip=4.0), 4, nodes))
