"""The keys that decide for which nodes the server waits: rounds, rounds that close early, or none."""

from dataclasses import dataclass
from math import inf
from typing import Any

from fedapps.base.options import option
from fedapps.strategies import Closing, Staleness

#: a of the staleness functions in the papers.
_PUBLISHED_A = {"polynomial": 0.5, "constant": 1.0, "hinge": 10.0}


@dataclass(frozen=True)
class Pace:
    """For which nodes the server waits. Each field is a key of the run config, which a method can set for itself."""

    mode: str = option(
        "sync",
        "sync: a round waits for its nodes, up to over-selection, deadline or timeout; async: the server waits for no "
        "node and steps whenever buffer updates are in, which then count as a round (FedBuff)",
        choices=["sync", "async"],
    )
    concurrency: int = option(
        0, "nodes at work at a time with mode = async; 0 = the nodes that train in a round", minimum=0
    )
    buffer: int = option(
        0, "updates per step with mode = async; 0 = half of concurrency, rounded up; FedBuff uses 10", minimum=0
    )
    async_update: str = option(
        "difference",
        "with mode = async, add s (y - x) to the model for a node that received x and returned y (FedBuff), or mix the "
        "model w with the reply, (1 - s) w + s y (mix; FedAsync with buffer = 1 and its alpha as server-learning-rate)",
        choices=["difference", "mix"],
    )
    repeat_version: bool = option(
        True, "with mode = async, let a node train again before the next step; if false, it waits while others work"
    )
    max_staleness: int = option(
        0, "with mode = async, refuse updates from models of more steps ago; 0 = never", minimum=0
    )
    over_selection: float = option(
        1.0,
        "ask this number times as many nodes as fraction-train says, and close the round when as many have replied as "
        "would be asked without; 1.3 is usual",
        minimum=1,
        maximum=10,
    )
    deadline: float = option(
        0.0,
        "seconds after which a round closes with the replies that are in, if they are at least min-replies, and an "
        "evaluation by nodes; 0 = at timeout",
        minimum=0,
    )
    late_replies: str = option(
        "drop",
        "drop what arrives after its round has closed, or fold it into the next round with the weight s",
        choices=["drop", "fold"],
    )
    staleness: str = option(
        "polynomial",
        "weight s of an update from the model of t steps ago: (1 + t)^-a, 1 (constant), or 1 up to t = b and then "
        "1 / (a (t - b) + 1) (hinge)",
        choices=["polynomial", "constant", "hinge"],
    )
    staleness_a: float = option(0.0, "a of staleness; 0 = 0.5 for polynomial, 10 for hinge", minimum=0)
    staleness_b: int = option(4, "b of staleness = hinge", minimum=0)

    @property
    def closing(self) -> Closing:
        """When a round closes."""
        late: Any = self.late_replies
        return Closing(self.over_selection, self.deadline or inf, late, self.weights)

    @property
    def weights(self) -> Staleness:
        """The weights of stale updates."""
        kind: Any = self.staleness
        return Staleness(kind, self.staleness_a or _PUBLISHED_A[kind], self.staleness_b)

    def asynchronous(self, training_nodes: int) -> dict[str, Any]:
        """The parameters of :class:`~fedapps.strategies.BufferedAsync` where so many nodes train in a round."""
        concurrency = self.concurrency or training_nodes
        return {
            "concurrency": concurrency,
            "buffer": self.buffer or (concurrency + 1) // 2,
            "staleness": self.weights,
            "mixing": self.async_update == "mix",
            "repeat": self.repeat_version,
            "max_staleness": self.max_staleness or None,
        }
