"""Samplers that learn from the nodes' replies: tiers of equal speed (TiFL), and utility (Oort).

Chai et al., TiFL: A Tier-based Federated Learning System, HPDC 2020, https://arxiv.org/abs/2001.09249.
Lai et al., Oort: Efficient Federated Learning via Guided Participant Selection, OSDI 2021,
https://arxiv.org/abs/2010.06081.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from logging import WARNING
from math import log as ln
from math import sqrt
from typing import ClassVar

import numpy as np
from flwr.common import log

from .arrays import Arrays
from .checks import require_integer, require_positive
from .profiles import Profile, in_key_order
from .records import RoundStep, flat, nested
from .replies import Reply
from .samplers import Sampler, check_fraction, draw, draw_generator, rounded_share

_OLD = 0.7  # share of the earlier times in a node's running mean


@dataclass
class _Seen:
    """What is known of a node: its time in seconds, its statistical utility, and when it was last chosen."""

    seconds: float
    utility: float = 0.0
    chosen: int = 1


@dataclass(frozen=True)
class LearningSampler(Sampler):
    """A fraction of the nodes, chosen by what their replies have shown; nodes that have not replied come first.

    On real nodes, replies are aggregated in the order of arrival.

    Parameters
    ----------
    fraction : float
        In [0, 1]. The cohort size is that of :class:`~fedapps.strategies.samplers.UniformFraction`, which also
        draws the nodes that evaluate.
    seed : int
        ≥ 0.
    """

    fraction: float = 1.0
    seed: int = 0
    _seen: dict[str, _Seen] = field(default_factory=dict, init=False, repr=False, compare=False)
    _now: list[int] = field(default_factory=lambda: [1], init=False, repr=False, compare=False)

    #: The name of the sampler in the key ``sampling``.
    name: ClassVar[str] = ""
    by_reports: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_fraction("fraction", self.fraction)
        require_integer("seed", self.seed, least=0)

    def sample(self, profiles: Collection[Profile], server_round: int, purpose: RoundStep) -> list[Profile]:
        count = rounded_share(self.fraction, len(profiles))
        if purpose == "evaluate":
            return draw(profiles, count, draw_generator(self.seed, purpose, server_round))
        return self._chosen(profiles, count, server_round, "")

    def further(self, free: Collection[Profile], count: int, number: int, purpose: RoundStep) -> list[Profile]:
        return self._chosen(free, count, number, "further")

    def _chosen(self, profiles: Collection[Profile], count: int, number: int, label: str) -> list[Profile]:
        self._now[0] = max(number, 1)
        ordered = in_key_order(profiles)
        if count >= len(ordered):
            return ordered
        return in_key_order(self.choose(ordered, count, number, draw_generator(self.seed, "train", number, label)))

    @abstractmethod
    def choose(
        self, profiles: Sequence[Profile], count: int, number: int, generator: np.random.Generator
    ) -> Collection[Profile]:
        """Choose ``count`` of more nodes, which are in the order of their keys; ``number`` is that of the round."""

    def observe(self, profile: Profile, seconds: float, reply: Reply) -> None:
        seen = self._seen.setdefault(profile.key, _Seen(seconds))
        seen.seconds = _OLD * seen.seconds + (1 - _OLD) * seconds
        seen.chosen = self._now[0]

    def state(self) -> Arrays:
        return flat({"seen": {key: astuple(seen) for key, seen in self._seen.items()}, "now": self._now[0]})

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        values = nested(dict(state))
        self._seen.clear()
        self._seen.update({key: _Seen(*numbers) for key, numbers in values.get("seen", {}).items()})
        self._now[0] = values.get("now", 1)


@dataclass(frozen=True)
class SpeedTiers(LearningSampler):
    """TiFL: all nodes of a round come from the same tier of speed, so that none waits for a much slower one.

    Nodes that have replied are divided by their time into ``tiers`` of equal size. Every round takes one tier, all
    with the same probability (the policy "uniform" of the paper), and draws its nodes from it; from the next slower
    tiers, then the faster ones, if it has too few. Nodes whose time is unknown come before all others.

    Parameters
    ----------
    tiers : int
        ≥ 1; the paper uses 5.
    """

    tiers: int = 5
    name: ClassVar[str] = "tiers"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_integer("tiers", self.tiers, least=1)

    def choose(
        self, profiles: Sequence[Profile], count: int, number: int, generator: np.random.Generator
    ) -> Collection[Profile]:
        unknown = [node for node in profiles if node.key not in self._seen]
        if len(unknown) >= count:
            return draw(unknown, count, generator)
        known = sorted(
            (node for node in profiles if node.key in self._seen),
            key=lambda node: (self._seen[node.key].seconds, node.key),
        )
        groups = [list(map(known.__getitem__, part)) for part in np.array_split(np.arange(len(known)), self.tiers)]
        first = int(generator.integers(self.tiers))
        nodes = unknown
        for tier in [*range(first, self.tiers), *range(first - 1, -1, -1)]:
            nodes = [*nodes, *draw(groups[tier], count - len(nodes), generator)]
        return nodes


@dataclass(frozen=True)
class Utility(LearningSampler):
    """Oort: prefer nodes from which much is left to learn, unless they are slow; and explore others.

    The utility of a node is U (T / t)^α where t > T, and U otherwise. t is its time, and U its statistical utility: its
    number of examples times its training loss, at most the 95 % quantile, divided by the largest, plus
    √(0.1 ln R / L), where R is the round and L that in which the node was last chosen. The paper takes the root of the
    mean squared loss; nodes report the mean loss, which is at most as large. A node that reports no loss has U = 0 but
    for the second term. T is a quantile of the nodes' times, in place of the paper's pacer.

    A share ε of the nodes are new ones, drawn with equal probabilities. The others are drawn, with probabilities
    proportional to their utility, from those with at least 95 % of the utility of the last that would be taken in the
    order of utility.

    Parameters
    ----------
    alpha : float
        ≥ 0, α; 2 in the paper.
    preferred : float
        In (0, 1], T is this quantile of the nodes' times.
    exploration, decay, least_exploration : float
        ε is ``exploration`` in round 1, times ``decay`` in every further one, but not less than ``least_exploration``;
        .9, .98 and .2 in the paper.
    loss : str
        The metric of train replies that is the mean training loss.
    """

    alpha: float = 2.0
    preferred: float = 0.5
    exploration: float = 0.9
    decay: float = 0.98
    least_exploration: float = 0.2
    loss: str = "loss"
    name: ClassVar[str] = "utility"
    cutoff: ClassVar[float] = 0.95

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("exploration", "decay", "least_exploration"):
            check_fraction(name, getattr(self, name))
        check_fraction("preferred", self.preferred)
        require_positive("preferred", self.preferred)
        if not self.alpha >= 0:
            raise ValueError(f"alpha = {self.alpha!r}: must be at least 0")

    def choose(
        self, profiles: Sequence[Profile], count: int, number: int, generator: np.random.Generator
    ) -> Collection[Profile]:
        unknown = [node for node in profiles if node.key not in self._seen]
        known = [node for node in profiles if node.key in self._seen]
        share = max(self.exploration * self.decay ** max(number - 1, 0), self.least_exploration)
        new = min(len(unknown), max(round(share * count), count - len(known)))
        explored = draw(unknown, new, generator)
        if not (rest := count - new):
            return explored
        utilities = self.utilities([self._seen[node.key] for node in known], number)
        least = self.cutoff * np.sort(utilities)[-rest]
        pool = np.flatnonzero(utilities >= least)
        weights = utilities[pool] + np.finfo(np.float64).tiny * 2.0**60  # none is impossible
        drawn = generator.choice(pool, size=rest, replace=False, p=weights / weights.sum())
        return [*explored, *(known[index] for index in drawn)]

    def observe(self, profile: Profile, seconds: float, reply: Reply) -> None:
        new = profile.key not in self._seen
        super().observe(profile, seconds, reply)
        loss = reply.metrics.get(self.loss)
        if isinstance(loss, int | float):
            self._seen[profile.key].utility = reply.num_examples * abs(float(loss))
            return
        self._seen[profile.key].utility = 0.0
        if new:
            log(WARNING, "node %s reports no metric %r (Utility.loss): its loss counts as 0", profile.key, self.loss)

    def utilities(self, seen: Sequence[_Seen], number: int) -> np.ndarray:
        """The utility of nodes in a round, ≥ 0."""
        statistical = np.array([node.utility for node in seen])
        statistical = np.minimum(statistical, np.quantile(statistical, self.cutoff))
        if largest := statistical.max():
            statistical = statistical / largest
        statistical = statistical + [sqrt(0.1 * ln(max(number, 1)) / node.chosen) for node in seen]
        seconds = np.array([node.seconds for node in seen])
        preferred = np.quantile(seconds, self.preferred)
        slower = seconds > preferred
        factors = np.ones(len(seen))
        factors[slower] = (preferred / seconds[slower]) ** self.alpha
        return np.asarray(statistical * factors)
