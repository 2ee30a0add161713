import time

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from strategies.example_limits import ExampleLimits
from strategies.node_registry import NodeRegistry


@pytest.fixture(autouse=True)
def _identity(monkeypatch):
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class FakeGrid:
    """Nodes that are connected, by the key that each claims; one without is silent."""

    def __init__(self, nodes):
        self.nodes, self.asked, self._sent = nodes, [], {}

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, messages):
        self.asked = list(messages)
        for message in self.asked:
            message.metadata.__dict__["_message_id"] = f"id-{len(self._sent)}"
            self._sent[message.metadata.message_id] = message
        return [message.metadata.message_id for message in self.asked]

    def pull_messages(self, message_ids):
        sent = [self._sent[message_id] for message_id in message_ids]
        answering = [message for message in sent if self.nodes.get(message.metadata.dst_node_id)]
        return [Message(RecordDict({"profile": self._record(message)}), reply_to=message) for message in answering]

    def _record(self, message):
        return ConfigRecord({"key": self.nodes[message.metadata.dst_node_id]})


def keys(registry, grid):
    return {profile.node_id: profile.key for profile in registry.connected(grid)}


def test_only_nodes_not_seen_before_are_asked():
    registry, grid = NodeRegistry(), FakeGrid({5: "b", 3: "a"})
    assert list(keys(registry, grid).values()) == ["a", "b"]
    grid.nodes[1] = "c"
    assert keys(registry, grid) == {3: "a", 5: "b", 1: "c"}
    assert [message.metadata.dst_node_id for message in grid.asked] == [1]


def test_who_returns_under_a_new_id_is_known_by_the_old_key():
    registry, grid = NodeRegistry(), FakeGrid({7: "a", 8: "b"})
    keys(registry, grid)
    grid.nodes[2] = "a"
    assert keys(registry, grid) == {2: "a", 7: "a#2", 8: "b"}, "the old one is still counted as connected"
    del grid.nodes[7]
    assert keys(registry, grid) == {2: "a", 8: "b"}
    assert set(registry.known) == {2, 8}
    grid.nodes[9] = "a"
    assert keys(registry, grid) == {9: "a", 2: "a#2", 8: "b"}


def test_of_two_that_come_together_the_smaller_id_has_the_key(caplog):
    registry, grid = NodeRegistry(), FakeGrid({4: "a", 3: "a", 6: "a"})
    for _ in range(3):
        assert keys(registry, grid) == {3: "a", 4: "a#2", 6: "a#3"}
    assert [record.getMessage() for record in caplog.records] == [
        "a newer node claims the key 'a' too: node 4 is now 'a#2'",
        "a newer node claims the key 'a' too: node 6 is now 'a#3'",
    ]


def test_who_is_gone_for_a_while_is_not_asked_again():
    registry, grid = NodeRegistry(), FakeGrid({1: "a", 2: "b"})
    keys(registry, grid)
    gone = grid.nodes.pop(1)
    assert keys(registry, grid) == {2: "b"}
    grid.nodes[1], grid.asked = gone, []
    assert keys(registry, grid) == {1: "a", 2: "b"}
    assert grid.asked == []


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda nap: now.__setitem__(0, now[0] + nap))
    return now


def test_all_that_are_there_at_first_are_waited_for(clock):
    registry, grid = NodeRegistry(), FakeGrid({1: "a", 2: ""})
    answers = grid.pull_messages
    grid.pull_messages = lambda ids: grid.nodes.update({2: "b"} if clock[0] > 50 else {}) or answers(ids)
    assert keys(registry, grid) == {1: "a", 2: "b"}
    assert 50 < clock[0] < 52


def test_who_is_silent_takes_no_part_until_it_answers(clock):
    registry, grid = NodeRegistry(), FakeGrid({1: "", 2: "b"})
    assert keys(registry, grid) == {2: "b"}
    assert clock[0] == pytest.approx(120, abs=1)
    assert keys(registry, grid) == {2: "b"}
    grid.nodes[1] = "a"
    assert keys(registry, grid) == {1: "a", 2: "b"}
    assert [message.metadata.dst_node_id for message in grid.asked] == [1, 2], "nobody is asked twice"


def test_whoever_joins_holds_nobody_up(clock):
    registry, grid = NodeRegistry(), FakeGrid({1: "a"})
    keys(registry, grid)
    grid.nodes[2] = ""
    assert keys(registry, grid) == {1: "a"}
    assert clock[0] == 0.0
    grid.nodes[2] = "b"
    assert keys(registry, grid) == {1: "a", 2: "b"}


def test_whoever_joins_while_a_round_waits_is_asked_then(clock):
    registry, grid = NodeRegistry(), FakeGrid({1: "a"})
    keys(registry, grid)
    grid.nodes |= {2: "", 3: "c"}
    registry.poll(grid)
    assert [message.metadata.dst_node_id for message in grid.asked] == [2, 3]
    assert set(registry.known) == {1}, "the nodes of the round are those from before"
    grid.nodes |= {2: "b", 4: "d"}
    registry.poll(grid)
    assert len(grid.asked) == 2, "once a second"
    clock[0] += 1.0
    registry.poll(grid)
    assert [message.metadata.dst_node_id for message in grid.asked] == [4]
    assert keys(registry, grid) == {1: "a", 2: "b", 3: "c", 4: "d"}


def test_whoever_joins_is_waited_for_where_the_others_are_not_enough(clock):
    registry, grid = NodeRegistry(enough=2), FakeGrid({1: "a", 2: "b"})
    keys(registry, grid)
    del grid.nodes[2]
    grid.nodes[3] = ""
    assert keys(registry, grid) == {1: "a"}
    assert clock[0] == pytest.approx(120, abs=1)
    grid.nodes[3] = "b"
    assert keys(registry, grid) == {1: "a", 3: "b"}


def test_few_at_a_time_are_asked_and_all_are_heard(clock):
    registry, grid = NodeRegistry(in_flight=2), FakeGrid({node: f"n{node}" for node in range(1, 8)})
    assert len(keys(registry, grid)) == 7
    assert clock[0] == 0.0


def test_a_size_that_nobody_can_have_is_not_believed(caplog):
    grid = FakeGrid({1: "a"})
    grid._record = lambda message: ConfigRecord({"key": "a", "num-examples": 101})
    registry = NodeRegistry(ExampleLimits(most=100))
    for _ in range(2):
        assert [profile.num_examples for profile in registry.connected(grid)] == [None]
    assert len(caplog.records) == 1
