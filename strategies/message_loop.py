"""Messages out, replies in: one reply at a time, in the order in which the messages were sent.

Sums over replies have one order whatever the scheduling of the nodes: the same seed gives the same bits. A reply
that comes before its turn waits: a bounded number of them here, the others in Flower's store, so that the memory of
the server does not grow with the number of nodes. Those in the store are lost if their node goes offline meanwhile,
because the SuperLink answers for an offline node with an error even where it has a reply.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import inf

from flwr.app import Message
from flwr.serverapp import Grid

from .transport import NodeFailure, Sent, pauses, pull, push

_LOOKS = 16  # for replies that come later, each time that the next one is not there


def exchange(
    grid: Grid,
    messages: Iterable[Message],
    timeout: float | None,
    poll: float = 0.02,
    *,
    ahead: int = 0,
    in_flight: int | None = None,
    beside: Callable[[], int] = lambda: 0,
    meanwhile: Callable[[int], None] = lambda working: None,
) -> Iterator[Message | NodeFailure]:
    """Send messages and yield what becomes of each, in the order of the messages.

    The first messages are sent when the first item is asked for. Keep no reply while asking for the next: then at
    most one is in memory, beside the ``ahead`` that came before their turn.

    Parameters
    ----------
    grid : Grid
        Flower's way to the nodes.
    messages : iterable of Message
        At most one per node is usual, but not required.
    timeout : float or None
        Seconds, ≥ 0, for the reply to each message, counted from the moment it is sent; ``None`` waits for ever.
        Once it is over, a reply that is already there is still taken.
    poll : float
        Seconds, > 0, until the second look for a reply; grows by half from look to look, up to 0.5 s, and
        begins anew with the next message.
    ahead : int
        ≥ 0, how many replies are fetched before their turn, while the next one is awaited.
    in_flight : int or None
        ≥ 1, how many nodes work at a time: so many messages are out, and another is sent when a reply is fetched
        or its time is over; ``None`` sends all of them at once.
    beside : function
        How many nodes work on other messages, which count too. Where that leaves no room, one message at a time is out.
    meanwhile : function of an int
        Called after each look that found nothing, with the number of nodes that work on these messages.

    Yields
    ------
    Message or NodeFailure
        The reply with its content, or a failure: the message was not accepted, no reply came in time, or the
        reply is an error. Exactly one item per message.

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
    if in_flight is not None and in_flight < 1:
        raise ValueError(f"in_flight = {in_flight}: must be at least 1, or None")
    mailbox = _Mailbox(grid, messages, inf if timeout is None else timeout, ahead, in_flight, beside)
    return mailbox.outcomes(poll, meanwhile)


@dataclass(frozen=True)
class _Awaited(Sent):
    deadline: float


class _Mailbox:
    """Messages on their way out, and their replies, handed out in the order of the messages."""

    def __init__(
        self,
        grid: Grid,
        messages: Iterable[Message],
        timeout: float,
        ahead: int,
        in_flight: int | None,
        beside: Callable[[], int],
    ) -> None:
        self._grid = grid
        self._timeout = timeout
        self._ahead = ahead
        self._unsent = deque(messages)
        self._in_flight = in_flight
        self._beside = beside
        self._turns: deque[_Awaited | NodeFailure] = deque()  # what was sent and not handed out
        self._later: deque[_Awaited] = deque()  # of these, what has no reply so far, but for the one whose turn it is
        self._early: dict[str, Message | NodeFailure] = {}

    def outcomes(self, poll: float, meanwhile: Callable[[int], None]) -> Iterator[Message | NodeFailure]:
        """What becomes of each message."""
        while self._unsent or self._turns:
            self._send()
            # No name here may hold the reply while the next one is awaited.
            yield self._next(poll, meanwhile)

    def _send(self, awaited: int = 0) -> None:
        """Send what may be out, beside the one that is awaited."""
        count = len(self._unsent)
        if count and self._in_flight is not None:
            working = awaited + self._working_later()
            count = min(count, max(self._in_flight - self._beside(), 1) - working)
        if count < 1:
            return
        for sent in push(self._grid, [self._unsent.popleft() for _ in range(count)]):
            if isinstance(sent, Sent):
                sent = _Awaited(sent.node_id, sent.message_id, time.monotonic() + self._timeout)
                self._later.append(sent)
            self._turns.append(sent)

    def _next(self, poll: float, meanwhile: Callable[[int], None]) -> Message | NodeFailure:
        """What becomes of the message whose turn it is; looks for its reply at least once."""
        turn = self._turns.popleft()
        if isinstance(turn, NodeFailure):
            return turn
        if turn.message_id in self._early:
            return self._early.pop(turn.message_id)
        self._later.remove(turn)
        pause = pauses(poll)
        while (reply := pull(self._grid, turn)) is None:
            left = turn.deadline - time.monotonic()
            if left <= 0:
                return NodeFailure(turn.node_id, f"no reply within {self._timeout:g} s")
            self._look_ahead()
            self._send(awaited=1)
            meanwhile(1 + self._working_later())
            time.sleep(min(next(pause), left))
        return reply

    def _working_later(self) -> int:
        """How many nodes work on messages whose turn has not come."""
        now = time.monotonic()
        return sum(sent.deadline > now for sent in self._later)

    def _look_ahead(self) -> None:
        """Fetch some of the replies that come later, one by one: one that cannot be read must not take others along."""
        for _ in range(min(self._ahead - len(self._early), len(self._later), _LOOKS)):
            self._later.rotate(-1)
            if reply := pull(self._grid, self._later[-1]):
                self._early[self._later.pop().message_id] = reply
