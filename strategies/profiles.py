"""Who the nodes are: stable keys, sizes and groups, asked for once.

Flower draws new node ids for every run. Sampling, clusters and reports must not depend on them, so each node
is asked for a key that stays the same: the name of its car, house, city or data partition.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from logging import WARNING

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.logger import log

from .sanitize import is_valid_name, truncate
from .transport import NodeFailure

QUERY = "query.profile"
RECORD = "profile"
GROUP_PREFIX = "group."
MOST_GROUPS = 32


@dataclass(frozen=True)
class Profile:
    """What the server knows of a node.

    Parameters
    ----------
    node_id : int
        Flower's id: the address, different in every run.
    key : str
        The stable key: unique among the nodes and the same in every run.
    num_examples : int or None
        Training examples the node says it has, ≥ 0: with 0 it is not asked to train. ``None`` if it did not say.
    groups : mapping of str to str
        Labels by kind, such as ``{"house": "12", "seen": "yes"}``.
    no_data : str
        Why the node has no data at all for this run, by its own word: it is asked nothing more. Empty where it has.
    """

    node_id: int
    key: str
    num_examples: int | None = None
    groups: Mapping[str, str] = field(default_factory=dict, hash=False)
    no_data: str = ""

    @classmethod
    def unknown(cls, node_id: int) -> "Profile":
        """The profile of a node that told nothing: it takes part under its Flower id."""
        return cls(node_id, f"node-{node_id}")


def question(node_id: int) -> Message:
    """The message of type ``query.profile`` that asks a node for its profile."""
    return Message(RecordDict(), dst_node_id=node_id, message_type=QUERY)


def read_answer(node_id: int, reply: Message | NodeFailure) -> Profile | None:
    """What a node tells about itself; ``None`` where it is gone, so that it may be asked again.

    A node answers with the ConfigRecord ``profile``: ``key`` (str), ``num-examples`` (int) and
    ``group.<kind>`` (str) for each group it belongs to, up to 32; ``no-data`` (str) is the reason why it has none at
    all, which is logged. Keys, kinds and labels are printable, on one line and at most 200 signs long; others do not
    count. One that answers with an error or without a usable key is known as ``node-<node id>``. Two may claim the same
    key: see :func:`with_distinct_keys`.
    """
    if isinstance(reply, NodeFailure):
        said = truncate(reply.reason.strip().partition("\n")[0])
        if not reply.by_node:
            log(WARNING, "node %s told no profile and takes no part: %s", node_id, said)
            return None
        log(WARNING, "node %s told no profile and takes part under its node id: %s", node_id, said)
        return Profile.unknown(node_id)
    record = reply.content.config_records.get(RECORD, ConfigRecord())
    key, examples = record.get("key"), record.get("num-examples")
    if not is_valid_name(key):
        log(WARNING, "node %s answered without a usable key in the record %r", node_id, RECORD)
        key = Profile.unknown(node_id).key
    if not isinstance(examples, int) or isinstance(examples, bool) or examples < 0:
        examples = None
    groups = {
        name.removeprefix(GROUP_PREFIX): label
        for name, label in record.items()
        if name.startswith(GROUP_PREFIX) and is_valid_name(name) and (is_valid_name(label) or label == "")
    }
    if len(groups) > MOST_GROUPS:
        log(WARNING, "node %s says it belongs to %s groups: the first %s count", key, len(groups), MOST_GROUPS)
        groups = dict(islice(groups.items(), MOST_GROUPS))
    no_data = record.get("no-data")
    if not isinstance(no_data, str):
        no_data = ""
    no_data = truncate(no_data)
    if no_data:
        log(WARNING, "node %s has no data for this run and is left out: %s", key, no_data)
    return Profile(node_id, key, examples, groups, no_data)


def with_distinct_keys(claims: Iterable[Profile]) -> list[Profile]:
    """Profiles with distinct keys, in the order of the keys.

    Of two that claim the same key the one that comes first has it, the next gets ``#2`` behind it (then ``#3`` ...):
    its key is then no longer stable.
    """
    profiles: dict[str, Profile] = {}
    for profile in claims:
        key = _free(profile.key, profiles)
        profiles[key] = replace(profile, key=key)
    return in_key_order(profiles.values())


def in_key_order(profiles: Collection[Profile]) -> list[Profile]:
    """Profiles sorted by their stable keys, the order in which cohorts are drawn and replies folded."""
    return sorted(profiles, key=lambda profile: profile.key)


def _free(key: str, taken: Collection[str]) -> str:
    candidate, number = key, 1
    while candidate in taken:
        number += 1
        candidate = f"{key}#{number}"
    return candidate
