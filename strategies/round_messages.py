"""The messages of one phase of a round, one for each node of the cohort."""

from collections.abc import Callable, Mapping, Sequence

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from . import wire
from .profiles import Profile

ExtraRecords = Mapping[str, ArrayRecord | ConfigRecord]


def build_messages(
    cohort: Sequence[Profile],
    kind: str,
    server_round: int,
    arrays: ArrayRecord,
    config: ConfigRecord,
    arrays_for: Callable[[Profile, ArrayRecord], ArrayRecord],
    records_for: Callable[[int, Profile], ExtraRecords],
) -> list[Message]:
    """Build one message for each node.

    Parameters
    ----------
    cohort : sequence of Profile
        The receivers; messages have the same order.
    kind : str
        Flower's message type.
    server_round : int
        Number of the round, which is added to the config.
    arrays : ArrayRecord
        The shared arrays.
    config : ConfigRecord
        Entries of the config of all messages; each message gets a copy.
    arrays_for : function of a Profile and the shared arrays
        The arrays that a node receives.
    records_for : function of the round and a Profile
        Further records that a node receives, by name.
    """
    messages = []
    numbered = ConfigRecord({**config, wire.SERVER_ROUND: server_round})
    for node in cohort:
        further = records_for(server_round, node)
        content = RecordDict({wire.ARRAYS: arrays_for(node, arrays), wire.CONFIG: numbered.copy(), **further})
        messages.append(Message(content, node.node_id, kind))
    return messages


def stage_of(config: ConfigRecord) -> int:
    """The stage in the config of a round, 0 if it names none.

    Raises
    ------
    ValueError
        The stage is not an integer.
    """
    stage = config.get(wire.STAGE, 0)
    if not isinstance(stage, int) or isinstance(stage, bool):
        raise ValueError(f"config {wire.STAGE} = {stage!r}: must be an integer")
    return stage
