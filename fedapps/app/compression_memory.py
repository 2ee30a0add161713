"""Where a node keeps the error of its last compressed reply: with its private state."""

from flwr.app import Context, Message

from fedapps.clients.arrays import Arrays
from fedapps.clients.settings import RoundSettings
from fedapps.clients.state import Attempts, PrivateState

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

    @classmethod
    def of(cls, message: Message, context: Context) -> "StateMemory":
        """The memory of the node that received the message."""
        node = Node(message, context)
        return cls(node.compression_state(), node.settings)

    def load(self) -> Arrays:
        return self._state.load(self._settings.server_round, self._attempts) or {}

    def save(self, error: Arrays) -> None:
        self._state.save(self._settings.server_round, error, self._settings.durable_round, self._attempts)
