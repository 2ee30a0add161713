"""The registry: whom it waits for, and which node gets a key."""

import time

import pytest
from fedapps.strategies.profiles import ExampleLimits
from fedapps.strategies.records import TooFewRepliesError
from fedapps.strategies.registry import NodeRegistry
from hypothesis import given
from hypothesis import strategies as st
from profile_grid import ProfileGrid


def keys(registry, grid):
    return {profile.node_id: profile.key for profile in registry.connected(grid)}


def test_only_nodes_not_seen_before_are_asked():
    registry, grid = NodeRegistry(), ProfileGrid({5: "b", 3: "a"})
    assert list(keys(registry, grid).values()) == ["a", "b"]
    grid.nodes[1] = "c"
    assert keys(registry, grid) == {3: "a", 5: "b", 1: "c"}
    assert grid.asked == [3, 5, 1]


def test_who_returns_under_a_new_id_is_known_by_the_old_key():
    registry, grid = NodeRegistry(), ProfileGrid({7: "a", 8: "b"})
    keys(registry, grid)
    grid.nodes[2] = "a"
    assert keys(registry, grid) == {2: "a", 7: "a#2", 8: "b"}, "the old one is still counted as connected"
    del grid.nodes[7]
    assert keys(registry, grid) == {2: "a", 8: "b"}
    assert set(registry.known) == {2, 8}
    grid.nodes[9] = "a"
    assert keys(registry, grid) == {9: "a", 2: "a#2", 8: "b"}


def test_of_two_that_come_together_the_smaller_id_has_the_key(caplog):
    registry, grid = NodeRegistry(), ProfileGrid({4: "a", 3: "a", 6: "a"})
    for _ in range(3):
        assert keys(registry, grid) == {3: "a", 4: "a#2", 6: "a#3"}
    assert [record.getMessage() for record in caplog.records] == [
        "a newer node also claims the key 'a': node 4 is now 'a#2'",
        "a newer node also claims the key 'a': node 6 is now 'a#3'",
    ]


def test_who_is_gone_for_a_while_is_not_asked_again():
    registry, grid = NodeRegistry(), ProfileGrid({1: "a", 2: "b"})
    keys(registry, grid)
    gone = grid.nodes.pop(1)
    assert keys(registry, grid) == {2: "b"}
    grid.nodes[1] = gone
    assert keys(registry, grid) == {1: "a", 2: "b"}
    assert grid.asked == [1, 2]


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda nap: now.__setitem__(0, now[0] + nap))
    return now


def test_all_that_are_there_at_first_are_waited_for(clock):
    registry, grid = NodeRegistry(), ProfileGrid({1: "a", 2: None})
    answers = grid.pull_messages
    grid.pull_messages = lambda ids: grid.nodes.update({2: "b"} if clock[0] > 50 else {}) or answers(ids)
    assert keys(registry, grid) == {1: "a", 2: "b"}
    assert 50 < clock[0] < 52


def test_who_is_silent_takes_no_part_until_it_answers(clock):
    registry, grid = NodeRegistry(node_wait=60.0), ProfileGrid({1: None, 2: "b"})
    assert keys(registry, grid) == {2: "b"}
    assert clock[0] == pytest.approx(60, abs=1), "there are enough, and nothing was heard for so long"
    assert keys(registry, grid) == {2: "b"}
    grid.nodes[1] = "a"
    assert keys(registry, grid) == {1: "a", 2: "b"}
    assert grid.asked == [1, 2], "nobody is asked twice"


class Slow(ProfileGrid):
    """Nodes that join and answer at their seconds: ``{id: (joins, answers)}``, on the clock of the test."""

    def __init__(self, times, clock, record=None):
        super().__init__()
        self.times, self.clock, self.record = times, clock, record or {}

    def get_node_ids(self):
        return [node for node, (joins, _) in self.times.items() if joins <= self.clock[0]]

    def answer(self, node):
        return {"key": f"n{node}", **self.record.get(node, {})} if self.times[node][1] <= self.clock[0] else None


def waiting_lines(caplog):
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith("waiting for nodes")]


