"""The replies of a round as they are taken in: counted, checked, told in the round's report, one at a time."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from logging import WARNING

from flwr.app import Message
from flwr.common.logger import log

from .arrays import Arrays
from .example_limits import ExampleLimits
from .metrics import MetricMean, MetricRule
from .profiles import Profile
from .replies import Reply, count_bytes, read_reply
from .round_records import NodeReport, Refusal, RoundReport, RoundStep
from .sanitize import truncate
from .transport import NodeFailure
from .weighting import Weighting


@dataclass(frozen=True)
class ReplyFilter:
    """How the replies of one phase are read, and the report that tells of them.

    Parameters
    ----------
    report : RoundReport
        Counts the bytes, and gets the metrics of each node or the reason why its reply was refused.
    phase : "train" or "evaluate"
        What the nodes were asked to do.
    profiles : mapping of int to Profile
        The nodes by Flower's id; others take part under that id.
    expected : mapping of names to arrays, or None
        Arrays of the names, shapes and dtypes that a reply must bring; ``None`` where it brings none.
    weight_of : Weighting
        The weight of a reply in means.
    metric_means : mapping from names of metrics to rules
        How the metrics will be averaged: a reply that a rule cannot take is refused.
    most_bytes : int
        The bytes above which a reply is not looked into.
    sizes : ExampleLimits
        How many examples a reply may claim.
    reason_against : function of a Reply, optional
        Why an algorithm cannot use a train reply that passed all other checks; ``None`` if it can.
    """

    report: RoundReport
    phase: RoundStep
    profiles: Mapping[int, Profile]
    expected: Arrays | None
    weight_of: Weighting
    metric_means: Mapping[str, MetricRule]
    most_bytes: int
    sizes: ExampleLimits
    reason_against: Callable[[Reply], str | None] | None = None

    def usable(self, replies: Iterable[Message | NodeFailure]) -> Iterator[Reply]:
        """The replies that pass every check, in their order. Holds none while the next one is awaited."""
        for reply in replies:
            node_id = reply.node_id if isinstance(reply, NodeFailure) else reply.metadata.src_node_id
            profile = self.profiles.get(node_id) or Profile.unknown(node_id)
            if isinstance(reply, Message) and reply.has_content():
                self.report.count_reply(self.phase, count_bytes(reply.content))
            usable = self._read(reply, profile)
            del reply  # or it would live on while the next one is awaited
            if usable is not None:
                yield usable
            del usable

    def _read(self, reply: Message | NodeFailure, profile: Profile) -> Reply | None:
        """The reply, or ``None`` where it is refused; the report tells of both."""
        try:
            usable = read_reply(reply, profile, self.expected, self.weight_of, self.most_bytes)
            if reason := self._doubt(usable):
                raise ValueError(reason)
        except ValueError as refusal:
            reason = truncate(str(refusal))  # the error itself holds the reply, and a log may keep what it is given
            log(WARNING, "refused the %s reply of node %s: %s", self.phase, profile.key, reason)
            self.report.refused.append(Refusal(profile.key, self.phase, reason))
            return None
        metrics = {name: value for name, value in usable.metrics.items() if name != "num-examples"}
        self.report.nodes.append(
            NodeReport(profile.key, self.phase, usable.num_examples, metrics, dict(profile.groups))
        )
        return usable

    def _doubt(self, reply: Reply) -> str | None:
        return (
            self.sizes.reason_against(reply.num_examples, reply.profile, self.phase)
            or MetricMean.reason_against(reply.metrics, self.metric_means)
            or (self.reason_against(reply) if self.reason_against and self.phase == "train" else None)
        )


def too_few(report: RoundReport, usable: int, least: int, absent: Sequence[str]) -> str:
    """What to tell when a round has fewer usable replies than ``least``: why replies were refused, who is absent."""
    told = [f"round {report.round}: {usable} usable replies, but min-replies is {least}."]
    if not (report.train_messages or usable or report.refused):
        told.append("Nobody was asked to train.")
    told += absent
    if report.refused:
        told.append("Refused:")
    return " ".join(told) + "".join(f"\n  {refusal.node}: {refusal.reason}" for refusal in report.refused)
