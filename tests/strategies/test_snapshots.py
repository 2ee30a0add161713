"""The state in a snapshot, and the attempts of a run, as the server numbers them and as nodes read them."""

import numpy as np
import pytest
from fedapps.clients.state import Attempts
from fedapps.strategies.records import Stateful, flat, nested, next_attempts, to_text
from hypothesis import given
from hypothesis import strategies as st


def test_each_start_of_a_run_begins_an_attempt():
    first = next_attempts((), 0)
    assert [after for after, _ in first] == [0]
    second = next_attempts(first, 3)
    assert [after for after, _ in second] == [0, 3]
    assert second[0] == first[0]
    third = next_attempts(second, 3)  # the second one ended without a snapshot
    assert [after for after, _ in third] == [0, 3]
    assert third[1] != second[1]
    assert [after for after, _ in next_attempts(third, 2)] == [0, 2]
    assert [after for after, _ in next_attempts(third, 0)] == [0]


@given(st.lists(st.integers(1, 4), max_size=12), st.data())
def test_a_round_counts_if_the_last_attempt_that_reached_it_ran_it(lengths, data):
    """Against a simulation that writes down who ran each round of the present history."""
    owner, attempts = {}, ()
    snapshots = {0: ()}  # the attempts in the snapshot of each round
    reached = 0
    for number, length in enumerate(lengths):
        after = data.draw(st.integers(0, reached)) if number else 0
        attempts = next_attempts(snapshots[after], after)
        name = attempts[-1][1]
        owner = {r: o for r, o in owner.items() if r <= after} | {after + 1 + i: name for i in range(length)}
        reached = after + length
        snapshots = {r: s for r, s in snapshots.items() if r <= after} | {
            after + 1 + i: attempts for i in range(length)
        }
        read = Attempts.read(to_text(attempts))
        assert all(read.of(server_round) == of for server_round, of in owner.items())
        assert all(read.counts(server_round, of) for server_round, of in owner.items())
        assert not any(read.counts(server_round, "another") for server_round in owner)


names = st.text(max_size=3) | st.integers(-3, 3)
arrays = st.integers(0, 3).map(lambda size: np.arange(size, dtype=np.float32))
values = st.recursive(
    arrays | st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=3), values, max_size=4))
def test_values_come_back_from_the_arrays_of_a_snapshot(state):
    np.testing.assert_equal(nested(flat(state)), state)


def test_sets_stay_sets_and_an_array_that_is_there_twice_is_stored_once():
    shared = np.ones(3)
    state = flat({"keys": {"b", "a"}, "models": [{"w": shared}, {"w": shared}]})
    assert len(state) == 2  # the array, and the form of the values
    restored = nested(state)
    assert restored["keys"] == {"a", "b"}
    assert restored["models"][0]["w"] is restored["models"][1]["w"]


class Counter(Stateful):
    kept = ("count",)

    def __init__(self):
        self.count = 0


class Pair(Counter):
    kept = ("other", "names")

    def __init__(self):
        super().__init__()
        self.other, self.names = Counter(), []


def test_a_class_keeps_what_it_and_its_bases_declare():
    before, after = Pair(), Pair()
    before.count, before.other.count, before.names = 3, 4, ["a"]
    after.load_state(before.state())
    assert (after.count, after.other.count, after.names) == (3, 4, ["a"])
    with pytest.raises(ValueError, match="has no 'other' of Pair: another strategy saved it"):
        Pair().load_state(Counter().state())
