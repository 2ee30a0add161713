"""Who is connected: waiting for enough nodes, and knowing each by its profile."""

import time
from collections.abc import Mapping
from logging import INFO, WARNING

from flwr.common.logger import log
from flwr.serverapp import Grid

from .example_limits import ExampleLimits
from .profile_queries import ProfileQueries
from .profiles import Profile, with_distinct_keys
from .retry import retry
from .round_records import TooFewRepliesError
from .transport import pauses

POLL_SECONDS = 1.0


class NodeRegistry:
    """The nodes that have been connected in a run, each asked for its profile, from the answer to which it takes part.

    At first all that are connected are waited for, and later on whenever fewer than ``enough`` are known. Otherwise
    whoever joins is asked while a round waits for others, and holds nobody up. A node that was killed and started
    again is another one to Flower, which counts the old one as connected for a minute yet. Both claim the same key; the
    newer has it, so that whoever returns is known by the old key.

    Parameters
    ----------
    sizes : ExampleLimits
        What nodes may claim to have; anything by default.
    enough : int
        ≥ 1, how many nodes with data a round cannot do without.
    in_flight : int or None
        ≥ 1, how many nodes are asked at a time; ``None`` for all of them.
    """

    def __init__(self, sizes: ExampleLimits | None = None, *, enough: int = 1, in_flight: int | None = None) -> None:
        self._sizes = sizes or ExampleLimits()
        self._enough = enough
        self._enquiries = ProfileQueries(in_flight)
        self._newest_first: list[int] = []
        self._told: dict[int, Profile] = {}
        self._known: dict[int, Profile] = {}
        self._greet_again = 0.0

    @property
    def known(self) -> Mapping[int, Profile]:
        """Those that were connected at the last look, by Flower's node id; their keys are distinct."""
        return self._known

    def connected(self, grid: Grid) -> list[Profile]:
        """The connected nodes that have told their profile, in the order of their keys."""
        all_of_them = not self._told
        connected, pause = self._ask(grid), pauses()
        while self._enquiries.hopeful and (all_of_them or self._able(connected) < self._enough):
            if not self._hear(grid):
                time.sleep(next(pause))
        told = [self._told[node] for node in self._newest_first if node in connected and node in self._told]
        profiles = with_distinct_keys(told)
        for profile in profiles:
            self._warn(profile)
        self._known = {profile.node_id: profile for profile in profiles}
        return profiles

    def poll(self, grid: Grid) -> None:
        """Ask those that have joined, and hear those that answer, once a second; to be called while a round waits."""
        if time.monotonic() >= self._greet_again:
            self._ask(grid)
            self._greet_again = time.monotonic() + POLL_SECONDS

    def _ask(self, grid: Grid) -> set[int]:
        """Ask those that have told nothing yet; who is connected."""
        connected = retry(lambda: set(grid.get_node_ids()))
        new = connected.difference(self._newest_first)
        self._newest_first = [*sorted(new), *self._newest_first]  # of those that come together the smallest id
        self._enquiries.ask(connected - self._told.keys())
        self._hear(grid)
        return connected

    def _hear(self, grid: Grid) -> bool:
        """Take the answers that have come; whether there were any."""
        heard = self._sizes.believed(self._enquiries.hear(grid))
        self._told |= {profile.node_id: profile for profile in heard}
        return bool(heard)

    def _able(self, connected: set[int]) -> int:
        return sum(node in connected and not profile.no_data for node, profile in self._told.items())

    def _warn(self, profile: Profile) -> None:
        """Say once that another node has the key."""
        told = self._told[profile.node_id]
        if profile.key != told.key and profile != self._known.get(profile.node_id):
            log(
                WARNING, "a newer node claims the key %r too: node %s is now %r", told.key, profile.node_id, profile.key
            )


def wait_for_nodes(grid: Grid, count: int, seconds: float) -> None:
    """Wait until ``count`` nodes are connected. Raises ``TooFewRepliesError`` after ``seconds``."""
    deadline, said = time.monotonic() + seconds, 0.0
    while (connected := retry(lambda: len(list(grid.get_node_ids())))) < count:
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
