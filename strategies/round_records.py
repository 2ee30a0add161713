"""What a round leaves behind, and the objects that watch rounds go by."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isnan
from typing import Any, Literal, Protocol

from flwr.app import MessageType

from .arrays import Arrays

RoundStep = Literal["train", "evaluate"]


class TooFewRepliesError(RuntimeError):
    """A round closed with fewer usable replies than ``min_replies``; the message holds every refusal."""


class DivergedError(RuntimeError):
    """The server's step made parameters that are not finite; those of the round before stand in its checkpoint."""


@dataclass(frozen=True)
class Refusal:
    """A reply that was not used: who sent it, in which phase, and why."""

    node: str
    phase: RoundStep
    reason: str


@dataclass(frozen=True)
class NodeReport:
    """The metrics one node reported in one phase of a round, and the groups that it belonged to then."""

    node: str
    phase: RoundStep
    num_examples: float
    metrics: Mapping[str, Any]
    groups: Mapping[str, str] = field(default_factory=dict)


@dataclass
class RoundReport:
    """One round as the server saw it. Bytes are those of the records in the messages.

    ``bytes_down`` and ``bytes_up`` are all that the round moved: both phases, and whatever an algorithm asks beside
    them. The ``train_`` fields are the TRAIN messages and their replies alone, used or refused, so that
    ``train_bytes_down / train_messages`` and ``train_bytes_up / train_replies`` are the bytes of one node's training.
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
    nodes: list[NodeReport] = field(default_factory=list)

    def count_message(self, kind: str, size: int) -> None:
        """Count a message of ``size`` bytes to a node; ``kind`` is Flower's type of the message."""
        self.bytes_down += size
        if kind == MessageType.TRAIN:
            self.train_messages += 1
            self.train_bytes_down += size

    def count_reply(self, phase: RoundStep, size: int) -> None:
        """Count a reply of ``size`` bytes, used or refused."""
        self.bytes_up += size
        if phase == "train":
            self.train_replies += 1
            self.train_bytes_up += size


@dataclass(frozen=True)
class Snapshot:
    """All that a run needs to go on after ``round``: named arrays, and facts that fit in JSON."""

    round: int
    arrays: Arrays
    facts: Mapping[str, Any]


class Checkpoints(Protocol):
    """Where snapshots are kept. ``save`` must be atomic: a crash leaves the last snapshot readable."""

    def save(self, snapshot: Snapshot, *, best: bool) -> None:
        """Keep a snapshot as the newest one, and as the best one where ``best`` is set."""

    def oldest_round(self) -> int:
        """The oldest round that can be gone back to, 0 when there is none."""

    def latest(self) -> Snapshot | None:
        """The newest snapshot, ``None`` when there is none. Raises ``ValueError`` when it is damaged."""


@dataclass(frozen=True)
class TrackedMetric:
    """The metric that decides which round is the best, and when to stop.

    ``metric`` names an aggregated evaluation metric; ``patience`` is the number of evaluations without an
    improvement of more than ``min_delta`` after which training stops (0: never stop early).
    """

    metric: str
    mode: Literal["min", "max"] = "min"
    patience: int = 0
    min_delta: float = 0.0

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


@dataclass
class BestRound:
    """The best round so far by a tracked metric."""

    round: int = 0
    value: float | None = None
    evaluations_since: int = 0

    def update(self, tracked: TrackedMetric, server_round: int, value: float) -> bool:
        """Take in one evaluation; returns whether it is the new best."""
        if tracked.improves(value, self.value):
            self.round, self.value, self.evaluations_since = server_round, value, 0
            return True
        self.evaluations_since += 1
        return False

    def exhausted(self, tracked: TrackedMetric) -> bool:
        """Whether patience has run out."""
        return 0 < tracked.patience <= self.evaluations_since
