"""Messages in flight: nodes that work on versions of the shared parameters, and their replies in the order of arrival.

A version that nodes in flight started from is kept once, and freed with the last of them.
"""

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import Any

import numpy as np
from flwr.app import Error, Message
from flwr.serverapp import Grid

from ..arrays import Arrays
from ..nodes.profiles import Profile
from .clock import clock_of, is_simulated
from .snapshots import under
from .transport import NodeFailure, Outcome, Sent, outcome_of, pull, pull_together, push

_STATE = "flights."
_MOST_PULLS = 64  # attempts to fetch a reply at a time, from a SuperLink


@dataclass(frozen=True, eq=False)
class Flight(Sent):
    """A message that a node works on.

    Parameters
    ----------
    node_id : int
    message_id : str
    profile : Profile
        The node.
    version : int
        ≥ 0, the number of server steps that led to the arrays that the node received.
    start : dict of arrays
        These arrays; all flights of a version share them.
    sent_at, deadline : float
        When the message was sent, and when its reply is too late, by the clock of the grid.
    """

    profile: Profile
    version: int
    start: Arrays
    sent_at: float
    deadline: float


@dataclass(frozen=True)
class Arrival:
    """What became of a message, and when: a reply, or why there is none."""

    flight: Flight
    outcome: Outcome
    time: float

    @property
    def seconds(self) -> float:
        """Seconds since the message was sent."""
        return self.time - self.flight.sent_at


