"""BufferedAsync: traces worked out by hand, the degenerate cases, and that no update is lost or counted twice."""

from collections import Counter
from functools import partial
from math import inf

import numpy as np
import pytest
from between_rounds import between
from fedapps.sim.inprocess import InProcessGrid
from fedapps.strategies.algorithms.buffered_async import BufferedAsync
from fedapps.strategies.base import BaseStrategy
from fedapps.strategies.closing import Closing, Staleness
from fedapps.strategies.compression import Int8, compression_mod
from fedapps.strategies.optimizers import SGD
from fedapps.strategies.privacy import CentralPrivacy
from fedapps.strategies.records import TooFewRepliesError, nested, under
from fedapps.strategies.samplers import DropSchedule, FixedNodes, InTurn, PoissonSampling, UniformFraction
from grouped import MemoryCheckpoints, PowerCutError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted_grid import ScriptedGrid, script
from toys import arithmetic_app, arrays_of, record_of, same_bits

SLOPES, TARGETS = (1.0, 3.0), (2.0, -1.0)


def descend(slopes, targets):
    """Two steps of gradient descent with rate 0.1 on f_k = a_k/2 (w - b_k)²."""

    def train(partition, arrays, config):
        w = arrays["w"].copy()
        for _ in range(2):
            w -= 0.1 * slopes[partition] * (w - targets[partition])
        return {"w": w}, {"num-examples": 1, "loss": 0.0}

    return arithmetic_app(train)


Q = descend((1.0, 3.0), (2.0, -1.0))
SECOND = descend((1.0, 3.0), (1.0, -1.0))
Q3 = descend((1.0, 3.0, 2.0), (2.0, -1.0, 0.0))
ZERO = {"w": np.zeros(1)}


def steps_of(strategy, app, durations, *, num_nodes, num_rounds, start=ZERO, **options):
    """The value of w after every step, the reports, and the grid."""
    grid, values, reports = ScriptedGrid(app, num_nodes, durations), [], []

    class Kept(MemoryCheckpoints):
        def save(self, snapshot, *, best):
            values.append(float(snapshot.arrays["shared.w"][0]))
            return super().save(snapshot, best=best)

    strategy.start(
        grid, record_of(start), num_rounds=num_rounds, **between(checkpoints=Kept(), on_round=reports.append, **options)
    )
    return values, reports, grid


# -- by hand: Q and the second world of two quadratics ----------------------------------------------------------


def test_a_fast_node_repeats_and_a_slow_one_is_stale():
    # A (fast) replies twice from v0, then B from v0 (one step old) and A from v1
    values, reports, grid = steps_of(
        BufferedAsync(profiles=True, buffer=2), Q, script([1.0, 1.0, 1.5], [3.0]), num_nodes=2, num_rounds=2
    )
    assert values == pytest.approx([0.38, 0.353588], abs=1e-6)
    assert [[(n.node, n.staleness, n.seconds) for n in r.nodes if n.phase == "train"] for r in reports] == [
        [("part-0", 0, 1.0), ("part-0", 0, 1.0)],
        [("part-1", 1, 3.0), ("part-0", 0, 1.5)],
    ]
    assert [report.clock for report in reports] == [2.0, 3.5]
    assert grid.sent[:4] == [(0.0, 0, 0), (0.0, 1, 0), (1.0, 0, 0), (2.0, 0, 1)]
    assert reports[1].strategy == {"staleness-mean": 0.5, "staleness-max": 1, "in-flight": 1, "versions": 1}


@pytest.mark.parametrize(
    ("staleness", "expected"),
    [
        (Staleness("constant"), 0.2789),  # from w1 = .38: B -.51, A .3078
        (Staleness("polynomial", a=1.0), 0.38 + (-0.51 / 2 + 0.3078) / 2),
        (Staleness("hinge", a=10, b=0), 0.38 + (-0.51 / 11 + 0.3078) / 2),
    ],
)
def test_the_weight_of_a_stale_update(staleness, expected):
    strategy = BufferedAsync(buffer=2, staleness=staleness)
    values, _, _ = steps_of(strategy, Q, script([1.0, 1.0, 1.5], [3.0]), num_nodes=2, num_rounds=2)
    assert values[1] == pytest.approx(expected, abs=1e-6)


