"""Compresses the replies of a node whose server asks for it; the error stays with the node's private state."""

from flwr.app import Context, Message

from clients.attempts import Attempts
from clients.named_arrays import Arrays
from clients.round_settings import RoundSettings
from clients.state import PrivateState
from strategies.arrays import from_record
from strategies.compressed_replies import compress_reply
from strategies.compression import Compression
from strategies.wire import ARRAYS

from .errors import Handler
from .node import Node


class StateMemory:
    """The error of the last compression, a version per round as all private state (``ErrorMemory``).

    Parameters
    ----------
    state : PrivateState
        Of the errors alone.
    settings : RoundSettings
        Those of the message.
    """

    def __init__(self, state: PrivateState, settings: RoundSettings) -> None:
        self._state = state
        self._settings = settings
        self._attempts = Attempts.read(settings.attempts)

    def load(self) -> Arrays:
        return self._state.load(self._settings.server_round, self._attempts) or {}

    def save(self, error: Arrays) -> None:
        self._state.save(self._settings.server_round, error, self._settings.durable_round, self._attempts)


def compressed_reply(message: Message, context: Context, call_next: Handler, compression: Compression) -> Message:
    """The compressed reply to a TRAIN message."""
    received = from_record(message.content.array_records[ARRAYS])  # before training can change them
    reply = call_next(message, context)
    if not reply.has_error():
        node = Node(message, context)
        compress_reply(reply, received, compression, StateMemory(node.compression_state(), node.settings))
    return reply
