"""Virtual time: which reply arrives when, worked out by hand, and the same bits whatever is computed first."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import inf

import numpy as np
import pytest
from fedapps.sim.clock_grid import ClockGrid, Reading
from fedapps.sim.devices import AlwaysOn, Availability, Devices, LogNormal, OnOff, Trace, Uniform, drawn
from fedapps.sim.flower_internals import set_message_id
from flwr.app import ConfigRecord, Error, Message, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.usefixtures("flower_identity")
QUERY = "query.profile"


def _stated(reply: Message, name: str) -> float:
    return reply.content["answer"].get(name)


READING = Reading(
    QUERY,
    key=lambda reply: str(_stated(reply, "key")),
    steps=lambda reply: _stated(reply, "steps"),
    size=lambda content: int(next(iter(content.values())).get("size", 0)),
)


@dataclass
class Nodes:
    """A grid of nodes that reply with the given numbers of steps and sizes.

    ``computed`` lists (node, number of the message) in the order in which they were computed. ``missed`` says how often
    a reply is asked for before it is there.
    """

    steps: Sequence[float | None]
    sizes: Sequence[int] = ()
    keys: Sequence[str] = ()
    missed: int = 0
    computed: list[tuple[int, int]] = field(default_factory=list)
    sent: dict[str, list] = field(default_factory=dict)
    numbers: count = field(default_factory=count)

    def get_node_ids(self):
        return [10 + node for node in range(len(self.steps))]

    def push_messages(self, messages):
        for message in messages:
            set_message_id(message, f"id-{next(self.numbers)}")
            self.sent[message.metadata.message_id] = [message, self.missed]
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, message_ids):
        (message_id,) = message_ids
        message, missed = self.sent[message_id]
        self.sent[message_id][1] -= 1
        if missed > 0:
            return []
        node = message.metadata.dst_node_id - 10
        if message.metadata.message_type == QUERY:
            return [_reply(message, key=self.keys[node] if self.keys else f"{node:05}")]
        self.computed.append((node, message.content["config"]["number"]))
        if self.steps[node] == inf:
            return [Message(Error(1, "the node failed"), reply_to=message)]
        stated = {} if self.steps[node] is None else {"steps": self.steps[node]}
        return [_reply(message, size=self.sizes[node] if self.sizes else 0, **stated)]


def _reply(message, **stated):
    return Message(RecordDict({"answer": ConfigRecord(stated)}), reply_to=message)


def enrolled(nodes: Nodes, devices: Devices, *, lost: bool = False) -> ClockGrid:
    """A grid with virtual time whose nodes have all answered the profile query."""
    grid = ClockGrid(nodes, devices, READING, lost=lost)
    ids = grid.push_messages([Message(RecordDict({"config": ConfigRecord()}), n, QUERY) for n in grid.get_node_ids()])
    assert len(list(grid.pull_messages(ids))) == len(nodes.steps)
    return grid


def devices(speeds: Sequence[float], *, rate: float = inf, availability: Availability | None = None) -> Devices:
    rates = np.full(len(speeds), rate)
    return Devices(np.array(speeds, float), rates, rates, availability or AlwaysOn(len(speeds)))


def send(grid: ClockGrid, *nodes: int, size: int = 0, number: int = 1, kind: str = "train") -> list[str]:
    """Send messages to nodes, by their numbers from 0; their ids."""
    contents = [RecordDict({"config": ConfigRecord({"size": size, "number": number})}) for _ in nodes]
    return list(
        grid.push_messages(
            [Message(c, dst_node_id=10 + n, message_type=kind) for c, n in zip(contents, nodes, strict=True)]
        )
    )


def pulled(grid: ClockGrid, ids: Sequence[str]) -> list[tuple[float, int]]:
    """The replies that have arrived: when, and to which of the messages, counted from 0."""
    replies = [reply.metadata.reply_to_message_id for reply in grid.pull_messages(ids)]
    return [(grid.arrived_at(i), ids.index(i)) for i in replies]


def arrivals(grid: ClockGrid, ids: Sequence[str]) -> list[tuple[float, int]]:
    """As :func:`pulled`, for all messages, one event after another."""
    found = pulled(grid, ids)
    while len(found) < len(ids):
        grid.wait(inf)
        found += pulled(grid, ids)
    return found


# -- by hand ---------------------------------------------------------------------------------------------------


def test_five_events_by_hand():
    """100 bytes/s. Node 0: 1 s down, 2 steps of 3 s, 0.5 s up; nodes 1 and 2: 1 s down, 2 steps of 1 s, nothing up."""
    grid = enrolled(Nodes([2, 2, 2], sizes=[50, 0, 0]), devices([3.0, 1.0, 1.0], rate=100))
    ids = send(grid, 0, 1, 2, size=100)
    ids += send(grid, 2, size=100, number=2)  # node 2 turns to it at 3, when it has done the first
    ids += send(grid, 1, size=300, number=2)
    assert arrivals(grid, ids) == [(3, 1), (3, 2), (6, 3), (7.5, 0), (8, 4)]


@pytest.mark.parametrize(
    ("lost", "expected"), [(False, [(6, 1), (12, 0)]), (True, [(4, 0), (6, 1)])], ids=["pause", "lost"]
)
def test_work_of_a_device_that_turns_off(lost, expected):
    """Node 0 is on in [0, 4) and [10, 14) and works for 6 s; node 1 is on from 5 on and works for 1 s."""
    trace = Trace([[(0, 4), (10, 14)], [(5, 14)]], 2)
    grid = enrolled(Nodes([6, 1]), devices([1.0, 1.0], availability=trace), lost=lost)
    assert arrivals(grid, send(grid, 0, 1)) == expected


def test_lost_work_is_an_error_and_is_not_done_if_the_message_never_arrived():
    nodes = Nodes([6, 1])
    grid = enrolled(nodes, devices([1.0, 1.0], rate=10, availability=Trace([[(0, 4)], [(5, 14)]], 2)), lost=True)
    ids = send(grid, 0, size=20)
    grid.wait(inf, ids)
    (reply,) = grid.pull_messages(ids)
    assert (grid.now(), reply.error.reason) == (4, "the node turned off after 4 s")
    grid.set_now(14)  # the trace begins again
    ids = send(grid, 0, size=50, number=2)  # 5 s for the download
    grid.wait(inf, ids)
    assert grid.now() == 18
    assert next(iter(grid.pull_messages(ids))).has_error()
    assert nodes.computed == [(0, 1)]


def test_nodes_are_connected_while_they_are_on_and_all_of_them_to_evaluate():
    grid = enrolled(Nodes([1, 1]), devices([1, 1], availability=Trace([[(0, 2), (6, 8)], [(3, 8)]], 2)))
    assert grid.get_node_ids() == [10]
    with grid.evaluation():
        assert grid.get_node_ids() == [10, 11]
    grid.wait(inf)
    assert (grid.now(), grid.get_node_ids()) == (3, [11])  # a node that turns on is an event
    grid.wait(4)
    assert (grid.now(), grid.get_node_ids()) == (4, [11])


def test_all_nodes_are_connected_until_each_was_asked_for_its_profile():
    grid = ClockGrid(Nodes([1, 1]), devices([1, 1], availability=Trace([[(5, 6)]], 2)), READING)
    for node in (10, 11):
        assert grid.get_node_ids() == [10, 11]
        list(grid.pull_messages(grid.push_messages([Message(RecordDict({"config": ConfigRecord()}), node, QUERY)])))
    assert (grid.now(), grid.get_node_ids()) == (0, [])


def test_devices_follow_the_order_of_the_keys():
    grid = enrolled(Nodes([1, 1, 1], keys=["b", "c", "a"]), devices([1, 2, 3]))
    assert grid.devices_by_key() == {"a": 0, "b": 1, "c": 2}
    assert arrivals(grid, send(grid, 0, 1, 2)) == [(1, 2), (2, 0), (3, 1)]


def test_nodes_without_a_key_have_a_device_each_and_are_busy_each():
    grid = enrolled(Nodes([1, 1], keys=["", ""]), devices([5, 7]))
    ids = send(grid, 0, 1)
    grid.wait(3, ids)
    assert (grid.devices_by_key(), grid.busy()) == ({"10": 0, "11": 1}, {"10": 5, "11": 7})


def test_evaluations_take_no_time_even_of_a_node_that_is_busy_or_off():
    nodes = Nodes([5])
    grid = enrolled(nodes, devices([1.0], availability=Trace([[(1, 9)]], 1)))
    training = send(grid, 0)
    asked = send(grid, 0, number=2, kind="evaluate")
    grid.wait(100)  # an answer that can be pulled stops the time
    assert (grid.now(), pulled(grid, asked)) == (0, [(0, 0)])
    assert nodes.computed == [(0, 1), (0, 2)]  # a node computes its messages in their order
    assert arrivals(grid, training) == [(6, 0)]


def test_only_replies_that_are_waited_for_are_computed():
    nodes = Nodes([1, 1, 1])
    grid = enrolled(nodes, devices([3.0, 2.0, 1.0], rate=1))
    ids = send(grid, 0, 1, 2, size=1)
    grid.wait(100, [ids[0]])
    assert (grid.now(), nodes.computed) == (4, [(0, 1)])
    assert pulled(grid, [ids[0]]) == [(4, 0)]
    assert pulled(grid, ids) == [(2, 2), (3, 1)]
    assert nodes.computed == [(0, 1), (1, 1), (2, 1)]


def test_a_node_works_on_a_message_whose_reply_nobody_wants():
    nodes = Nodes([5])
    grid = enrolled(nodes, devices([2.0]))
    ids = send(grid, 0)
    grid.wait(4, ids)
    grid.forget(ids)
    assert nodes.computed == [(0, 1)]
    assert pulled(grid, ids) == []
    assert arrivals(grid, send(grid, 0, number=2)) == [(20, 0)]


def test_faults_of_nodes_arrive_as_errors_after_the_download():
    grid = enrolled(Nodes([None, inf]), devices([1.0, 1.0], rate=10))
    ids = send(grid, 0, size=20) + send(grid, 1, size=30)
    grid.wait(inf)
    (first,) = grid.pull_messages(ids)
    assert (grid.now(), first.error.reason) == (
        2,
        "the clock needs the number of optimizer steps, which the reply does not state as metric steps",
    )
    grid.wait(inf)
    (second,) = grid.pull_messages(ids)
    assert (grid.now(), second.error.reason) == (3, "the node failed")


def test_time_stands_still_without_a_further_event():
    grid = enrolled(Nodes([1]), devices([1.0]))
    with pytest.raises(RuntimeError, match="no further event"):
        grid.wait(inf)
    ids = send(grid, 0)
    grid.wait(0.5)
    assert (grid.now(), pulled(grid, ids)) == (0.5, [])
    grid.wait(10)
    grid.wait(10)  # a reply that was not pulled does not stop the time
    assert (grid.now(), pulled(grid, ids)) == (10, [(1, 0)])


def test_sending_and_receiving_in_one_call():
    grid = enrolled(Nodes([1, 1, 1]), devices([3.0, 1.0, 9.0]))
    contents = [RecordDict({"config": ConfigRecord({"number": 1})}) for _ in range(3)]
    messages = [Message(content, 10 + node, "train") for node, content in enumerate(contents)]
    replies = list(grid.send_and_receive(messages, timeout=5))
    assert [reply.metadata.src_node_id for reply in replies] == [11, 10]
    assert grid.now() == 5


def test_more_nodes_than_devices():
    with pytest.raises(ValueError, match="2 nodes are connected, but the clock has 1 devices"):
        enrolled(Nodes([1, 1]), devices([1.0]))


def test_a_resumed_run_repeats_what_was_in_flight():
    def fleet() -> ClockGrid:
        return enrolled(Nodes([4, 4]), devices([1.0, 2.0], availability=OnOff(2, Uniform(1, 2), Uniform(1, 2), 0)))

    grid = fleet()
    ids = send(grid, 0)
    grid.wait(3, ids)
    ids += send(grid, 1)
    expected = arrivals(grid, ids)
    resumed = fleet()
    again = send(resumed, 0)
    resumed.set_now(3)
    again += send(resumed, 1)
    assert arrivals(resumed, again) == expected


# -- properties ------------------------------------------------------------------------------------------------

#: Fleets, by functions that make them: a run moves the traces of its devices on.
FLEETS = st.builds(
    lambda seed, on, off: (
        lambda: drawn(
            4,
            seed,
            LogNormal(1, 1.5),
            Uniform(1e-4, 1e-2),
            Uniform(1e-4, 1e-2),
            OnOff(4, Uniform(on, 2 * on), LogNormal(off, 0.5), seed),
        )
    ),
    *(st.integers(0, 999), st.floats(40, 600), st.floats(20, 600)),
)
MESSAGES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5000), st.floats(0, 20)), min_size=1, max_size=10)


def _run(
    fleet: Callable[[], Devices], messages, *, lost: bool, missed: int = 0, ahead: Sequence[int] = ()
) -> list[tuple[float, int]]:
    """Send a message to a node every few seconds; which reply arrives when. ``ahead`` are computed early."""
    grid = enrolled(Nodes([3, 1, 4, 2], sizes=[100, 200, 300, 400], missed=missed), fleet(), lost=lost)
    ids: list[str] = []
    for number, (node, size, pause) in enumerate(messages):
        ids += send(grid, node, size=size, number=number)
        if number in ahead:
            grid._arrival_of(grid._in_flight[ids[number]])
        at = grid.now() + pause
        while grid.now() < at:
            grid.wait(at)
    return arrivals(grid, ids)


@given(FLEETS, MESSAGES, st.booleans(), st.sets(st.integers(0, 9)))
@settings(max_examples=40)
def test_arrivals_depend_on_nothing_but_devices_and_messages(fleet, messages, lost, ahead):
    found = _run(fleet, messages, lost=lost)
    assert sorted(place for _, place in found) == list(range(len(messages)))
    assert [at for at, _ in found] == sorted(at for at, _ in found)
    assert _run(fleet, messages, lost=lost, ahead=[n for n in ahead if n < len(messages)]) == found


@given(FLEETS, MESSAGES)
@settings(max_examples=40)
def test_no_reply_arrives_before_its_node_could_send_it(fleet, messages):
    sent_at = np.cumsum([0.0, *(pause for _, _, pause in messages)])
    steps, sizes = [3, 1, 4, 2], [100, 200, 300, 400]
    devices = fleet()
    for at, place in _run(fleet, messages, lost=False):
        node, size, _ = messages[place]
        assert at >= sent_at[place] + devices.seconds(node, size, steps[node], sizes[node]) - 1e-6
        start, end = devices.availability.interval(node, at - 1e-9)
        assert start - 1e-6 <= at <= end + 1e-6


def test_replies_that_take_their_time_to_compute_arrive_at_the_same_times():
    def fleet() -> Devices:
        return drawn(4, 3, LogNormal(1, 1.5), availability=OnOff(4, Uniform(5, 9), Uniform(5, 9), 3))

    messages = [(node, 0, 0.5) for node in (0, 1, 2, 3, 1, 0)]
    assert _run(fleet, messages, lost=False, missed=2) == _run(fleet, messages, lost=False)
