"""Rounds that close at enough replies or at a deadline, and what becomes of late replies."""

from collections import Counter
from math import inf

import numpy as np
import pytest
from between_rounds import between
from fedapps.strategies.algorithms.apfl import AdaptiveRates
from fedapps.strategies.arrays import Buffers
from fedapps.strategies.base import BaseStrategy
from fedapps.strategies.closing import Closing, Staleness, brought_forward
from fedapps.strategies.privacy import CentralPrivacy
from fedapps.strategies.records import LateReply, TooFewRepliesError
from fedapps.strategies.robust import Median
from fedapps.strategies.samplers import DropSchedule, FixedNodes, InTurn, PoissonSampling, UniformFraction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted_grid import ScriptedGrid, script
from toys import arithmetic_app, arrays_of, record_of

START = {"w": np.zeros(1)}


def add(partition, arrays, config):
    """Node k adds k + 1."""
    return {"w": arrays["w"] + partition + 1}, {"num-examples": 1, "loss": 0.0}


def run(strategy, durations, *, num_nodes, num_rounds, train=add, **options):
    grid, reports = ScriptedGrid(arithmetic_app(train), num_nodes, durations), []
    options = {"timeout": 100, "evaluate_every": num_rounds, **options}
    result = strategy.start(
        grid, record_of(START), num_rounds=num_rounds, **between(on_round=reports.append, **options)
    )
    return float(arrays_of(result.arrays)["w"][0]), reports, grid


def trained(report):
    return [(node.node, node.staleness) for node in report.nodes if node.phase == "train"]


def test_a_round_closes_at_as_many_replies_as_the_sampler_chose():
    # three of four are chosen, all four asked: the slowest is dropped, and is asked again when it has replied
    strategy = BaseStrategy(profiles=True, sampler=UniformFraction(0.75), closing=Closing(over_selection=1.3))
    value, reports, grid = run(strategy, script([1.0], [4.5], [3.0], [2.0]), num_nodes=4, num_rounds=3)
    assert [trained(report) for report in reports] == [
        [("part-0", 0), ("part-3", 0), ("part-2", 0)],
        [("part-0", 0), ("part-3", 0), ("part-2", 0)],  # part-1 works until 4.5
        [("part-0", 0), ("part-3", 0), ("part-2", 0)],
    ]
    assert [report.clock for report in reports] == [3.0, 6.0, 9.0]
    assert [report.dropped for report in reports] == [[], [LateReply("part-1", 1, 4.5)], []]
    assert [(time, partition) for time, partition, _ in grid.sent if partition == 1] == [(0.0, 1), (6.0, 1)]
    assert value == pytest.approx(3 * (1 + 4 + 3) / 3)


def test_a_late_reply_enters_the_next_step_with_the_weight_of_its_staleness():
    closing = Closing(over_selection=1.3, late="fold", staleness=Staleness(a=1.0))
    strategy = BaseStrategy(profiles=True, sampler=UniformFraction(0.75), closing=closing)
    value, reports, _ = run(strategy, script([1.0], [4.5], [3.0], [2.0]), num_nodes=4, num_rounds=2)
    assert trained(reports[1]) == [("part-0", 0), ("part-1", 1), ("part-3", 0), ("part-2", 0)]
    assert value == pytest.approx((1 + 4 + 3) / 3 + (1 + 2 / 2 + 4 + 3) / 4)


def test_an_update_is_brought_forward_in_float64_and_integers_are_those_of_the_node():
    """−1/2 + 1/2 (1 − 2⁻³⁰) is −2⁻³¹, where float32 rounds 1 − 2⁻³⁰ to 1."""
    values = {"start": (2**-30, 1), "trained": (1.0, 5), "current": (-0.5, 3)}
    arrays = {key: {"w": np.array([w], np.float32), "n": np.array(n)} for key, (w, n) in values.items()}
    found = brought_forward(**arrays, weight=0.5, buffers=Buffers(), mixing=False)
    assert (found["w"].dtype, found["w"].tolist(), found["n"]) == (np.float32, [-(2.0**-31)], 5)


def test_a_round_closes_at_its_deadline_once_there_are_enough_replies():
    strategy = BaseStrategy(profiles=True, closing=Closing(deadline=2.5), min_replies=2)
    value, reports, _ = run(strategy, script([1.0], [2.5, 3.0], [9.0]), num_nodes=3, num_rounds=2)
    assert [report.clock for report in reports] == [2.5, 5.5]  # the second waits for its second reply
    assert [trained(report) for report in reports] == [[("part-0", 0), ("part-1", 0)]] * 2
    assert value == 2 * 1.5


def test_all_replies_before_the_deadline_are_a_round_of_fedavg():
    durations = script([1.0], [2.0], [3.0])
    plain, _, _ = run(BaseStrategy(), durations, num_nodes=3, num_rounds=3)
    closing, reports, _ = run(BaseStrategy(closing=Closing(deadline=50.0)), durations, num_nodes=3, num_rounds=3)
    assert closing == plain
    assert [report.clock for report in reports] == [3.0, 6.0, 9.0], "it does not wait for the deadline"


