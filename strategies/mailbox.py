"""Messages in flight: sent to nodes, and taken out as replies, in the order of the messages or in that of arrival.

The order of the messages does not depend on when nodes reply, so that the same seed gives the same bits in sums over
replies. Replies that arrive before their turn wait: a bounded number of them at the server, the others in Flower's
store, so that the server's memory does not grow with the number of nodes. A reply in the store is lost if its node goes
offline, because the SuperLink then answers with an error even if it has the reply.

The order of arrival waits for no node in particular. A version of the shared parameters that nodes in flight started
from is kept once, and freed with the last of them.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from typing import Any

import numpy as np
from flwr.app import Error, Message
from flwr.serverapp import Grid

from . import transport
from .arrays import Arrays
from .profiles import Profile

_MAX_EARLY_PULLS = 16  # attempts to fetch later replies, each time that the next one is not there
_MOST_TOGETHER = 32  # replies of an immediate grid that are fetched at once
_MOST_PULLS = 64  # attempts to fetch the first reply to arrive, from a SuperLink


@dataclass(frozen=True, eq=False)
class Flight(transport.Sent):
    """A message that a node works on.

    Parameters
    ----------
    node_id : int
    message_id : str
        Empty if the grid did not accept the message.
    profile : Profile
        The node.
    version : int
        ≥ 0, the number of server steps that led to the arrays that the node received.
    start : dict of arrays
        Those of them that the reply must contain; all flights of a version share them.
    sent_at, deadline : float
        When the message was sent, and when its reply is too late, by the clock of the grid.
    """

    profile: Profile
    version: int = 0
    start: Arrays = field(default_factory=dict)
    sent_at: float = 0.0
    deadline: float = inf


@dataclass(frozen=True)
class Arrival:
    """What became of a message, and when: a reply, or why there is none."""

    flight: Flight
    outcome: transport.Outcome
    time: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds since the message was sent."""
        return self.time - self.flight.sent_at


@dataclass(frozen=True)
class _Letter:
    """A message that has not been sent."""

    profile: Profile
    message: Message
    version: int
    start: Arrays
    timeout: float


