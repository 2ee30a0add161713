"""Which nodes take part in a round.

Every draw comes from a generator keyed by (seed, purpose, round, label) and is made over the profiles in the order of
their stable keys. Cohorts therefore do not depend on Flower's node ids, on the order of calls or on earlier draws, a
resumed run draws the same cohorts as an uninterrupted one, and the nodes that evaluate are drawn independently of the
nodes that train.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from logging import WARNING
from math import floor
from typing import ClassVar
from zlib import crc32

import numpy as np
from flwr.common import log

from .arrays import Arrays
from .checks import require_integer
from .profiles import Profile, check_group, in_key_order
from .records import RoundStep
from .replies import Reply


class Sampler(ABC):
    """Chooses the nodes of a round."""

    #: Whether chance decides how many nodes are drawn, also none.
    random_size: ClassVar[bool] = False
    #: Whether it needs the nodes' keys, groups or numbers of examples from their profiles, and not any distinct names.
    needs_profiles: ClassVar[bool] = True
    #: Whether it prefers nodes by what they report, so that Byzantine nodes can be most of a round.
    by_reports: ClassVar[bool] = False
    #: Whether it chooses whole rounds: no other node takes the place of a late one, and steps without rounds refuse it.
    of_rounds: ClassVar[bool] = False

    @property
    def learns(self) -> bool:
        """Whether it chooses by what replies have shown (:meth:`observe`)."""
        return type(self).observe is not Sampler.observe

    @abstractmethod
    def sample(self, profiles: Collection[Profile], server_round: int, purpose: RoundStep) -> list[Profile]:
        """Choose the nodes that train or evaluate in a round.

        Parameters
        ----------
        profiles : collection of Profile
            The connected nodes, with distinct keys, in any order.
        server_round : int
            Number of the round, ≥ 0.
        purpose : "train" or "evaluate"
            What the nodes are chosen for; :class:`~fedapps.strategies.base.BaseStrategy` sets it. Draws for one
            purpose are independent of draws for the other.

        Returns
        -------
        list of Profile
            The chosen profiles, each once, in the order of their keys.
        """

    def further(self, free: Collection[Profile], count: int, number: int, purpose: RoundStep) -> list[Profile]:
        """Choose nodes beside those that were chosen: in place of slow ones, or whenever one is free.

        Parameters
        ----------
        free : collection of Profile
            The nodes to choose from, with distinct keys.
        count : int
            ≥ 0; all of ``free`` are chosen if there are fewer.
        number : int
            ≥ 0, tells this draw from the others of the same purpose.
        purpose : "train" or "evaluate"

        Returns
        -------
        list of Profile
            The chosen profiles, each once, in the order of their keys; by default all are equally likely, and none is
            chosen by a sampler of whole rounds.
        """
        if self.of_rounds:
            return []
        return draw(free, count, draw_generator(getattr(self, "seed", None) or 0, purpose, number, "further"))

    def observe(self, profile: Profile, seconds: float, reply: Reply) -> None:  # noqa: B027
        """Called with each usable train reply, and the seconds from its message to its arrival."""

    def state(self) -> Arrays:
        """What the sampler has learned, for a snapshot."""
        return {}

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:  # noqa: B027
        """Restore what :meth:`state` returned; empty for a new run."""


@dataclass(frozen=True)
class UniformFraction(Sampler):
    """A fraction of the nodes; all cohorts of that size are equally likely.

    Parameters
    ----------
    fraction : float
        In [0, 1]. The cohort has fraction · n nodes, halves rounded up, and at least 1 if the fraction is above 0.
    minimum : int
        ≥ 0, the smallest cohort size; all nodes take part if there are fewer.
    seed : int
        ≥ 0.
    """

    fraction: float = 1.0
    minimum: int = 0
    seed: int = 0
    needs_profiles: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_fraction("fraction", self.fraction)
        require_integer("minimum", self.minimum, least=0)
        require_integer("seed", self.seed, least=0)

    def sample(self, profiles: Collection[Profile], server_round: int, purpose: RoundStep) -> list[Profile]:
        count = max(self.minimum, rounded_share(self.fraction, len(profiles)))
        return draw(profiles, count, draw_generator(self.seed, purpose, server_round))


@dataclass(frozen=True)
class InTurn(Sampler):
    """A fraction of the nodes, each as often as every other: the nodes take turns in an order that is drawn once.

    Round r takes the places (r − 1) c to r c − 1 of that order, cyclically, where c is the cohort size. After any
    number of rounds with the same nodes, no node took part more than once more often than another. No other node takes
    the place of a late one.

    Parameters
    ----------
    fraction : float
        In [0, 1]. The cohort size is that of :class:`UniformFraction`; with 1 all nodes take part in every round.
    seed : int
        ≥ 0.
    """

    fraction: float = 1.0
    seed: int = 0
    needs_profiles: ClassVar[bool] = False
    of_rounds: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_fraction("fraction", self.fraction)
        require_integer("seed", self.seed, least=0)

    def sample(self, profiles: Collection[Profile], server_round: int, purpose: RoundStep) -> list[Profile]:
        ordered = in_key_order(profiles)
        count = min(rounded_share(self.fraction, len(ordered)), len(ordered))
        order = draw_generator(self.seed, purpose, 0, "in-turn").permutation(len(ordered))
        first = (server_round - 1) * count
        return [ordered[index] for index in sorted(order[(first + turn) % len(ordered)] for turn in range(count))]


@dataclass(frozen=True)
class PoissonSampling(Sampler):
    """Each node independently with the same probability: the sampling that privacy amplification assumes.

    The number of nodes is random and can be 0. Adding a node changes the draw of no other node. Flower's and most
    other samplers draw a fixed number of nodes instead, so that one node takes the place of another.

    Parameters
    ----------
    probability : float
        In [0, 1].
    seed : int or None
        ≥ 0 makes the draws repeatable. ``None`` makes draws that cannot be repeated: privacy amplification by sampling
        (:func:`fedapps.strategies.privacy.epsilon`) needs it, because anyone who knows the seed knows who takes
        part.
    """

    probability: float
    seed: int | None = 0
    random_size: ClassVar[bool] = True
    of_rounds: ClassVar[bool] = True
    needs_profiles: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_fraction("probability", self.probability)
        if self.seed is not None:
            require_integer("seed", self.seed, least=0)

    def sample(self, profiles: Collection[Profile], server_round: int, purpose: RoundStep) -> list[Profile]:
        ordered = in_key_order(profiles)
        if self.seed is None:
            drawn = np.random.default_rng().random(len(ordered))
        else:
            # The whole key seeds the draw: two nodes with the same checksum would take part together.
            words = [self.seed, server_round, crc32(purpose.encode())]
            drawn = np.array([np.random.default_rng([*words, *node.key.encode()]).random() for node in ordered])
        return [node for node, number in zip(ordered, drawn, strict=True) if number < self.probability]


@dataclass(frozen=True)
class StratifiedFraction(Sampler):
    """A fraction of the nodes of each group. Each group has its own draw, so adding a group changes no other draw.

    Parameters
    ----------
    group : str
        The kind of group whose labels divide the nodes, such as "seen".
    fractions : mapping of str to float
        Fraction in [0, 1] for each label, rounded as in :class:`UniformFraction`, so at least one node of
        every label with a fraction above 0. The first round warns of labels that no node has while nodes have others.
    default : float
        Fraction in [0, 1] for all other labels, and for the nodes without a label, which form one group.
    seed : int
        ≥ 0.
    """

    group: str
    fractions: Mapping[str, float]
    default: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for label, fraction in self.fractions.items():
            check_fraction(f"fractions[{label!r}]", fraction)
        check_fraction("default", self.default)
        require_integer("seed", self.seed, least=0)

    def sample(self, profiles: Collection[Profile], server_round: int, purpose: RoundStep) -> list[Profile]:
        if server_round <= 1:  # later, the nodes that have one may be away
            check_group(profiles, self.group)
            self._warn_of_unknown_labels(profiles)
        nodes: list[Profile] = []
        for label, members in _by_label(profiles, self.group).items():
            count = rounded_share(self.fractions.get(label, self.default), len(members))
            nodes += draw(members, count, draw_generator(self.seed, purpose, server_round, label))
        return in_key_order(nodes)

    def further(self, free: Collection[Profile], count: int, number: int, purpose: RoundStep) -> list[Profile]:
        members = _by_label(free, self.group)
        some = [node for label, nodes in members.items() if self.fractions.get(label, self.default) for node in nodes]
        return super().further(some, count, number, purpose)

    def _warn_of_unknown_labels(self, profiles: Collection[Profile]) -> None:
        labels = {node.groups[self.group] for node in profiles if self.group in node.groups}
        unknown, other = sorted(self.fractions.keys() - labels), sorted(labels - self.fractions.keys())
        # Where each node has a label with a fraction, nothing is misspelt: nodes with the other labels may be away.
        if unknown and other:
            log(
                WARNING,
                "fractions: no node has a %s of %s; nodes have %s, whose fraction is default = %g",
                *(self.group, ", ".join(map(repr, unknown)), ", ".join(map(repr, other)), self.default),
            )


@dataclass(frozen=True)
class ProportionalToSize(Sampler):
    """A fixed number of nodes drawn one after another, each among the rest in proportion to its examples.

    The method of Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006: take the nodes with the
    smallest E_k/n_k, where E_k is standard exponential and n_k the number of examples. A node that reports no number of
    examples counts as the mean of the nodes that do; a node with 0 examples is never drawn.

    Parameters
    ----------
    count : int
        ≥ 1, the number of nodes in each round; all nodes take part if there are fewer.
    seed : int
        ≥ 0.
    """

    count: int
    seed: int = 0
    by_reports: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_integer("count", self.count, least=1)
        require_integer("seed", self.seed, least=0)

    def sample(self, profiles: Collection[Profile], server_round: int, purpose: RoundStep) -> list[Profile]:
        return draw_by_size(profiles, self.count, draw_generator(self.seed, purpose, server_round))

    def further(self, free: Collection[Profile], count: int, number: int, purpose: RoundStep) -> list[Profile]:
        return draw_by_size(free, count, draw_generator(self.seed, purpose, number, "further"))


@dataclass(frozen=True)
class FixedPerCluster(Sampler):
    """The same number of nodes from every cluster, drawn separately.

    Parameters
    ----------
    group : str
        The kind of group whose labels are the clusters, such as "city"; nodes without a label form one
        cluster.
    count : int
        ≥ 1, the number of nodes from each cluster; all its nodes take part if it has fewer.
    seed : int
        ≥ 0.
    """

    group: str
    count: int
    seed: int = 0

    def __post_init__(self) -> None:
        require_integer("count", self.count, least=1)
        require_integer("seed", self.seed, least=0)

    def sample(self, profiles: Collection[Profile], server_round: int, purpose: RoundStep) -> list[Profile]:
        nodes: list[Profile] = []
        for label, members in _by_label(profiles, self.group).items():
            nodes += draw(members, self.count, draw_generator(self.seed, purpose, server_round, label))
        return in_key_order(nodes)


def _by_label(profiles: Collection[Profile], group: str) -> dict[str, list[Profile]]:
    members: dict[str, list[Profile]] = {}
    for profile in in_key_order(profiles):
        members.setdefault(profile.groups.get(group, ""), []).append(profile)
    return members


def check_fraction(name: str, value: float) -> None:
    """Raise ``ValueError`` unless a parameter is in [0, 1]."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name} = {value!r}: must be between 0 and 1")


