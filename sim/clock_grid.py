"""A grid with virtual time: nodes compute as fast as the machine can, and reply when their simulated device would.

A TRAIN message that leaves the server at time ``t`` begins to arrive at a device when the device is free and on. Its
reply arrives after::

    bytes of the message / downlink + local steps x seconds per step + bytes of the reply / uplink

seconds in which the device is on. A device works on its messages one after another. Queries of an algorithm take their
transfers only; evaluations and profile queries take no time, and all nodes answer them at once, because they measure a
run and are not part of it. What the server computes takes no time.

Time passes in :meth:`ClockGrid.wait` alone. Which reply arrives when depends on the devices and on what nodes reply,
but not on when the replies are computed, so that the same seed gives the same bits in one process and in Ray.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import Any

from flwr.app import Error, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from .devices import Devices, Finish, Mark
from .flower_internals import (
    check_names,
    decode_records,
    encode_records,
    error_reply,
    set_message_id,
    unavailable_reply,
)
from .inprocess import MessageGrid

_PAUSE, _LONGEST, _GROWTH = 0.005, 0.25, 1.5  # seconds between attempts to fetch what another process computes
_REMEMBERED = 1000  # arrivals of replies that were pulled, in addition to one for each node
_NO_STEPS = "the clock needs the number of optimizer steps, which the reply does not state as metric steps"


@dataclass(frozen=True)
class Reading:
    """What a clock must read in messages and replies.

    Parameters
    ----------
    profile_query : str
        The message type of the query that all nodes answer before the time begins.
    key : function of a reply
        The stable key of a node, from its reply to the profile query; empty if it has none.
    steps : function of a reply
        The optimizer steps of a reply to TRAIN, ``None`` if it does not say.
    size : function of the content of a message
        The bytes to be transferred.
    """

    profile_query: str
    key: Callable[[Message], str]
    steps: Callable[[Message], float | None]
    size: Callable[[RecordDict], int]


@dataclass
class _Sent:
    """A message that takes time. ``begun`` is when its device turns to it, ``received`` when it is downloaded or lost.

    ``arrival`` and ``reply`` are None until the reply was computed.
    """

    message: Message
    node: int
    begun: float
    mark: Mark | None
    received: float = 0.0
    arrival: float | None = None
    reply: Message | None = None


class ClockGrid(MessageGrid):
    """A :class:`flwr.serverapp.Grid` whose replies arrive in virtual time; see the module.

    Before the time begins, all nodes are connected and answer the profile query; the device of a node follows from the
    order of their keys. After the last answer, or with the first message of another kind, those nodes are connected
    that are on.

    Parameters
    ----------
    grid : Grid
        The nodes that compute, in this process or in Ray.
    devices : Devices
        One for each node.
    reading : Reading
    lost : bool
        Whether a device that turns off loses what it was working on; the server learns it at once, from an error reply.
        Otherwise the device goes on when it turns on again.

    Raises
    ------
    ValueError
        As :func:`~fedapps.sim.flower_internals.check_names`.
    """

    def __init__(self, grid: Grid, devices: Devices, reading: Reading, *, lost: bool = False) -> None:
        check_names("simulated time")
        self.devices = devices
        self._grid, self._reading, self._lost = grid, reading, lost
        self._now = 0.0
        self._all: list[int] = []
        self._keys: dict[int, str] = {}
        self._device: dict[int, int] = {}
        self._everyone = False
        self._instant: dict[str, Message] = {}  # messages without time that were not pulled
        self._in_flight: dict[str, _Sent] = {}  # not pulled, in the order in which they were sent
        self._working: dict[int, _Sent] = {}  # by node, the last message, until it was computed
        self._free: dict[int, float] = {}  # by node, when it is done with all messages that were computed
        self._made_here = 0  # messages that the grid of the nodes does not have
        self._resumed_busy: Mapping[str, float] = {}
        self._arrived: dict[str, float] = {}  # when the last replies that were pulled arrived

    # -- time -----------------------------------------------------------------------------------------------------

    def now(self) -> float:
        """Seconds since the start of the run."""
        return self._now

    def set_now(self, seconds: float, busy: Mapping[str, float] | None = None) -> None:
        """Set the time, and until when nodes work (:meth:`busy`), before the first message of a run that resumes."""
        self._now, self._resumed_busy = float(seconds), busy or {}

    def busy(self) -> dict[str, float]:
        """Until when nodes work on messages whose replies were computed, by key, without those that are free."""
        return {self._key(node): until for node, until in sorted(self._free.items()) if until > self._now}

    def due(self, message_id: str) -> tuple[float, Message]:
        """When the reply to a message in flight arrives, and the reply, which the node computes now if it has not."""
        sent = self._in_flight[message_id]
        arrival = self._arrival_of(sent)
        assert sent.reply is not None
        return arrival, sent.reply

    def encoded(self, reply: Message) -> bytes:
        """The records of a reply as bytes; equal records have equal bytes."""
        return encode_records(reply.content)

    def put_back(self, node_id: int, arrival: float, reply: bytes | Error) -> str:
        """Put the reply to a TRAIN message of a snapshot in flight. Returns the id of the message."""
        self._made_here += 1
        message_id = f"resumed-{self._made_here}"
        message = Message(RecordDict(), node_id, MessageType.TRAIN)
        set_message_id(message, message_id)
        content = decode_records(reply) if isinstance(reply, bytes) else reply
        sent = _Sent(message, node_id, self._now, None, self._now, arrival, Message(content, reply_to=message))
        self._in_flight[message_id] = sent
        return message_id

    def wait(self, until: float, messages: Collection[str] | None = None) -> None:
        """Let time pass until the next event, but not beyond ``until``.

        Parameters
        ----------
        until : float
            Seconds; ``inf`` for no limit.
        messages : collection of message ids, optional
            Only the arrival of their replies is an event; the replies to other messages are not even computed. By
            default, the next arrival among all messages that were not pulled, and a node that turns on, are events.

        Raises
        ------
        RuntimeError
            ``until`` is ``inf`` and there will be no further event.
        """
        if until <= self._now or any(i in self._instant for i in (self._instant if messages is None else messages)):
            return
        watched = self._in_flight if messages is None else [i for i in messages if i in self._in_flight]
        at = until
        if messages is None and self._device:
            at = min(until, self.devices.availability.next_start(self._now))
        for sent in sorted((self._in_flight[i] for i in watched), key=lambda sent: sent.received):
            if sent.received > at:
                break
            if self._now < (arrival := self._arrival_of(sent)) < at:
                at = arrival
        if at == inf:
            raise RuntimeError("the clock has no further event: no message is in flight, and no node will turn on")
        self._now = at

    def arrived_at(self, message_id: str) -> float:
        """When the reply to a message arrived; the present time if it was pulled too long ago, or took no time."""
        return self._arrived.get(message_id, self._now)

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Within this context, all nodes are connected."""
        before, self._everyone = self._everyone, True
        try:
            yield
        finally:
            self._everyone = before

    # -- Flower's interface ---------------------------------------------------------------------------------------

    def set_run(self, run: Any) -> None:
        """Pass it on to the grid of the nodes."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """The run of the grid of the nodes."""
        return self._grid.run

    def get_node_ids(self) -> Iterable[int]:
        """The nodes that are on; all of them before the time begins and within :meth:`evaluation`."""
        if not self._device:
            self._all = list(self._grid.get_node_ids())
        if self._everyone or not self._device:
            return list(self._all)
        on = self.devices.availability.on(self._now)
        return [node for node in self._all if on[self._device[node]]]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages at the present time; no time passes."""
        return [message_id for message in messages if (message_id := self._push(message))]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies that have arrived, in the order of their arrival; no time passes."""
        arrivals: list[tuple[float, Message]] = []
        for message_id in message_ids:
            if message_id in self._instant:
                arrivals.append((self._now, self._answer(message_id)))
                continue
            sent = self._in_flight.get(message_id)
            if sent and sent.received <= self._now and (arrival := self._arrival_of(sent)) <= self._now:
                del self._in_flight[message_id]
                assert sent.reply is not None
                arrivals.append((arrival, sent.reply))
                self._arrived[message_id] = arrival
                if len(self._arrived) > _REMEMBERED + len(self._all):
                    del self._arrived[next(iter(self._arrived))]
        return [reply for _, reply in sorted(arrivals, key=lambda pair: pair[0])]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send messages and wait for their replies, at most ``timeout`` seconds of virtual time."""
        waiting = set(self.push_messages(messages))
        until = inf if timeout is None else self._now + timeout
        replies = list(self.pull_messages(waiting))
        while (waiting := waiting - {r.metadata.reply_to_message_id for r in replies}) and self._now < until:
            self.wait(until, waiting)
            replies += self.pull_messages(waiting)
        self.forget(waiting)
        return replies

    def forget(self, message_ids: Iterable[str]) -> None:
        """Drop the replies to messages that nobody will pull. Their nodes work on them all the same."""
        for message_id in message_ids:
            self._instant.pop(message_id, None)
            if sent := self._in_flight.pop(message_id, None):
                self._arrival_of(sent)  # and nothing keeps its message in memory

    # -- messages -------------------------------------------------------------------------------------------------

    def _push(self, message: Message) -> str:
        """Send a message; its id, which is empty if the grid does not take it."""
        node = message.metadata.dst_node_id
        if sent := self._working.get(node):
            self._arrival_of(sent)  # nodes compute their messages one after another
        if message.metadata.message_type in (MessageType.EVALUATE, self._reading.profile_query):
            if message_id := "".join(self._grid.push_messages([message])):
                self._instant[message_id] = message
            return message_id
        if not self._device:
            self._number_nodes()
        if node not in self._device:
            return ""
        begun = max(self._now, self._free.get(node, 0.0))
        sent = _Sent(message, node, begun, self.devices.availability.mark(self._device[node]))
        finish = self._finish(sent, 0.0, 0)
        sent.received = finish.time
        if finish.lost:  # the node turns off before it has the message, and computes nothing
            self._made_here += 1
            message_id = f"lost-{self._made_here}"
            set_message_id(message, message_id)
            sent.arrival = self._free[node] = finish.time
            sent.reply = unavailable_reply(message, _turned_off(finish))
        elif message_id := "".join(self._grid.push_messages([message])):
            self._working[node] = sent
        if message_id:
            self._in_flight[message_id] = sent
        return message_id

    def _finish(self, sent: _Sent, steps: float, size: int) -> Finish:
        """When a device has received a message, has taken so many steps and has sent a reply of this size."""
        device = self._device[sent.node]
        seconds = self.devices.seconds(device, self._reading.size(sent.message.content), steps, size)
        return self.devices.availability.finish(device, sent.begun, seconds, lost=self._lost, mark=sent.mark)

    def _number_nodes(self) -> None:
        """Give the nodes their devices, in the order of their keys. Raises ``ValueError`` for too many nodes."""
        self._all = list(self._grid.get_node_ids())
        if len(self._all) > self.devices.count:
            raise ValueError(f"{len(self._all)} nodes are connected, but the clock has {self.devices.count} devices")
        ordered = sorted(self._all, key=lambda node: (self._keys.get(node, ""), node))
        self._device = {node: number for number, node in enumerate(ordered)}
        busy, self._resumed_busy = self._resumed_busy, {}
        self._free |= {node: busy[key] for node in ordered if (key := self._key(node)) in busy}

    def _key(self, node: int) -> str:
        return self._keys.get(node) or str(node)  # also of nodes whose profile has none

    def devices_by_key(self) -> dict[str, int]:
        """The numbers of the devices by the keys of their nodes; empty before the time begins."""
        return {self._key(node): number for node, number in self._device.items()}

    def _arrival_of(self, sent: _Sent) -> float:
        """When the reply to a message arrives, which the node computes now if it has not yet."""
        if sent.arrival is None:
            del self._working[sent.node]
            sent.arrival, sent.reply = self._computed(sent)
            self._free[sent.node] = sent.arrival
        return sent.arrival

    def _computed(self, sent: _Sent) -> tuple[float, Message]:
        """The reply to a message, and when it arrives."""
        message, steps, size = sent.message, 0.0, 0
        reply = self._fetch(message.metadata.message_id)
        if not reply.has_error():
            size = self._reading.size(reply.content)
            if message.metadata.message_type == MessageType.TRAIN:
                if (stated := self._reading.steps(reply)) is None:
                    return sent.received, error_reply(message, _NO_STEPS)
                steps = stated
        finish = self._finish(sent, steps, size)
        return finish.time, unavailable_reply(message, _turned_off(finish)) if finish.lost else reply

    def _answer(self, message_id: str) -> Message:
        """The reply to a message that takes no time."""
        message, reply = self._instant.pop(message_id), self._fetch(message_id)
        if message.metadata.message_type == self._reading.profile_query and not self._device:
            node = message.metadata.dst_node_id
            self._keys[node] = "" if reply.has_error() else self._reading.key(reply)
            if len(self._keys) == len(self._all):
                self._number_nodes()
        return reply

    def _fetch(self, message_id: str) -> Message:
        """The reply of the node, for which this waits if another process computes it."""
        pause = _PAUSE
        while not (replies := list(self._grid.pull_messages([message_id]))):
            time.sleep(pause)
            pause = min(pause * _GROWTH, _LONGEST)
        return replies[0]


def _turned_off(finish: Finish) -> str:
    return f"the node turned off after {finish.time:.0f} s"
