"""Sending messages to nodes and fetching single replies, for every implementation of Flower's grid.

Calls to the SuperLink are retried after transient failures: an interrupted connection, a locked database.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from logging import WARNING
from typing import TypeVar

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from flwr.common.logger import log
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from ..checks import MAX_NAME_LENGTH, truncate

#: Seconds before each retry; the failure after the last retry is raised.
PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0)
#: Exceptions that Flower raises if it cannot decode what a node sent.
UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, AssertionError, ArithmeticError, DecodeError)

Result = TypeVar("Result")
Item = TypeVar("Item", bound="Sent")


def retry(call: Callable[[], Result]) -> Result:
    """Call a function, and retry up to five times within 31 s after failures that may be transient.

    Flower's calls can be repeated: a message that is pushed twice is delivered once.

    Parameters
    ----------
    call : function without arguments
        A call to the SuperLink.

    Returns
    -------
    object
        The result of ``call``.

    Raises
    ------
    Exception
        What ``call`` raised last; exceptions in :data:`UNREADABLE` and ``RuntimeError`` are raised at once.
    """
    for pause in PAUSES:
        try:
            return call()
        except (*UNREADABLE, RuntimeError):  # a retry would fail in the same way
            raise
        except Exception as error:  # the exception types differ between versions of Flower
            reason = truncate(f"{type(error).__name__}: {error}".partition("\n")[0], MAX_NAME_LENGTH)
            log(WARNING, "a call to the SuperLink failed (%s); retrying in %g s", reason, pause)
        time.sleep(pause)
    return call()


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

    @property
    def error(self) -> Error:
        """The error in place of a reply that stands for this failure."""
        code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION if self.by_node else ErrorCode.NODE_UNAVAILABLE
        return Error(code, self.reason)


#: A reply, or why there is none.
Outcome = Message | NodeFailure


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


def pull(grid: Grid, sent: Sent) -> Outcome | None:
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
    return None if reply is None else outcome_of(sent, reply)


def is_immediate(grid: Grid) -> bool:
    """Whether a grid computes a reply when it is pulled, as that of one process does: it has ``immediate = True``."""
    return bool(getattr(grid, "immediate", False))


def pull_together(grid: Grid, sent: Sequence[Item]) -> list[tuple[Item, Outcome]]:
    """Fetch the replies that are there with one request, in the order of ``sent``; for grids of a simulation.

    Raises
    ------
    Exception
        As the grid raises. A reply that cannot be decoded fails the request, unlike in :func:`pull`.
    """
    replies = {
        reply.metadata.reply_to_message_id: reply
        for reply in retry(lambda: list(grid.pull_messages([item.message_id for item in sent])))
    }
    return [(item, outcome_of(item, replies[item.message_id])) for item in sent if item.message_id in replies]


def outcome_of(sent: Sent, reply: Message) -> Outcome:
    """A reply, or the failure that it reports."""
    if not reply.has_error():
        return reply
    by_node = reply.error.code not in _SUPERLINK_ERRORS
    return NodeFailure(sent.node_id, reply.error.reason or f"error {reply.error.code} without a reason", by_node)


def _sent(node_id: int, message_id: str | None) -> Sent | NodeFailure:
    if message_id is None:
        return NodeFailure(node_id, "the message was not accepted: the node is unknown or the message too large")
    return Sent(node_id, message_id)