def test_a_node_that_does_not_reply_in_time_is_named_and_asked_again():
    strategy = BaseStrategy(profiles=True, closing=Closing(deadline=2.0))
    _, reports, grid = run(strategy, script([1.0], [inf, 1.0]), num_nodes=2, num_rounds=5, timeout=5)
    assert [report.clock for report in reports] == [2.0, 3.0, 4.0, 5.0, 6.0]  # alone from the second round on
    assert [(r.node, r.reason) for r in reports[4].refused] == [("part-1", "no reply within 5 s")]
    assert [time for time, partition, _ in grid.sent if partition == 1] == [0.0, 5.0]
    assert [len(trained(report)) for report in reports] == [1, 1, 1, 1, 2]


def test_late_nodes_are_waited_for_if_there_are_no_others():
    strategy = BaseStrategy(closing=Closing(deadline=1.0), min_replies=0)
    _, reports, grid = run(strategy, script([3.0, 0.5], [3.0]), num_nodes=2, num_rounds=2)
    assert [report.clock for report in reports] == [1.0, 4.0]
    assert [len(report.dropped) for report in reports] == [0, 2]
    assert [time for time, _, _ in grid.sent] == [0.0, 0.0, 3.0, 3.0]


def test_a_round_that_lacks_replies_fails_as_ever():
    def train(partition, arrays, config):
        raise RuntimeError("out of memory")

    with pytest.raises(TooFewRepliesError, match="out of memory"):
        run(BaseStrategy(closing=Closing(deadline=1.0)), script([1.0]), num_nodes=1, num_rounds=1, train=train)


@pytest.mark.parametrize(("over_selection", "asked"), [(1.0, 10), (1.3, 13), (1.31, 14), (2.0, 20), (9.0, 30)])
def test_how_many_are_asked(over_selection, asked):
    strategy = BaseStrategy(sampler=UniformFraction(1 / 3), closing=Closing(over_selection=over_selection))
    _, _, grid = run(strategy, lambda partition, training: 1.0, num_nodes=30, num_rounds=1)
    assert len(grid.sent) == asked
    assert Closing(over_selection=2.2).asked(25) == 55  # 2.2 · 25 is above 55 in float64


@given(
    durations=st.lists(st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.5, 8.0, inf]), min_size=1, max_size=4), min_size=1,
                       max_size=6),
    over_selection=st.sampled_from([1.0, 1.3, 2.0]), deadline=st.sampled_from([0.7, 2.0, 5.0, inf]),
    late=st.sampled_from(["drop", "fold"]), fraction=st.sampled_from([0.3, 0.6, 1.0]),
)  # fmt: skip
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_no_update_is_counted_twice_or_lost_without_a_record(durations, over_selection, deadline, late, fraction):
    number = iter(range(1000))

    def train(partition, arrays, config):
        return {"w": arrays["w"] + 1}, {"num-examples": 1, "number": float(next(number))}

    strategy = BaseStrategy(
        sampler=UniformFraction(fraction), closing=Closing(over_selection, deadline, late), min_replies=0
    )
    _, reports, grid = run(strategy, script(*durations), num_nodes=len(durations), num_rounds=5, train=train, timeout=9)
    folded = [node for report in reports for node in report.nodes if node.phase == "train"]
    assert max(Counter(node.metrics["number"] for node in folded).values(), default=1) == 1
    refused = sum(len(report.refused) for report in reports)
    dropped = sum(len(report.dropped) for report in reports)
    in_flight = len(strategy.mailbox) if strategy.closing.early else 0
    assert len(grid.sent) == len(folded) + refused + dropped + in_flight
    assert late == "drop" or dropped == 0
    assert all(node.staleness == 0 for node in folded) or late == "fold"


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"closing": Closing(deadline=5.0), "in_flight": 2}, "in_flight = 2 sends"),
        ({"closing": Closing(1.3), "sampler": PoissonSampling(0.5)}, "by chance how many"),
        ({"closing": Closing(1.3), "aggregation": Median()}, "the first to reply"),
        ({"closing": Closing(deadline=5.0, late="fold"), "aggregation": Median()}, "needs a mean"),
        ({"closing": Closing(1.3), "privacy": CentralPrivacy(1.0, 1.0, 5.0)}, "another can take its place"),
        ({"closing": Closing(deadline=5.0), "privacy": CentralPrivacy(1.0, 1.0, 5.0)}, "another can take its place"),
    ],
)
def test_what_does_not_go_together_is_refused(keywords, message):
    with pytest.raises(ValueError, match=message):
        BaseStrategy(**keywords)
    # a deadline alone replaces no node
    BaseStrategy(closing=Closing(deadline=5.0), sampler=PoissonSampling(0.5), aggregation=Median())


def test_an_algorithm_of_one_version_takes_no_late_updates():
    with pytest.raises(ValueError, match="in begin_round, complete, fold, close_round, kept"):
        AdaptiveRates(closing=Closing(1.3, late="fold"))
    AdaptiveRates(closing=Closing(1.3))


@pytest.mark.parametrize(
    "wrong", [{"over_selection": 0.9}, {"over_selection": inf}, {"deadline": 0.0}, {"late": "keep"}]
)
def test_ranges(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Closing(**wrong)


@pytest.mark.parametrize(
    ("sampler", "asked"),
    [(FixedNodes(["part-0", "part-2"]), {0, 2}), (DropSchedule(["part-1"]), {0, 2, 3}), (InTurn(0.5), {2, 3})],
)
def test_spare_nodes_are_those_of_the_sampler(sampler, asked):
    _, _, grid = run(BaseStrategy(sampler=sampler, closing=Closing(2.0)), script(*[[1.0]] * 4), num_nodes=4,
                     num_rounds=1)  # fmt: skip
    assert {partition for _, partition, _ in grid.sent} == asked