@dataclass(frozen=True)
class DropSchedule(Sampler):
    """All nodes but one; another node is left out in each round, in the same order for every compared method.

    Parameters
    ----------
    drops : sequence of str
        Keys: the first node is left out of round 1, the second of round 2, and so on, cyclically. If empty, the node
        to leave out is drawn with equal probabilities. Round 0 leaves out no node, and a single node always takes part.
        No other node takes the place of a late one.
    seed : int
        ≥ 0; unused if ``drops`` is given.
    """

    drops: Sequence[str] = ()
    seed: int = 0
    of_rounds: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_keys("drops", self.drops)
        require_integer("seed", self.seed, least=0)

    def sample(self, profiles: Collection[Profile], server_round: int, purpose: RoundStep) -> list[Profile]:
        """As in :class:`Sampler`.

        Raises
        ------
        ValueError
            ``drops`` is given, but none of its keys is the key of a node in the first round.
        """
        ordered = in_key_order(profiles)
        if self.drops:
            _require_some("drops", self.drops, ordered, server_round)
        if server_round < 1 or len(ordered) < 2:
            return ordered
        if self.drops:
            dropped = self.drops[(server_round - 1) % len(self.drops)]
        else:
            dropped = ordered[draw_generator(self.seed, purpose, server_round).integers(len(ordered))].key
        return [profile for profile in ordered if profile.key != dropped]


