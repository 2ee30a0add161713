"""Which nodes take part in a round."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar
from zlib import crc32

import numpy as np

from .draws import draw, draw_generator, rounded_share, sizes_of
from .parameter_checks import require_integer
from .profiles import Profile, in_key_order
from .round_records import RoundStep


class Sampler(ABC):
    """Chooses the nodes of a round."""

    #: Whether chance decides how many nodes are drawn, also none.
    random_size: ClassVar[bool] = False

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

    def __post_init__(self) -> None:
        _check_fraction("fraction", self.fraction)
        require_integer("minimum", self.minimum, least=0)
        require_integer("seed", self.seed, least=0)

    def sample(self, profiles: Collection[Profile], server_round: int, purpose: RoundStep) -> list[Profile]:
        count = max(self.minimum, rounded_share(self.fraction, len(profiles)))
        return draw(profiles, count, draw_generator(self.seed, purpose, server_round))


@dataclass(frozen=True)
class InTurn(Sampler):
    """A fraction of the nodes, each as often as every other: the nodes take turns in an order that is drawn once.

    Round r takes the places (r − 1) c to r c − 1 of that order, cyclically, where c is the cohort size. After any
    number of rounds with the same nodes, no node took part more than once more often than another.

    Parameters
    ----------
    fraction : float
        In [0, 1]. The cohort size is that of :class:`UniformFraction`; with 1 all nodes take part in every round.
    seed : int
        ≥ 0.
    """

    fraction: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        _check_fraction("fraction", self.fraction)
        require_integer("seed", self.seed, least=0)

    def sample(self, profiles: Collection[Profile], server_round: int, purpose: RoundStep) -> list[Profile]:
        ordered = in_key_order(profiles)
        count = min(rounded_share(self.fraction, len(ordered)), len(ordered))
        order = draw_generator(self.seed, purpose, 0, "in-turn").permutation(len(ordered))
        first = (server_round - 1) * count
        return [ordered[index] for index in sorted(order[(first + place) % len(ordered)] for place in range(count))]


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
        (:func:`fedapps.strategies.privacy_budget.epsilon`) needs it, because anyone who knows the seed knows who takes
        part.
    """

    probability: float
    seed: int | None = 0
    random_size: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_fraction("probability", self.probability)
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
        every label with a fraction above 0.
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
            _check_fraction(f"fractions[{label!r}]", fraction)
        _check_fraction("default", self.default)
        require_integer("seed", self.seed, least=0)

    def sample(self, profiles: Collection[Profile], server_round: int, purpose: RoundStep) -> list[Profile]:
        chosen: list[Profile] = []
        for label, members in _by_label(profiles, self.group).items():
            count = rounded_share(self.fractions.get(label, self.default), len(members))
            chosen += draw(members, count, draw_generator(self.seed, purpose, server_round, label))
        return in_key_order(chosen)


@dataclass(frozen=True)
class ProportionalToSize(Sampler):
    """A fixed number of nodes drawn without replacement, each with a probability proportional to its examples.

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

    def __post_init__(self) -> None:
        require_integer("count", self.count, least=1)
        require_integer("seed", self.seed, least=0)

    def sample(self, profiles: Collection[Profile], server_round: int, purpose: RoundStep) -> list[Profile]:
        ordered = in_key_order(profiles)
        exponentials = draw_generator(self.seed, purpose, server_round).exponential(size=len(ordered))
        quotients = {
            index: exponential / size
            for index, (exponential, size) in enumerate(zip(exponentials, sizes_of(ordered), strict=True))
            if size > 0
        }
        smallest = sorted(quotients, key=quotients.__getitem__)[: self.count]
        return [ordered[index] for index in sorted(smallest)]


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
        chosen: list[Profile] = []
        for label, members in _by_label(profiles, self.group).items():
            chosen += draw(members, self.count, draw_generator(self.seed, purpose, server_round, label))
        return in_key_order(chosen)


def _by_label(profiles: Collection[Profile], group: str) -> dict[str, list[Profile]]:
    members: dict[str, list[Profile]] = {}
    for profile in in_key_order(profiles):
        members.setdefault(profile.groups.get(group, ""), []).append(profile)
    return members


def _check_fraction(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name} = {value!r}: must be between 0 and 1")
