"""Samplers that learn from replies: tiers of equal speed, and utility."""

import time
from collections import Counter
from itertools import pairwise
from math import log, sqrt

import numpy as np
import pytest
from between_rounds import between
from fedapps.strategies.algorithms.h_fl import capped
from fedapps.strategies.base import BaseStrategy
from fedapps.strategies.profiles import Profile
from fedapps.strategies.records import nested
from fedapps.strategies.replies import Reply
from fedapps.strategies.speed_samplers import SpeedTiers, Utility
from flwr.app import MetricRecord, RecordDict
from grouped import MemoryCheckpoints
from hypothesis import given
from hypothesis import strategies as st
from scripted_grid import ScriptedGrid
from toys import arithmetic_app, record_of

NODES = [Profile(number, f"n{number:02d}") for number in range(10)]


def seen(sampler, times, losses=None, examples=1.0):
    """Let the nodes reply once, in round 1."""
    sampler.sample(NODES, 1, "train")
    for index, seconds in enumerate(times):
        metrics = MetricRecord({} if losses is None else {"loss": float(losses[index])})
        sampler.observe(NODES[index], seconds, Reply(NODES[index], RecordDict(), {}, metrics, examples, 1.0))
    return sampler


def keys(chosen):
    return [node.key for node in chosen]


def test_a_round_takes_nodes_of_one_tier():
    sampler = seen(SpeedTiers(0.2, tiers=5), [10, 1, 9, 2, 8, 3, 7, 4, 6, 5])
    tiers = [{1, 3}, {5, 7}, {9, 8}, {6, 4}, {2, 0}]  # by time: 1 2 | 3 4 | 5 6 | 7 8 | 9 10
    drawn = Counter(
        tiers.index({int(key[1:]) for key in keys(sampler.sample(NODES, r, "train"))}) for r in range(1, 201)
    )
    assert set(drawn) == set(range(5))
    assert max(drawn.values()) < 70


def test_a_tier_that_is_too_small_is_filled_from_the_next_slower_ones():
    sampler = seen(SpeedTiers(0.3, tiers=5), range(1, 11))
    for server_round in range(1, 50):
        chosen = [int(key[1:]) for key in keys(sampler.sample(NODES, server_round, "train"))]
        assert len(set(chosen)) == 3
        low, high = sorted(chosen)[0], sorted(chosen)[-1]
        assert high - low <= 3
    assert keys(sampler.sample(NODES, 1, "evaluate")) != keys(sampler.sample(NODES, 2, "evaluate"))


def test_nodes_that_were_never_timed_come_first():
    sampler = seen(SpeedTiers(0.3), [1.0] * 6)
    assert set(keys(sampler.sample(NODES, 1, "train"))) < {"n06", "n07", "n08", "n09"}
    sampler = seen(SpeedTiers(0.6), [1.0] * 6)
    assert set(keys(sampler.sample(NODES, 1, "train"))) > {"n06", "n07", "n08", "n09"}


def test_the_time_of_a_node_is_a_running_mean():
    sampler = seen(seen(SpeedTiers(), [1.0, 2.0]), [3.0, 2.0])
    assert [seen.seconds for seen in sampler._seen.values()] == pytest.approx([1.6, 2.0])


def test_the_utility_of_nodes():
    sampler = seen(Utility(0.5, alpha=2.0, preferred=0.5), [1, 1, 2, 4, 1], [4, 1, 2, 4, 0])
    found = sampler.utilities([sampler._seen[f"n{i:02d}"] for i in range(5)], 10)
    bonus = sqrt(0.1 * log(10) / 1)  # all were last chosen in round 1
    # T is the median time, 1; the 95 % quantile of the losses is 4
    assert found == pytest.approx([1 + bonus, 0.25 + bonus, (0.5 + bonus) / 4, (1 + bonus) / 16, bonus])


def test_useful_nodes_are_preferred_and_new_ones_explored():
    sampler = seen(Utility(0.4, exploration=0.5), [1] * 8, [9, 8, 1, 1, 1, 1, 1, 1])
    counts = Counter(key for r in range(1, 101) for key in keys(sampler.sample(NODES, r, "train")))
    explored = counts["n08"] + counts["n09"]
    assert explored >= 100  # a half of four in round 1, at least a fifth later
    assert min(counts["n00"], counts["n01"]) > max(counts[f"n{i:02d}"] for i in range(2, 8))


def test_a_slow_node_is_rarely_chosen_and_one_without_a_loss_is_possible():
    sampler = seen(Utility(0.1, exploration=0.0, least_exploration=0.0), [1] * 9 + [100], [1] * 10)
    assert "n09" not in {key for r in range(1, 60) for key in keys(sampler.sample(NODES, r, "train"))}
    silent = seen(Utility(0.3), [1] * 10)
    assert len(silent.sample(NODES, 1, "train")) == 3


