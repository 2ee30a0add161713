"""The connected nodes of a run: their profiles, and those that are held out as new nodes for the trained model.

Each node is queried once, and its answer counts when it arrives. A node with rules about when it works is queried again
in each round.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from logging import INFO, WARNING
from typing import ClassVar

from flwr.common import log
from flwr.serverapp import Grid

from .checks import MAX_NAME_LENGTH, listing, require_integer, truncate
from .profiles import Admission, ExampleLimits, Profile, in_key_order, profile_query, read_profile, with_distinct_keys
from .records import Stateful, TooFewRepliesError
from .samplers import draw, draw_generator, rounded_share
from .transport import Clock, NodeFailure, Sent, WallClock, clock_of, pull, push, retry


@dataclass
class HeldOut(Stateful):
    """Chooses by their keys the nodes that neither train nor evaluate in any round.

    A share is drawn once, from the nodes that are known before the first round and have data. It is stored in the
    snapshots, so that a node that has trained is never held out, and a node that joins later takes part.

    Parameters
    ----------
    share : float
        In [0, 1). The number of nodes is share · n, halves rounded up, at least 1 if the share is above 0; at least one
        node is always left to train.
    keys : sequence of str
        The stable keys of the nodes, in place of a share.
    seed : int
        ≥ 0, of the draw.

    Raises
    ------
    ValueError
        A parameter is out of range, or both a share and keys are given.
    """

    share: float = 0.0
    keys: Sequence[str] = ()
    seed: int = 0
    _chosen: frozenset[str] | None = field(default=None, init=False, repr=False)
    kept: ClassVar[tuple[str, ...]] = ("_chosen",)

    def __post_init__(self) -> None:
        if isinstance(self.keys, str):
            raise ValueError(f"keys = {self.keys!r}: must be a list of keys, such as [{self.keys!r}]")
        if not 0 <= self.share < 1 or (self.share and self.keys):
            raise ValueError(f"share = {self.share}, keys = {list(self.keys)}: give a share in [0, 1), or keys")
        require_integer("seed", self.seed, least=0)

    def among(self, profiles: Collection[Profile]) -> list[Profile]:
        """The nodes that are held out, in the order of their keys; the first call chooses them.

        Raises
        ------
        ValueError
            At the first call: a key is not that of a node, or no node is left to train.
        """
        if not (self.share or self.keys):
            return []
        if self._chosen is None:
            self._chosen = self._choose(list(filter(_has_data, profiles)))
        return [node for node in in_key_order(profiles) if node.key in self._chosen]

    def holds(self, key: str) -> bool:
        """Whether the node of a key is held out; false before the first call of :meth:`among`."""
        return bool(self.share or self.keys) and self._chosen is not None and key in self._chosen

    def _choose(self, nodes: Sequence[Profile]) -> frozenset[str]:
        if not self.keys:
            count = min(rounded_share(self.share, len(nodes)), max(len(nodes) - 1, 0))
            return frozenset(node.key for node in draw(nodes, count, draw_generator(self.seed, "train", 0, "held-out")))
        known = sorted(node.key for node in nodes)
        if missing := sorted(set(self.keys) - set(known)):
            keys = truncate(", ".join(known), MAX_NAME_LENGTH)
            raise ValueError(f"held-out nodes {', '.join(missing)}: no such node with data; the nodes are {keys}")
        if not set(known) - set(self.keys):
            raise ValueError("held-out nodes: all nodes are held out; leave some of them to train")
        return frozenset(self.keys)


POLL_SECONDS = 1.0
REMINDER_SECONDS = 10.0
_UNANSWERED = "it has not answered yet whether it may work"
_MAX_NAMES = 8


class NodeRegistry(Stateful):
    """The nodes that have been connected in a run. A node takes part once it has sent its profile.

    Before the first round, the registry waits for ``min_nodes`` nodes and for the profiles of all connected nodes. In
    later rounds it waits for profiles only while it knows fewer than ``min_replies`` nodes with data. Waiting ends
    ``node_wait`` seconds after the last sign of life: a new node, or a profile. While there are too few nodes with
    data, each connected node that can still answer in time is also a sign of life: it is slow but alive, because Flower
    counts a node as connected for a minute after its last heartbeat. Like any message, a query times out after
    ``timeout`` seconds.

    A node that may not work now is waited for as one without data, and asked again every ten seconds of waiting; its
    answer is no sign of life. Those that may work now say so again before each round, which waits for their answers.

    Nodes that connect later are queried while a round waits for replies, and delay no round. A node that is killed and
    restarted gets a new Flower id, while Flower counts the old one as connected for another minute. Both claim the same
    key; the newer node gets it, so that a restarted node keeps its key. Where ``admission`` binds keys, no other node
    gets it.

    Parameters
    ----------
    limits : ExampleLimits
        Limits of the numbers of examples in profiles; none by default.
    admission : Admission
        Which nodes may take part, and under which key; by default all, under any.
    held_out : HeldOut
        Which nodes take no part in the rounds; by default none.
    min_nodes : int
        ≥ 1, the number of nodes that must be connected before the first round.
    min_replies : int
        ≥ 0, the number of nodes with data that a round needs.
    node_wait : float
        ≥ 0, seconds from the last sign of life to the end of waiting.
    in_flight : int or None
        ≥ 1, the largest number of nodes that work at a time; ``None`` for no limit.
    asks : bool
        Whether nodes are asked for their profiles; otherwise each takes part under its Flower id once it is connected.
    """

    kept: ClassVar[tuple[str, ...]] = ("held_out",)

    def __init__(
        self,
        limits: ExampleLimits | None = None,
        admission: Admission | None = None,
        held_out: HeldOut | None = None,
        *,
        min_nodes: int = 1,
        min_replies: int = 1,
        node_wait: float = 600.0,
        in_flight: int | None = None,
        asks: bool = True,
    ) -> None:
        self.queries = ProfileQueries(in_flight)
        self._asks = asks
        self._limits, self.admission = limits or ExampleLimits(), replace(admission or Admission())
        self.held_out = replace(held_out or HeldOut())  # without what another run has chosen
        self._min_nodes, self._min_replies, self._node_wait = min_nodes, min_replies, node_wait
        self._begun = False
        self._sign_of_life = 0.0
        self._connected: set[int] = set()
        self._newest_first: list[int] = []
        self._profiles: dict[int, Profile] = {}
        self._known: dict[int, Profile] = {}
        self._outdated: set[int] = set()
        self._next_poll = 0.0

    @property
    def known(self) -> Mapping[int, Profile]:
        """The nodes that the last call of :meth:`connected` returned, by Flower's node id. Their keys are distinct."""
        return self._known

    def with_examples(self) -> set[str]:
        """The keys of those that have training examples, or do not say how many."""
        return {node.key for node in self._known.values() if _has_data(node)}

    def connected(self, grid: Grid, *, held_out: bool = False) -> list[Profile]:
        """The connected nodes that have sent their profile, in the order of their keys. Waits as described above.

        Parameters
        ----------
        grid : Grid
            Flower's grid.
        held_out : bool
            Whether to return the nodes that are held out, in place of those that take part.

        Raises
        ------
        TooFewRepliesError
            Fewer than ``min_nodes`` nodes connected before the first round.
        ValueError
            The nodes that are to be held out cannot be; see :class:`~fedapps.strategies.registry.HeldOut`.
        """
        self._wait(grid)
        present = [node for node in self._newest_first if node in self._connected and node in self._profiles]
        profiles = with_distinct_keys(self._profiles[node] for node in present)
        aside = {profile.node_id for profile in self.held_out.among(profiles)}
        nodes = [profile for profile in profiles if (profile.node_id in aside) == held_out]
        for profile in nodes:
            self._warn(profile)
        self._known = {profile.node_id: profile for profile in nodes}
        return nodes

    def ask_again(self) -> None:
        """Let nodes with rules about when they work say anew whether they may. To be called before a round."""
        for node, profile in self._profiles.items():
            if profile.ineligible is not None:
                self._profiles[node] = replace(profile, ineligible=_UNANSWERED)
                self._outdated.add(node)

    def poll(self, grid: Grid, busy: int = 0) -> None:
        """Query new nodes and fetch answers, at most once a second. To be called while a round waits for replies.

        Parameters
        ----------
        grid : Grid
            Flower's grid.
        busy : int
            ≥ 0, the number of nodes that work on messages of the round.
        """
        clock = clock_of(grid)
        if clock.now() >= self._next_poll:
            self._update(grid, busy)
            self._next_poll = clock.now() + POLL_SECONDS

    def absent(self) -> list[str]:
        """Sentences that name the connected nodes that take no part: without a profile, without data, or left out."""
        silent = sorted(self._connected - self._profiles.keys())
        present = [profile for node, profile in self._profiles.items() if node in self._connected]
        idle = sorted(node.key for node in present if not _has_data(node))
        resting = sorted(node.key for node in present if _has_data(node) and node.ineligible)
        reasons = []
        if silent:
            reasons.append(f"Connected, but no profile yet: {self._names(silent)}.")
        if idle:
            reasons.append(f"Connected, but left out or without data to train on: {listing(idle, _MAX_NAMES)}.")
        if resting:
            reasons.append(f"Connected, but by their own rules not to work now: {listing(resting, _MAX_NAMES)}.")
        return reasons

    def _wait(self, grid: Grid) -> None:
        """Wait until there are enough nodes, or no more can be expected."""
        clock = clock_of(grid)
        self._sign_of_life = clock.now()
        remind_at = ask_at = self._sign_of_life + REMINDER_SECONDS
        while True:
            news, now = self._update(grid), clock.now()
            missing = 0 if self._begun else max(0, self._min_nodes - len(self._connected))
            slow = self.queries.pending(self._connected - self._profiles.keys())
            asked = self.queries.pending(self._connected & self._outdated)
            able, resting = self._num_with_data()
            enough = not missing and able >= self._min_replies
            if not missing and not asked and (enough or not resting) and (not slow or (enough and self._begun)):
                break
            if news or (slow and not enough):
                self._sign_of_life = now
            elif now - self._sign_of_life >= self._node_wait:
                break
            if now >= remind_at:
                log(INFO, "waiting for nodes: %s", self._progress(slow))
                remind_at = now + REMINDER_SECONDS
            if resting and now >= ask_at:
                self._outdated |= {node for node, profile in self._profiles.items() if profile.ineligible}
                ask_at = now + REMINDER_SECONDS
            if not news:
                clock.wait(max(self._sign_of_life + self._node_wait, now + POLL_SECONDS))
        if missing:
            raise TooFewRepliesError(
                f"{len(self._connected)} nodes are connected, but min_nodes is {self._min_nodes} (key num-nodes), and "
                f"no other node connected within {self._node_wait:g} s (node_wait, key node-wait): start more nodes "
                "(in simulation with --federation-config 'num-supernodes=…'), or lower min_nodes"
            )
        self._begun = True

    def _update(self, grid: Grid, busy: int = 0) -> bool:
        """Query new nodes and fetch answers. Returns whether a node connected or answered."""
        self._connected = retry(lambda: set(grid.get_node_ids()))
        new = self._connected.difference(self._newest_first)
        self._newest_first = [*sorted(new), *self._newest_first]  # smallest id first among nodes found together
        silent = sorted(self._connected & (self._outdated | (self._connected - self._profiles.keys())))
        if self._asks:
            self.queries.ask(silent)
        answers = self.queries.receive(grid, busy) if self._asks else list(map(Profile.unknown, silent))
        received = self.admission.apply_to(self._limits.apply_to(answers), grid)
        self._profiles |= {profile.node_id: profile for profile in received}
        self._outdated -= {profile.node_id for profile in received}
        return bool(new) or any(not profile.ineligible for profile in received)

    def _num_with_data(self) -> tuple[int, int]:
        """How many connected nodes with data may work now, and how many may not."""
        present = [profile for node, profile in self._profiles.items() if node in self._connected]
        nodes = [node for node in present if _has_data(node) and not self.held_out.holds(node.key)]
        resting = sum(bool(node.ineligible) for node in nodes)
        return len(nodes) - resting, resting

    def _progress(self, slow: Sequence[int]) -> str:
        short = not self._begun and len(self._connected) < self._min_nodes
        wanted = f" of {self._min_nodes}" if short else ""
        names = f"; no profile yet from {self._names(slow)}" if slow else ""
        return f"{len(self._connected)}{wanted} connected{names}"

    def _names(self, nodes: Sequence[int]) -> str:
        """Text that names nodes without a profile and states how long ago each was queried."""
        seconds = {node: self.queries.seconds_since(node) for node in nodes}
        texts = (
            f"node {node} ({'not asked yet' if since is None else f'asked {since:.0f} s ago'})"
            for node, since in seconds.items()
        )
        return listing(texts, _MAX_NAMES)

    def _warn(self, profile: Profile) -> None:
        """Warn once of a node whose key was claimed by a newer node."""
        claimed = self._profiles[profile.node_id].key
        if profile.key != claimed and profile != self._known.get(profile.node_id):
            log(
                WARNING, "a newer node also claims the key %r: node %s is now %r", claimed, profile.node_id, profile.key
            )


