"""Samplers that take or leave out nodes by their keys."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from .draws import draw_generator
from .parameter_checks import require_integer
from .profiles import Profile, in_key_order
from .round_records import RoundStep
from .samplers import Sampler


@dataclass(frozen=True)
class DropSchedule(Sampler):
    """All nodes but one; another node is left out in each round, in the same order for every compared method.

    Parameters
    ----------
    drops : sequence of str
        Keys: the first node is left out of round 1, the second of round 2, and so on, cyclically. If empty, the node
        to leave out is drawn with equal probabilities. Round 0 leaves out no node, and a single node always takes part.
    seed : int
        ≥ 0; unused if ``drops`` is given.
    """

    drops: Sequence[str] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        _check_keys("drops", self.drops)
        require_integer("seed", self.seed, least=0)

    def sample(self, profiles: Collection[Profile], server_round: int, purpose: RoundStep) -> list[Profile]:
        """As in :class:`Sampler`.

        Raises
        ------
        ValueError
            ``drops`` is given, but none of its keys is the key of a node.
        """
        ordered = in_key_order(profiles)
        if self.drops:
            _require_some("drops", self.drops, ordered)
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
            None of ``keys`` is the key of a node.
        """
        ordered = in_key_order(profiles)
        _require_some("keys", self.keys, ordered)
        return [profile for profile in ordered if profile.key in self.keys]


def _require_some(name: str, keys: Sequence[str], profiles: Collection[Profile]) -> None:
    available = [profile.key for profile in profiles]
    if profiles and not set(keys) & set(available):
        raise ValueError(f"{name} = {list(keys)}: none of them is a node; the nodes are: {', '.join(available)}")


def _check_keys(name: str, keys: Sequence[str]) -> None:
    if isinstance(keys, str):
        raise ValueError(f"{name} = {keys!r}: must be a list of keys, such as [{keys!r}]")
