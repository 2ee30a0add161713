"""The messages of a round, one for each node of a cohort."""

from collections.abc import Callable, Mapping, Sequence

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from .profiles import Profile

ExtraRecords = Mapping[str, ArrayRecord | ConfigRecord]


def to_all(
    cohort: Sequence[Profile],
    kind: str,
    server_round: int,
    arrays: ArrayRecord,
    config: ConfigRecord,
    arrays_for: Callable[[Profile, ArrayRecord], ArrayRecord],
    more_for: Callable[[int, Profile], ExtraRecords],
) -> list[Message]:
    """Messages of Flower's type ``kind`` in the order of ``cohort``.

    Each has what ``arrays_for`` gives its node in place of the shared ``arrays``, a ``config`` of its own with
    ``server-round``, and the records that ``more_for`` gives it in this round.
    """
    messages = []
    for node in cohort:
        own = ConfigRecord({**config, "server-round": server_round})
        content = RecordDict({"arrays": arrays_for(node, arrays), "config": own, **more_for(server_round, node)})
        messages.append(Message(content, node.node_id, kind))
    return messages