def test_nodes_that_are_there_and_slow_are_waited_for(clock, caplog):
    caplog.set_level("INFO", "flwr")
    registry = NodeRegistry(min_nodes=3, min_replies=3, node_wait=60.0)
    grid = Slow({1: (0, 290), 2: (0, 300), 3: (0, 500)}, clock)
    assert keys(registry, grid) == {1: "n1", 2: "n2", 3: "n3"}
    assert clock[0] == pytest.approx(500, abs=1)
    said = waiting_lines(caplog)
    assert len(said) == pytest.approx(50, abs=3), "every ten seconds"
    assert said[0].startswith("waiting for nodes: 3 connected; no profile yet from node 1 (asked 10 s ago), node 2")
    assert "node 1 " not in said[-1]
    assert "no profile yet from node 3 (asked 49" in said[-1]


def test_slow_nodes_beyond_those_that_are_needed_are_waited_for_while_there_are_signs_of_life(clock):
    registry = NodeRegistry(min_nodes=2, min_replies=2, node_wait=60.0)
    grid = Slow({1: (0, 10), 2: (0, 100), 3: (0, 150), 4: (30, 205), 5: (0, 900)}, clock)
    assert keys(registry, grid) == {node: f"n{node}" for node in (1, 2, 3, 4)}
    assert clock[0] == pytest.approx(265, abs=1), "node-wait after the last answer"


def test_each_node_that_joins_is_a_sign_of_life(clock):
    grid = Slow({node: (50 * node, 50 * node) for node in range(1, 6)}, clock)
    assert len(keys(NodeRegistry(min_nodes=5, node_wait=60.0), grid)) == 5
    assert clock[0] == pytest.approx(250, abs=1)


def test_nodes_that_do_not_come_are_given_up_and_so_are_those_that_hang(clock):
    grid = Slow({1: (0, 0), 2: (0, 1e9)}, clock)
    registry = NodeRegistry(min_nodes=3, node_wait=60.0)
    registry.queries.timeout = 300.0
    with pytest.raises(
        TooFewRepliesError, match=r"2 nodes are connected, but min_nodes is 3 \(key num-nodes\), .* within 60 s"
    ):
        registry.connected(grid)
    assert clock[0] == pytest.approx(360, abs=2), "a connected node that has time left is a sign of life"


def test_a_node_that_hangs_is_given_up_after_the_time_that_every_message_has(clock):
    registry = NodeRegistry(min_replies=2, node_wait=60.0)
    registry.queries.timeout = 300.0
    assert keys(registry, Slow({1: (0, 5), 2: (0, 1e9)}, clock)) == {1: "n1"}
    assert clock[0] == pytest.approx(300, abs=1)


def test_who_takes_no_part_is_told_apart_the_slow_and_those_without_data(clock):
    own = {2: {"no-data": "no folder"}, 3: {"num-examples": 0}, 4: {"num-examples": 5}}
    grid = Slow({1: (0, 1e9), 2: (0, 5), 3: (0, 5), 4: (0, 5), 5: (0, 1e9)}, clock, own)
    registry = NodeRegistry(min_replies=1, node_wait=60.0, in_flight=4)
    registry.connected(grid)
    assert registry.absent() == [
        "Connected, but no profile yet: node 1 (asked 65 s ago), node 5 (asked 60 s ago).",
        "Connected, but left out or without data to train on: n2, n3.",
    ]


def test_where_all_have_told_and_nobody_has_data_there_is_nothing_to_wait_for(clock):
    grid = Slow({1: (0, 0), 2: (0, 0)}, clock, {1: {"no-data": "none"}, 2: {"no-data": "none"}})
    assert len(NodeRegistry(node_wait=60.0).connected(grid)) == 2
    assert clock[0] == 0.0


def test_many_names_are_cut(clock):
    registry = NodeRegistry(min_nodes=1, node_wait=1.0)
    registry.queries.timeout = 5.0
    registry.connected(Slow(dict.fromkeys(range(1, 12), (0, 1e9)), clock))
    (slow,) = registry.absent()
    assert slow.count("node ") == 8
    assert slow.endswith(" and 3 more.")


@pytest.mark.slow
@given(
    times=st.dictionaries(st.integers(1, 9), st.tuples(st.integers(0, 200), st.integers(0, 200)), min_size=1),
    in_flight=st.none() | st.integers(1, 3),
)
def test_all_nodes_take_part_that_come_and_answer_in_time(times, in_flight):
    now = [0.0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: now[0])
        patch.setattr(time, "sleep", lambda nap: now.__setitem__(0, now[0] + nap))
        registry = NodeRegistry(min_nodes=len(times), min_replies=len(times), node_wait=200.0, in_flight=in_flight)
        assert set(keys(registry, Slow(times, now))) == set(times)
    last = max(max(both) for both in times.values())
    assert last <= now[0] <= last + 1 + len(times)


