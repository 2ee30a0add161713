"""Messages out, replies in: one reply at a time, in the order in which the messages were sent.

Sums over replies have one order whatever the scheduling of the nodes: the same seed gives the same bits. A reply
that comes before its turn waits: a bounded number of them here, the others in Flower's store, so that the memory of
the server does not grow with the number of nodes. Those in the store are lost if their node goes offline meanwhile,
because the SuperLink answers for an offline node with an error even where it has a reply.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from .patience import UNREADABLE, patiently

LONGEST_POLL = 0.5
_LOOKS = 16  # for replies that come later, each time that the next one is not there
_OF_THE_SUPERLINK = (
    ErrorCode.NODE_UNAVAILABLE,
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
)
_GROWTH = 1.5


@dataclass(frozen=True)
class NodeFailure:
    """A node that did not reply, and why; ``by_node`` where it said so itself, and is not just silent or gone."""

    node_id: int
    reason: str
    by_node: bool = False


def exchange(
    grid: Grid, messages: Iterable[Message], timeout: float | None, poll: float = 0.02, *, ahead: int = 0
) -> Iterator[Message | NodeFailure]:
    """Send messages and yield what becomes of each, in the order of the messages.

    The messages are sent when the first item is asked for. Keep no reply while asking for the next: then at
    most one is in memory, beside the ``ahead`` that came before their turn.

    Parameters
    ----------
    grid : Grid
        Flower's way to the nodes.
    messages : iterable of Message
        At most one per node is usual, but not required.
    timeout : float or None
        Seconds, ≥ 0, for all replies together, counted from the moment the messages are sent; ``None`` waits
        for ever. Once it is over, every reply that is already there is still taken.
    poll : float
        Seconds, > 0, until the second look for a reply; grows by half from look to look, up to 0.5 s, and
        begins anew with the next message.
    ahead : int
        ≥ 0, how many replies are fetched before their turn, while the next one is awaited.

    Yields
    ------
    Message or NodeFailure
        The reply with its content, or a failure: the message was not accepted, no reply came in time, or the
        reply is an error. Exactly one item per message.

    Raises
    ------
    ValueError
        ``timeout`` or ``ahead`` is negative, or ``poll`` is not positive.
    """
    if timeout is not None and not timeout >= 0:
        raise ValueError(f"timeout = {timeout!r}: must be at least 0 seconds, or None")
    if not poll > 0:
        raise ValueError(f"poll = {poll!r}: must be above 0 seconds")
    if ahead < 0:
        raise ValueError(f"ahead = {ahead}: must be at least 0")
    return _exchange(grid, list(messages), timeout, poll, ahead)


def _exchange(
    grid: Grid, messages: list[Message], timeout: float | None, poll: float, ahead: int
) -> Iterator[Message | NodeFailure]:
    if not messages:
        return
    sent = _push(grid, messages)
    messages.clear()
    deadline = None if timeout is None else time.monotonic() + timeout
    mailbox = _Mailbox(grid, [message_id for _, message_id in sent if message_id is not None], ahead)
    for node_id, message_id in sent:
        if message_id is None:
            yield NodeFailure(node_id, "the message was not accepted: the node is unknown or the message too large")
        else:
            # No name here may hold the reply while the next one is awaited.
            yield _outcome(node_id, mailbox.next(deadline, poll), timeout)


def _push(grid: Grid, messages: list[Message]) -> list[tuple[int, str | None]]:
    """Node and message id of each message; no id where it was refused."""
    returned = patiently(lambda: list(grid.push_messages(messages)))
    # One grid leaves refused messages out of its answer, the other puts an empty id in their place: the ids
    # that both write into the messages tell which is which. A grid that writes none must answer for every
    # message.
    ids: Sequence[str | None] = [message.metadata.message_id for message in messages]
    if any(ids):
        accepted = set(returned)
        ids = [message_id if message_id in accepted else None for message_id in ids]
    elif len(returned) == len(messages):
        ids = [message_id or None for message_id in returned]
    else:
        ids = [None] * len(messages)
    return [(message.metadata.dst_node_id, id_) for message, id_ in zip(messages, ids, strict=True)]


class _Mailbox:
    """Replies to the messages of the given ids, handed out in their order."""

    def __init__(self, grid: Grid, ids: Sequence[str], ahead: int) -> None:
        self._grid = grid
        self._ahead = ahead
        self._ids = deque(ids)
        self._later = deque(ids)
        self._early: dict[str, Message | str] = {}

    def next(self, deadline: float | None, poll: float) -> Message | str | None:
        """The reply to the next message, ``None`` if there is none by the deadline; looks at least once."""
        wanted = self._ids.popleft()
        if wanted in self._early:
            return self._early.pop(wanted)
        self._later.remove(wanted)
        while (reply := self._fetch(wanted)) is None:
            left = float("inf") if deadline is None else deadline - time.monotonic()
            if left <= 0:
                return None
            self._look_ahead()
            time.sleep(min(poll, left))
            poll = min(poll * _GROWTH, LONGEST_POLL)
        return reply

    def _look_ahead(self) -> None:
        """Fetch some of the replies that come later, one by one: one that cannot be read must not take others along."""
        for _ in range(min(self._ahead - len(self._early), len(self._later), _LOOKS)):
            self._later.rotate(-1)
            message_id = self._later[-1]
            if reply := self._fetch(message_id):
                self._later.pop()
                self._early[message_id] = reply

    def _fetch(self, message_id: str) -> Message | str | None:
        """The reply to a message if one has come, or why what has come cannot be read."""
        try:
            replies = patiently(lambda: list(self._grid.pull_messages([message_id])))
            return next((reply for reply in replies if reply.metadata.reply_to_message_id == message_id), None)
        except UNREADABLE as error:  # Flower puts the reply together from what the node sent
            return f"the reply cannot be read: {type(error).__name__}: {error}"


def _outcome(node_id: int, reply: Message | str | None, timeout: float | None) -> Message | NodeFailure:
    if reply is None:
        return NodeFailure(node_id, f"no reply within {timeout:g} s")
    if isinstance(reply, str):
        return NodeFailure(node_id, reply, by_node=True)
    if reply.has_error():
        by_node = reply.error.code not in _OF_THE_SUPERLINK
        return NodeFailure(node_id, reply.error.reason or f"error {reply.error.code} without a reason", by_node)
    return reply