@dataclass(frozen=True)
class FixedNodes(Sampler):
    """The same nodes in every round; nodes that are not connected are left out.

    Parameters
    ----------
    keys : sequence of str
        The stable keys of the nodes, at least one.
    """

    keys: Sequence[str]

    def __post_init__(self) -> None:
        _check_keys("keys", self.keys)
        if not self.keys:
            raise ValueError("keys = []: must name at least one node")

    def sample(self, profiles: Collection[Profile], server_round: int, purpose: RoundStep) -> list[Profile]:
        """As in :class:`Sampler`.

        Raises
        ------
        ValueError
            None of ``keys`` is the key of a node in the first round.
        """
        ordered = in_key_order(profiles)
        _require_some("keys", self.keys, ordered, server_round)
        return [profile for profile in ordered if profile.key in self.keys]

    def further(self, free: Collection[Profile], count: int, number: int, purpose: RoundStep) -> list[Profile]:
        return super().further([profile for profile in free if profile.key in self.keys], count, number, purpose)


def _require_some(name: str, keys: Sequence[str], profiles: Collection[Profile], server_round: int) -> None:
    """Raise ``ValueError`` if no node has one of the keys; later than in round 1, where they may be away, warn."""
    available = [profile.key for profile in profiles]
    if profiles and not set(keys) & set(available):
        reason = f"{name} = {list(keys)}: none of them is a node; the nodes are: {', '.join(available)}"
        if server_round <= 1:
            raise ValueError(reason)
        log(WARNING, "%s", reason)


