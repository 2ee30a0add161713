"""A node that keeps no private parameters."""

from fedapps.clients.parts.adaptive_updating import AdaptiveUpdating
from fedapps.clients.parts.stateless import Stateless
from fedapps.clients.state import ContextState
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_nodes import NAMES, at, initial, node, staged
from toys import same_bits

ENCODER = NAMES[:1]


def adapting(state, *parts):
    return node(state, AdaptiveUpdating(2, adapt_before_evaluation=True), *parts)


def test_the_first_round_is_that_of_a_node_that_keeps_its_parameters(tmp_path):
    keeping, forgetting = adapting(tmp_path / "keeping"), adapting(tmp_path / "forgetting", Stateless())
    expected = keeping.train_round(initial(ENCODER), at(1))
    found = forgetting.train_round(initial(ENCODER), at(1))
    assert same_bits(found.arrays, expected.arrays)
    assert found.metrics == expected.metrics
    assert keeping.private.load(2) is not None
    assert forgetting.private.load(2) is None


@settings(max_examples=10, deadline=None)
@given(rounds=st.integers(1, 3))
def test_the_past_changes_nothing(rounds):
    old, new = (adapting(ContextState({}), Stateless()) for _ in range(2))
    for server_round in range(1, rounds + 1):
        old.train_round(initial(ENCODER), at(server_round))
    later = at(rounds + 1)
    assert old.evaluate_round(initial(ENCODER), later).metrics == new.evaluate_round(initial(ENCODER), later).metrics
    assert same_bits(
        old.train_round(initial(ENCODER), later).arrays, new.train_round(initial(ENCODER), later).arrays
    )  # fmt: skip


def test_the_memory_of_other_parts_is_kept(tmp_path):
    """A plateau goes on from round to round."""
    client = node(tmp_path, Stateless(), data=staged(1))
    client.train_round(initial(ENCODER), at(1, plateau_patience=5))
    assert sorted(client.private.load(2)) == ["memory.plateau", "memory.stage"]
