"""BufferedAsync (FedBuff): the server steps when enough updates are in, and waits for no node in particular.

Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation, AISTATS 2022,
https://arxiv.org/abs/2106.06639, Algorithm 1. With a buffer of 1 and ``mixing`` it is FedAsync: Xie, Koyejo and Gupta,
Asynchronous Federated Optimization, 2019, https://arxiv.org/abs/1903.03934, Algorithm 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from logging import INFO
from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.common import log
from flwr.serverapp import Grid

from .. import wire
from ..base import BaseStrategy
from ..checks import require_integer
from ..closing import Staleness
from ..mailbox import Arrival, Mailbox
from ..profiles import Profile
from ..replies import Reply
from ..stopwatch import timed
from ..transport import has_virtual_time

_WINDOW = 20  # updates of which a node may contribute a share
_SECONDS_PRESENT = 60.0  # after this time, the server asks again who is connected


class BufferedAsync(BaseStrategy):
    """FedAvg without waiting: ``concurrency`` nodes are at work, and the server steps after ``buffer`` updates.

    A node that has replied is replaced by a free one at once, which gets the newest version w. The update of a node
    that returns y and started from the version x enters the step as s(τ) (y - x), where τ, its staleness, is the number
    of steps since x. With uniform weights the server steps by 1/K Σ s(τ_k) (y_k - x_k), K = ``buffer``; with others by
    the weighted mean. A *round* is a step: its report has the replies of its buffer, and ``num_rounds`` counts steps.

    Replies are aggregated in the order of arrival, so the bits repeat where this order does: in simulated time. A reply
    that is refused counts for nothing; its node gets the next message after the step. So does a node that left, did not
    reply in time, or could not be reached. A run that resumes asks again the nodes that were at work, with the newest
    version, and counts nothing twice. In simulated time it goes on with what was in flight: its bits are those of a run
    without interruption.

    Parameters
    ----------
    concurrency : int or None
        ≥ 1, the number of nodes that work at a time, which the ``sampler`` draws among the free ones; ``None`` for as
        many as it would choose for a round, by default all.
    buffer : int
        ≥ 1, the number of updates per step; FedBuff uses 10.
    staleness : Staleness
        s(τ); by default that of ``closing``, (1 + τ)^-0.5 as in FedBuff.
    mixing : bool
        Apply (1 - s) w + s y in place of w + s (y - x): with ``buffer`` 1 and ``SGD(α)`` this is FedAsync.
    repeat : bool
        Whether a node may train on the same version again, with other random draws, as in FedBuff. Otherwise it waits
        for the next step while other nodes work; with ``concurrency`` = ``buffer`` = all nodes, this is FedAvg, bit for
        bit, if replies arrive in the order of the nodes' keys.
    share : float
        In (0, 1], the largest share of the last 20 updates that one node contributes, at least one of them; beyond it
        the node rests while another one is at work. 1 for no limit.
    max_staleness : int or None
        ≥ 0, refuse updates that are older, in steps; ``None`` for no limit.
    **base
        As in :class:`BaseStrategy`, without ``privacy``, ``aggregation``, ``in_flight`` and samplers of whole rounds.
        The deadline of ``closing`` is that of evaluations by nodes, which leave out the nodes that have trained for
        longer.

    Raises
    ------
    ValueError
        A parameter is out of range or excluded.
    """

    privacy_gap: ClassVar[str] = (
        "a fast node contributes several updates to a step, and a stale one reaches steps of several versions, but the "
        "noise covers one update of each node"
    )
    robustness_gap: ClassVar[str] = "a Byzantine node that replies fast can send most updates of a step"
    asynchronous: ClassVar[bool] = True
    flower_gaps: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("fraction_train", "min_train_nodes"), "set concurrency, the number of nodes that work at a time"
    )
    kept: ClassVar[tuple[str, ...]] = ("at_work", "_draws", "_counted")

    def __init__(
        self,
        *,
        concurrency: int | None = None,
        buffer: int = 10,
        staleness: Staleness | None = None,
        mixing: bool = False,
        repeat: bool = True,
        share: float = 1.0,
        max_staleness: int | None = None,
        **base: Any,
    ) -> None:
        closing = base.get("closing")
        if closing and (closing.over_selection > 1 or closing.late != "drop"):
            raise ValueError(f"closing = {closing}: only the deadline, that of evaluations, applies without rounds")
        if base.get("in_flight"):
            raise ValueError(f"in_flight = {base['in_flight']}: leave it out; concurrency limits who works at a time")
        if concurrency is not None:
            require_integer("concurrency", concurrency, least=1)
        require_integer("buffer", buffer, least=1)
        if max_staleness is not None:
            require_integer("max_staleness", max_staleness, least=0)
        if not 0 < share <= 1:
            raise ValueError(f"share = {share}: must be above 0 and at most 1")
        super().__init__(**base)
        if self.sampler.of_rounds:
            raise ValueError(f"sampler = {self.sampler}: it chooses whole rounds; take UniformFraction()")
        self._most_of_node = max(1, int(share * _WINDOW + 1e-9))  # updates among the last ones
        self._counted: list[str] = []  # the keys of the nodes of the last updates
        self.concurrency, self.buffer = concurrency, buffer
        self.staleness = staleness or self.staleness
        self.mixing, self.repeat, self.max_staleness = mixing, repeat, max_staleness
        self._first: list[str] = []  # keys of the nodes to ask first, after a run was resumed
        self._draws = 0
        self._asked: Counter[int] = Counter()  # how often a node has been sent the current version
        self._resting: set[int] = set()  # nodes that get no further message before the next step
        self._candidates: list[Profile] = []
        self._at_a_time = 0
        self._look_again_at = 0.0  # for nodes that came or went
        self._of_version = (0, ArrayRecord(), ConfigRecord())  # what messages of the current version have

    def summary(self) -> None:
        at_work = self.concurrency or "as the sampler chooses"
        log(INFO, "\t├── asynchronous: nodes at work: %s; updates per step: %s", at_work, self.buffer)
        log(INFO, "\t├── staleness: %s%s", self.staleness, ", mixing" if self.mixing else "")
        super().summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Begin a step. Messages of its version leave as nodes become free, see :meth:`further_messages`.

        Fewer than ``buffer`` updates suffice if no node is left that could reply.
        """
        self._of_version = (server_round, *self._open_round(server_round, arrays, config, grid))
        self._asked.clear()
        self._resting.clear()
        self._candidates, self._look_again_at = [], 0.0
        self._wanted, self._needed = self.buffer, min(self.min_replies, self.buffer)
        return []

    def further_messages(self, grid: Grid, mailbox: Mailbox) -> Sequence[Message]:
        """The current version to each node that is free, up to ``concurrency``."""
        if not self._candidates or mailbox.now() >= self._look_again_at:
            self._look_for_nodes(grid, mailbox)
        nodes = self._next_nodes(mailbox)
        if not nodes and not mailbox:
            self._look_for_nodes(grid, mailbox)
            nodes = self._next_nodes(mailbox)
        with timed("prepare"):
            messages = self._messages("train", nodes, *self._of_version)
            for message in messages:
                if repeats := self._asked[message.metadata.dst_node_id]:
                    message.content.config_records[self.configrecord_key][wire.REPEAT] = repeats
                self._asked[message.metadata.dst_node_id] += 1
        return messages

    def _look_for_nodes(self, grid: Grid, mailbox: Mailbox) -> None:
        """Find the connected nodes that can train. Waits for some if no node is at work."""
        if mailbox:
            self._candidates = [node for node in self.profiles(grid) if node.num_examples != 0]
        else:
            self._candidates = self.candidates(grid)
        self._at_a_time = self.concurrency or len(self.sampler.sample(self._candidates, self._draws, "train"))
        self._look_again_at = mailbox.now() + _SECONDS_PRESENT

    def _next_nodes(self, mailbox: Mailbox) -> list[Profile]:
        """The free nodes that get the next messages."""
        busy = mailbox.nodes
        room = self._at_a_time - len(busy)
        if room <= 0:
            return []
        free = [node for node in self._candidates if node.node_id not in busy | self._resting]
        if not self.repeat:  # nodes that have trained on this version wait, unless nobody else can reply
            new = [node for node in free if node.node_id not in self._asked]
            free = new if new or busy else free
        # A node that replies at once would otherwise give every update.
        counts = Counter(self._counted)
        rested = [node for node in free if counts[node.key] < self._most_of_node]
        free = rested if rested or busy else free
        if not free:
            return []
        nodes = [node for node in free if node.key in self._first][:room]
        if nodes:
            keys = {node.key for node in nodes}
            self._first = [key for key in self._first if key not in keys]
            free = [node for node in free if node.key not in keys]
        if room > len(nodes):
            self._draws += 1
            nodes += self.sampler.further(free, room - len(nodes), self._draws, "train")
        return nodes

    def _read(self, arrival: Arrival) -> Reply | None:
        reply = super()._read(arrival)
        if reply is None:
            self._resting.add(arrival.flight.node_id)
        else:
            self._counted = [*self._counted, arrival.flight.profile.key][-_WINDOW:]
        return reply

    # -- records and state ----------------------------------------------------------------------------------------

    def round_info(self) -> dict[str, Any]:
        """The staleness of the step's updates, and how many nodes and versions are in flight after it."""
        steps = [node.staleness for node in self.report.nodes if node.phase == "train"]
        return {
            "staleness-mean": float(np.mean(steps)) if steps else 0.0,
            "staleness-max": max(steps, default=0),
            "in-flight": len(self.mailbox or ()),
            "versions": len(self.mailbox.versions) if self.mailbox else 0,
        }

    @property
    def at_work(self) -> list[str]:
        """The keys of the nodes that have a message, for a snapshot: a run that resumes asks them first."""
        return [flight.profile.key for flight in self.mailbox.flights] if self.mailbox else []

    @at_work.setter
    def at_work(self, keys: list[str]) -> None:
        self._first = keys

    def _await_nodes(self, grid: Grid, timeout: float) -> None:
        super()._await_nodes(grid, timeout)
        if has_virtual_time(grid):  # what was in flight still is
            self._first = []
