"""Who is connected: waiting for enough nodes, and knowing each by its profile."""

import time
from collections.abc import Mapping
from logging import INFO, WARNING

from flwr.common.logger import log
from flwr.serverapp import Grid

from .profiles import Profile, query_profiles, told_apart
from .rounds import TooFewRepliesError


class Roster:
    """The nodes that have been connected in a run, each asked once for its profile.

    A node that was killed and started again is another one to Flower, which counts the old one as connected for a
    minute yet. Both claim the same key; the newer has it, so that whoever returns is known by the old key.
    """

    def __init__(self) -> None:
        self._told: dict[int, Profile] = {}
        self._known: dict[int, Profile] = {}

    @property
    def known(self) -> Mapping[int, Profile]:
        """Those that were connected at the last look, by Flower's node id; their keys are distinct."""
        return self._known

    def connected(self, grid: Grid) -> list[Profile]:
        """The connected nodes in the order of their stable keys; those not seen before are asked."""
        connected = set(grid.get_node_ids())
        asked = query_profiles(grid, sorted(connected - self._told.keys()))
        # The greatest id of those asked now comes first, the smallest last, which makes it the newest.
        self._told |= {profile.node_id: profile for profile in reversed(asked)}
        newest_first = [profile for node, profile in reversed(self._told.items()) if node in connected]
        profiles = told_apart(newest_first)
        for profile in profiles:
            self._warn(profile)
        self._known = {profile.node_id: profile for profile in profiles}
        return profiles

    def _warn(self, profile: Profile) -> None:
        """Say once that another node has the key."""
        claimed = self._told[profile.node_id].key
        if profile.key != claimed and profile != self._known.get(profile.node_id):
            log(WARNING, "a newer node claims the key %r too: node %s is now %r", claimed, profile.node_id, profile.key)


def wait_for_nodes(grid: Grid, count: int, seconds: float) -> None:
    """Wait until ``count`` nodes are connected. Raises ``TooFewRepliesError`` after ``seconds``."""
    deadline, said = time.monotonic() + seconds, 0.0
    while (connected := len(list(grid.get_node_ids()))) < count:
        now = time.monotonic()
        if now > deadline:
            raise TooFewRepliesError(
                f"{connected} nodes connected within {seconds:.0f} s, but {count} are wanted: "
                "start more, in simulation with --federation-config 'num-supernodes=…', or ask for fewer"
            )
        if now - said > 10:
            log(INFO, "waiting for nodes: %s of %s connected", connected, count)
            said = now
        time.sleep(0.1)
