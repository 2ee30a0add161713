"""Checks the replies of a round one at a time and records them in the report of the round."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from logging import WARNING

from flwr.app import Message
from flwr.common.logger import log

from . import wire
from .arrays import Arrays
from .compression import Compression
from .example_limits import ExampleLimits
from .metrics import MetricMean, MetricRule
from .profiles import Profile
from .replies import Reply, count_bytes, read_reply, read_timings
from .round_records import NodeReport, Refusal, RoundReport, RoundStep
from .sanitize import truncate
from .stopwatch import timed
from .transport import NodeFailure
from .weighting import Weighting


@dataclass(frozen=True)
class ReplyFilter:
    """Reads the replies of one phase of a round, and reports and refuses invalid ones.

    Parameters
    ----------
    report : RoundReport
        Receives the bytes of each reply, and its metrics or the reason why it was refused.
    phase : "train" or "evaluate"
        The phase of the round.
    profiles : mapping of int to Profile
        The nodes by Flower's id. Other nodes take part under that id.
    expected : mapping of names to arrays, or None
        Arrays with the names, shapes and dtypes that a reply must contain; ``None`` if it must contain none.
    weight_of : Weighting
        The weight of a reply in means.
    metric_means : mapping from names of metrics to rules
        How the metrics will be averaged; replies with values that a rule does not allow are refused.
    max_bytes : int
        Larger replies are refused before they are decoded.
    example_limits : ExampleLimits
        Limits of the number of examples.
    refusal_reason : function of a Reply, optional
        Why the algorithm cannot use a train reply that passed all other checks; ``None`` if it can.
    compression : Compression, optional
        How the arrays of replies may be compressed.
    """

    report: RoundReport
    phase: RoundStep
    profiles: Mapping[int, Profile]
    expected: Arrays | None
    weight_of: Weighting
    metric_means: Mapping[str, MetricRule]
    max_bytes: int
    example_limits: ExampleLimits
    refusal_reason: Callable[[Reply], str | None] | None = None
    compression: Compression | None = None

    def usable(self, replies: Iterable[Message | NodeFailure]) -> Iterator[Reply]:
        """Yield the replies that pass all checks, in their order. No reply is kept while waiting for the next one."""
        for reply in replies:
            node_id = reply.node_id if isinstance(reply, NodeFailure) else reply.metadata.src_node_id
            profile = self.profiles.get(node_id) or Profile.unknown(node_id)
            with timed("decode"):
                usable = self._read(reply, profile)
            del reply  # frees its memory while waiting for the next one
            if usable is not None:
                yield usable
            del usable

    def _read(self, reply: Message | NodeFailure, profile: Profile) -> Reply | None:
        """The checked reply, or ``None`` if it is refused; both are recorded in the report."""
        size = 0
        if isinstance(reply, Message) and reply.has_content():
            size = count_bytes(reply.content)
            self.report.count_reply(self.phase, size)
        try:
            usable = read_reply(reply, profile, self.expected, self.weight_of, self.max_bytes, self.compression)
            if reason := self._reason_to_refuse(usable):
                raise ValueError(reason)
        except ValueError as refusal:
            # Not the exception: it refers to the reply, and loggers can keep their arguments in memory.
            reason = truncate(str(refusal))
            log(WARNING, "refused the %s reply of node %s: %s", self.phase, profile.key, reason)
            self.report.refused.append(Refusal(profile.key, self.phase, reason))
            return None
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
            )
        )
        return usable

    def _reason_to_refuse(self, reply: Reply) -> str | None:
        return (
            self.example_limits.refusal_reason(reply.num_examples, reply.profile, self.phase)
            or (MetricMean.refusal_reason(reply.metrics, self.metric_means) if self.metric_means else None)
            or (self.refusal_reason(reply) if self.refusal_reason and self.phase == "train" else None)
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
    sentences = [f"round {report.round}: {usable} usable replies, but min-replies is {min_replies}."]
    if not (report.train_messages or usable or report.refused):
        sentences.append("No node was asked to train.")
    sentences += absent
    if report.refused:
        sentences.append("Refused:")
    return " ".join(sentences) + "".join(f"\n  {refusal.node}: {refusal.reason}" for refusal in report.refused)
