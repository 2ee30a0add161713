"""Nodes that claim another node's key, a group that is not theirs to have, or more examples than they may."""

import logging

import pytest
from fedapps.strategies.base import BaseStrategy
from fedapps.strategies.callbacks import Run
from fedapps.strategies.profiles import Admission, ExampleLimits, Profile
from fedapps.strategies.registry import NodeRegistry
from fedapps.strategies.samplers import ProportionalToSize
from flwr.proto.node_pb2 import NodeInfo
from hypothesis import given
from hypothesis import strategies as st
from profile_grid import ProfileGrid


class Grid(ProfileGrid):
    """Connected nodes: id -> (public key, profile)."""

    def __init__(self, **nodes):
        super().__init__({int(name[1:]): node for name, node in nodes.items()})

    def get_nodes(self):
        return [NodeInfo(node_id=node, public_key=key.encode()) for node, (key, _) in self.nodes.items()]

    def answer(self, node):
        return self.nodes[node][1]


def keys(registry, grid):
    return {profile.node_id: profile.key for profile in registry.connected(grid) if not profile.no_data}


def test_a_bound_key_is_not_taken_over_while_its_node_is_connected(caplog):
    registry = NodeRegistry(admission=Admission(bind_keys=True))
    grid = Grid(n8=("car-7's", {"key": "car-7"}))
    assert keys(registry, grid) == {8: "car-7"}
    grid.nodes[2] = ("thief's", {"key": "car-7"})
    assert keys(registry, grid) == {8: "car-7"}
    assert "node 2 is left out of the run: it claims the key 'car-7'" in caplog.text


def test_a_bound_key_is_not_inherited_while_its_node_is_away():
    registry = NodeRegistry(admission=Admission(bind_keys=True))
    grid = Grid(n8=("car-7's", {"key": "car-7"}), n9=("car-9's", {"key": "car-9"}))
    keys(registry, grid)
    del grid.nodes[8]
    grid.nodes[2] = ("thief's", {"key": "car-7"})
    assert keys(registry, grid) == {9: "car-9"}
    grid.nodes[3] = ("car-7's", {"key": "car-7"})  # the node itself under a new Flower id
    assert keys(registry, grid) == {3: "car-7", 9: "car-9"}


def after_a_round():
    """A strategy that a node with the key car-7 has taken part in, and the snapshot of its run."""
    strategy, grid = BaseStrategy(admission=Admission(bind_keys=True)), Grid(n8=("car-7's", {"key": "car-7"}))
    keys(strategy.registry, grid)
    return strategy, Run(strategy, grid, 1, ()).snapshot()


def test_a_bound_key_stays_bound_in_a_resumed_run():
    _, snapshot = after_a_round()
    after = BaseStrategy(admission=Admission(bind_keys=True))
    grid = Grid(n1=("thief's", {"key": "car-7"}), n5=("car-7's", {"key": "car-7"}))
    Run(after, grid, 2, ()).restore(snapshot)
    assert keys(after.registry, grid) == {5: "car-7"}


def test_the_state_of_a_strategy_binds_no_key_in_another_run():
    """The node was given a new key pair; its robot and its node key are the same."""
    before, _ = after_a_round()
    after = BaseStrategy(admission=Admission(bind_keys=True))
    after.load_state(before.state())
    assert keys(after.registry, Grid(n9=("car-7's new one", {"key": "car-7"}))) == {9: "car-7"}


def test_a_node_whose_public_key_flower_does_not_give_is_left_out():
    (node,) = Admission(bind_keys=True).apply_to([Profile(1, "a")], object())
    assert node.no_data == "Flower gives no public key of this node, which binding keys to nodes needs"


def test_a_node_without_data_binds_no_key():
    registry = NodeRegistry(admission=Admission(bind_keys=True))
    grid = Grid(n1=("thief's", {"key": "car-7", "no-data": "none"}), n8=("car-7's", {"key": "car-7"}))
    assert keys(registry, grid) == {8: "car-7"}


CITIES = {"city": {"berlin", "tokyo"}}


@pytest.mark.parametrize(
    ("groups", "reason"),
    [
        ({"city": "berlin", "street": "any"}, ""),
        ({"city": "atlantis"}, "its city is 'atlantis'; allowed are berlin, tokyo"),
        ({"city": ""}, "it states no city; allowed are berlin, tokyo"),
        ({}, "it states no city; allowed are berlin, tokyo"),
    ],
)
def test_a_node_of_a_group_that_is_not_allowed_is_left_out(groups, reason):
    (node,) = Admission(CITIES).apply_to([Profile(1, "a", 5, groups)], Grid())
    assert node == (Profile(1, "node-1", no_data=reason) if reason else Profile(1, "a", 5, groups))