def test_five_events_of_the_second_world():
    # both from x0; then node 1 from x0, which it had received before the step (one step old), and node 2 from x1
    values, _, grid = steps_of(
        BufferedAsync(buffer=2), SECOND, script([1.0, 1.5, 9.0], [2.0, 1.0, 9.0]), num_nodes=2, num_rounds=2
    )
    assert values == pytest.approx([-0.16, -0.307025], abs=1e-6)
    assert grid.sent[:4] == [(0.0, 0, 0), (0.0, 1, 0), (1.0, 0, 0), (2.0, 1, 1)]


def test_the_staleness_of_closing_counts_if_there_is_no_other():
    constant, hinge = Staleness("constant"), Staleness("hinge")
    assert BufferedAsync(closing=Closing(deadline=5.0, staleness=constant)).staleness == constant
    assert BufferedAsync(closing=Closing(staleness=constant), staleness=hinge).staleness == hinge


def test_functions_of_staleness():
    assert [Staleness()(tau) for tau in (0, 3)] == [1.0, 0.5]
    assert [Staleness("hinge", a=10, b=4)(tau) for tau in (4, 5, 6)] == [1.0, 1 / 11, 1 / 21]
    assert Staleness("constant")(99) == 1.0


def test_fedasync_mixes_each_reply_with_the_newest_version():
    # two nodes must be there, but a step has one reply
    strategy = BufferedAsync(buffer=1, mixing=True, server_optimizer=SGD(0.6), min_replies=2)
    values, _, _ = steps_of(strategy, Q, script([1.0], [1.5]), num_nodes=2, num_rounds=2)
    first = 0.4 * 0 + 0.6 * 0.38
    share = 0.6 * 2**-0.5
    assert values == pytest.approx([first, (1 - share) * first + share * -0.51], abs=1e-12)


def test_weights_by_examples_and_a_server_optimizer():
    def train(partition, arrays, config):
        return {"w": arrays["w"] + partition + 1}, {"num-examples": partition + 1}

    strategy = BufferedAsync(buffer=2, repeat=False, server_optimizer=SGD(0.5))
    values, _, _ = steps_of(strategy, arithmetic_app(train), script([1.0], [2.0]), num_nodes=2, num_rounds=1)
    assert values == pytest.approx([0.5 * (1 * 1 + 2 * 2) / 3])


def test_buffers_are_mixed_and_integers_taken():
    start = {"bn.running_var": np.ones(1), "w": np.zeros(1), "bn.num_batches_tracked": np.array(5)}

    def train(partition, arrays, config):
        return {
            "bn.running_var": np.array([0.01]),
            "w": arrays["w"] + 1,
            "bn.num_batches_tracked": arrays["bn.num_batches_tracked"] + 1,
        }, {"num-examples": 1}

    grid = ScriptedGrid(arithmetic_app(train), 2, script([1.0, 9.0], [2.0]))
    result = arrays_of(
        BufferedAsync(buffer=1, staleness=Staleness(a=1.0)).start(grid, record_of(start), num_rounds=2).arrays
    )
    assert result["bn.running_var"][0] == pytest.approx(0.5 * 0.01 + 0.5 * 0.01)  # never below what nodes have
    assert result["w"][0] == 1.5
    assert result["bn.num_batches_tracked"] == 6


# -- degenerate cases ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighting", ["uniform", "num-examples"])
@pytest.mark.parametrize("mixing", [False, True])
def test_a_buffer_of_all_nodes_that_wait_is_fedavg_bit_for_bit(weighting, mixing):
    def train(partition, arrays, config):
        grown = arrays["w"] * np.float32(0.7) + np.float32(0.1) * (partition + 1) * config["server-round"]
        return {"w": grown.astype(np.float32)}, {"num-examples": partition + 2, "loss": 0.25 * partition}

    start = {"w": np.linspace(-1, 1, 7, dtype=np.float32)}
    in_order = lambda partition, training: 1.0 + partition  # noqa: E731
    results = []
    for strategy in (
        BaseStrategy(weighting=weighting),
        BufferedAsync(buffer=5, concurrency=5, repeat=False, weighting=weighting, mixing=mixing),
    ):
        grid = ScriptedGrid(arithmetic_app(train), 5, in_order)
        results.append(strategy.start(grid, record_of(start), num_rounds=4))
    assert same_bits(arrays_of(results[0].arrays), arrays_of(results[1].arrays))
    assert results[0].train_metrics_clientapp == results[1].train_metrics_clientapp


