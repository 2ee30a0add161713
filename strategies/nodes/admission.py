"""Which nodes take part in the rounds: their groups, their keys, the numbers of examples that they may report, and the
nodes that are held out, on which a trained model is measured as a new node finds it.

A profile is what a node says of itself. Without further checks, a node can invent a group, which then counts as one
cluster among others, claim the key of another node, with all that the server keeps under it, or claim more examples
than it has, for more weight.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from logging import WARNING
from typing import ClassVar

from flwr.common.logger import log
from flwr.serverapp import Grid

from .. import wire
from ..checks import LARGEST_COUNT, MAX_NAME_LENGTH, require_integer, truncate
from ..rounds.records import RoundStep
from ..rounds.snapshots import Stateful
from ..rounds.transport import retry
from .profiles import Profile, in_key_order
from .samplers import draw, draw_generator, rounded_share


@dataclass
class Admission(Stateful):
    """Decides from its profile whether a node may take part.

    Parameters
    ----------
    allowed_groups : mapping of str to collections of str
        For some kinds of groups, the labels that a node may have. A node with another label of such a kind, or with
        none, is left out. Other kinds are not checked.
    bind_keys : bool
        Whether a key belongs to the public key of the node that claimed it first, for the whole run and while this node
        is away. Another node that claims it is left out. Meant for SuperLinks that authenticate nodes: there the public
        key of a node is the registered one. Without authentication Flower makes a new one at each start of a node, so a
        restarted node would be left out.
    """

    allowed_groups: Mapping[str, Collection[str]] = field(default_factory=dict)
    bind_keys: bool = False
    _owners: dict[str, str] = field(default_factory=dict, init=False, repr=False)  # of keys
    kept: ClassVar[tuple[str, ...]] = ("_owners",)

    def apply_to(self, profiles: Iterable[Profile], grid: Grid) -> list[Profile]:
        """The profiles; nodes that may not take part lose their key and groups, with the reason in ``no_data``."""
        asked = list(profiles)
        public_keys = _public_keys(grid) if self.bind_keys and asked else {}
        return [self._admitted(profile, public_keys.get(profile.node_id, "")) for profile in asked]

    def _admitted(self, profile: Profile, public_key: str) -> Profile:
        if profile.no_data:  # it takes no part, and must not have a key of others
            return replace(profile, key=Profile.unknown(profile.node_id).key) if self.bind_keys else profile
        reason = self._refusal(profile, public_key)
        if not reason:
            return profile
        log(WARNING, "node %s is left out of the run: %s", profile.node_id, reason)
        return replace(Profile.unknown(profile.node_id), no_data=reason)

    def _refusal(self, profile: Profile, public_key: str) -> str:
        for kind, allowed in self.allowed_groups.items():
            label = profile.groups.get(kind, "")
            if label not in allowed:
                stated = f"its {kind} is {label!r}" if label else f"it states no {kind}"
                return f"{stated}; allowed are {', '.join(sorted(allowed))}"
        if not self.bind_keys:
            return ""
        if not public_key:
            return "Flower gives no public key of this node, which binding keys to nodes needs"
        if self._owners.setdefault(profile.key, public_key) != public_key:
            return f"it claims the key {profile.key!r}, which belongs to a node with another public key"
        return ""


def _public_keys(grid: Grid) -> dict[int, str]:
    """SHA-256 of the public keys of the connected nodes, by Flower's node id, as far as Flower gives them."""
    get_nodes = getattr(grid, "get_nodes", None)
    nodes = retry(lambda: list(get_nodes())) if get_nodes else []
    return {node.node_id: hashlib.sha256(node.public_key).hexdigest() for node in nodes if node.public_key}


