"""Records of rounds: reports, refusals, and the metric that tells the best one."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isnan
from typing import Any, Literal

from flwr.app import MessageType

from ..checks import MAX_NAME_LENGTH, truncate
from ..wire import COUNT_SUFFIX, NUM_EXAMPLES

RoundStep = Literal["train", "evaluate"]


class RunEndedError(RuntimeError):
    """A run that cannot go on; the last checkpoint has what was trained."""


class TooFewRepliesError(RunEndedError):
    """A round ended with fewer usable replies than ``min_replies``; the message lists all refusals."""


class DivergedError(RunEndedError):
    """The server's step produced invalid parameters. The last checkpoint has those of the round before."""


class FailedEvaluationsError(RunEndedError):
    """Nothing of several evaluations in a row could be used. The last checkpoint has the newest parameters."""


@dataclass(frozen=True)
class Refusal:
    """A reply that was refused.

    Parameters
    ----------
    node : str
        Key of the sender.
    phase : "train" or "evaluate"
        The phase of the round.
    reason : str
        Why it was refused.
    answered : bool
        Whether the node replied; otherwise it is not connected or did not answer in time.
    """

    node: str
    phase: RoundStep
    reason: str
    answered: bool = True


@dataclass(frozen=True)
class LeftOut:
    """A metric of an accepted reply that could not be averaged, for example because it is not finite.

    Parameters
    ----------
    node : str
        Key of the sender.
    phase : "train" or "evaluate"
        The phase of the round.
    metric : str
        Name of the metric.
    value : str
        What the node sent, such as "nan".
    """

    node: str
    phase: RoundStep
    metric: str
    value: str


@dataclass(frozen=True)
class LateReply:
    """A train reply that arrived after its round had closed, and was dropped.

    Parameters
    ----------
    node : str
        Key of the sender.
    round : int
        The round that its message belongs to.
    seconds : float
        From the message to the reply.
    """

    node: str
    round: int
    seconds: float


@dataclass(frozen=True)
class NodeReport:
    """The reply of one node in one phase of a round.

    It has metrics, the node's groups in that round, its size in bytes and, if the run asks for them, the seconds of the
    node's phases. ``seconds`` from the message to the reply are recorded in simulated time, and where rounds do not
    wait for all nodes. ``staleness`` is the number of server steps since the arrays that the node received.
    ``own_data`` says whether the node has data of its own, and not a part of the server's.
    """

    node: str
    phase: RoundStep
    num_examples: float
    metrics: Mapping[str, Any]
    groups: Mapping[str, str] = field(default_factory=dict)
    bytes_up: int = 0
    timings: Mapping[str, float] = field(default_factory=dict)
    seconds: float | None = None
    staleness: int = 0
    own_data: bool = False


