"""Single messages to nodes and single replies from them, whatever the grid and however it fails."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from .retry import UNREADABLE, retry

LONGEST_PAUSE = 0.5
_GROWTH = 1.5
_OF_THE_SUPERLINK = (
    ErrorCode.NODE_UNAVAILABLE,
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
)


@dataclass(frozen=True)
class NodeFailure:
    """A node that did not reply, and why; ``by_node`` where it said so itself, and is not just silent or gone."""

    node_id: int
    reason: str
    by_node: bool = False


@dataclass(frozen=True)
class Sent:
    """A message on its way to a node."""

    node_id: int
    message_id: str


def push(grid: Grid, messages: Iterable[Message]) -> list[Sent | NodeFailure]:
    """Send messages; one item for each of them, a failure where it was not accepted."""
    sent = list(messages)
    returned = retry(lambda: list(grid.push_messages(sent)))
    # One grid leaves refused messages out of its answer, the other puts an empty id in their place: the ids
    # that both write into the messages tell which is which. A grid that writes none must answer for every
    # message.
    ids: Sequence[str | None] = [message.metadata.message_id for message in sent]
    if any(ids):
        accepted = set(returned)
        ids = [message_id if message_id in accepted else None for message_id in ids]
    elif len(returned) == len(sent):
        ids = [message_id or None for message_id in returned]
    else:
        ids = [None] * len(sent)
    return [_sent(message.metadata.dst_node_id, message_id) for message, message_id in zip(sent, ids, strict=True)]


def pull(grid: Grid, sent: Sent) -> Message | NodeFailure | None:
    """The reply to a message with its content, a failure where it is an error or cannot be read, ``None`` before."""
    try:
        replies = retry(lambda: list(grid.pull_messages([sent.message_id])))
        reply = next((reply for reply in replies if reply.metadata.reply_to_message_id == sent.message_id), None)
    except UNREADABLE as error:  # Flower puts the reply together from what the node sent
        return NodeFailure(sent.node_id, f"the reply cannot be read: {type(error).__name__}: {error}", by_node=True)
    if reply is None or not reply.has_error():
        return reply
    by_node = reply.error.code not in _OF_THE_SUPERLINK
    return NodeFailure(sent.node_id, reply.error.reason or f"error {reply.error.code} without a reason", by_node)


def pauses(first: float = 0.02) -> Iterator[float]:
    """Seconds between looks for a reply: each longer by half than the one before, up to 0.5."""
    while True:
        yield first
        first = min(first * _GROWTH, LONGEST_PAUSE)


def _sent(node_id: int, message_id: str | None) -> Sent | NodeFailure:
    if message_id is None:
        return NodeFailure(node_id, "the message was not accepted: the node is unknown or the message too large")
    return Sent(node_id, message_id)
