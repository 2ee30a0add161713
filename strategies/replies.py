"""Replies of nodes: checked, decoded, weighted and recorded in the report of the round, or refused."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from logging import WARNING
from math import inf

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common import log

from . import wire
from .aggregation import MetricMean, MetricRule
from .arrays import Arrays, Buffers, nbytes, views, without
from .checks import check_count, check_form, check_names, check_values, require_one_of, truncate
from .compression import Compression
from .mailbox import Arrival
from .profiles import ExampleLimits, Profile
from .records import LeftOut, NodeReport, Refusal, RoundReport, RoundStep
from .stopwatch import timed
from .transport import NodeFailure, Outcome

#: Maps the number of examples of a reply (> 0) to its weight (> 0).
Weighting = Callable[[float], float]
#: By the number of examples (Federated Averaging, McMahan et al. 2017, Algorithm 1), or the weight 1 for all.
_WEIGHTINGS: dict[str, Weighting] = {"num-examples": float, "uniform": lambda examples: 1.0}


def weighting_of(name: str | Weighting) -> Weighting:
    """The weighting with a name, "num-examples" or "uniform"; a function is returned unchanged.

    Raises
    ------
    ValueError
        The name is unknown.
    """
    if not isinstance(name, str):
        return name
    require_one_of("weighting", name, _WEIGHTINGS)
    return _WEIGHTINGS[name]


_EXTRA_BYTES = 1 << 20  # for metrics and further records
_EXTRA_BYTES_PER_ARRAY = 1 << 10  # for names and headers
_LISTED = 5


@dataclass(frozen=True)
class Reply:
    """A reply that passed all checks.

    Parameters
    ----------
    profile : Profile
        The sender.
    content : RecordDict
        All records of the reply.
    arrays : mapping of names to arrays
        The shared parameters of a train reply, read-only; empty for an evaluation.
    metrics : MetricRecord
        The metrics that can be averaged, and ``num-examples``.
    num_examples : float
        > 0.
    weight : float
        > 0, the weight of the reply in means.
    left_out : mapping of str to float
        The values of the other metrics by their names.
    nodes : int
        How many nodes it stands for: more than one under secure aggregation.
    """

    profile: Profile
    content: RecordDict
    arrays: Arrays
    metrics: MetricRecord
    num_examples: float
    weight: float
    left_out: Mapping[str, float] = field(default_factory=dict)
    nodes: int = 1


def read_arrays(record: ArrayRecord, expected: Arrays) -> Arrays:
    """Decode a record that must have the names, shapes and dtypes of ``expected``, as read-only views of its bytes.

    Raises
    ------
    ValueError
        Names, shapes or dtypes differ (the record is then not decoded), or values are not finite or too far from
        ``expected``; see :func:`~fedapps.strategies.checks.check_values`.
    """
    if reason := check_names(expected, record):
        raise ValueError(reason)
    arrays = views(record)
    if reason := check_form(expected, arrays) or check_values(expected, arrays):
        raise ValueError(reason)
    return arrays


def shared_arrays(content: RecordDict, expected: Arrays, compression: Compression | None, buffers: Buffers) -> Arrays:
    """The arrays of a train reply, checked, and in the order of ``expected`` if they were compressed.

    Parameters
    ----------
    content : RecordDict
        All records of the reply, unchecked.
    expected : dict of arrays
        What the node received: the names, shapes and dtypes that the reply must contain.
    compression : Compression, optional
        How they may be compressed.
    buffers : Buffers
        Which arrays are not trained, and therefore not compressed.

    Raises
    ------
    ValueError
        A record is missing or cannot be decoded, or arrays have the wrong form or invalid values.
    """
    records = {
        name: views(record)
        for name, record in content.items()
        if compression and name.startswith(wire.COMPRESSED_PREFIX) and isinstance(record, ArrayRecord)
    }
    if not (compression and records):
        return read_arrays(_array_record(content), expected)
    restored = compression.restore(records, buffers.parameters(expected))
    if reason := check_values(expected, restored):
        raise ValueError(reason)
    others = read_arrays(_array_record(content), without(expected, restored))
    return {name: restored[name] if name in restored else others[name] for name in expected}


def read_timings(content: RecordDict) -> dict[str, float]:
    """The seconds of the node's phases; of what a node sends here, only finite numbers ≥ 0 of known phases count."""
    record = content.get(wire.TIMINGS)
    if not isinstance(record, ConfigRecord):
        return {}
    phases = {name: record[name] for name in wire.NODE_PHASES if name in record}
    return {name: value for name, value in phases.items() if isinstance(value, float) and 0 <= value < inf}


