"""Replies as they come in: checked, decoded, or refused with the reason."""

from dataclasses import dataclass
from itertools import islice

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

from .arrays import Arrays, from_record, nbytes, outlines
from .metrics import MetricMean
from .profiles import Profile
from .transport import NodeFailure
from .validation import check_count, check_form, check_values
from .weighting import Weighting

_ROOM = 1 << 20  # for metrics, and for names and headers beyond those of the arrays
_ROOM_PER_ARRAY = 1 << 10
_LISTED = 5
_NOTHING = np.zeros(0)


@dataclass(frozen=True)
class Reply:
    """A reply that passed every check.

    ``arrays`` are the shared parameters it brings (empty for an evaluation), ``content`` all its records,
    ``num_examples`` > 0, and ``weight`` its weight in means.
    """

    profile: Profile
    content: RecordDict
    arrays: Arrays
    metrics: MetricRecord
    num_examples: float
    weight: float


def read_reply(
    reply: Message | NodeFailure, profile: Profile, expected: Arrays | None, weight_of: Weighting, most_bytes: int
) -> Reply:
    """Check and decode what came from a node, the cheapest check first.

    ``expected`` are arrays of the names, shapes and dtypes that the reply must bring, ``None`` where it brings
    none. Raises ``ValueError`` with the reason when the reply cannot be used: the node failed, the reply has more than
    ``most_bytes``, a record is missing, arrays do not fit, are not finite or absurdly large, ``num-examples`` is
    missing or not positive, a metric cannot be averaged.
    """
    if isinstance(reply, NodeFailure):
        raise ValueError(reply.reason)
    if reply.has_error():
        raise ValueError(str(reply.error.reason))
    content = reply.content
    check_size(content, most_bytes)
    # RecordDict.metric_records would tie the reply into a reference cycle, which outlives its last use.
    found = [record for record in content.values() if isinstance(record, MetricRecord)]
    if len(found) != 1:
        raise ValueError(f"expected one MetricRecord in the reply, got {len(found)}")
    metrics = found[0]
    arrays = {} if expected is None else read_arrays(_array_record(content), expected)
    examples = metrics.get("num-examples")
    if reason := check_count(examples) or MetricMean.reason_against(metrics):
        raise ValueError(reason)
    num_examples = float(examples)  # type: ignore[arg-type]
    return Reply(profile, content, arrays, metrics, num_examples, weight_of(num_examples))


def read_arrays(record: ArrayRecord, expected: Arrays) -> Arrays:
    """Decode a record that must have the names, shapes and dtypes of ``expected``; what has not is not decoded.

    Raises ``ValueError`` with the reason, also for values that are not finite or absurdly large.
    """
    names = {name: expected.get(name, _NOTHING) for name in record}
    if reason := check_form(expected, names) or check_form(expected, outlines(record)):
        raise ValueError(reason)
    arrays = from_record(record)
    if reason := check_values(expected, arrays):
        raise ValueError(reason)
    return arrays


def check_size(content: RecordDict, most: int) -> None:
    """Raise ``ValueError`` where a message has more than ``most`` bytes."""
    if (size := count_bytes(content)) > most:
        raise ValueError(f"the reply has {size:,} bytes: at most {most:,} are taken")


def most_bytes(sent: Arrays, records: int) -> int:
    """The largest reply that is looked into, where ``sent`` went out and up to ``records`` of its form may come back.

    Twice what is right, so that the commonest faults, such as float64 for float32, are told by what they are.
    """
    return _ROOM + 2 * records * (nbytes(sent) + _ROOM_PER_ARRAY * len(sent))


def count_bytes(content: RecordDict) -> int:
    """Bytes of all records of a message: arrays with their headers, keys and values."""
    return sum(record.count_bytes() for record in content.values())


def _array_record(content: RecordDict) -> ArrayRecord:
    """The reply's parameters: the record named ``arrays``, or the only one (Flower's template names it freely).

    A name with a dot, such as ``fisher.precision``, is that of an algorithm's own record.
    """
    records = {name: r for name, r in content.items() if isinstance(r, ArrayRecord) and "." not in name}
    if "arrays" in records:
        return records["arrays"]
    if len(records) == 1:
        return next(iter(records.values()))
    names = ", ".join(islice(records, _LISTED)) or "none"
    raise ValueError(f"expected one ArrayRecord 'arrays' in the reply, got: {names}")
