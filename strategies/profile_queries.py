"""Nodes asked for their profiles: each once, with nobody waiting for those that do not answer."""

import time
from collections.abc import Iterable
from logging import WARNING
from math import inf

from flwr.common.logger import log
from flwr.serverapp import Grid

from .profiles import Profile, question, read_answer
from .transport import NodeFailure, Sent, pull, push

ANSWER_SECONDS = 120.0


class ProfileQueries:
    """Questions that are open. ``in_flight`` is how many nodes are asked at a time, ``None`` for all of them."""

    def __init__(self, in_flight: int | None = None) -> None:
        self._in_flight = in_flight
        self._to_ask: list[int] = []
        self._open: dict[int, Sent] = {}
        self._asked_at: dict[int, float] = {}

    @property
    def hopeful(self) -> bool:
        """Whether an answer may come soon: a node has been asked within 120 s, or is still to be."""
        return bool(self._to_ask or self._asked_at)

    def ask(self, nodes: Iterable[int]) -> None:
        """Have nodes asked that are not being asked yet."""
        self._to_ask = sorted(set(nodes) - self._open.keys())

    def hear(self, grid: Grid) -> list[Profile]:
        """Send questions, and return the answers that have come, in the order of the node ids; waits for nothing.

        A node that is gone can be asked again. One that is silent for 120 s is warned about and heard whenever it
        answers after all.
        """
        self._send(grid)
        answers = []
        for node, sent in sorted(self._open.items()):
            if reply := pull(grid, sent):
                self._close(node)
                answers.append(read_answer(node, reply))
            elif time.monotonic() - self._asked_at.get(node, inf) >= ANSWER_SECONDS:
                del self._asked_at[node]
                log(WARNING, "node %s told no profile within %g s: no part until it does", node, ANSWER_SECONDS)
        return [profile for profile in answers if profile is not None]

    def _send(self, grid: Grid) -> None:
        count = len(self._to_ask) if self._in_flight is None else max(0, self._in_flight - len(self._asked_at))
        if not (now := self._to_ask[:count]):
            return
        self._to_ask = self._to_ask[count:]
        for sent in push(grid, [question(node) for node in now]):
            if isinstance(sent, NodeFailure):
                read_answer(sent.node_id, sent)
            else:
                self._open[sent.node_id] = sent
                self._asked_at[sent.node_id] = time.monotonic()

    def _close(self, node: int) -> None:
        del self._open[node]
        self._asked_at.pop(node, None)