@dataclass(frozen=True)
class ExampleLimits:
    """Limits of the numbers of examples in profiles and replies, and of the counts by which metrics are weighted.

    These numbers determine how often nodes are drawn and their weights in means. Only ``maximum`` limits a node whose
    profile states no number, and the replies to evaluations.

    Parameters
    ----------
    maximum : int
        ≥ 0. Reject numbers above this; 0 allows numbers up to 2^53. A number that is too large is removed from a
        profile, and a reply with one is refused.
    may_grow : bool
        Whether nodes can train on more examples than their profiles state, for example because they collect more. If
        false, train replies with a larger number are refused.
    drawn : int
        ≥ 0. Always accept train replies with up to this number, which nodes draw with replacement
        (:class:`~fedapps.strategies.algorithms.fedvc.VirtualClients`).
    items : int
        ≥ 1. How many items of a metric an example can have: ``accuracy.count``, the weight of ``accuracy``, can be this
        many times the largest number of examples. Above 1 for metrics of parts of examples, such as words of a text.

    Raises
    ------
    ValueError
        A limit is not an integer of at least 0, or ``items`` of at least 1.
    """

    maximum: int = 0
    may_grow: bool = True
    drawn: int = 0
    items: int = 1

    def __post_init__(self) -> None:
        require_integer("maximum", self.maximum, least=0)
        require_integer("drawn", self.drawn, least=0)
        require_integer("items", self.items, least=1)

    def refusal_reason(self, num_examples: float, profile: Profile, phase: RoundStep) -> str | None:
        """Why a reply of ``phase`` with ``num_examples`` must be refused, ``None`` if it is accepted."""
        return self._refusal(wire.NUM_EXAMPLES, num_examples, 1, profile, phase)

    def count_refusal(self, metrics: Mapping[str, object], profile: Profile, phase: RoundStep) -> str | None:
        """As :meth:`refusal_reason`, for the counts of ``metrics``. A count without its metric weighs nothing."""
        counts = {name + wire.COUNT_SUFFIX for name in metrics}
        for name, count in metrics.items():
            if (
                name in counts
                and isinstance(count, int | float)
                and (reason := self._refusal(name, count, self.items, profile, phase))
            ):
                return reason
        return None

    def _refusal(self, name: str, count: float, items: int, profile: Profile, phase: RoundStep) -> str | None:
        maximum = self.maximum * items or LARGEST_COUNT
        if count > maximum:
            return f"{name} is {count:g}: at most {maximum} are accepted"
        stated = profile.num_examples
        if phase == "train" and not self.may_grow and stated is not None and count > items * max(stated, self.drawn):
            return f"{name} is {count:g}, but the profile states {stated}"
        return None

    def apply_to(self, profiles: Iterable[Profile]) -> list[Profile]:
        """The profiles; numbers of examples above ``maximum`` are replaced by ``None``, with a warning."""
        maximum = self.maximum or LARGEST_COUNT
        limited = []
        for profile in profiles:
            stated = profile.num_examples
            if stated is not None and stated > maximum:
                log(WARNING, "node %s: num-examples is %s, above %s; ignored", profile.key, stated, maximum)
                profile = replace(profile, num_examples=None)
            limited.append(profile)
        return limited


@dataclass
class HeldOut(Stateful):
    """Chooses by their keys the nodes that neither train nor evaluate in any round.

    A share is drawn once, from the nodes that are known before the first round and have data. It is stored in the
    snapshots, so that a node that has trained is never held out, and a node that joins later takes part.

    Parameters
    ----------
    share : float
        In [0, 1). The number of nodes is share · n, halves rounded up, at least 1 if the share is above 0; at least one
        node is always left to train.
    keys : sequence of str
        The stable keys of the nodes, in place of a share.
    seed : int
        ≥ 0, of the draw.

    Raises
    ------
    ValueError
        A parameter is out of range, or both a share and keys are given.
    """

    share: float = 0.0
    keys: Sequence[str] = ()
    seed: int = 0
    _chosen: frozenset[str] | None = field(default=None, init=False, repr=False)
    kept: ClassVar[tuple[str, ...]] = ("_chosen",)

    def __post_init__(self) -> None:
        if isinstance(self.keys, str):
            raise ValueError(f"keys = {self.keys!r}: must be a list of keys, such as [{self.keys!r}]")
        if not 0 <= self.share < 1 or (self.share and self.keys):
            raise ValueError(f"share = {self.share}, keys = {list(self.keys)}: give a share in [0, 1), or keys")
        require_integer("seed", self.seed, least=0)

    def among(self, profiles: Collection[Profile]) -> list[Profile]:
        """The nodes that are held out, in the order of their keys; the first call chooses them.

        Raises
        ------
        ValueError
            At the first call: a key is not that of a node, or no node is left to train.
        """
        if not (self.share or self.keys):
            return []
        if self._chosen is None:
            self._chosen = self._choose([node for node in profiles if not node.no_data and node.num_examples != 0])
        return [node for node in in_key_order(profiles) if node.key in self._chosen]

    def holds(self, key: str) -> bool:
        """Whether the node of a key is held out; false before the first call of :meth:`among`."""
        return bool(self.share or self.keys) and self._chosen is not None and key in self._chosen

    def _choose(self, nodes: Sequence[Profile]) -> frozenset[str]:
        if not self.keys:
            count = min(rounded_share(self.share, len(nodes)), max(len(nodes) - 1, 0))
            return frozenset(node.key for node in draw(nodes, count, draw_generator(self.seed, "train", 0, "held-out")))
        known = sorted(node.key for node in nodes)
        if missing := sorted(set(self.keys) - set(known)):
            keys = truncate(", ".join(known), MAX_NAME_LENGTH)
            raise ValueError(f"held-out nodes {', '.join(missing)}: no such node with data; the nodes are {keys}")
        if not set(known) - set(self.keys):
            raise ValueError("held-out nodes: all nodes are held out; leave some of them to train")
        return frozenset(self.keys)
