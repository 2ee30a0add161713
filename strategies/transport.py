"""Sending messages to nodes and fetching single replies, for every implementation of Flower's grid."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from .retry import UNREADABLE, retry

LONGEST_PAUSE = 0.5
_GROWTH = 1.5
_SUPERLINK_ERRORS = (
    ErrorCode.NODE_UNAVAILABLE,
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
)


@dataclass(frozen=True)
class NodeFailure:
    """A message without a usable reply.

    Parameters
    ----------
    node_id : int
        Flower's id of the node.
    reason : str
        Why there is no reply.
    by_node : bool
        Whether the node itself reported the failure; otherwise it did not answer or is not connected.
    """

    node_id: int
    reason: str
    by_node: bool = False


@dataclass(frozen=True)
class Sent:
    """A message that the grid accepted."""

    node_id: int
    message_id: str


def push(grid: Grid, messages: Iterable[Message]) -> list[Sent | NodeFailure]:
    """Send messages. Returns one item per message, in order: a failure if the grid did not accept the message."""
    sent = list(messages)
    returned = retry(lambda: list(grid.push_messages(sent)))
    # One grid omits refused messages from its result, another returns an empty id for them. Both write ids into the
    # messages, which identify the accepted ones. A grid that writes no ids must return one id per message.
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
    """Fetch the reply to a message.

    Returns
    -------
    Message, NodeFailure or None
        The reply with its content; a failure if the reply is an error or cannot be decoded; ``None`` if there is no
        reply yet.
    """
    try:
        replies = retry(lambda: list(grid.pull_messages([sent.message_id])))
        reply = next((reply for reply in replies if reply.metadata.reply_to_message_id == sent.message_id), None)
    except UNREADABLE as error:  # raised when Flower decodes what the node sent
        return NodeFailure(sent.node_id, f"the reply cannot be decoded: {type(error).__name__}: {error}", by_node=True)
    if reply is None or not reply.has_error():
        return reply
    by_node = reply.error.code not in _SUPERLINK_ERRORS
    return NodeFailure(sent.node_id, reply.error.reason or f"error {reply.error.code} without a reason", by_node)


def pauses(first: float = 0.02) -> Iterator[float]:
    """Seconds to wait between two attempts to fetch a reply: each 1.5 times the one before, up to 0.5."""
    while True:
        yield first
        first = min(first * _GROWTH, LONGEST_PAUSE)


def _sent(node_id: int, message_id: str | None) -> Sent | NodeFailure:
    if message_id is None:
        return NodeFailure(node_id, "the message was not accepted: the node is unknown or the message too large")
    return Sent(node_id, message_id)