class Flights:
    """The messages of a run that are in flight.

    Parameters
    ----------
    grid : Grid
        Flower's grid.
    poll : float
        > 0, seconds of the first pause while nothing arrives.
    """

    def __init__(self, grid: Grid, poll: float = 0.02) -> None:
        self._grid, self._poll = grid, poll
        self._clock = clock_of(grid, poll)
        self._open: dict[str, Flight] = {}  # by message id, in the order of sending
        self._arrived: deque[Arrival] = deque()

    def __len__(self) -> int:
        return len(self._open) + len(self._arrived)

    @property
    def nodes(self) -> set[int]:
        """Flower's ids of the nodes that have a message."""
        return {flight.node_id for flight in self.all()}

    @property
    def working(self) -> set[int]:
        """The ids of the nodes whose reply has not been found."""
        return {flight.node_id for flight in self._open.values()}

    def working_for(self, seconds: float) -> set[int]:
        """The ids of the nodes that have worked for at least so long."""
        return {flight.node_id for flight in self._open.values() if self.now() - flight.sent_at >= seconds}

    @property
    def versions(self) -> set[int]:
        """The versions that are kept."""
        return {flight.version for flight in self.all()}

    def all(self) -> list[Flight]:
        """All messages in flight, in the order of sending; those whose reply waits here come first."""
        return [*(arrival.flight for arrival in self._arrived), *self._open.values()]

    def now(self) -> float:
        """The time of the grid's clock in seconds."""
        return self._clock.now()

    def launch(
        self,
        nodes: Sequence[Profile],
        messages: Sequence[Message],
        version: int,
        start: Arrays,
        timeout: float,
    ) -> list[NodeFailure]:
        """Send a message of a version to each of ``nodes``. Returns the failures of those that were not accepted."""
        now, failures = self.now(), []
        for node, sent in zip(nodes, push(self._grid, messages), strict=True):
            if isinstance(sent, NodeFailure):
                failures.append(sent)
            else:
                flight = Flight(sent.node_id, sent.message_id, node, version, start, now, now + timeout)
                self._open[sent.message_id] = flight
        return failures

    def next_arrival(self) -> Arrival | None:
        """The next reply in the order of arrival, or a message whose time is over; ``None`` if there is neither.

        Replies that are found together come in the order in which their messages were sent.
        """
        if not self._arrived:
            self.look()
        if not self._arrived:
            return None
        self._clock = clock_of(self._grid, self._poll)  # pauses begin again
        return self._arrived.popleft()

    def wait(self, until: float = inf) -> None:
        """Let time pass until something may have arrived, at most until ``until`` or the next timeout."""
        self._clock.wait(min([until, *(flight.deadline for flight in self._open.values())]))

    def look(self) -> None:
        """Find replies that have arrived, or else messages whose time is over."""
        if is_simulated(self._grid):
            found: Sequence[tuple[Sent, Outcome]] = pull_together(self._grid, list(self._open.values()))
        else:
            found = self._look_for_one()
        for sent, outcome in found:
            flight = self._open.pop(sent.message_id)
            self._arrived.append(Arrival(flight, outcome, self._clock.arrived_at(sent.message_id)))
        if not found:
            self._give_up()

    def _look_for_one(self) -> list[tuple[Sent, Outcome]]:
        """A reply, fetched alone, because one that cannot be decoded fails its whole request."""
        looked = list(islice(self._open.values(), _MOST_PULLS))
        for flight in looked:
            if outcome := pull(self._grid, flight):
                return [(flight, outcome)]
        if len(looked) < len(self._open):  # the others come first the next time
            for flight in looked:
                self._open[flight.message_id] = self._open.pop(flight.message_id)
        return []

    def _give_up(self) -> None:
        now = self.now()
        for flight in [flight for flight in self._open.values() if flight.deadline <= now]:
            del self._open[flight.message_id]
            self._clock.forget([flight.message_id])
            failure = NodeFailure(flight.node_id, f"no reply within {flight.deadline - flight.sent_at:g} s")
            self._arrived.append(Arrival(flight, failure, now))

    def state(self) -> Arrays:
        """What is in flight in simulated time, for a snapshot: versions and replies, which the nodes compute now.

        Empty if nothing is, and on real nodes, whose replies are unknown: the server asks them again.
        """
        if not (self and is_simulated(self._grid)):
            return {}
        arrivals = [*self._arrived, *(self._due(flight) for flight in self._open.values())]
        rows, found = [], dict[str, Any]()
        for number, (flight, outcome, time) in enumerate((a.flight, a.outcome, a.time) for a in arrivals):
            row = {"key": flight.profile.key, "version": flight.version, "sent": flight.sent_at, "arrival": time}
            if isinstance(outcome, NodeFailure):
                row |= {"failure": outcome.reason, "by_node": outcome.by_node}
            else:
                found[f"{_STATE}reply.{number}"] = np.frombuffer(self._clock.encoded(outcome), np.uint8)
            rows.append(row | {"deadline": flight.deadline})
            found |= {f"{_STATE}version.{flight.version}.{name}": array for name, array in flight.start.items()}
        facts = {"rows": rows, "names": list(arrivals[0].flight.start)}
        return {**found, _STATE + "facts": np.frombuffer(json.dumps(facts).encode(), np.uint8)}

    def load_state(self, state: Arrays, nodes: Mapping[str, Profile]) -> None:
        """Put what :meth:`state` returned in flight again; ``nodes`` are all nodes by their keys."""
        own = under(_STATE, state)
        facts = json.loads(own["facts"].tobytes()) if "facts" in own else {"rows": []}
        versions = {row["version"] for row in facts["rows"]}
        starts = {v: {name: own[f"version.{v}.{name}"] for name in facts["names"]} for v in versions}
        for number, row in enumerate(facts["rows"]):
            if (node := nodes.get(row["key"])) is None:
                continue
            if "failure" in row:
                reply: bytes | Error = NodeFailure(node.node_id, row["failure"], row["by_node"]).error
            else:
                reply = own[f"reply.{number}"].tobytes()
            sent = self._clock.put_back(node.node_id, row["arrival"], reply)
            self._open[sent] = Flight(
                node.node_id, sent, node, row["version"], starts[row["version"]], row["sent"], row["deadline"]
            )
        self.look()

    def _due(self, flight: Flight) -> Arrival:
        arrival, reply = self._clock.due(flight.message_id)
        return Arrival(flight, outcome_of(flight, reply), arrival)
