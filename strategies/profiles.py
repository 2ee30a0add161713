"""Profiles of nodes: stable keys, numbers of examples and groups, queried once per node, and what the server believes.

Flower draws new node ids for every run. Sampling, clusters and reports must not depend on them, so the server asks each
node for a stable key: the name of its car, house, city or data partition.

A profile is what a node says of itself. Without further checks, a node can invent a group, which then counts as one
cluster among others, claim the key of another node, with all that the server keeps under it, or claim more examples
than it has, for more weight.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from logging import WARNING

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common import log
from flwr.serverapp import Grid

from . import wire
from .checks import LARGEST_COUNT, is_valid_name, require_integer, truncate
from .records import RoundStep
from .transport import NodeFailure, Outcome, retry

MAX_GROUPS = 32


@dataclass(frozen=True)
class Profile:
    """What the server knows about a node.

    Parameters
    ----------
    node_id : int
        Flower's id, the address of the node; different in every run.
    key : str
        The stable key: unique among the nodes, and the same in every run.
    num_examples : int or None
        Number of training examples that the node reports, ≥ 0; with 0 it does not train. ``None`` if it reports none.
    groups : mapping of str to str
        Labels by kind of group, such as ``{"house": "12", "seen": "yes"}``.
    no_data : str
        Why the node takes no part: it has no data for this run, as it reports, or it is not admitted
        (:class:`~fedapps.strategies.profiles.Admission`). It gets no further messages. Empty if it takes part.
    own_data : bool
        Whether the node states that it has data of its own, and not a part of the server's.
    unreported : str
        The metric that the run tracks, if the node states that it cannot report it; empty if it can.
    ineligible : str or None
        Why the node's own rules forbid it to work now; empty if they allow it. ``None`` if it has no such rules. Nodes
        with rules are asked again in each round.
    """

    node_id: int
    key: str
    num_examples: int | None = None
    groups: Mapping[str, str] = field(default_factory=dict, hash=False)
    no_data: str = ""
    own_data: bool = False
    unreported: str = ""
    ineligible: str | None = None

    @classmethod
    def unknown(cls, node_id: int) -> Profile:
        """The profile of a node that reported none: it takes part under its Flower id."""
        return cls(node_id, f"node-{node_id}")


def profile_query(node_id: int) -> Message:
    """The message of type ``query.profile`` that asks a node for its profile."""
    return Message(RecordDict(), dst_node_id=node_id, message_type=wire.PROFILE_QUERY)


def read_profile(node_id: int, reply: Outcome) -> Profile | None:
    """Read the answer of a node to the profile query.

    A node answers with the ConfigRecord ``profile``: ``key`` (str), ``num-examples`` (int) and ``group.<kind>`` (str)
    for each group it belongs to, up to 32. A node without data for this run adds ``no-data`` (str), the reason, which
    is logged; one with data of its own adds ``own-data``, true, and ``unreported`` (str), the tracked metric that it
    cannot report; one with rules about when it works adds ``ineligible`` (str), why it may not work now. Keys, kinds
    and labels must be printable, on one line and at most 200 characters long; other entries are ignored. A node that
    answers with an error or without a valid key gets the key ``node-<node id>``. Two nodes can claim the same key; see
    :func:`with_distinct_keys`.

    Returns
    -------
    Profile or None
        ``None`` if the node is not reachable, so that it can be queried again.
    """
    if isinstance(reply, NodeFailure):
        reason = truncate(reply.reason.strip().partition("\n")[0])
        if not reply.by_node:
            log(WARNING, "node %s sent no profile and takes no part: %s", node_id, reason)
            return None
        log(WARNING, "node %s sent no profile and takes part under its node id: %s", node_id, reason)
        return Profile.unknown(node_id)
    sent = reply.content.get(wire.PROFILE)
    record = dict(sent.items()) if isinstance(sent, ConfigRecord) else {}
    key, examples = record.get(wire.KEY), record.get(wire.NUM_EXAMPLES)
    if not is_valid_name(key):
        log(WARNING, "node %s answered without a valid key in the record %r", node_id, wire.PROFILE)
        key = Profile.unknown(node_id).key
    if not isinstance(examples, int) or isinstance(examples, bool) or examples < 0:
        examples = None
    groups = {
        name.removeprefix(wire.GROUP_PREFIX): label
        for name, label in record.items()
        if name.startswith(wire.GROUP_PREFIX) and is_valid_name(name) and (is_valid_name(label) or label == "")
    }
    if len(groups) > MAX_GROUPS:
        log(WARNING, "node %s reports %s groups: all but the first %s are ignored", key, len(groups), MAX_GROUPS)
        groups = dict(islice(groups.items(), MAX_GROUPS))
    no_data = record.get(wire.NO_DATA)
    if not isinstance(no_data, str):
        no_data = ""
    no_data = truncate(no_data)
    if no_data:
        log(WARNING, "node %s has no data for this run and is left out: %s", key, no_data)
    metric = record.get(wire.UNREPORTED)
    unreported = str(metric) if is_valid_name(metric) else ""
    why = record.get(wire.INELIGIBLE)
    ineligible = truncate(why) if isinstance(why, str) else None
    return Profile(node_id, key, examples, groups, no_data, record.get(wire.OWN_DATA) is True, unreported, ineligible)


def check_group(profiles: Collection[Profile], group: str, unlisted: str = "") -> None:
    """Check that at least one node has a label for a kind of group; ``unlisted`` is a kind that the server adds.

    Raises
    ------
    ValueError
        There are nodes, and none has.
    """
    if profiles and not any(group in node.groups for node in profiles):
        present = ", ".join(sorted({name for node in profiles for name in node.groups} - {unlisted})) or "none"
        raise ValueError(
            f"group {group!r}: none of {len(profiles)} nodes has this group; they have: {present}. A client sends "
            "its groups in its profile (docs/strategies.md); under dp = 'local', a node with its own data does so only "
            'with may-leave = "groups" in its node config'
        )


def with_distinct_keys(claims: Iterable[Profile]) -> list[Profile]:
    """Make the keys of profiles distinct.

    If several nodes claim the same key, the first keeps it and the others get the suffix ``#2``, ``#3`` and so on; keys
    with a suffix are not stable.

    Returns
    -------
    list of Profile
        Sorted by key.
    """
    profiles: dict[str, Profile] = {}
    for profile in claims:
        key = _unused(profile.key, profiles)
        profiles[key] = profile if key == profile.key else replace(profile, key=key)
    return in_key_order(profiles.values())


def in_key_order(profiles: Collection[Profile]) -> list[Profile]:
    """Profiles sorted by their stable keys: the order in which cohorts are drawn and replies are aggregated."""
    return sorted(profiles, key=lambda profile: profile.key)


def _unused(key: str, taken: Collection[str]) -> str:
    candidate, number = key, 1
    while candidate in taken:
        number += 1
        candidate = f"{key}#{number}"
    return candidate


@dataclass
class Admission:
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

    Attributes
    ----------
    owners : dict of str to str
        By key, the SHA-256 of the public key that it belongs to. It is a fact of the run and no state of the strategy:
        a run that is resumed has it back, and one that starts from another run binds anew.

    Raises
    ------
    ValueError
        The labels of a kind are a single string.
    """

    allowed_groups: Mapping[str, Collection[str]] = field(default_factory=dict)
    bind_keys: bool = False
    owners: dict[str, str] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        for kind, labels in self.allowed_groups.items():
            if isinstance(labels, str):  # of which any part would be a label
                raise ValueError(f"allowed_groups[{kind!r}] = {labels!r}: must be a list, such as [{labels!r}]")

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
        if self.owners.setdefault(profile.key, public_key) != public_key:
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