class Mailbox:
    """Sends messages and hands out what became of each, one at a time.

    Release each reply before asking for the next one: then at most one is in memory, in addition to those that
    :meth:`post` allows to fetch early.

    Parameters
    ----------
    grid : Grid
        Flower's grid.
    in_order : bool
        Whether replies are handed out in the order of the messages, or in the order of arrival.
    poll : float
        > 0, seconds between the first two attempts to fetch a reply. The pause grows by half with every attempt, up to
        0.5 s, and starts again at ``poll`` after each reply.
    in_flight : int or None
        ≥ 1, the largest number of nodes that work at a time; the next message is sent when a reply is fetched or times
        out. ``None`` sends all messages at once.
    count_busy : function
        Returns the number of nodes that work on other messages, which also count towards ``in_flight``. At least one
        message is always in flight.

    Raises
    ------
    ValueError
        ``poll`` is not positive.
    """

    def __init__(
        self,
        grid: Grid,
        *,
        in_order: bool,
        poll: float = 0.02,
        in_flight: int | None = None,
        count_busy: Callable[[], int] = lambda: 0,
    ) -> None:
        if not poll > 0:
            raise ValueError(f"poll = {poll!r}: must be above 0 seconds")
        self._grid, self._in_order, self._poll = grid, in_order, poll
        self._clock = transport.clock_of(grid, poll)
        self._in_flight, self._count_busy = in_flight, count_busy
        self._ahead, self._together = 0, 1
        self._unsent: deque[_Letter] = deque()
        self._turns: deque[Flight] = deque()  # sent and not handed out, in the order of the messages
        self._open: dict[Flight, None] = {}  # those without a reply
        self._arrived: dict[Flight, Arrival] = {}  # those with one, in the order of arrival
        self._versions: Counter[int] = Counter()  # of what is sent and not handed out

    def __len__(self) -> int:
        return len(self._unsent) + len(self._open) + len(self._arrived)

    @property
    def flights(self) -> list[Flight]:
        """All messages in flight, in the order of sending; those whose reply waits in the mailbox come first."""
        return [*self._arrived, *self._open]

    @property
    def nodes(self) -> set[int]:
        """Flower's ids of the nodes that have a message."""
        return {flight.node_id for flight in self.flights}

    @property
    def busy(self) -> set[int]:
        """The ids of the nodes whose reply is not there."""
        return {flight.node_id for flight in self._open}

    def busy_for(self, seconds: float) -> set[int]:
        """The ids of the nodes that have worked for at least so long."""
        return {flight.node_id for flight in self._open if self.now() - flight.sent_at >= seconds}

    @property
    def working(self) -> int:
        """Number of nodes that work on a message and can still reply in time."""
        now = self.now()
        return sum(flight.deadline > now for flight in self._open)

    @property
    def versions(self) -> set[int]:
        """The versions that nodes in flight started from."""
        return set(self._versions)

    def has(self, version: int) -> bool:
        """Whether a message of a version is unsent or in flight."""
        return version in self._versions or bool(self._unsent)

    def now(self) -> float:
        """The time of the grid's clock in seconds."""
        return self._clock.now()

    def post(
        self,
        letters: Iterable[tuple[Profile, Message]],
        timeout: float,
        *,
        version: int = 0,
        start: Arrays | None = None,
        ahead: int = 0,
        together: int = 1,
    ) -> None:
        """Send messages, as many as ``in_flight`` allows, and the others later.

        Parameters
        ----------
        letters : iterable of (Profile, Message)
            Usually one per node, but a node can get several.
        timeout : float
            ≥ 0, seconds to wait for each reply after its message is sent. A reply that is already there when the time
            is over is accepted.
        version, start
            See :class:`Flight`.
        ahead : int
            ≥ 0, the largest number of replies to fetch before their turn, while waiting for the next one.
        together : int
            ≥ 1, the largest number of replies to fetch at once from a grid that computes them when they are pulled
            (:func:`~.transport.is_immediate`), at most 32. Nodes and server then use the processor's caches in turn.

        Raises
        ------
        ValueError
            ``timeout`` is below 0.
        """
        if not timeout >= 0:
            raise ValueError(f"timeout = {timeout!r}: must be at least 0 seconds")
        self._ahead = ahead
        self._together = min(together, _MOST_TOGETHER) if transport.is_immediate(self._grid) else 1
        self._unsent.extend(_Letter(profile, message, version, start or {}, timeout) for profile, message in letters)
        self._send()

    def next(self) -> Arrival | None:
        """The next reply or failure in the order of the mailbox, ``None`` if it is not there yet.

        A message that was not accepted, whose reply is an error, or whose time is over is a failure.
        """
        self._send()
        arrival = self._next_in_turn() if self._in_order else self._first_to_arrive()
        if arrival is not None:
            self._clock = transport.clock_of(self._grid, self._poll)  # pauses begin again
            version = arrival.flight.version
            self._versions[version] -= 1
            if not self._versions[version]:
                del self._versions[version]
        return arrival

    def wait(self, until: float = inf) -> None:
        """Let time pass until something may have arrived, at most until ``until`` or a message's time is over."""
        awaited = [self._turns[0]] if self._in_order and self._turns else list(self._open)
        only = [self._turns[0].message_id] if self._in_order and self._turns and not self._unsent else None
        self._clock.wait(min([until, *(flight.deadline for flight in awaited)]), only)

    def look(self) -> bool:
        """Find replies that have arrived, or else messages whose time is over. Returns whether a reply was there."""
        now = self.now()
        if transport.has_virtual_time(self._grid):
            asked = list(self._open)
            replies = transport.pull_together(self._grid, asked)
        else:
            asked = list(islice(self._open, _MOST_PULLS))
            replies = self._pull_one(asked)
        for flight, outcome in replies:
            self._take_in(flight, outcome)
        if not replies:  # a message whose reply was not asked for can have one
            for flight in asked:
                if flight.deadline <= now:
                    self._give_up(flight)
        return bool(replies)

    def look_on(self) -> None:
        """Find one reply that has arrived, and more as far as :meth:`post` allows to fetch replies early."""
        while self.look() and len(self._arrived) < self._ahead:
            pass

    def state(self) -> dict[str, Any]:
        """What is in flight in simulated time, for a snapshot: versions and replies, which the nodes compute now.

        Empty if nothing is, and on real nodes, whose replies are unknown: the server asks them again.
        """
        if not (self and transport.has_virtual_time(self._grid)):
            return {}
        rows: list[dict[str, Any]] = []
        starts: dict[str, Arrays] = {}
        for arrival in [*self._arrived.values(), *map(self._due, self._open)]:
            flight, outcome = arrival.flight, arrival.outcome
            row: dict[str, Any] = {"key": flight.profile.key, "version": flight.version}
            row |= {"sent": flight.sent_at, "deadline": flight.deadline, "arrival": arrival.time}
            if isinstance(outcome, transport.NodeFailure):
                row |= {"failure": outcome.reason, "by_node": outcome.by_node}
            else:
                row |= {"reply": np.frombuffer(self._clock.encoded(outcome), np.uint8)}
            rows.append(row)
            starts[str(flight.version)] = flight.start
        return {"rows": rows, "starts": starts}

    def load_state(self, state: Mapping[str, Any], nodes: Mapping[str, Profile]) -> None:
        """Put what :meth:`state` returned in flight again; ``nodes`` are all nodes by their keys."""
        for row in state.get("rows", ()):
            if (node := nodes.get(row["key"])) is None:
                continue
            if "failure" in row:
                reply: bytes | Error = transport.NodeFailure(node.node_id, row["failure"], row["by_node"]).error
            else:
                reply = row["reply"].tobytes()
            message_id = self._clock.put_back(node.node_id, row["arrival"], reply)
            version, start = row["version"], state["starts"][str(row["version"])]
            self._launch(Flight(node.node_id, message_id, node, version, start, row["sent"], row["deadline"]))
        self.look()

    def _send(self) -> None:
        """Send as many messages as ``in_flight`` allows."""
        count = len(self._unsent)
        if count and self._in_flight is not None:
            count = min(count, max(self._in_flight - self._count_busy(), 1) - self.working)
        if count < 1:
            return
        letters = [self._unsent.popleft() for _ in range(count)]
        sent = transport.push(self._grid, [letter.message for letter in letters])
        now = self.now()
        for letter, item in zip(letters, sent, strict=True):
            message_id = "" if isinstance(item, transport.NodeFailure) else item.message_id
            facts = (letter.profile, letter.version, letter.start, now, now + letter.timeout)
            flight = Flight(item.node_id, message_id, *facts)
            self._launch(flight)
            if isinstance(item, transport.NodeFailure):
                self._put(flight, item, now)

    def _launch(self, flight: Flight) -> None:
        self._open[flight] = None
        self._versions[flight.version] += 1
        if self._in_order:
            self._turns.append(flight)

    def _put(self, flight: Flight, outcome: transport.Outcome, time: float) -> None:
        del self._open[flight]
        self._arrived[flight] = Arrival(flight, outcome, time)

    def _take_in(self, flight: Flight, outcome: transport.Outcome) -> None:
        self._put(flight, outcome, self._clock.arrived_at(flight.message_id))

    def _give_up(self, flight: Flight) -> None:
        self._clock.forget([flight.message_id])
        seconds = flight.deadline - flight.sent_at
        self._put(flight, transport.NodeFailure(flight.node_id, f"no reply within {seconds:g} s"), self.now())

    def _due(self, flight: Flight) -> Arrival:
        time, reply = self._clock.due(flight.message_id)
        return Arrival(flight, transport.outcome_of(flight, reply), time)

    # -- the order of arrival -------------------------------------------------------------------------------------

    def _first_to_arrive(self) -> Arrival | None:
        """Replies that are found together come in the order in which their messages were sent."""
        if not self._arrived:
            self.look()
        if not self._arrived:
            return None
        return self._arrived.pop(next(iter(self._arrived)))

    def _pull_one(self, asked: Sequence[Flight]) -> list[tuple[Flight, transport.Outcome]]:
        """A reply, fetched alone, because one that cannot be decoded fails its whole request."""
        for flight in asked:
            if outcome := transport.pull(self._grid, flight):
                return [(flight, outcome)]
        if len(asked) < len(self._open):
            for flight in asked:
                self._move_to_end(flight)
        return []

    def _move_to_end(self, flight: Flight) -> None:
        """Let the others come first the next time."""
        del self._open[flight]
        self._open[flight] = None

    # -- the order of the messages --------------------------------------------------------------------------------

    def _next_in_turn(self) -> Arrival | None:
        if not self._turns:
            return None
        turn = self._turns[0]
        if turn not in self._arrived:
            self._fetch(turn)
        if turn not in self._arrived:
            self._look_ahead(turn)
            self._send()
            return None
        self._turns.popleft()
        return self._arrived.pop(turn)

    def _fetch(self, turn: Flight) -> None:
        """Try once to fetch the reply whose turn it is, and those after it with the same request."""
        if self._together > 1:
            first = islice((flight for flight in self._turns if flight in self._open), self._together)
            for flight, outcome in transport.pull_together(self._grid, list(first)):
                self._take_in(flight, outcome)
            if turn in self._arrived:
                return
        if reply := transport.pull(self._grid, turn):
            self._take_in(turn, reply)
        elif self.now() >= turn.deadline:
            self._give_up(turn)

    def _look_ahead(self, turn: Flight) -> None:
        """Fetch some later replies, one by one, because a reply that cannot be decoded fails its whole request."""
        later = [flight for flight in self._open if flight is not turn]
        for flight in later[: max(0, min(self._ahead - len(self._arrived), _MAX_EARLY_PULLS))]:
            if outcome := transport.pull(self._grid, flight):
                self._take_in(flight, outcome)
            else:
                self._move_to_end(flight)
