"""Rounds that close before all nodes have replied: at enough replies, or at a deadline.

Bonawitz et al., Towards Federated Learning at Scale: System Design, MLSys 2019, https://arxiv.org/abs/1902.01046,
Sections 2.2 and 9: ask 1.3 times as many nodes as are needed, and close at the replies of that many, or at a deadline.

What an update from an older version of the shared parameters weighs, and how it applies to the current version:
Xie, Koyejo and Gupta, Asynchronous Federated Optimization (FedAsync), 2019, https://arxiv.org/abs/1903.03934, Section
5.2.
Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation (FedBuff), AISTATS 2022,
https://arxiv.org/abs/2106.06639, Algorithm 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, inf, isfinite
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from .arrays import Arrays, Buffers, is_float
from .checks import require_integer, require_one_of, require_positive
from .privacy import PrivacyMechanism
from .samplers import Sampler

LateReplies = Literal["drop", "fold"]
StalenessName = Literal["polynomial", "constant", "hinge"]
#: Why the noise of differential privacy does not cover a round that closes early.
REPLACES = (
    "if a node does not reply, the reply of another can take its place, and noise hides only what one node adds; use "
    "timeout alone, after which a missing reply is an update of 0"
)


@dataclass(frozen=True)
class Staleness:
    """The weight s(τ) in (0, 1] of an update, where τ is the number of server steps since its node's start version.

    Parameters
    ----------
    kind : "polynomial", "constant" or "hinge"
        (1 + τ)^-a; 1; or 1 up to τ = b and 1 / (a (τ - b) + 1) beyond.
    a : float
        > 0. FedBuff and FedAsync use 0.5 for "polynomial"; FedAsync uses 10 for "hinge".
    b : int
        ≥ 0, for "hinge"; FedAsync uses 4.

    Raises
    ------
    ValueError
        A parameter is out of range.
    """

    kind: StalenessName = "polynomial"
    a: float = 0.5
    b: int = 4

    def __post_init__(self) -> None:
        require_one_of("kind", self.kind, get_args(StalenessName))
        require_positive("a", self.a)
        require_integer("b", self.b, least=0)

    def __call__(self, steps: int) -> float:
        """The weight of an update that is ``steps`` ≥ 0 server steps old."""
        # FedAsync, Section 5.2: s(τ) = (τ + 1)^-a; 1 / (a (τ − b) + 1) beyond b
        if self.kind == "polynomial":
            return float((1.0 + steps) ** -self.a)
        return 1.0 if self.kind == "constant" or steps <= self.b else 1.0 / (self.a * (steps - self.b) + 1.0)


@dataclass(frozen=True)
class Closing:
    """When a round of training closes, and what becomes of replies that arrive later.

    Parameters
    ----------
    over_selection : float
        ≥ 1, ask this number times as many nodes as the sampler chooses (rounded up), and close when as many replies
        are in as it chose. Bonawitz et al. use 1.3.
    deadline : float
        > 0, seconds after which a round closes with the replies that are in, once ``min_replies`` are. Evaluations by
        nodes close then, too. Infinite for none.
    late : "drop" or "fold"
        Whether a late reply is dropped, or enters the step of the round in which it arrives, weighted by its staleness.
    staleness : Staleness
        The weights of late replies under "fold".

    Raises
    ------
    ValueError
        A parameter is out of range.
    """

    over_selection: float = 1.0
    deadline: float = inf
    late: LateReplies = "drop"
    staleness: Staleness = field(default_factory=Staleness)

    def __post_init__(self) -> None:
        if not (isfinite(self.over_selection) and self.over_selection >= 1):
            raise ValueError(f"over_selection = {self.over_selection!r}: must be at least 1")
        if not self.deadline > 0:
            raise ValueError(f"deadline = {self.deadline!r}: must be above 0 seconds")
        require_one_of("late", self.late, get_args(LateReplies))

    @property
    def early(self) -> bool:
        """Whether a round can close before all nodes have replied."""
        return self.over_selection > 1 or self.deadline < inf

    def asked(self, drawn: int) -> int:
        """How many nodes to ask where the sampler has chosen so many."""
        return ceil(self.over_selection * drawn - 1e-9)

    def refusal(
        self,
        sampler: Sampler,
        aggregation: object,
        privacy: PrivacyMechanism,
        in_flight: int | None,
        hooks: Sequence[str],
    ) -> str:
        """Why rounds of a strategy with these parts and own hooks cannot close early; empty if they can."""
        over, fold = self.over_selection > 1, self.late == "fold"
        if in_flight:
            return f"in_flight = {in_flight} sends messages only when others have replied"
        if over and sampler.random_size:
            return f"sampler = {sampler} decides by chance how many nodes take part"
        if over and aggregation:
            return f"with aggregation = {aggregation}, Byzantine nodes could be the first to reply"
        if type(privacy) is not PrivacyMechanism:
            return f"with privacy = {privacy}, {REPLACES}"
        if fold and aggregation:
            return f"late = 'fold' needs a mean, but aggregation = {aggregation}"
        if fold and hooks:
            return (
                "late = 'fold' brings updates of earlier versions, but the strategy expects the current one in "
                + ", ".join(hooks)
            )
        return ""


def brought_forward(
    trained: Arrays, start: Arrays, current: Arrays, weight: float, buffers: Buffers, *, mixing: bool
) -> Arrays:
    """The current version with the update of a node, weighted by its staleness: w + s (y - x).

    The mean of such arrays over K nodes is w + 1/K Σ s_k (y_k - x_k): FedBuff divides by K, not by the sum of s_k.

    Parameters
    ----------
    trained, start, current : dict of arrays
        What the node returned (y), the version that it started from (x), and the current one (w): the same names,
        shapes and dtypes.
    weight : float
        s in (0, 1].
    buffers : Buffers
        Arrays that are not trained. They are mixed, (1 - s) w + s y, because a variance that takes a difference can
        become negative.
    mixing : bool
        Whether parameters are mixed, too, as in FedAsync.

    Returns
    -------
    dict of arrays
        In the names, shapes and dtypes of ``current``; ``trained`` itself if nothing has changed since its start.
        Integers and booleans are those of ``trained``.
    """
    if weight == 1.0 and (mixing or start is current):
        return trained
    moved: Arrays = {}
    for name, now in current.items():
        value = trained[name]
        origin = now if mixing or name in buffers else start[name]
        # FedBuff, Algorithm 1: w + s (y − x); with mixing, FedAsync: w + s (y − w) = (1 − s) w + s y
        moved[name] = _step(now, value, origin, weight) if is_float(now) else value
    return moved


def _step(now: NDArray[Any], value: NDArray[Any], origin: NDArray[Any], weight: float) -> NDArray[Any]:
    change = np.subtract(value, origin, dtype=np.float64)
    change *= weight
    return np.asarray(np.add(change, now)).astype(now.dtype)
