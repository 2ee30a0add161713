"""Sends messages and yields their replies one at a time, in the order of the messages.

The order does not depend on when nodes reply, so that the same seed gives the same bits in sums over replies. Replies
that arrive before their turn wait: a bounded number of them at the server, the others in Flower's store, so that the
server's memory does not grow with the number of nodes. A reply in the store is lost if its node goes offline, because
the SuperLink then answers with an error even if it has the reply.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from math import inf

from flwr.app import Message
from flwr.serverapp import Grid

from .clock import clock_of
from .transport import NodeFailure, Outcome, Sent, is_immediate, pull, pull_together, push

_MAX_EARLY_PULLS = 16  # attempts to fetch later replies, each time that the next one is not there
_MOST_TOGETHER = 32  # replies of an immediate grid that are fetched at once


def exchange(
    grid: Grid,
    messages: Iterable[Message],
    timeout: float | None,
    poll: float = 0.02,
    *,
    ahead: int = 0,
    together: int = 1,
    in_flight: int | None = None,
    count_busy: Callable[[], int] = lambda: 0,
    on_wait: Callable[[int], None] = lambda working: None,
    on_reply: Callable[[Sent, float], None] = lambda sent, seconds: None,
) -> Iterator[Outcome]:
    """Send messages and yield one reply or failure for each, in the order of the messages.

    The first messages are sent when the first item is requested. Release each reply before requesting the next one:
    then at most one is in memory, in addition to the ``ahead`` replies that arrived before their turn.

    Parameters
    ----------
    grid : Grid
        Flower's grid.
    messages : iterable of Message
        Usually one per node, but a node can get several.
    timeout : float or None
        ≥ 0, seconds to wait for each reply after its message is sent; ``None`` waits without limit. A reply that is
        already there when the time is over is accepted.
    poll : float
        > 0, seconds between the first two attempts to fetch a reply. The pause grows by half with every attempt, up to
        0.5 s, and starts again at ``poll`` for the next message.
    ahead : int
        ≥ 0, the largest number of replies to fetch before their turn, while waiting for the next one.
    together : int
        ≥ 1, the largest number of replies to fetch at once from a grid that computes them when they are pulled
        (:func:`~.transport.is_immediate`), at most 32. Nodes and server then use the processor's caches in turn.
    in_flight : int or None
        ≥ 1, the largest number of nodes that work at a time; the next message is sent when a reply is fetched or times
        out. ``None`` sends all messages at once.
    count_busy : function
        Returns the number of nodes that work on other messages, which also count towards ``in_flight``. At least one
        message is always in flight.
    on_wait : function of an int
        Called after every attempt that finds no reply, with the number of nodes that work on these messages.
    on_reply : function of a Sent and a float
        Called for every reply with its message, and the seconds from sending it to the arrival of the reply; on the
        machine's clock, to when it was fetched.

    Yields
    ------
    Message or NodeFailure
        The reply with its content. A failure if the message was not accepted, if no reply arrived in time, or if the
        reply is an error.

    Raises
    ------
    ValueError
        ``timeout`` or ``ahead`` is negative, ``poll`` is not positive, or ``in_flight`` is below 1.
    """
    if timeout is not None and not timeout >= 0:
        raise ValueError(f"timeout = {timeout!r}: must be at least 0 seconds, or None")
    if not poll > 0:
        raise ValueError(f"poll = {poll!r}: must be above 0 seconds")
    if ahead < 0:
        raise ValueError(f"ahead = {ahead}: must be at least 0")
    if together < 1:
        raise ValueError(f"together = {together}: must be at least 1")
    if in_flight is not None and in_flight < 1:
        raise ValueError(f"in_flight = {in_flight}: must be at least 1, or None")
    limit = inf if timeout is None else timeout
    at_once = min(together, _MOST_TOGETHER) if is_immediate(grid) else 1
    mailbox = _Mailbox(grid, messages, limit, ahead, at_once, in_flight, count_busy, on_reply)
    return mailbox.outcomes(poll, on_wait)


@dataclass(frozen=True)
class _Awaited(Sent):
    sent_at: float
    deadline: float


class _Mailbox:
    """Messages to send and their replies, in the order of the messages."""

    def __init__(
        self,
        grid: Grid,
        messages: Iterable[Message],
        timeout: float,
        ahead: int,
        at_once: int,
        in_flight: int | None,
        count_busy: Callable[[], int],
        on_reply: Callable[[Sent, float], None],
    ) -> None:
        self._grid = grid
        self._clock = clock_of(grid)
        self._timeout = timeout
        self._ahead, self._at_once = ahead, at_once
        self._unsent = deque(messages)
        self._in_flight = in_flight
        self._count_busy = count_busy
        self._on_reply = on_reply
        self._turns: deque[_Awaited | NodeFailure] = deque()  # sent, but not yet yielded
        self._later: OrderedDict[str, _Awaited] = OrderedDict()  # those of _turns without a reply, by message id
        self._deadlines: deque[_Awaited] = deque()  # those sent, in this order, whose time was not over when last seen
        self._overdue: set[str] = set()  # those of _later whose time is over
        self._early: dict[str, Outcome] = {}

    def outcomes(self, poll: float, on_wait: Callable[[int], None]) -> Iterator[Outcome]:
        """Yield one reply or failure per message."""
        while self._unsent or self._turns:
            self._send()
            # No variable here may refer to the reply while waiting for the next one.
            yield self._next(poll, on_wait)

    def _send(self, awaited: int = 0) -> None:
        """Send as many messages as ``in_flight`` allows; ``awaited`` is 1 if a message has its turn, otherwise 0."""
        count = len(self._unsent)
        if count and self._in_flight is not None:
            working = awaited + self._working_later()
            count = min(count, max(self._in_flight - self._count_busy(), 1) - working)
        if count < 1:
            return
        for sent in push(self._grid, [self._unsent.popleft() for _ in range(count)]):
            if isinstance(sent, Sent):
                now = self._clock.now()
                sent = _Awaited(sent.node_id, sent.message_id, now, now + self._timeout)
                self._later[sent.message_id] = sent
                self._deadlines.append(sent)
            self._turns.append(sent)

    def _next(self, poll: float, on_wait: Callable[[int], None]) -> Outcome:
        """The reply or failure of the next message; tries at least once to fetch the reply."""
        turn = self._turns.popleft()
        if isinstance(turn, NodeFailure):
            return turn
        if self._at_once > 1 and turn.message_id not in self._early:
            self._pull_first()
        if turn.message_id in self._early:
            return self._early.pop(turn.message_id)
        self._forget(turn)
        clock = clock_of(self._grid, poll)
        while (reply := self._pull(turn)) is None:
            if clock.now() >= turn.deadline:
                clock.forget([turn.message_id])
                return NodeFailure(turn.node_id, f"no reply within {self._timeout:g} s")
            self._look_ahead()
            self._send(awaited=1)
            on_wait(1 + self._working_later())
            clock.wait(turn.deadline, None if self._unsent else [turn.message_id])
        return reply

    def _working_later(self) -> int:
        """Number of nodes that work on messages whose turn has not come."""
        now = self._clock.now()
        while self._deadlines and self._deadlines[0].deadline <= now:  # all messages have the same timeout
            if (late := self._deadlines.popleft().message_id) in self._later:
                self._overdue.add(late)
        return len(self._later) - len(self._overdue)

    def _look_ahead(self) -> None:
        """Fetch some later replies, one by one, because a reply that cannot be decoded fails its whole request."""
        for _ in range(min(self._ahead - len(self._early), len(self._later), _MAX_EARLY_PULLS)):
            sent = next(iter(self._later.values()))
            self._later.move_to_end(sent.message_id)
            if reply := self._pull(sent):
                self._forget(sent)
                self._early[sent.message_id] = reply

    def _pull_first(self) -> None:
        """Fetch the replies to the next messages with one request."""
        for sent, outcome in pull_together(self._grid, list(islice(self._later.values(), self._at_once))):
            self._note_arrival(self._later[sent.message_id])
            self._forget(sent)
            self._early[sent.message_id] = outcome

    def _pull(self, sent: _Awaited) -> Outcome | None:
        reply = pull(self._grid, sent)
        if reply is not None:
            self._note_arrival(sent)
        return reply

    def _note_arrival(self, sent: _Awaited) -> None:
        self._on_reply(sent, self._clock.arrived_at(sent.message_id) - sent.sent_at)

    def _forget(self, sent: Sent) -> None:
        del self._later[sent.message_id]
        self._overdue.discard(sent.message_id)