@dataclass
class RoundReport:
    """The report of one round. Sizes are those of the records in the messages.

    The strategy creates a report at the start of each round and is the only writer. At the end of the round, the round
    loop makes a copy with ``seconds``, the facts of the ``strategy`` and the metrics of the server in ``evaluate``.

    ``bytes_down`` and ``bytes_up`` count all messages and replies of the round: both phases, and further queries of an
    algorithm. The fields ``train_*`` count only TRAIN messages and their replies, including refused ones, so that
    ``train_bytes_down / train_messages`` and ``train_bytes_up / train_replies`` are the traffic of one node's training.

    ``timings`` are the seconds of the server's phases: preparing messages, waiting for replies, decoding, folding and
    the step; ``other`` is the rest. ``save``, recording a round and storing its snapshot, counts for the next round.

    ``dropped`` are late replies of earlier rounds, which arrived in this one.

    ``clock`` is the simulated time at the end of the round in seconds, ``None`` without simulated time.
    """

    round: int
    seconds: float = 0.0
    bytes_down: int = 0
    bytes_up: int = 0
    train_messages: int = 0
    train_replies: int = 0
    train_bytes_down: int = 0
    train_bytes_up: int = 0
    replies: int = 0
    train: dict[str, Any] = field(default_factory=dict)
    evaluate: dict[str, Any] = field(default_factory=dict)
    strategy: dict[str, Any] = field(default_factory=dict)
    refused: list[Refusal] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    nodes: list[NodeReport] = field(default_factory=list)
    timings: dict[str, float] = field(default_factory=dict)
    dropped: list[LateReply] = field(default_factory=list)
    clock: float | None = None

    @property
    def evaluated(self) -> bool:
        """Whether a node was asked to evaluate."""
        phases = [node.phase for node in self.nodes] + [refusal.phase for refusal in self.refused]
        return "evaluate" in phases

    def evaluation_failure(self, tracked: str = "") -> str:
        """Why nothing of the evaluation by nodes can be used; empty if something can, or if no node was asked.

        Nothing can be used if all replies were refused, or if none had a finite metric, or a finite ``tracked`` one.
        """
        refused = Counter(refusal.reason for refusal in self.refused if refusal.phase == "evaluate")
        missing = self.missing_metrics()
        if any(node.phase == "evaluate" for node in self.nodes):
            means = [name for name in self.evaluate if name != NUM_EXAMPLES and not name.endswith(COUNT_SUFFIX)]
            return f"no node has a finite {', '.join(missing)}" if missing and (tracked in missing or not means) else ""
        if not refused:
            return ""
        ((reason, count),) = refused.most_common(1)
        return (
            f"all {refused.total()} replies were refused, {count} of them because: {truncate(reason, MAX_NAME_LENGTH)}"
        )

    def missing_metrics(self) -> list[str]:
        """The metrics of the evaluation that were left out of every reply that had them."""
        return sorted({m.metric for m in self.left_out if m.phase == "evaluate" and m.metric not in self.evaluate})

    def count_message(self, kind: str, size: int) -> None:
        """Count a message of ``size`` bytes to a node; ``kind`` is Flower's message type."""
        self.bytes_down += size
        if kind == MessageType.TRAIN:
            self.train_messages += 1
            self.train_bytes_down += size

    def count_reply(self, phase: RoundStep, size: int) -> None:
        """Count a reply of ``size`` bytes, including refused replies."""
        self.bytes_up += size
        if phase == "train":
            self.train_replies += 1
            self.train_bytes_up += size


@dataclass(frozen=True)
class TrackedMetric:
    """The metric that determines the best round and when to stop early.

    Parameters
    ----------
    metric : str
        Name of an aggregated evaluation metric.
    mode : "min" or "max"
        Whether lower or higher values are better.
    patience : int
        ≥ 0, stop after this number of evaluations without improvement; 0 never stops early.
    min_delta : float
        ≥ 0, a value must be better by more than this to count as an improvement.
    limits : mapping of int to float
        By round, the worst value with which training goes on after it; rounds without an evaluation have no effect.

    Raises
    ------
    ValueError
        A parameter is out of range.
    """

    metric: str
    mode: Literal["min", "max"] = "min"
    patience: int = 0
    min_delta: float = 0.0
    limits: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.mode not in ("min", "max"):
            raise ValueError(f"mode = {self.mode!r}: must be 'min' or 'max'")
        if self.patience < 0 or self.min_delta < 0:
            raise ValueError(f"patience = {self.patience}, min_delta = {self.min_delta}: both must be at least 0")

    def improves(self, value: float, best: float | None) -> bool:
        """Whether ``value`` is better than ``best`` by more than ``min_delta``; NaN never is."""
        if best is None:
            return not isnan(value)
        gain = best - value if self.mode == "min" else value - best
        return gain > self.min_delta

    def beyond_limit(self, server_round: int, value: float) -> bool:
        """Whether ``value`` is worse than the limit of a round; NaN is worse than any limit."""
        limit = self.limits.get(server_round)
        if limit is None:
            return False
        return not (value <= limit if self.mode == "min" else value >= limit)
