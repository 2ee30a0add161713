"""What happens between the rounds of a run: the best round, early stopping, checkpoints, callbacks of a user."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from logging import ERROR, INFO, WARNING
from math import inf, isnan, nan
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from flwr.app import MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from .arrays import from_record
from .checks import require_integer, require_one_of
from .records import Attempts, Checkpoints, FailedEvaluationsError, RoundReport, Snapshot
from .transport import clock_of, has_virtual_time

if TYPE_CHECKING:
    from .loop import RoundLoop


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
        require_one_of("mode", self.mode, ("min", "max"))
        require_integer("patience", self.patience, least=0)
        if not 0 <= self.min_delta < inf:
            raise ValueError(f"min_delta = {self.min_delta!r}: must be finite and at least 0")

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


_HISTORIES = ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp")


@dataclass
class Run:
    """A run between two rounds, as callbacks see it.

    Parameters
    ----------
    strategy : RoundLoop
    grid : Grid
    num_rounds : int
    callbacks : sequence of Callback
    result : Result
        Flower's: the shared parameters after the last round, and the metrics of all rounds.
    round : int
        ≥ 0, the last round that has ended.
    best_round : int
        The best round by a tracked metric, 0 if there is none.
    durable_round : int
        The oldest round that the server can return to.
    attempts : tuple of (int, str)
        The starts of the server, see :data:`~.records.Attempts`; the last one is the present.
    """

    strategy: RoundLoop
    grid: Grid
    num_rounds: int
    callbacks: Sequence[Callback]
    result: Result = field(default_factory=Result)
    round: int = 0
    best_round: int = 0
    durable_round: int = 0
    attempts: Attempts = ()

    def snapshot(self) -> Snapshot:
        """The state of the run after its last round."""
        shared = {f"shared.{name}": array for name, array in from_record(self.result.arrays).items()}
        state = {f"state.{name}": array for name, array in self.strategy.state().items()}
        history = {name: getattr(self.result, name) for name in _HISTORIES}
        callbacks = {of: {name: getattr(c, name) for name in c.kept} for of, c in self._named_callbacks() if c.kept}
        owners = dict(self.strategy.registry.admission.owners)
        facts: dict[str, Any] = {"best": {"round": self.best_round}, "callbacks": callbacks, "owners": owners}
        if has_virtual_time(self.grid):
            clock = clock_of(self.grid)
            facts |= {"clock": clock.now(), "busy": dict(clock.busy())}
        return Snapshot(self.round, {**shared, **state}, facts, self.attempts, history)

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot.

        Raises
        ------
        ValueError
            The snapshot does not fit the model or the strategy.
        """
        self.result.arrays = self.strategy.restore(snapshot, self.result.arrays)
        self.round, self.attempts = snapshot.round, snapshot.attempts
        self.best_round = snapshot.facts["best"]["round"]
        self.strategy.registry.admission.owners = dict(snapshot.facts["owners"])
        for of, callback in self._named_callbacks():
            for name, value in snapshot.facts["callbacks"].get(of, {}).items():
                setattr(callback, name, value)
        clock_of(self.grid).set_now(snapshot.facts.get("clock", 0.0), snapshot.facts.get("busy", {}))
        for name, metrics in snapshot.history.items():
            restored = {r: MetricRecord(dict(of_round)) for r, of_round in metrics.items() if r <= snapshot.round}
            getattr(self.result, name).update(restored)
        log(INFO, "resuming after round %s", snapshot.round)

    def _named_callbacks(self) -> Iterator[tuple[str, Callback]]:
        """Each callback after the name of its class and its number among those of this class, such as ``Track-1``."""
        numbers: Counter[str] = Counter()
        for callback in self.callbacks:
            name = type(callback).__name__
            numbers[name] += 1
            yield f"{name}-{numbers[name]}", callback


class Callback:
    """What a class of callbacks overrides; none of the methods does anything by default.

    Those of a run are called one after the other in the order in which :meth:`~.loop.RoundLoop.start` gets them. What
    one raises ends the run, and the others after it are not called.
    """

    #: Attributes that snapshots have; their values must be JSON serialisable.
    kept: ClassVar[tuple[str, ...]] = ()

    def begin(self, run: Run) -> None:
        """Called once, before anything else; can go back to a snapshot by ``run.restore``."""

    def before_training(self, run: Run, server_round: int) -> None:
        """Called before the TRAIN messages of a round leave; what it raises ends the run with nothing sent.

        A round that is repeated after a crash releases what nodes send once more, so privacy accounting counts these
        calls, not the rounds; ``run.attempts[-1]`` tells them apart.
        """

    def after_round(self, run: Run, report: RoundReport) -> None:
        """Called when a round has ended."""

    def reason_to_stop(self, run: Run) -> str:
        """Why no further round should begin; empty if one should. Also called before the first round."""
        return ""


