"""Profiles of nodes: stable keys, numbers of examples and groups, queried once per node.

Flower draws new node ids for every run. Sampling, clusters and reports must not depend on them, so the server asks each
node for a stable key: the name of its car, house, city or data partition.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from logging import WARNING

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.logger import log

from .. import wire
from ..checks import is_valid_name, truncate
from ..rounds.transport import NodeFailure, Outcome

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
        (:class:`~fedapps.strategies.nodes.admission.Admission`). It gets no further messages. Empty if it takes part.
    own_data : bool
        Whether the node states that it has data of its own, and not a part of the server's.
    """

    node_id: int
    key: str
    num_examples: int | None = None
    groups: Mapping[str, str] = field(default_factory=dict, hash=False)
    no_data: str = ""
    own_data: bool = False

    @classmethod
    def unknown(cls, node_id: int) -> "Profile":
        """The profile of a node that reported none: it takes part under its Flower id."""
        return cls(node_id, f"node-{node_id}")


def profile_query(node_id: int) -> Message:
    """The message of type ``query.profile`` that asks a node for its profile."""
    return Message(RecordDict(), dst_node_id=node_id, message_type=wire.PROFILE_QUERY)


def read_profile(node_id: int, reply: Outcome) -> Profile | None:
    """Read the answer of a node to the profile query.

    A node answers with the ConfigRecord ``profile``: ``key`` (str), ``num-examples`` (int) and ``group.<kind>`` (str)
    for each group it belongs to, up to 32. A node without data for this run adds ``no-data`` (str), the reason, which
    is logged; one with data of its own adds ``own-data``,
    true. Keys, kinds and labels must be printable, on one line and at most 200 characters long; other entries are
    ignored. A node that answers with an error or without a valid key gets the key ``node-<node id>``. Two nodes can
    claim the same key; see :func:`with_distinct_keys`.

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
    return Profile(node_id, key, examples, groups, no_data, record.get(wire.OWN_DATA) is True)


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
            f"group {group!r}: none of {len(profiles)} nodes has this group; they have: {present}. Under dp = 'local', "
            'a node with its own data sends its groups only with may-leave = "groups" in its node config'
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