def test_a_single_label_is_no_list_of_which_each_part_may_take_part():
    with pytest.raises(ValueError, match=r"allowed_groups\['city'\] = 'rome': must be a list, such as"):
        Admission({"city": "rome"})


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc")), max_size=12))
def test_a_key_has_one_owner_for_ever(claims):
    """``claims``: public keys that claim keys, one node after the other."""
    admission, owners = Admission(bind_keys=True), {}
    for node, (public, key) in enumerate(claims, 1):
        owner = owners.setdefault(key, public)
        grid = Grid(**{f"n{node}": (f"public-{public}", {})})
        (admitted,) = admission.apply_to([Profile(node, key)], grid)
        assert (admitted.no_data == "") == (owner == public)


TEN, SILENT = Profile(1, "a", 10), Profile(2, "b")


@pytest.mark.parametrize(
    ("limits", "profile", "claimed", "phase", "reason"),
    [
        (ExampleLimits(), TEN, 1000, "train", None),
        (ExampleLimits(), TEN, 2.0**60, "train", "num-examples is 1.15292e+18: at most 9007199254740992 are accepted"),
        (ExampleLimits(may_grow=False), TEN, 10, "train", None),
        (ExampleLimits(may_grow=False), TEN, 11, "train", "num-examples is 11, but the profile states 10"),
        (ExampleLimits(may_grow=False), TEN, 11, "evaluate", None),  # on other examples
        (ExampleLimits(may_grow=False), SILENT, 11, "train", None),
        (ExampleLimits(may_grow=False, drawn=256), TEN, 256, "train", None),
        (ExampleLimits(may_grow=False, drawn=256), TEN, 257, "train", "num-examples is 257, but the profile states 10"),
        (ExampleLimits(maximum=20), TEN, 20, "train", None),
        (ExampleLimits(maximum=20), SILENT, 21, "train", "num-examples is 21: at most 20 are accepted"),
        (ExampleLimits(maximum=20), SILENT, 21, "evaluate", "num-examples is 21: at most 20 are accepted"),
    ],
)
def test_refusals(limits, profile, claimed, phase, reason):
    assert limits.refusal_reason(claimed, profile, phase) == reason


@pytest.mark.parametrize(
    ("limits", "count", "phase", "reason"),
    [
        (
            ExampleLimits(100, may_grow=False),
            2**53,
            "evaluate",
            "accuracy.count is 9.0072e+15: at most 100 are accepted",
        ),
        (ExampleLimits(100, items=3), 300, "evaluate", None),
        (ExampleLimits(100, items=3), 301, "evaluate", "accuracy.count is 301: at most 300 are accepted"),
        (ExampleLimits(may_grow=False), 11, "train", "accuracy.count is 11, but the profile states 10"),
        (ExampleLimits(may_grow=False), 11, "evaluate", None),
    ],
)
def test_the_count_by_which_a_metric_is_weighted_is_bound_like_examples(limits, count, phase, reason):
    assert limits.count_refusal({"accuracy": 1.0, "accuracy.count": count}, TEN, phase) == reason
    assert limits.count_refusal({"steps.count": 10**6}, TEN, phase) is None  # weighs no metric


def test_a_number_above_the_maximum_is_removed_from_the_profile(caplog):
    caplog.set_level(logging.WARNING, logger="flwr")
    honest, liar = [Profile(node, f"n{node}", 10) for node in range(4)], Profile(9, "liar", 10**9)
    limited = ExampleLimits(maximum=100).apply_to([*honest, liar, SILENT])
    assert limited == [*honest, Profile(9, "liar"), SILENT]
    sampler = ProportionalToSize(1)
    drawn = [sampler.sample(limited[:5], server_round, "train")[0].key for server_round in range(500)]
    assert 60 < drawn.count("liar") < 140, "as often as any other of five"


@pytest.mark.parametrize("given", [{"maximum": -1}, {"maximum": 2.5}, {"drawn": True}])
def test_ranges(given):
    with pytest.raises(ValueError, match="must be an integer of at least 0"):
        ExampleLimits(**given)