@dataclass
class Each(Callback):
    """Calls a function with the report of every round."""

    call: Callable[[RoundReport], object]

    def after_round(self, run: Run, report: RoundReport) -> None:
        self.call(report)


@dataclass
class Track(Callback):
    """Finds the best round by a metric, and stops a run early. To be placed before :class:`Save`."""

    tracked: TrackedMetric
    best_value: float | None = field(default=None, init=False)
    evaluations_since: int = field(default=0, init=False)
    value: float | None = field(default=None, init=False)  # that of the last round, None if it was not evaluated
    kept: ClassVar[tuple[str, ...]] = ("best_value", "evaluations_since", "value")

    def begin(self, run: Run) -> None:
        if not run.round:  # a run that goes on has restored them
            self.best_value, self.evaluations_since, self.value = None, 0, None

    def after_round(self, run: Run, report: RoundReport) -> None:
        """Note the value of the round, if it was evaluated.

        Raises
        ------
        ValueError
            The evaluation has no such metric.
        """
        metric = self.tracked.metric
        self.value = None
        if not report.evaluate:
            return
        value = nan  # of a metric that was left out because it was not finite
        if metric not in report.missing_metrics():
            if metric not in report.evaluate:
                names = ", ".join(sorted(report.evaluate))
                raise ValueError(f"tracked metric {metric!r} is not reported; reported metrics: {names}")
            value = float(report.evaluate[metric])
        self.value = value
        self.evaluations_since += 1
        if self.tracked.improves(value, self.best_value):
            run.best_round, self.best_value, self.evaluations_since = report.round, value, 0

    def reason_to_stop(self, run: Run) -> str:
        if 0 < self.tracked.patience <= self.evaluations_since:
            return f"{self.tracked.metric} has not improved since round {run.best_round}"
        if self.value is not None and self.tracked.beyond_limit(run.round, self.value):
            return f"{self.tracked.metric} is beyond its limit of round {run.round}"
        return ""


@dataclass
class Save(Callback):
    """Stores a snapshot after every round, and begins a run from the newest one if ``resume`` is true."""

    checkpoints: Checkpoints
    resume: bool = False

    def begin(self, run: Run) -> None:
        snapshot = self.checkpoints.latest() if self.resume else None
        if snapshot is not None:
            run.restore(snapshot)
            run.durable_round = self.checkpoints.oldest_round()

    def after_round(self, run: Run, report: RoundReport) -> None:
        run.durable_round = self.checkpoints.save(run.snapshot(), best=run.best_round == run.round)


@dataclass
class RequireEvaluations(Callback):
    """Ends a run after several evaluations by nodes in a row of which nothing can be used.

    Nothing can be used if all replies are refused, or if none has a finite metric, or a finite ``tracked`` one. To be
    placed after :class:`Save`, so that the last snapshot has what was trained.

    Parameters
    ----------
    limit : int
        ≥ 0, the number of evaluations in a row; 0 never ends the run.
    tracked : str
        The name of the tracked metric; empty if there is none.

    Raises
    ------
    ValueError
        A parameter is out of range.
    """

    limit: int = 3
    tracked: str = ""
    failed: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        require_integer("max_failed_evaluations", self.limit, least=0)

    def begin(self, run: Run) -> None:
        self.failed = 0

    def after_round(self, run: Run, report: RoundReport) -> None:
        """Log why nothing of an evaluation can be used.

        Raises
        ------
        FailedEvaluationsError
            This was one too many.
        """
        if not report.evaluated:
            return
        failure = report.evaluation_failure(self.tracked)
        self.failed = self.failed + 1 if failure else 0
        if not failure:
            if missing := report.missing_metrics():
                log(WARNING, "round %s: no node has a finite %s", report.round, ", ".join(missing))
            return
        message = f"round {report.round}: the evaluation failed: {failure}"
        if self.failed == self.limit:
            raise FailedEvaluationsError(
                f"{message}. This is failed evaluation {self.failed} in a row; the last snapshot has the "
                "parameters of this round (RequireEvaluations(0), key max-failed-evaluations = 0, would go on)"
            )
        log(ERROR, "%s (%s in a row)", message, self.failed)
