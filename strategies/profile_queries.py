"""Nodes asked for their profiles: each once, and heard whenever it answers."""

import time
from collections.abc import Collection, Iterable
from logging import WARNING

from flwr.common.logger import log
from flwr.serverapp import Grid

from .profiles import Profile, question, read_answer
from .transport import NodeFailure, Sent, pull, push


class ProfileQueries:
    """The profile queries of a run that are open.

    A query is a message like any other: the node has ``timeout`` seconds for its answer, and until then it counts
    among the nodes that work. A node that is late is not asked again, because it works on one message at a time; its
    answer counts whenever it comes.

    Parameters
    ----------
    in_flight : int or None
        ≥ 1, how many nodes work at a time; ``None`` for all of them.
    """

    def __init__(self, in_flight: int | None = None) -> None:
        #: Seconds, > 0, that a node has for its answer.
        self.timeout = 3600.0
        self._in_flight = in_flight
        self._to_ask: list[int] = []
        self._open: dict[int, Sent] = {}
        self._asked_at: dict[int, float] = {}
        self._late: set[int] = set()

    @property
    def working(self) -> int:
        """How many nodes work on their answer."""
        return len(self._open) - len(self._late)

    def hoped_for(self, nodes: Collection[int]) -> list[int]:
        """Those of ``nodes`` whose answer may still come in time, ascending: asked or still to be."""
        return sorted(set(nodes) & ({*self._to_ask, *self._open} - self._late))

    def seconds_since(self, node: int) -> float | None:
        """Seconds since a node was asked that has not answered, ``None`` for any other."""
        return time.monotonic() - self._asked_at[node] if node in self._open else None

    def ask(self, nodes: Iterable[int]) -> None:
        """Have nodes asked that are not being asked yet."""
        self._to_ask = sorted(set(nodes) - self._open.keys())

    def hear(self, grid: Grid, busy: int = 0) -> list[Profile]:
        """Send queries, and return the answers that have come, in the order of the node ids; waits for nothing.

        ``busy`` is how many nodes work on other messages. A node that is gone can be asked again. One that has not
        answered in time is warned about.
        """
        self._send(grid, busy)
        answers = []
        for node, sent in sorted(self._open.items()):
            if reply := pull(grid, sent):
                del self._open[node]
                self._late.discard(node)
                answers.append(read_answer(node, reply))
            elif node not in self._late and time.monotonic() - self._asked_at[node] >= self.timeout:
                self._late.add(node)
                log(WARNING, "node %s told no profile within %g s: it takes part once it does", node, self.timeout)
        return [profile for profile in answers if profile is not None]

    def _send(self, grid: Grid, busy: int) -> None:
        free = len(self._to_ask) if self._in_flight is None else max(0, self._in_flight - self.working - busy)
        now, self._to_ask = self._to_ask[:free], self._to_ask[free:]
        for sent in push(grid, [question(node) for node in now]) if now else ():
            if isinstance(sent, NodeFailure):
                read_answer(sent.node_id, sent)
            else:
                self._open[sent.node_id] = sent
                self._asked_at[sent.node_id] = time.monotonic()
