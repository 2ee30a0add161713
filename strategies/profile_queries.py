"""The profile queries of a run: each node is queried once, and its answer counts whenever it arrives."""

import time
from collections.abc import Collection, Iterable
from logging import WARNING

from flwr.common.logger import log
from flwr.serverapp import Grid

from .profiles import Profile, profile_query, read_profile
from .transport import NodeFailure, Sent, pull, push


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

    @property
    def working(self) -> int:
        """Number of nodes that work on their answer; nodes that are late do not count."""
        return len(self._open) - len(self._late)

    def pending(self, nodes: Collection[int]) -> list[int]:
        """Those of ``nodes`` that can still answer in time, in ascending order, queried or not yet queried."""
        return sorted(set(nodes) & ({*self._unsent, *self._open} - self._late))

    def seconds_since(self, node: int) -> float | None:
        """Seconds since the query was sent to a node that has not answered, ``None`` for any other node."""
        return time.monotonic() - self._sent_at[node] if node in self._open else None

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
        self._send(grid, busy)
        answers = []
        for node, sent in sorted(self._open.items()):
            if reply := pull(grid, sent):
                del self._open[node]
                self._late.discard(node)
                answers.append(read_profile(node, reply))
            elif node not in self._late and time.monotonic() - self._sent_at[node] >= self.timeout:
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
                self._sent_at[sent.node_id] = time.monotonic()