def _has_data(profile: Profile) -> bool:
    return not profile.no_data and profile.num_examples != 0


class ProfileQueries:
    """The profile queries that are open, and those that are still to be sent.

    A node has ``timeout`` seconds to answer. Until then it counts as working on a message. A node that is late is not
    queried again, because it works on one message at a time; its answer counts whenever it arrives.

    Parameters
    ----------
    in_flight : int or None
        ≥ 1, the largest number of nodes that work at a time; ``None`` sends to all nodes at once.
    """

    def __init__(self, in_flight: int | None = None) -> None:
        #: Seconds, > 0, that a node has to answer.
        self.timeout = 3600.0
        self._in_flight = in_flight
        self._unsent: list[int] = []
        self._open: dict[int, Sent] = {}
        self._sent_at: dict[int, float] = {}
        self._late: set[int] = set()
        self._clock: Clock = WallClock()

    @property
    def working(self) -> int:
        """Number of nodes that work on their answer; nodes that are late do not count."""
        return len(self._open) - len(self._late)

    def pending(self, nodes: Collection[int]) -> list[int]:
        """Those of ``nodes`` that can still answer in time, in ascending order, queried or not yet queried."""
        return sorted(set(nodes) & ({*self._unsent, *self._open} - self._late))

    def seconds_since(self, node: int) -> float | None:
        """Seconds since the query was sent to a node that has not answered, ``None`` for any other node."""
        return self._clock.now() - self._sent_at[node] if node in self._open else None

    def ask(self, nodes: Iterable[int]) -> None:
        """Set the nodes to query next: those of ``nodes`` without an open query."""
        self._unsent = sorted(set(nodes) - self._open.keys())

    def receive(self, grid: Grid, busy: int = 0) -> list[Profile]:
        """Send queries and fetch the answers that have arrived, without waiting.

        Warns once of each node that has not answered in time. A node that went offline can be queried again.

        Parameters
        ----------
        grid : Grid
            Flower's grid.
        busy : int
            ≥ 0, the number of nodes that work on other messages.

        Returns
        -------
        list of Profile
            In the order of the node ids.
        """
        self._clock = clock_of(grid)
        self._send(grid, busy)
        answers = []
        for node, sent in sorted(self._open.items()):
            if reply := pull(grid, sent):
                del self._open[node]
                self._late.discard(node)
                answers.append(read_profile(node, reply))
            elif node not in self._late and self._clock.now() - self._sent_at[node] >= self.timeout:
                self._late.add(node)
                log(WARNING, "node %s sent no profile within %g s; it takes part after its answer", node, self.timeout)
        return [profile for profile in answers if profile is not None]

    def _send(self, grid: Grid, busy: int) -> None:
        free = len(self._unsent) if self._in_flight is None else max(0, self._in_flight - self.working - busy)
        now, self._unsent = self._unsent[:free], self._unsent[free:]
        for sent in push(grid, [profile_query(node) for node in now]) if now else ():
            if isinstance(sent, NodeFailure):
                read_profile(sent.node_id, sent)  # logs the failure
            else:
                self._open[sent.node_id] = sent
                self._sent_at[sent.node_id] = self._clock.now()
