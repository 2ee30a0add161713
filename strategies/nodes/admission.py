"""Admission of nodes to a run: their groups, their keys, and the numbers of examples that they may report.

A profile is what a node says of itself. Without further checks, a node can invent a group, which then counts as one
cluster among others, claim the key of another node, with all that the server keeps under it, or claim more examples
than it has, for more weight.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from logging import WARNING
from typing import ClassVar

from flwr.common.logger import log
from flwr.serverapp import Grid

from .. import wire
from ..checks import LARGEST_COUNT, require_integer
from ..rounds.records import RoundStep
from ..rounds.snapshots import Stateful
from ..rounds.transport import retry
from .profiles import Profile


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
        found = list(profiles)
        public_keys = _public_keys(grid) if self.bind_keys and found else {}
        return [self._admitted(profile, public_keys.get(profile.node_id, "")) for profile in found]

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