def test_compressed_updates_are_restored_from_the_version_that_the_node_received():
    app, strategy = partial(compression_mod, call_next=Q), BufferedAsync(buffer=2, compression=Int8())
    values, reports, _ = steps_of(strategy, app, script([1.0, 1.0, 1.5], [3.0]), num_nodes=2, num_rounds=2)
    assert values == pytest.approx([0.38, 0.353588], abs=1e-6)
    assert not any(report.refused for report in reports)


# -- nodes that leave, fail or sleep ----------------------------------------------------------------------------------


def test_a_node_that_never_replies_delays_nobody_and_is_asked_again_after_its_time():
    values, reports, grid = steps_of(
        BufferedAsync(profiles=True, buffer=2), Q, script([1.0], [inf]), num_nodes=2, num_rounds=3, timeout=5
    )
    assert [report.clock for report in reports] == [2.0, 4.0, 6.0]
    assert [(r.node, r.reason) for report in reports for r in report.refused] == [("part-1", "no reply within 5 s")]
    assert [sent for sent in grid.sent if sent[1] == 1] == [(0.0, 1, 0)]  # it rests until the next step
    assert len(values) == 3


def test_six_nodes_of_which_one_sleeps_take_the_time_of_the_five():
    app, durations = descend([1.0] * 6, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), [[1.0], [1.2], [0.7], [2.0], [1.5]]
    five, six = (
        steps_of(BufferedAsync(buffer=5), app, script(*durations, *asleep), num_nodes=5 + len(asleep), num_rounds=4)
        for asleep in ([], [[inf]])
    )
    assert six[0] == five[0]
    assert [report.clock for report in six[1]] == [report.clock for report in five[1]]


def test_a_node_whose_replies_are_refused_is_asked_once_in_a_step():
    def train(partition, arrays, config):
        w = arrays["w"] + (np.nan if partition else 1)
        return {"w": w}, {"num-examples": 1}

    _, reports, grid = steps_of(
        BufferedAsync(buffer=3), arithmetic_app(train), script([1.0], [0.5]), num_nodes=2, num_rounds=2
    )
    assert [len(report.refused) for report in reports] == [1, 1]
    assert [report.replies for report in reports] == [3, 3]
    assert sum(partition for _, partition, _ in grid.sent) == 2


def test_a_run_ends_when_no_node_can_reply():
    def train(partition, arrays, config):
        raise RuntimeError("out of memory")

    with pytest.raises(TooFewRepliesError, match="out of memory"):
        steps_of(BufferedAsync(buffer=1), arithmetic_app(train), script([1.0], [1.0]), num_nodes=2, num_rounds=1)


def test_updates_that_are_too_old_are_refused_by_name():
    _, reports, _ = steps_of(
        BufferedAsync(profiles=True, buffer=1, max_staleness=1), Q, script([1.0], [2.5]), num_nodes=2, num_rounds=3
    )
    assert [(r.node, r.reason) for report in reports for r in report.refused] == [
        ("part-1", "the update is 2 steps old: at most 1 are accepted")
    ]


def test_nodes_beyond_the_concurrency_take_turns_and_the_sampler_chooses():
    _, _, grid = steps_of(
        BufferedAsync(buffer=1, concurrency=2), descend((1, 1, 1, 1), (1, 2, 3, 4)), script(*[[1.0]] * 4),
        num_nodes=4, num_rounds=20,
    )  # fmt: skip
    assert max(Counter(time for time, _, _ in grid.sent).values()) == 2
    assert {partition for _, partition, _ in grid.sent} == {0, 1, 2, 3}
    sampler = FixedNodes(["part-1", "part-2"])
    _, _, grid = steps_of(
        BufferedAsync(buffer=1, concurrency=2, sampler=sampler), descend((1, 1, 1, 1), (1, 2, 3, 4)),
        script(*[[1.0]] * 4), num_nodes=4, num_rounds=5,
    )  # fmt: skip
    assert {partition for _, partition, _ in grid.sent} == {1, 2}


