"""Who is connected: waiting for enough nodes, and knowing each by its profile."""

import time
from collections.abc import Mapping
from logging import INFO, WARNING

from flwr.common.logger import log
from flwr.serverapp import Grid

from .patience import patiently
from .profiles import Profile, query_profiles, told_apart
from .rounds import TooFewRepliesError
from .sizes import Sizes


class Roster:
    """The nodes that have been connected in a run, each asked for its profile until it answers.

    One that has not answered takes part under its node id. A node that was killed and started again is another one to
    Flower, which counts the old one as connected for a minute yet. Both claim the same key; the newer has it, so that
    whoever returns is known by the old key. ``sizes`` is what they may claim to have.
    """

    def __init__(self, sizes: Sizes | None = None) -> None:
        self._sizes = sizes or Sizes()
        self._told: dict[int, Profile] = {}
        self._known: dict[int, Profile] = {}

    @property
    def known(self) -> Mapping[int, Profile]:
        """Those that were connected at the last look, by Flower's node id; their keys are distinct."""
        return self._known

    def connected(self, grid: Grid) -> list[Profile]:
        """The connected nodes in the order of their keys; those that have told nothing yet are asked."""
        connected = patiently(lambda: set(grid.get_node_ids()))
        asked = self._sizes.believed(query_profiles(grid, sorted(connected - self._told.keys())))
        # The greatest id of those asked now comes first, the smallest last, which makes it the newest.
        self._told |= {profile.node_id: profile for profile in reversed(asked)}
        silent = [Profile.unknown(node) for node in sorted(connected - self._told.keys())]
        newest_first = [profile for node, profile in reversed(self._told.items()) if node in connected]
        profiles = told_apart([*newest_first, *silent])
        for profile in profiles:
            self._warn(profile)
        self._known = {profile.node_id: profile for profile in profiles}
        return profiles

    def _warn(self, profile: Profile) -> None:
        """Say once that another node has the key."""
        told = self._told.get(profile.node_id, profile)
        if profile.key != told.key and profile != self._known.get(profile.node_id):
            log(
                WARNING, "a newer node claims the key %r too: node %s is now %r", told.key, profile.node_id, profile.key
            )


def wait_for_nodes(grid: Grid, count: int, seconds: float) -> None:
    """Wait until ``count`` nodes are connected. Raises ``TooFewRepliesError`` after ``seconds``."""
    deadline, said = time.monotonic() + seconds, 0.0
    while (connected := patiently(lambda: len(list(grid.get_node_ids())))) < count:
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
