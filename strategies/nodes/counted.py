"""Which reply of each node was counted last, for algorithms whose nodes keep what the server adds up.

A node changes its own state before it knows what becomes of its reply. With its next message it learns which reply was
counted, and goes back to the state before if that is not its last one: the reply was refused, lost or late.
"""

from typing import ClassVar

from flwr.app import ConfigRecord, RecordDict

from .. import wire
from ..replies import Reply
from ..rounds.snapshots import Stateful
from .profiles import Profile


class CountedReplies(Stateful):
    """The round of the last counted reply of each node, by its stable key."""

    kept: ClassVar[tuple[str, ...]] = ("_rounds",)

    def __init__(self) -> None:
        self._rounds: dict[str, int] = {}

    def note(self, server_round: int, reply: Reply) -> None:
        """Note that the server counts a reply of a round."""
        self._rounds[reply.profile.key] = server_round

    def complete(self, profile: Profile, content: RecordDict) -> None:
        """Add the record ``counted`` to a TRAIN message to a node."""
        content[wire.COUNTED] = ConfigRecord({wire.COUNTED_ROUND: self._rounds.get(profile.key, 0)})