@pytest.mark.parametrize(("sampler", "at_work"), [(UniformFraction(0.5), 2), (FixedNodes(["part-3"]), 1), (None, 4)])
def test_without_a_concurrency_as_many_nodes_work_as_the_sampler_chooses(sampler, at_work):
    strategy = BufferedAsync(buffer=1, sampler=sampler, profiles=True)
    _, _, grid = steps_of(strategy, FOUR, script(*[[1.0]] * 4), num_nodes=4, num_rounds=9)
    assert Counter(time for time, _, _ in grid.sent)[0.0] == at_work


def test_a_node_that_replies_at_once_gives_its_share_alone():
    durations = script(*([seconds] * 60 for seconds in (0.001, 1.0, 1.0)))
    for share, most in ((1.0, 20), (0.52, 10), (0.5, 10)):
        strategy = BufferedAsync(profiles=True, buffer=1, share=share)
        _, reports, _ = steps_of(strategy, Q3, durations, num_nodes=3, num_rounds=60)
        nodes = [node.node for report in reports for node in report.nodes if node.phase == "train"]
        assert max(nodes[first : first + 20].count("part-0") for first in range(41)) == most


def test_a_repetition_is_marked_in_the_message():
    seen = []
    grid = ScriptedGrid(arithmetic_app(lambda p, a, c: (a, {"num-examples": 1}), seen=seen), 1, script([1.0]))
    BufferedAsync(buffer=2).start(grid, record_of(ZERO), num_rounds=2)
    configs = [message.content["config"] for message in seen if message.metadata.message_type == "train"]
    assert [(c["server-round"], c.get("repeat", 0)) for c in configs] == [(1, 0), (1, 1), (2, 0), (2, 1)]


# -- resume -----------------------------------------------------------------------------------------------------------


FOUR = descend((1, 2, 3, 4), (1, 2, 3, 4))


def run_until(cut, make, grid, kept, reports, **options):
    """Run six rounds; the power fails in the one after ``cut``."""

    def record(report):
        if report.round == cut + 1:
            raise PowerCutError
        reports.append(report)

    make().start(grid, record_of(ZERO), num_rounds=6, **between(checkpoints=kept, on_round=record, **options))


@pytest.mark.parametrize("cut", [1, 2, 4])
@pytest.mark.parametrize(
    "make",
    [
        lambda: BufferedAsync(buffer=2, concurrency=3),
        lambda: BufferedAsync(profiles=True, buffer=2, concurrency=3, share=0.1),
        lambda: BaseStrategy(closing=Closing(deadline=1.5, late="fold"), min_replies=2),
        lambda: BaseStrategy(closing=Closing(over_selection=1.5), sampler=UniformFraction(0.5)),
    ],
)
def test_in_simulated_time_a_resumed_run_repeats_the_bits(make, cut):
    durations, reports, expected = script([1.0], [1.3], [7.0], [2.2]), [], []
    kept, whole = MemoryCheckpoints(), MemoryCheckpoints()
    run_until(inf, make, ScriptedGrid(FOUR, 4, durations), whole, expected)
    with pytest.raises(PowerCutError):
        run_until(cut, make, ScriptedGrid(FOUR, 4, durations), kept, reports)
    run_until(inf, make, ScriptedGrid(FOUR, 4, durations), kept, reports, resume=True)
    facts = [[(r.round, r.clock, r.nodes, r.dropped, r.strategy) for r in found] for found in (reports, expected)]
    assert facts[0] == facts[1]
    assert same_bits(kept.latest().arrays, whole.latest().arrays)


def test_real_nodes_that_were_at_work_are_asked_first_with_the_newest_version():
    seen, kept = [], MemoryCheckpoints()
    app = arithmetic_app(lambda partition, arrays, config: (arrays, {"num-examples": 1, "loss": 0.0}), seen=seen)
    make = lambda: BufferedAsync(profiles=True, buffer=2, concurrency=3)  # noqa: E731
    with pytest.raises(PowerCutError):
        run_until(3, make, InProcessGrid(app, [{}] * 4, {}), kept, [])
    state = nested(under("state.", kept.latest().arrays))
    keys = state["at_work"]
    assert keys
    assert state["in_transit"] == {}
    seen.clear()
    run_until(inf, make, InProcessGrid(app, [{}] * 4, {}), kept, [], resume=True)
    trained = [message for message in seen if message.metadata.message_type == "train"]
    first = [message for message in trained if message.content["config"]["server-round"] == 4]
    assert {int(key.removeprefix("part-")) for key in keys} <= {m.metadata.dst_node_id - 2 for m in first}