def check_size(size: int, max_bytes: int) -> None:
    """Raise ``ValueError`` if a reply of ``size`` bytes has more than ``max_bytes``."""
    if size > max_bytes:
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
    total = 0
    for name, value in record.items():
        total += len(name) + (sum(map(_value_bytes, value)) if isinstance(value, list) else _value_bytes(value))
    return total


def _value_bytes(value: object) -> int:
    if isinstance(value, str | bytes):
        return len(value)
    return 1 if isinstance(value, bool) else 8


def _array_record(content: RecordDict) -> ArrayRecord:
    """The record of the shared arrays: the one named ``arrays``, or the only one, because Flower's template allows any
    name. Names with a dot, such as ``fisher.precision``, are records of a strategy and do not count.
    """
    if isinstance(named := content.get(wire.ARRAYS), ArrayRecord):
        return named
    records = {name: r for name, r in content.items() if isinstance(r, ArrayRecord) and "." not in name}
    if len(records) == 1:
        return next(iter(records.values()))
    names = ", ".join(islice(records, _LISTED)) or "none"
    raise ValueError(f"expected one ArrayRecord {wire.ARRAYS!r} in the reply, got: {names}")


@dataclass(frozen=True)
class ReplyFilter:
    """Reads the replies of one phase of a round, and reports and refuses invalid ones.

    Parameters
    ----------
    report : RoundReport
        Receives the bytes of each reply, and its metrics or the reason why it was refused.
    phase : "train" or "evaluate"
        The phase of the round.
    weight_of : Weighting
        The weight of a reply in means.
    metric_means : mapping from names of metrics to rules
        How the metrics will be averaged; values that a rule does not allow are left out.
    max_bytes : int
        Larger replies are refused before they are decoded.
    example_limits : ExampleLimits
        Limits of the number of examples.
    refusal_reason : function of a Reply, optional
        Why the algorithm cannot use a train reply that passed all other checks; ``None`` if it can.
    size_refusal : function of a Reply and of the arrays that its node received, optional
        Why a train reply that passed all other checks is too large; ``None`` if it is not.
    compression : Compression, optional
        How the arrays of replies may be compressed.
    buffers : Buffers
        Which arrays are not trained, and therefore not compressed.
    records_seconds : bool
        Whether to record the seconds from each message to its reply.
    max_staleness : int or None
        ≥ 0, updates from older versions are refused; ``None`` for no limit.
    examples_key : str
        The metric that is the number of examples; it counts as ``num-examples``.
    """

    report: RoundReport
    phase: RoundStep
    weight_of: Weighting
    metric_means: Mapping[str, MetricRule]
    max_bytes: int
    example_limits: ExampleLimits
    refusal_reason: Callable[[Reply], str | None] | None = None
    size_refusal: Callable[[Reply, Arrays], str | None] | None = None
    compression: Compression | None = None
    buffers: Buffers = field(default_factory=Buffers)
    records_seconds: bool = False
    max_staleness: int | None = None
    examples_key: str = wire.NUM_EXAMPLES

    def read(self, arrival: Arrival, staleness: int = 0) -> Reply | None:
        """The checked reply, or ``None`` if it is refused; both are recorded in the report.

        Parameters
        ----------
        arrival : Arrival
            A train reply must contain arrays with the names, shapes and dtypes of its flight's ``start``.
        staleness : int
            ≥ 0, the number of server steps since these were current.
        """
        with timed("decode"):
            return self._read(arrival, staleness)

    def _read(self, arrival: Arrival, staleness: int) -> Reply | None:
        reply, profile, size, seconds = arrival.outcome, arrival.flight.profile, 0, None
        if isinstance(reply, Message) and reply.has_content():
            seconds = arrival.seconds if self.records_seconds else None
            size = count_bytes(reply.content)
            self.report.count_reply(self.phase, size)
        expected = arrival.flight.start if self.phase == "train" else None
        try:
            usable = self._decoded(reply, profile, expected, size)
            if reason := self._reason_to_refuse(usable, staleness, arrival.flight.start):
                raise ValueError(reason)
        except ValueError as refusal:
            # Not the exception: it refers to the reply, and loggers can keep their arguments in memory.
            reason = truncate(str(refusal))
            log(WARNING, "refused the %s reply of node %s: %s", self.phase, profile.key, reason)
            answered = not isinstance(reply, NodeFailure) or reply.by_node
            self.report.refused.append(Refusal(profile.key, self.phase, reason, answered))
            return None
        if self._asked_for_compression(reply):
            advice = "its ClientApp has no @app.train(mods=[compression_mod])"
            log(WARNING, "the train reply of node %s is not compressed: %s", profile.key, advice)
        if usable.left_out:
            left_out = [LeftOut(profile.key, self.phase, name, str(value)) for name, value in usable.left_out.items()]
            listing = ", ".join(f"{metric.metric} = {metric.value}" for metric in left_out)
            log(WARNING, "left out of the %s reply of node %s: %s", self.phase, profile.key, truncate(listing))
            self.report.left_out += left_out
        metrics = {name: value for name, value in usable.metrics.items() if name != wire.NUM_EXAMPLES}
        self.report.nodes.append(
            NodeReport(
                profile.key,
                self.phase,
                usable.num_examples,
                metrics,
                dict(profile.groups),
                bytes_up=size,
                timings=read_timings(usable.content),
                seconds=seconds,
                staleness=staleness,
                own_data=profile.own_data,
            )
        )
        return usable

    def _decoded(self, reply: Outcome, profile: Profile, expected: Arrays | None, size: int) -> Reply:
        """Check and decode a reply of ``size`` bytes, the cheapest check first.

        Raises
        ------
        ValueError
            The reply cannot be used, with the reason: the node failed, the reply is too large, a record is missing,
            arrays have the wrong form or invalid values, ``num-examples`` is missing or not positive, or the metrics
            are malformed (:meth:`MetricMean.refusal_reason`).
        """
        if isinstance(reply, NodeFailure):
            raise ValueError(reply.reason)
        if reply.has_error():
            raise ValueError(str(reply.error.reason))
        content = reply.content
        check_size(size, self.max_bytes)
        # RecordDict.metric_records would create a reference cycle, which keeps the reply in memory after its last use.
        metric_records = [record for record in content.values() if isinstance(record, MetricRecord)]
        if len(metric_records) != 1:
            raise ValueError(f"expected one MetricRecord in the reply, got {len(metric_records)}")
        received = metric_records[0]
        arrays = {} if expected is None else shared_arrays(content, expected, self.compression, self.buffers)
        examples = received.get(self.examples_key)
        if reason := check_count(examples, self.examples_key) or MetricMean.refusal_reason(received):
            came = f"; the metrics are {', '.join(islice(received, _LISTED))} (weighted_by_key can name one)"
            raise ValueError(reason + (came if examples is None and received else ""))
        if self.examples_key != wire.NUM_EXAMPLES:
            others = {name: value for name, value in received.items() if name != self.examples_key}
            received = MetricRecord({**others, wire.NUM_EXAMPLES: float(examples)})  # type: ignore[arg-type]
        metrics, left_out = MetricMean.split(received, self.metric_means)
        if self.metric_means and (reason := MetricMean.refusal_reason(metrics, self.metric_means)):
            raise ValueError(reason)
        num_examples = float(examples)  # type: ignore[arg-type]
        return Reply(profile, content, arrays, metrics, num_examples, self.weight_of(num_examples), left_out)

    def _asked_for_compression(self, reply: Outcome) -> bool:
        """Whether the reply should be compressed and is not; only the first round is looked at."""
        if self.compression is None or self.phase != "train" or self.report.round != 1:
            return False
        return isinstance(reply, Message) and not any(name.startswith(wire.COMPRESSED_PREFIX) for name in reply.content)

    def _reason_to_refuse(self, reply: Reply, staleness: int, start: Arrays) -> str | None:
        limits, too_old = self.example_limits, self.max_staleness is not None and staleness > self.max_staleness
        return (
            limits.refusal_reason(reply.num_examples, reply.profile, self.phase)
            or limits.count_refusal(reply.metrics, reply.profile, self.phase)
            or (f"the update is {staleness} steps old: at most {self.max_staleness} are accepted" if too_old else None)
            or (self.refusal_reason(reply) if self.refusal_reason and self.phase == "train" else None)
            or (self.size_refusal(reply, start) if self.size_refusal and self.phase == "train" else None)
        )


def too_few(report: RoundReport, usable: int, min_replies: int, absent: Sequence[str]) -> str:
    """The message of the error of a round with too few usable replies.

    Parameters
    ----------
    report : RoundReport
        The report of the round, with the refused replies.
    usable : int
        ≥ 0, the number of usable replies, below ``min_replies``.
    min_replies : int
        ≥ 1, the number of usable replies that the round needs.
    absent : sequence of str
        Sentences that name the nodes that take no part.
    """
    lower = f": lower it to {usable}, or let more nodes reply" if usable else ""
    sentences = [
        f"round {report.round}: {usable} usable replies, but min_replies is {min_replies} (key min-replies){lower}."
    ]
    if not (report.train_messages or usable or report.refused):
        sentences.append("No node was asked to train.")
    sentences += absent
    if report.refused:
        sentences.append("Refused:")
    return " ".join(sentences) + "".join(f"\n  {refusal.node}: {refusal.reason}" for refusal in report.refused)