def test_whoever_joins_holds_nobody_up(clock):
    registry, grid = NodeRegistry(), ProfileGrid({1: "a"})
    keys(registry, grid)
    grid.nodes[2] = None
    assert keys(registry, grid) == {1: "a"}
    assert clock[0] == 0.0
    grid.nodes[2] = "b"
    assert keys(registry, grid) == {1: "a", 2: "b"}


def test_whoever_joins_while_a_round_waits_is_asked_then(clock):
    registry, grid = NodeRegistry(), ProfileGrid({1: "a"})
    keys(registry, grid)
    grid.nodes |= {2: None, 3: "c"}
    registry.poll(grid)
    assert grid.asked == [1, 2, 3]
    assert set(registry.known) == {1}, "the nodes of the round are those from before"
    grid.nodes |= {2: "b", 4: "d"}
    registry.poll(grid)
    assert len(grid.asked) == 3, "once a second"
    clock[0] += 1.0
    registry.poll(grid)
    assert grid.asked == [1, 2, 3, 4]
    assert keys(registry, grid) == {1: "a", 2: "b", 3: "c", 4: "d"}


def test_whoever_joins_is_waited_for_where_the_others_are_not_enough(clock):
    registry, grid = NodeRegistry(min_replies=2), ProfileGrid({1: "a", 2: "b"})
    registry.queries.timeout = 120.0
    keys(registry, grid)
    del grid.nodes[2]
    grid.nodes[3] = None
    assert keys(registry, grid) == {1: "a"}
    assert clock[0] == pytest.approx(120, abs=1)
    grid.nodes[3] = "b"
    assert keys(registry, grid) == {1: "a", 3: "b"}


def test_numbers_of_examples_above_the_maximum_are_ignored(caplog):
    grid = ProfileGrid({1: {"key": "a", "num-examples": 101}})
    registry = NodeRegistry(ExampleLimits(maximum=100))
    for _ in range(2):
        assert [profile.num_examples for profile in registry.connected(grid)] == [None]
    assert len(caplog.records) == 1


def resting(key, why="it drives"):
    return {"key": key, "ineligible": why}


def may_work(registry, grid):
    registry.ask_again()
    return [node.key for node in registry.connected(grid) if not node.ineligible]


def test_nodes_with_rules_are_asked_again_before_each_round_and_others_are_not(clock):
    registry, grid = NodeRegistry(), ProfileGrid({1: "a", 2: resting("b"), 3: resting("c", "")})
    assert may_work(registry, grid) == ["a", "c"]
    grid.nodes |= {2: resting("b", ""), 3: resting("c")}
    assert may_work(registry, grid) == ["a", "b"]
    assert may_work(registry, grid) == ["a", "b"]
    assert grid.asked == [1, 2, 3, 2, 3, 2, 3]


def test_who_does_not_answer_again_is_left_out(clock):
    registry, grid = NodeRegistry(node_wait=60.0), ProfileGrid({1: "a", 2: resting("b", "")})
    assert may_work(registry, grid) == ["a", "b"]
    grid.nodes[2] = None
    assert may_work(registry, grid) == ["a"]
    assert registry.known[2].ineligible == "it has not answered yet whether it may work"


def test_too_few_that_may_work_are_asked_every_ten_seconds_until_one_may(clock):
    registry, grid = NodeRegistry(), ProfileGrid({1: resting("a")})
    answer = grid.answer
    grid.answer = lambda node: answer(node) if clock[0] < 95 else resting("a", "")
    assert may_work(registry, grid) == ["a"]
    assert 95 <= clock[0] < 110
    assert 9 <= len(grid.asked) <= 12


def test_the_wait_for_nodes_that_may_not_work_ends(clock):
    registry, grid = NodeRegistry(node_wait=60.0), ProfileGrid({1: resting("a")})
    assert may_work(registry, grid) == []
    assert clock[0] == pytest.approx(60, abs=1)
    assert registry.absent() == ["Connected, but by their own rules not to work now: a."]