def _check_keys(name: str, keys: Sequence[str]) -> None:
    if isinstance(keys, str):
        raise ValueError(f"{name} = {keys!r}: must be a list of keys, such as [{keys!r}]")


def draw_generator(seed: int, purpose: RoundStep, server_round: int, label: str = "") -> np.random.Generator:
    """The random generator of one draw.

    Parameters
    ----------
    seed : int
        ≥ 0, the sampler's seed.
    purpose : "train" or "evaluate"
        What the nodes are drawn for.
    server_round : int
        ≥ 0.
    label : str
        The group that is drawn from; empty for a draw from all nodes.
    """
    # Python's hash of a string differs between processes; the checksum does not.
    words = [seed, server_round, crc32(label.encode())]
    # Training draws have no word for their purpose: this keeps the cohorts of published results.
    return np.random.default_rng(words if purpose == "train" else [*words, crc32(purpose.encode())])


def sizes_of(profiles: Sequence[Profile]) -> list[float]:
    """Numbers of examples; a node that reports none counts as the mean of those that do, or as 1 if none does."""
    known = [profile.num_examples for profile in profiles if profile.num_examples is not None]
    mean = sum(known) / len(known) if known and sum(known) else 1.0
    return [mean if profile.num_examples is None else profile.num_examples for profile in profiles]


def draw(profiles: Collection[Profile], count: int, generator: np.random.Generator) -> list[Profile]:
    """``count`` ≥ 0 nodes drawn without replacement, in the order of their keys; all nodes if there are fewer."""
    ordered = in_key_order(profiles)
    if count >= len(ordered):
        return ordered
    indices = generator.choice(len(ordered), size=count, replace=False)
    return [ordered[index] for index in sorted(indices.tolist())]


def draw_by_size(profiles: Collection[Profile], count: int, generator: np.random.Generator) -> list[Profile]:
    """``count`` ≥ 0 nodes drawn as :class:`ProportionalToSize` does, in the order of their keys."""
    ordered = in_key_order(profiles)
    exponentials = generator.exponential(size=len(ordered))
    quotients = {
        index: exponential / size
        for index, (exponential, size) in enumerate(zip(exponentials, sizes_of(ordered), strict=True))
        if size > 0
    }
    smallest = sorted(quotients, key=quotients.__getitem__)[:count]
    return [ordered[index] for index in sorted(smallest)]


def rounded_share(fraction: float, total: int) -> int:
    """``fraction`` · ``total``, halves rounded up, and at least 1 if the fraction is above 0."""
    return max(floor(fraction * total + 0.5), 1 if fraction > 0 else 0)
