"""Which reply of each node was counted last, for algorithms whose nodes keep what the server adds up.

A node changes its own state before it knows what becomes of its reply. With its next message it learns which reply was
counted, and goes back to the state before if that is not its last one: the reply was refused, lost or late.
"""

from collections.abc import Mapping

import numpy as np
from flwr.app import ConfigRecord

from .. import wire
from ..arrays import Arrays
from ..replies import Reply
from .profiles import Profile

_STATE = "counted."
_KEYS, _ROUNDS = _STATE + "keys", _STATE + "rounds"


class CountedReplies:
    """The round of the last counted reply of each node, by its stable key."""

    def __init__(self) -> None:
        self._rounds: dict[str, int] = {}

    def note(self, server_round: int, reply: Reply) -> None:
        """Note that the server counts a reply of a round."""
        self._rounds[reply.profile.key] = server_round

    def records(self, profile: Profile) -> Mapping[str, ConfigRecord]:
        """What a TRAIN message to a node has: the record ``counted``."""
        return {wire.COUNTED: ConfigRecord({wire.COUNTED_ROUND: self._rounds.get(profile.key, 0)})}

    def state(self) -> Arrays:
        """Arrays for a snapshot; :meth:`load_state` restores them."""
        keys = "\n".join(self._rounds).encode()
        return {_KEYS: np.frombuffer(keys, np.uint8), _ROUNDS: np.array(list(self._rounds.values()), np.int64)}

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore the state of a snapshot, which may have none."""
        keys = state[_KEYS].tobytes().decode().split("\n") if _KEYS in state else []
        self._rounds = dict(zip(keys, map(int, state.get(_ROUNDS, np.zeros(0))), strict=False))
