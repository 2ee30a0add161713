"""Checking and decoding of received replies."""

from dataclasses import dataclass
from itertools import islice
from math import inf

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from . import wire
from .arrays import Arrays, nbytes, views
from .compressed_replies import restored_arrays
from .compression import Compression, floats_of
from .metrics import MetricMean
from .profiles import Profile
from .transport import NodeFailure
from .validation import check_count, check_form, check_values
from .weighting import Weighting

_EXTRA_BYTES = 1 << 20  # for metrics and further records
_EXTRA_BYTES_PER_ARRAY = 1 << 10  # for names and headers
_LISTED = 5
_EMPTY = np.zeros(0)


@dataclass(frozen=True)
class Reply:
    """A reply that passed all checks.

    Parameters
    ----------
    profile : Profile
        The sender.
    content : RecordDict
        All records of the reply.
    arrays : dict of arrays
        The shared parameters of a train reply, read-only; empty for an evaluation.
    metrics : MetricRecord
        All metrics, including ``num-examples``.
    num_examples : float
        > 0.
    weight : float
        > 0, the weight of the reply in means.
    """

    profile: Profile
    content: RecordDict
    arrays: Arrays
    metrics: MetricRecord
    num_examples: float
    weight: float


def read_reply(
    reply: Message | NodeFailure,
    profile: Profile,
    expected: Arrays | None,
    weight_of: Weighting,
    max_bytes: int,
    compression: Compression | None = None,
) -> Reply:
    """Check and decode a reply, the cheapest check first.

    Parameters
    ----------
    reply : Message or NodeFailure
        What was received from the node.
    profile : Profile
        The node.
    expected : dict of arrays or None
        Arrays with the names, shapes and dtypes that the reply must contain; ``None`` if it must contain none.
    weight_of : Weighting
        Maps the number of examples to the weight of the reply.
    max_bytes : int
        Larger replies are refused before they are decoded.
    compression : Compression, optional
        How the arrays may be compressed.

    Raises
    ------
    ValueError
        The reply cannot be used, with the reason: the node failed, the reply is too large, a record is missing, arrays
        have the wrong form or invalid values, ``num-examples`` is missing or not positive, or a metric cannot be
        averaged.
    """
    if isinstance(reply, NodeFailure):
        raise ValueError(reply.reason)
    if reply.has_error():
        raise ValueError(str(reply.error.reason))
    content = reply.content
    check_size(content, max_bytes)
    # RecordDict.metric_records would create a reference cycle, which keeps the reply in memory after its last use.
    found = [record for record in content.values() if isinstance(record, MetricRecord)]
    if len(found) != 1:
        raise ValueError(f"expected one MetricRecord in the reply, got {len(found)}")
    metrics = found[0]
    arrays = {} if expected is None else _shared_arrays(content, expected, compression)
    examples = metrics.get(wire.NUM_EXAMPLES)
    if reason := check_count(examples) or MetricMean.refusal_reason(metrics):
        raise ValueError(reason)
    num_examples = float(examples)  # type: ignore[arg-type]
    return Reply(profile, content, arrays, metrics, num_examples, weight_of(num_examples))


def read_arrays(record: ArrayRecord, expected: Arrays) -> Arrays:
    """Decode a record that must have the names, shapes and dtypes of ``expected``, as read-only views of its bytes.

    Raises
    ------
    ValueError
        Names, shapes or dtypes differ (the record is then not decoded), or values are not finite or too far from
        ``expected``; see :func:`~fedapps.strategies.validation.check_values`.
    """
    names = {name: expected.get(name, _EMPTY) for name in record}
    if reason := check_form(expected, names):
        raise ValueError(reason)
    arrays = views(record)
    if reason := check_form(expected, arrays) or check_values(expected, arrays):
        raise ValueError(reason)
    return arrays


def _shared_arrays(content: RecordDict, expected: Arrays, compression: Compression | None) -> Arrays:
    """The arrays of a train reply, in the order of ``expected`` if they were compressed."""
    floats = restored_arrays(content, expected, compression) if compression else None
    if floats is None:
        return read_arrays(_array_record(content), expected)
    if reason := check_values(floats_of(expected), floats):
        raise ValueError(reason)
    others = {name: array for name, array in expected.items() if name not in floats}
    return {**dict.fromkeys(expected, _EMPTY), **floats, **read_arrays(_array_record(content), others)}


def read_timings(content: RecordDict) -> dict[str, float]:
    """The seconds of the node's phases; of what a node sends here, only finite numbers ≥ 0 of known phases count."""
    record = content.get(wire.TIMINGS)
    if not isinstance(record, ConfigRecord):
        return {}
    found = {name: record[name] for name in wire.NODE_PHASES if name in record}
    return {name: value for name, value in found.items() if isinstance(value, float) and 0 <= value < inf}


def check_size(content: RecordDict, max_bytes: int) -> None:
    """Check the size of a reply.

    Raises
    ------
    ValueError
        The reply has more than ``max_bytes`` bytes.
    """
    if (size := count_bytes(content)) > max_bytes:
        raise ValueError(f"the reply has {size:,} bytes: at most {max_bytes:,} are accepted")


def max_reply_bytes(sent: Arrays, records: int) -> int:
    """The size in bytes above which a reply is refused before it is decoded.

    Twice the size of a correct reply, so that common faults such as float64 instead of float32 are reported as such.

    Parameters
    ----------
    sent : dict of arrays
        What the node received.
    records : int
        How many ArrayRecords in the form of ``sent`` a reply can contain.
    """
    return _EXTRA_BYTES + 2 * records * (nbytes(sent) + _EXTRA_BYTES_PER_ARRAY * len(sent))


def count_bytes(content: RecordDict) -> int:
    """Size of all records of a message in bytes: arrays with their headers, keys and values."""
    return sum(_config_bytes(r) if isinstance(r, ConfigRecord) else r.count_bytes() for r in content.values())


def _config_bytes(record: ConfigRecord) -> int:
    """As ``ConfigRecord.count_bytes``, which raises an error if a text or a list is empty."""
    values = [value if isinstance(value, list) else [value] for value in record.values()]
    return sum(map(len, record)) + sum(_value_bytes(value) for listed in values for value in listed)


def _value_bytes(value: object) -> int:
    if isinstance(value, str | bytes):
        return len(value)
    return 1 if isinstance(value, bool) else 8


def _array_record(content: RecordDict) -> ArrayRecord:
    """The record of the shared arrays: the one named ``arrays``, or the only one, because Flower's template allows any
    name. Names with a dot, such as ``fisher.precision``, are records of a strategy and do not count.
    """
    records = {name: r for name, r in content.items() if isinstance(r, ArrayRecord) and "." not in name}
    if wire.ARRAYS in records:
        return records[wire.ARRAYS]
    if len(records) == 1:
        return next(iter(records.values()))
    names = ", ".join(islice(records, _LISTED)) or "none"
    raise ValueError(f"expected one ArrayRecord {wire.ARRAYS!r} in the reply, got: {names}")
