"""Who is connected: waiting for enough nodes, and knowing each by its profile."""

import time
from collections.abc import Iterable, Mapping, Sequence
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
REMINDER_SECONDS = 10.0
_MOST_NAMES = 8


class NodeRegistry:
    """The nodes that have been connected in a run, each asked for its profile, from the answer to which it takes part.

    Before the first round, ``min_nodes`` nodes are waited for, and the profiles of all that are connected; later on,
    profiles are waited for only while fewer than ``min_replies`` nodes with data are known. Waiting ends ``node_wait``
    seconds after the last sign of life. Signs of life are a node that joins and a profile that comes; and, while too
    few are known, a connected node that has yet to answer: Flower counts a node as connected for a minute after its
    last heartbeat, so it is alive, and slow. Such a node is given up after ``timeout`` seconds, as with any message.

    Whoever joins later is asked while a round waits for others, and holds nobody up. A node that was killed and
    started again is another one to Flower, which counts the old one as connected for a minute yet. Both claim the
    same key; the newer has it, so that whoever returns is known by the old key.

    Parameters
    ----------
    sizes : ExampleLimits
        What nodes may claim to have; anything by default.
    min_nodes : int
        ≥ 1, how many nodes must be connected before the first round.
    min_replies : int
        ≥ 1, how many nodes with data a round cannot do without.
    node_wait : float
        Seconds, ≥ 0, from the last sign of life to the end of waiting.
    in_flight : int or None
        ≥ 1, how many nodes work at a time; ``None`` for all of them.
    """

    def __init__(
        self,
        sizes: ExampleLimits | None = None,
        *,
        min_nodes: int = 1,
        min_replies: int = 1,
        node_wait: float = 600.0,
        in_flight: int | None = None,
    ) -> None:
        self.queries = ProfileQueries(in_flight)
        self._sizes = sizes or ExampleLimits()
        self._min_nodes, self._min_replies, self._node_wait = min_nodes, min_replies, node_wait
        self._begun = False
        self._sign_of_life = 0.0
        self._connected: set[int] = set()
        self._newest_first: list[int] = []
        self._told: dict[int, Profile] = {}
        self._known: dict[int, Profile] = {}
        self._greet_again = 0.0

    @property
    def known(self) -> Mapping[int, Profile]:
        """Those that were connected at the last look, by Flower's node id; their keys are distinct."""
        return self._known

    def connected(self, grid: Grid) -> list[Profile]:
        """The connected nodes that have told their profile, in the order of their keys.

        Waits as the class says. Raises :class:`TooFewRepliesError` where fewer than ``min_nodes`` have connected
        before the first round.
        """
        self._wait(grid)
        told = [self._told[node] for node in self._newest_first if node in self._connected and node in self._told]
        profiles = with_distinct_keys(told)
        for profile in profiles:
            self._warn(profile)
        self._known = {profile.node_id: profile for profile in profiles}
        return profiles

    def poll(self, grid: Grid, busy: int = 0) -> None:
        """Ask those that have joined, and hear those that answer, once a second; to be called while a round waits.

        ``busy`` is how many nodes work on the round's messages.
        """
        if time.monotonic() >= self._greet_again:
            self._look(grid, busy)
            self._greet_again = time.monotonic() + POLL_SECONDS

    def absent(self) -> list[str]:
        """Why connected nodes take no part, in sentences: those that are slow, and those that have no data."""
        silent = sorted(self._connected - self._told.keys())
        idle = sorted(
            profile.key for node, profile in self._told.items() if node in self._connected and not _has_data(profile)
        )
        reasons = []
        if silent:
            reasons.append(f"Connected, but slow to tell their profile: {self._names(silent)}.")
        if idle:
            reasons.append(f"Connected, but without data to train on: {_listed(idle)}.")
        return reasons

    def _wait(self, grid: Grid) -> None:
        """Until enough nodes have told who they are, or there is no hope of it."""
        self._sign_of_life = time.monotonic()
        remind_at, pause = self._sign_of_life + REMINDER_SECONDS, pauses()
        while True:
            news, now = self._look(grid), time.monotonic()
            missing = 0 if self._begun else max(0, self._min_nodes - len(self._connected))
            slow = self.queries.hoped_for(self._connected - self._told.keys())
            enough = not missing and self._able() >= self._min_replies
            if not missing and (not slow or (enough and self._begun)):
                break
            if news or (slow and not enough):
                self._sign_of_life = now
            elif now - self._sign_of_life >= self._node_wait:
                break
            if now >= remind_at:
                log(INFO, "waiting for nodes: %s", self._progress(slow))
                remind_at = now + REMINDER_SECONDS
            if not news:
                time.sleep(next(pause))
        if missing:
            raise TooFewRepliesError(
                f"{len(self._connected)} nodes are connected, but {self._min_nodes} are wanted, and there was no sign "
                f"of another for {self._node_wait:g} s (node-wait): start more, in simulation with --federation-config "
                "'num-supernodes=…', or ask for fewer"
            )
        self._begun = True

    def _look(self, grid: Grid, busy: int = 0) -> bool:
        """Ask those that have told nothing yet, and hear those that answer; whether there was any sign of them."""
        self._connected = retry(lambda: set(grid.get_node_ids()))
        new = self._connected.difference(self._newest_first)
        self._newest_first = [*sorted(new), *self._newest_first]  # of those that come together the smallest id
        self.queries.ask(self._connected - self._told.keys())
        heard = self._sizes.believed(self.queries.hear(grid, busy))
        self._told |= {profile.node_id: profile for profile in heard}
        return bool(new or heard)

    def _able(self) -> int:
        return sum(node in self._connected and _has_data(profile) for node, profile in self._told.items())

    def _progress(self, slow: Sequence[int]) -> str:
        wanted = "" if self._begun else f" of {self._min_nodes}"
        names = f"; no profile yet from {self._names(slow)}" if slow else ""
        return f"{len(self._connected)}{wanted} connected{names}"

    def _names(self, nodes: Sequence[int]) -> str:
        """Nodes that have no key yet, and for how long each has been asked."""
        seconds = {node: self.queries.seconds_since(node) for node in nodes}
        return _listed(
            f"node {node} ({'not asked yet' if asked is None else f'asked {asked:.0f} s ago'})"
            for node, asked in seconds.items()
        )

    def _warn(self, profile: Profile) -> None:
        """Say once that another node has the key."""
        told = self._told[profile.node_id]
        if profile.key != told.key and profile != self._known.get(profile.node_id):
            log(
                WARNING, "a newer node claims the key %r too: node %s is now %r", told.key, profile.node_id, profile.key
            )


def _has_data(profile: Profile) -> bool:
    return not profile.no_data and profile.num_examples != 0


def _listed(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _MOST_NAMES} more" if len(listed) > _MOST_NAMES else ""
    return ", ".join(listed[:_MOST_NAMES]) + more