def test_a_node_that_joins_late_gets_the_newest_version_and_delays_nobody():
    class Joining(ScriptedGrid):
        def get_node_ids(self):
            return list(super().get_node_ids())[: 3 if self.time >= 3 else 2]

    grid, reports = Joining(FOUR, 3, script([1.0], [1.5], [1.0])), []
    BufferedAsync(buffer=2).start(grid, record_of(ZERO), num_rounds=6, **between(on_round=reports.append))
    joined = [(time, version) for time, partition, version in grid.sent if partition == 2]
    assert joined[0][0] == 3.0
    assert joined[0][1] == max(version for time, _, version in grid.sent if time <= 3)
    assert [report.replies for report in reports] == [2] * 6


# -- the property -----------------------------------------------------------------------------------------------------


@given(
    durations=st.lists(st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.5, 8.0, inf]), min_size=1, max_size=4), min_size=1,
                       max_size=6),
    buffer=st.integers(1, 5), concurrency=st.none() | st.integers(1, 6), repeat=st.booleans(),
    failing=st.sets(st.integers(0, 30), max_size=8), limit=st.none() | st.integers(0, 3),
)  # fmt: skip
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_no_update_is_counted_twice_or_lost_without_a_record(durations, buffer, concurrency, repeat, failing, limit):
    done = []

    def train(partition, arrays, config):
        number = len(done)
        done.append(partition)
        if number in failing:
            raise RuntimeError(f"training {number}")
        return {"w": arrays["w"], "sum": arrays["sum"] + 10.0**-partition}, {"num-examples": 1, "number": float(number)}

    start = {"w": np.zeros(1), "sum": np.zeros(1)}
    grid, reports, oldest = ScriptedGrid(arithmetic_app(train), len(durations), script(*durations)), [], [0]
    strategy = BufferedAsync(profiles=True,
        buffer=buffer, concurrency=concurrency, repeat=repeat, max_staleness=limit, staleness=Staleness("constant"),
        server_optimizer=SGD(float(buffer)),
    )  # fmt: skip

    def record(report):
        reports.append(report)
        oldest.append(min(strategy.mailbox.versions, default=report.round))

    try:
        result = strategy.start(grid, record_of(start), num_rounds=4, timeout=20, **between(on_round=record))
    except TooFewRepliesError:
        result = None
    folded = [node for report in reports for node in report.nodes if node.phase == "train"]
    numbers = [node.metrics["number"] for node in folded]
    assert len(set(numbers)) == len(numbers)
    if result is None:
        return
    refused = sum(len(report.refused) for report in reports)
    assert len(grid.sent) == len(folded) + refused + len(strategy.mailbox)
    for report, version in zip(reports, oldest, strict=False):
        most = max((node.staleness for node in report.nodes if node.phase == "train"), default=0)
        assert most <= report.round - 1 - version, "no update is older than the versions that were in flight"
        assert limit is None or most <= limit
        assert report.strategy["versions"] <= max(report.strategy["in-flight"], 0)
        assert len(strategy.mailbox.nodes) == len(strategy.mailbox), "one message for each node"
    if all(len([n for n in report.nodes if n.phase == "train"]) == buffer for report in reports):
        by_node = Counter(int(node.node.removeprefix("part-")) for node in folded)
        expected = sum(count * 10.0**-partition for partition, count in by_node.items())
        assert arrays_of(result.arrays)["sum"][0] == pytest.approx(expected)


# -- what it refuses ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"buffer": 0}, "buffer = 0"),
        ({"concurrency": 0}, "concurrency = 0"),
        ({"max_staleness": -1}, "max_staleness = -1"),
        ({"in_flight": 3}, "concurrency limits"),
        ({"sampler": PoissonSampling(0.5)}, "chooses whole rounds"),
        ({"sampler": DropSchedule()}, "chooses whole rounds"),
        ({"sampler": InTurn(0.5)}, "chooses whole rounds"),
        ({"privacy": CentralPrivacy(1.0, 1.0, 5.0)}, "a fast node contributes several updates"),
    ],
)
def test_what_does_not_fit_is_refused(keywords, message):
    with pytest.raises(ValueError, match=message):
        BufferedAsync(**keywords)
    with pytest.raises(ValueError, match="kind = 'linear'"):
        Staleness("linear")
