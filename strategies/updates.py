"""Arrivals as updates of the current version of the shared parameters: checked, recorded, brought forward."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from .arrays import Arrays
from .nodes.samplers import Sampler
from .replies import Reply, ReplyFilter
from .rounds.flights import Arrival
from .staleness import Staleness, brought_forward


@dataclass(frozen=True)
class Updates:
    """Reads the arrivals of one round.

    Parameters
    ----------
    replies : ReplyFilter
        That of the round.
    version : int
        ≥ 0, the number of server steps so far.
    current : dict of arrays
        The version that they led to.
    staleness : Staleness
        The weight of an update from an older version.
    sampler : Sampler
        Learns the times of the nodes.
    mixing : bool
        See :func:`~fedapps.strategies.staleness.brought_forward`.
    max_staleness : int or None
        ≥ 0, older updates are refused.
    """

    replies: ReplyFilter
    version: int
    current: Arrays
    staleness: Staleness
    sampler: Sampler
    mixing: bool = False
    max_staleness: int | None = None

    def read(self, arrival: Arrival) -> Reply | None:
        """The reply with its arrays as they enter the step, ``None`` if it is refused. Both are recorded."""
        flight, steps = arrival.flight, self.version - arrival.flight.version
        replies = replace(
            self.replies,
            profiles={flight.node_id: flight.profile},
            expected=flight.start,
            refusal_reason=self._refusal_reason(steps),
            seconds={flight.message_id: arrival.seconds},
            staleness=steps,
        )
        for reply in replies.usable([arrival.outcome]):
            self.sampler.observe(flight.profile, arrival.seconds, reply)
            arrays = brought_forward(
                reply.arrays,
                flight.start,
                self.current,
                self.staleness(steps),
                self.replies.buffers,
                mixing=self.mixing,
            )
            return replace(reply, arrays=arrays)
        return None

    def _refusal_reason(self, steps: int) -> Callable[[Reply], str | None] | None:
        if self.max_staleness is None or steps <= self.max_staleness:
            return self.replies.refusal_reason
        return lambda reply: f"the update is {steps} steps old: at most {self.max_staleness} are accepted"