@given(
    times=st.lists(st.floats(0, 1e6), max_size=10), losses=st.lists(st.floats(0, 1e9), min_size=10, max_size=10),
    fraction=st.floats(0, 1), number=st.integers(0, 5000), kind=st.sampled_from([SpeedTiers, Utility]),
)  # fmt: skip
def test_the_cohort_has_its_size_each_node_once_and_depends_on_what_was_seen_alone(
    times, losses, fraction, number, kind
):
    sampler = seen(kind(fraction), times, losses)
    count = len(sampler.sample(NODES, number, "evaluate"))
    chosen = keys(sampler.sample(NODES, number, "train"))
    assert len(set(chosen)) == len(chosen) == count
    assert chosen == sorted(chosen)
    again = kind(fraction)
    again.load_state(sampler.state())
    for each in (sampler, again):  # a reply of a message that was in flight
        each.observe(NODES[0], 1.0, Reply(NODES[0], RecordDict(), {}, MetricRecord({"loss": 1.0}), 1.0, 1.0))
    assert again._seen == sampler._seen
    chosen = keys(sampler.sample(NODES, number, "train"))
    assert keys(again.sample(NODES[::-1], number, "train")) == chosen
    assert len(sampler.further(NODES, 3, number, "train")) == 3


@pytest.mark.parametrize("kind", [SpeedTiers, Utility])
def test_a_strategy_tells_its_sampler_the_times_and_a_resumed_run_knows_them(kind):
    def train(partition, arrays, config):
        return {"w": arrays["w"] + 1}, {"num-examples": 2, "loss": float(partition)}

    def run(rounds, kept, **options):
        grid = ScriptedGrid(arithmetic_app(train), 6, lambda partition, training: 1.0 + partition)
        strategy = BaseStrategy(sampler=kind(0.5))
        strategy.start(grid, record_of({"w": np.zeros(1)}), num_rounds=rounds, **between(checkpoints=kept, **options))
        return nested(strategy.sampler.state())["seen"], [partition for _, partition, _ in grid.sent]

    whole, parts = MemoryCheckpoints(), MemoryCheckpoints()
    state, sent = run(8, whole)
    seconds = {key: numbers[0] for key, numbers in state.items()}
    assert seconds == pytest.approx({f"part-{partition}": 1.0 + partition for partition in set(sent)})
    _, first = run(4, parts)
    resumed, second = run(8, parts, resume=True)
    assert first + second == sent
    assert resumed == state


def test_a_real_node_is_as_fast_as_it_replies_whoever_is_before_it(monkeypatch):
    class Real:
        """The scripted nodes by the clock of the machine; the server has no room for early replies."""

        def __init__(self):
            app = arithmetic_app(lambda partition, arrays, config: (arrays, {"num-examples": 1}))
            self.nodes = ScriptedGrid(app, 6, lambda partition, training: 6.0 - partition)
            self.get_node_ids, self.push_messages = self.nodes.get_node_ids, self.nodes.push_messages
            self.pull_messages = self.nodes.pull_messages

        def sleep(self, seconds):
            self.nodes.time += seconds

    grid, strategy = Real(), BaseStrategy(sampler=SpeedTiers(), profiles=True)
    monkeypatch.setattr("fedapps.strategies.loop.MAX_BUFFERED_BYTES", 0)
    monkeypatch.setattr(time, "monotonic", lambda: grid.nodes.time)
    monkeypatch.setattr(time, "sleep", grid.sleep)
    strategy.start(grid, record_of({"w": np.zeros(1)}), num_rounds=1)
    found = {key: numbers[0] for key, numbers in nested(strategy.sampler.state())["seen"].items()}
    assert found == pytest.approx({f"part-{partition}": 6.0 - partition for partition in range(6)}, abs=0.5)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [(SpeedTiers, {"tiers": 0}), (Utility, {"alpha": -1.0}), (Utility, {"preferred": 0.0}), (Utility, {"decay": 1.5}),
     (Utility, {"fraction": 2.0})],
)  # fmt: skip
def test_ranges(kind, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        kind(**wrong)


# A cap on the share of single terms in a weighted mean.


WEIGHTS = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=8)


def test_by_hand():
    assert capped([6.0, 3.0, 1.0], 0.5) == ([0.5, pytest.approx(0.375), pytest.approx(0.125)], 0.0)
    # 8 of 10 is cut to .4; then 1.5 of 2 would have .45 of the rest and is cut, too.
    assert capped([8.0, 1.5, 0.5], 0.4) == ([0.4, 0.4, pytest.approx(0.2)], 0.0)
    assert capped([1.0], 0.25) == ([0.25], 0.75)
    assert capped([1.0, 1.0], 0.25) == ([0.25, 0.25], 0.5)


@given(WEIGHTS)
def test_a_cap_of_one_changes_no_bit(weights):
    assert capped(weights, 1.0) == (weights, 0.0)


@given(WEIGHTS, st.floats(0.01, 1))
def test_no_share_is_above_the_cap_and_nothing_is_lost(weights, cap):
    limited, rest = capped(weights, cap)
    total = sum(limited) + rest
    assert max(limited) <= cap * total * (1 + 1e-9)
    assert 0 <= rest < 1
    assert rest == pytest.approx(max(0.0, 1 - cap * len(weights)) * total, abs=1e-9)
    order = sorted(range(len(weights)), key=weights.__getitem__)
    assert all(limited[a] <= limited[b] * (1 + 1e-9) for a, b in pairwise(order))


def test_the_loss_can_have_another_name_and_its_lack_is_said_once(caplog):
    sampler = Utility(0.5, loss="train_loss")
    for name in ("train_loss", "loss", "loss"):
        node = NODES[name == "loss"]
        sampler.observe(node, 1.0, Reply(node, RecordDict(), {}, MetricRecord({name: 2.0}), 3.0, 1.0))
    assert [sampler._seen[node.key].utility for node in NODES[:2]] == [6.0, 0.0]
    assert [message for message in caplog.messages if "reports no metric 'train_loss'" in message] == caplog.messages
    assert len(caplog.messages) == 1
