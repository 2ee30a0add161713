"""Nodes that are held out of all rounds: who they are, that no round asks them, and what they are asked afterwards."""

import pytest
from adding_nodes import START, add_partition
from fedapps.strategies.base import BaseStrategy
from fedapps.strategies.profiles import Profile
from fedapps.strategies.registry import HeldOut
from fedapps.strategies.samplers import UniformFraction
from flwr.app import ConfigRecord
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import arithmetic_app, federate


def nodes(*keys, **facts):
    return [Profile(number, key, 5, **facts) for number, key in enumerate(keys, start=1)]


def keys(profiles):
    return [profile.key for profile in profiles]


def test_a_share_is_drawn_once_and_survives_a_snapshot():
    held_out = HeldOut(0.4, seed=1)
    first = keys(held_out.among(nodes("a", "b", "c", "d", "e")))
    assert len(first) == 2
    assert keys(HeldOut(0.4, seed=1).among(nodes("e", "d", "c", "b", "a"))) == first
    later = HeldOut(0.4, seed=1)
    later.load_state(held_out.state())
    more = nodes("a", "b", "c", "d", "e", *"fghijklmnop")  # they join later, and take part
    assert keys(held_out.among(more)) == keys(later.among(more)) == first
    assert [key for key in "abcdefgh" if held_out.holds(key)] == first


@pytest.mark.parametrize(("share", "of", "count"), [(0.2, 5, 1), (0.01, 5, 1), (0.99, 2, 1), (0.5, 1, 0), (0.5, 5, 3)])
def test_a_share_leaves_somebody_to_train(share, of, count):
    assert len(HeldOut(share).among(nodes(*"abcde"[:of]))) == count


def test_only_nodes_with_data_are_drawn():
    idle = [Profile(8, "idle", 0), Profile(9, "empty", 5, no_data="no such folder")]
    for seed in range(20):
        (chosen,) = HeldOut(0.5, seed=seed).among([*nodes("a", "b"), *idle])
        assert chosen.key in "ab"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"share": 1.0}, r"share = 1.0, keys = \[\]: give a share in \[0, 1\), or keys"),
        ({"share": 0.5, "keys": ["a"]}, r"share = 0.5, keys = \['a'\]"),
        ({"keys": "a"}, r"keys = 'a': must be a list of keys, such as \['a'\]"),
        ({"seed": -1}, "seed = -1: must be an integer of at least 0"),
    ],
)
def test_parameters_out_of_range(wrong, said):
    with pytest.raises(ValueError, match=said):
        HeldOut(**wrong)


def test_keys_must_be_those_of_nodes_and_leave_one():
    with pytest.raises(ValueError, match="held-out nodes x: no such node with data; the nodes are a, b"):
        HeldOut(keys=["x", "a"]).among(nodes("a", "b"))
    with pytest.raises(ValueError, match="all nodes are held out; leave some of them to train"):
        HeldOut(keys=["b", "a"]).among(nodes("a", "b"))
    assert keys(HeldOut(keys=["b"]).among(nodes("a", "b", "c"))) == ["b"]


chosen = st.one_of(
    st.builds(HeldOut, share=st.floats(0, 0.99), seed=st.integers(0, 99)),
    st.builds(HeldOut, keys=st.sets(st.sampled_from(["part-0", "part-2"]), max_size=2).map(sorted)),
)


@settings(max_examples=25)
@given(held_out=chosen, num_nodes=st.integers(3, 7), fraction=st.floats(0.1, 1))
def test_no_round_asks_them_and_all_are_asked_afterwards(held_out, num_nodes, fraction):
    asked, reports = [], []

    def work(partition, arrays, config):
        asked.append((f"part-{partition}", "late" if config.get("late") else "round"))
        return add_partition(partition, arrays, config)

    def start(strategy, grid, initial, **options):
        result = strategy.start(grid, initial, **options)
        reports.append(strategy.evaluate_held_out(2, result.arrays, ConfigRecord({"late": True}), grid))
        return result

    strategy = BaseStrategy(held_out=held_out, sampler=UniformFraction(fraction))
    federate(strategy, arithmetic_app(work, work), START, num_nodes=num_nodes, num_rounds=2, start=start)
    aside = {f"part-{number}" for number in range(num_nodes) if strategy.registry.held_out.holds(f"part-{number}")}
    assert {key for key, when in asked if when == "round"} & aside == set()
    assert [key for key, when in asked if when == "late"] == [node.node for node in reports[0].nodes] == sorted(aside)
    if fraction == 1:
        assert len({key for key, when in asked if when == "round"}) == num_nodes - len(aside)


def test_the_report_has_their_metrics_and_their_mean():
    reports = []

    def start(strategy, grid, initial, **options):
        result = strategy.start(grid, initial, **options)
        reports.append(strategy.evaluate_held_out(1, result.arrays, ConfigRecord(), grid))
        return result

    app = arithmetic_app(add_partition, lambda partition, arrays, config: ({}, {"num-examples": 1, "x": partition}))
    strategy = BaseStrategy(held_out=HeldOut(keys=["part-1", "part-2"]))
    federate(strategy, app, START, num_nodes=4, num_rounds=1, start=start)
    assert {node.node: node.metrics for node in reports[0].nodes} == {"part-1": {"x": 1}, "part-2": {"x": 2}}
    assert reports[0].evaluate["x"] == 1.5
