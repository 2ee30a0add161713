"""Limits of the numbers of examples in profiles and replies."""

import logging

import pytest
from fedapps.strategies.nodes.admission import ExampleLimits
from fedapps.strategies.nodes.profiles import Profile
from fedapps.strategies.nodes.samplers import ProportionalToSize

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
