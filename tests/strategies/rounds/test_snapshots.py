"""The attempts of a run, as the server numbers them and as nodes read them."""

from fedapps.clients.state import Attempts
from fedapps.strategies.rounds.snapshots import next_attempts, to_text
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
