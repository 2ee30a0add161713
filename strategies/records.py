"""What is kept of a run: the reports of its rounds, and the snapshots from which it resumes.

An attempt is the time from a start of the server to its end. A server that is killed and resumes after round 3 repeats
round 4. A node that took part in the first round 4 but not in the second has private state of a round that no longer
exists. Messages therefore say which attempt each round belongs to, so that nodes can tell.
"""

import json
import secrets
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from flwr.app import MessageType
from numpy.typing import NDArray

from .arrays import Arrays
from .checks import MAX_NAME_LENGTH, truncate
from .wire import COUNT_SUFFIX, NUM_EXAMPLES

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


@dataclass(frozen=True)
class Exchange:
    """One of the four exchanges of secure aggregation in a round: who was asked, who answered, and what it took."""

    asked: int
    answered: int
    seconds: float
    bytes_up: int


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

    ``dropped`` are late replies of earlier rounds, which arrived in this one. ``ineligible`` has the nodes whose
    own rules forbid them to work in the round, and the reason of each. They are not asked, and do not count as failed.

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
    ineligible: dict[str, str] = field(default_factory=dict)
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


Attempts = tuple[tuple[int, str], ...]
"""The round after which each attempt begins, ascending, and its random identifier."""
#: Metrics by the name of a field of Flower's ``Result``, by round and by name.
History = Mapping[str, Mapping[int, Mapping[str, Any]]]


@dataclass(frozen=True)
class Snapshot:
    """The state from which a run resumes after ``round``: named arrays, and facts that can be stored as JSON.

    ``history`` has the metrics of Flower's ``Result`` by the names of its fields and by round. It is the run's own and
    grows with it, so that a snapshot costs the same in every round: store the rounds that are new since the last
    snapshot, and restore those up to ``round``.

    ``attempts`` are the starts of the server that led to it (:data:`Attempts`). They differ between runs with the same
    results.
    """

    round: int
    arrays: Arrays
    facts: Mapping[str, Any]
    attempts: Attempts = ()
    history: History = field(default_factory=dict)


class Checkpoints(Protocol):
    """A store of snapshots. ``save`` must be atomic: after a crash the last complete snapshot must be readable."""

    def save(self, snapshot: Snapshot, *, best: bool) -> int:
        """Store a snapshot as the newest one, and as the best one if ``best`` is true. Return :meth:`oldest_round`."""

    def oldest_round(self) -> int:
        """The oldest round that a run can resume after, 0 if there is none."""

    def latest(self) -> Snapshot | None:
        """The newest snapshot, ``None`` if there is none.

        Raises
        ------
        ValueError
            The snapshot is damaged.
        """


def under(prefix: str, state: Mapping[str, NDArray[Any]]) -> Arrays:
    """The arrays whose names start with ``prefix``, by the rest of their names."""
    return {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}


class Stateful:
    """A class that declares which of its attributes a snapshot has."""

    #: The names of these attributes; a subclass adds its own. Each is an object with ``state`` and ``load_state``, or
    #: consists of arrays, numbers, texts, ``None``, and of lists, sets and mappings of these.
    kept: ClassVar[tuple[str, ...]] = ()

    def state(self) -> Arrays:
        """The kept attributes as named arrays; :meth:`load_state` restores them."""
        values = {name: getattr(self, name) for name in _kept_names(type(self))}
        return flat({name: v.state() if hasattr(v, "load_state") else v for name, v in values.items()})

    def load_state(self, state: Arrays) -> None:
        """Restore what :meth:`state` returned.

        Raises
        ------
        ValueError
            An object of another class saved the state.
        """
        values, names = nested(state), _kept_names(type(self))
        if missing := [name for name in names if name not in values]:
            raise ValueError(
                f"the checkpoint has no {missing[0]!r} of {type(self).__name__}: another strategy saved it"
            )
        for name in names:
            if hasattr(kept := getattr(self, name), "load_state"):
                kept.load_state(values[name])
            else:
                setattr(self, name, values[name])


def _kept_names(kind: type) -> list[str]:
    return [name for base in reversed(kind.__mro__) for name in vars(base).get("kept", ())]


_FORM = "(form)"


def flat(values: Mapping[str, Any]) -> Arrays:
    """Named arrays that hold values; see :attr:`Stateful.kept`. An array that is there several times is stored once."""
    arrays: Arrays = {}
    names: dict[int, str] = {}

    def form_of(value: Any, name: str) -> Any:
        if isinstance(value, np.ndarray):
            if id(value) not in names:
                while name in arrays:  # keys can have dots
                    name += "_"
                names[id(value)] = name
                arrays[name] = value
            return {"array": names[id(value)]}
        if isinstance(value, Mapping):
            return {"mapping": [[key, form_of(each, f"{name}.{key}")] for key, each in value.items()]}
        if isinstance(value, set | frozenset):
            return {"set": sorted(value)}
        if isinstance(value, list | tuple):
            return {"list": [form_of(each, f"{name}.{number}") for number, each in enumerate(value)]}
        return value

    form = {name: form_of(value, name) for name, value in values.items()}
    return {**arrays, _FORM: np.frombuffer(json.dumps(form).encode(), np.uint8)}


def nested(state: Arrays) -> dict[str, Any]:
    """The values that :func:`flat` stored; tuples are lists. Empty for an empty state."""

    def value_of(form: Any) -> Any:
        if not isinstance(form, dict):
            return form
        ((kind, content),) = form.items()
        if kind == "array":
            return state[content]
        if kind == "mapping":
            return {key: value_of(each) for key, each in content}
        return set(content) if kind == "set" else [value_of(each) for each in content]

    form = json.loads(state[_FORM].tobytes()) if _FORM in state else {}
    return {name: value_of(each) for name, each in form.items()}


def next_attempts(attempts: Attempts, resumed_after: int) -> Attempts:
    """The attempts with a new one that begins after a round; attempts that would begin there or later are dropped.

    Parameters
    ----------
    attempts : tuple of (int, str)
        Those of the snapshot that the run resumes from; empty for a new run.
    resumed_after : int
        ≥ 0, the round of the snapshot; 0 for a new run.
    """
    kept = ((after, name) for after, name in attempts if after < resumed_after)
    return (*kept, (resumed_after, secrets.token_hex(4)))


def to_text(attempts: Attempts) -> str:
    """The value of the config key ``attempts``, such as ``"0:5f0c2a11 3:77e0b4d9"``."""
    return " ".join(f"{after}:{name}" for after, name in attempts)
