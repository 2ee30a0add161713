"""The loop over rounds: train, evaluate, track the best round, store snapshots and resume from them."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from logging import ERROR, INFO, WARNING
from math import nan
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from .. import wire
from ..arrays import Arrays, from_record, to_record
from ..checks import check_reply, require_integer
from ..stopwatch import measured, timed
from .clock import clock_of, is_simulated
from .records import BestRound, FailedEvaluationsError, RoundReport, TrackedMetric
from .snapshots import Attempts, Checkpoints, Snapshot, next_attempts, to_text, under
from .transport import Outcome

RoundConfig = ConfigRecord | Callable[[int], ConfigRecord] | None
_MAX_LOGGED = 6  # metrics per line of the log
_HISTORIES = ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp")


class ResumableStrategy(Strategy):
    """A strategy of Flower whose rounds are recorded, and whose run can stop early and be resumed."""

    #: The report of the current round. Only the strategy writes to it; the loop completes a copy.
    report: RoundReport

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: RoundConfig = None,
        evaluate_config: RoundConfig = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        *,
        evaluate_every: int = 1,
        tracked: TrackedMetric | None = None,
        max_failed_evaluations: int = 3,
        checkpoints: Checkpoints | None = None,
        resume: bool = False,
        on_round: Callable[[RoundReport], None] | None = None,
        on_release: Callable[[int, str], None] | None = None,
    ) -> Result:
        """Run all rounds. The parameters up to ``evaluate_fn`` are Flower's, and the others extend them.

        Parameters
        ----------
        grid : Grid
            Flower's grid.
        initial_arrays : ArrayRecord
            All parameters of the model.
        num_rounds : int
            From 1 to 999,999.
        timeout : float
            > 0, seconds that a node has to reply to a message.
        train_config, evaluate_config : ConfigRecord, or a function of the round that returns one
            Entries of the config of the messages.
        evaluate_fn : function of the round and the shared parameters
            Evaluates on the server: once before the first round, and after each evaluation by nodes.
        evaluate_every : int
            ≥ 1, rounds between two evaluations. The last round is always evaluated.
        tracked : TrackedMetric
            The metric that determines the best round and when to stop early.
        max_failed_evaluations : int
            ≥ 0, end the run after this number of evaluations by nodes in a row of which nothing can be used, because
            all replies are refused or have no finite metric (or ``tracked`` one); 0 never ends it.
        checkpoints : Checkpoints
            Stores a snapshot after every round.
        resume : bool
            Whether to continue from the newest snapshot, if there is one.
        on_round : function of a RoundReport
            Called after every round, before its snapshot is stored.
        on_release : function of the round and the identifier of the attempt
            Called before the TRAIN messages of a round leave; what it raises ends the run with nothing sent. A round
            that is repeated after a crash releases what nodes send once more, so privacy accounting counts these
            calls, not the rounds.

        Returns
        -------
        Result
            Flower's result; its ``arrays`` are the shared parameters.

        Raises
        ------
        TooFewRepliesError
            A round had fewer usable replies than ``min_replies``.
        DivergedError
            The server's step produced invalid parameters.
        FailedEvaluationsError
            Too many evaluations in a row failed.
        ValueError
            The snapshot does not fit the model, or a parameter is out of range.
        """
        loop = _RoundLoop(
            strategy=self,
            grid=grid,
            num_rounds=num_rounds,
            timeout=timeout,
            train_config=train_config,
            evaluate_config=evaluate_config,
            evaluate_fn=evaluate_fn,
            evaluate_every=evaluate_every,
            tracked=tracked,
            max_failed_evaluations=max_failed_evaluations,
            checkpoints=checkpoints,
            on_round=on_round,
            on_release=on_release,
        )
        return loop.run(self.share(initial_arrays), resume=resume)

    def restore(self, snapshot: Snapshot, initial: ArrayRecord) -> ArrayRecord:
        """Restore the state of a snapshot, and return its shared parameters.

        Parameters
        ----------
        snapshot : Snapshot
        initial : ArrayRecord
            The shared parameters of the untrained model, which decide names, order and shapes.

        Raises
        ------
        ValueError
            The snapshot does not fit the model.
        """
        shared = under("shared.", snapshot.arrays)
        if mismatch := check_reply(from_record(initial), shared, 1):
            raise ValueError(f"the checkpoint of round {snapshot.round} does not fit this model: {mismatch}")
        self.load_state(under("state.", snapshot.arrays))
        return to_record({name: shared[name] for name in initial})

    def train_round(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
        timeout: float,
        release: Callable[[], None],
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Train in one round: send messages, and aggregate the replies.

        Parameters
        ----------
        server_round : int
        arrays : ArrayRecord
            The shared parameters.
        config : ConfigRecord
            Entries of the config of the messages.
        grid : Grid
        timeout : float
            > 0, seconds that a node has to reply.
        release : function without arguments
            To be called before the first message leaves; what it raises ends the run.

        Returns
        -------
        ArrayRecord, MetricRecord
            The next shared parameters and the metrics, as of :meth:`aggregate_train`.
        """
        with timed("prepare"):
            messages = self.configure_train(server_round, arrays, config, grid)
        release()
        return self.aggregate_train(server_round, self.send(grid, messages, timeout))

    @abstractmethod
    def share(self, arrays: ArrayRecord) -> ArrayRecord:
        """The shared parameters of a model."""

    @abstractmethod
    def await_nodes(self, grid: Grid, timeout: float) -> None:
        """Wait for the nodes of the first round; ``timeout`` is the seconds that a node has to send its profile."""

    @abstractmethod
    def send(self, grid: Grid, messages: Iterable[Message], timeout: float) -> Iterable[Outcome]:
        """Send messages and yield one reply or failure for each, in the order of the messages."""

    @abstractmethod
    def aggregate_train(
        self, server_round: int, replies: Iterable[Outcome]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The next shared parameters and the metrics of a training, from what :meth:`send` yields."""

    @abstractmethod
    def aggregate_evaluate(self, server_round: int, replies: Iterable[Outcome]) -> MetricRecord | None:
        """The metrics of an evaluation, from what :meth:`send` yields."""

    @abstractmethod
    def state(self) -> Arrays:
        """Arrays that a snapshot stores in addition to the shared parameters."""

    @abstractmethod
    def load_state(self, state: Arrays) -> None:
        """Restore what :meth:`state` returned."""

    @abstractmethod
    def round_info(self) -> dict[str, Any]:
        """Facts about the round for the records of the run, after its last phase."""


@dataclass
class _RoundLoop:
    """The rounds of a run, from the first or from a snapshot; see :meth:`ResumableStrategy.start`."""

    strategy: ResumableStrategy
    grid: Grid
    num_rounds: int
    timeout: float
    train_config: RoundConfig
    evaluate_config: RoundConfig
    evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None
    evaluate_every: int
    tracked: TrackedMetric | None
    max_failed_evaluations: int
    checkpoints: Checkpoints | None
    on_round: Callable[[RoundReport], None] | None
    on_release: Callable[[int, str], None] | None
    result: Result = field(default_factory=Result)
    best: BestRound = field(default_factory=BestRound)
    failed_evaluations: int = 0
    durable_round: int = 0
    attempts: Attempts = ()
    saving: dict[str, float] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)

    def run(self, arrays: ArrayRecord, *, resume: bool) -> Result:
        """Run the remaining rounds; see :meth:`ResumableStrategy.start`."""
        require_integer("num_rounds", self.num_rounds, least=1)
        require_integer("evaluate_every", self.evaluate_every, least=1)
        if self.num_rounds > wire.LAST_ROUND:
            raise ValueError(f"num_rounds = {self.num_rounds}: must be at most {wire.LAST_ROUND}")
        require_integer("max_failed_evaluations", self.max_failed_evaluations, least=0)
        first = 1
        snapshot = self.checkpoints.latest() if resume and self.checkpoints else None
        if snapshot is not None:
            arrays = self._restore(snapshot, arrays)
            first = snapshot.round + 1
            log(INFO, "resuming after round %s", snapshot.round)
            self.attempts = snapshot.attempts
        elif self.evaluate_fn and (initial := self.evaluate_fn(0, arrays)) is not None:
            self.result.evaluate_metrics_serverapp[0] = initial
        self.attempts = next_attempts(self.attempts, first - 1)
        self.result.arrays = arrays
        self.strategy.summary()
        self.strategy.await_nodes(self.grid, self.timeout)  # does not count as time of the first round
        for server_round in range(first, self.num_rounds + 1):
            if self.tracked and self.best.exhausted(self.tracked):
                log(INFO, "stopping early: %s has not improved since round %s", self.tracked.metric, self.best.round)
                break
            if self._beyond_limit(server_round - 1):
                log(INFO, "stopping: the tracked metric is beyond its limit of round %s", server_round - 1)
                break
            self._round(server_round, first)
        return self.result

    def _beyond_limit(self, server_round: int) -> bool:
        """Whether the tracked metric after a round is beyond its limit; also after that round was resumed from."""
        evaluated = self.result.evaluate_metrics_clientapp.get(server_round)
        if self.tracked is None or evaluated is None:
            return False
        value = evaluated.get(self.tracked.metric, nan)  # a metric that was left out was not finite
        return self.tracked.beyond_limit(server_round, float(value))  # type: ignore[arg-type]

    def _round(self, server_round: int, first: int) -> None:
        begun = time.monotonic()
        with measured() as watch:
            self._train(server_round)
            due = server_round % self.evaluate_every == 0 or server_round == self.num_rounds
            with clock_of(self.grid).evaluation():
                evaluate = self._evaluate(server_round) if due else {}
        info, seconds = self.strategy.round_info(), time.monotonic() - begun
        rest = max(seconds - sum(watch.seconds.values()), 0.0)
        timings = {**watch.seconds, "other": rest, **self.saving}
        clock = clock_of(self.grid).now() if is_simulated(self.grid) else None
        report = replace(
            self.strategy.report, evaluate=evaluate, strategy=info, seconds=seconds, timings=timings, clock=clock
        )
        improved = self._track(server_round, report)
        with measured() as watch, watch.phase("save"):
            if self.on_round:
                self.on_round(report)
            if self.checkpoints:
                self.checkpoints.save(self._snapshot(server_round), best=improved)
        self.saving = watch.seconds
        if due:
            self._judge(report)
        self.durable_round = self.checkpoints.oldest_round() if self.checkpoints else server_round
        done, remaining = server_round - first + 1, self.num_rounds - server_round
        seconds_left = (time.monotonic() - self.started) / done * remaining
        log(
            INFO,
            "round %s/%s took %.1f s, about %.0f s to go",
            server_round,
            self.num_rounds,
            report.seconds,
            seconds_left,
        )

    def _train(self, server_round: int) -> None:
        config = self._config(self.train_config, server_round)
        arrays, metrics = self.strategy.train_round(
            server_round, self.result.arrays, config, self.grid, self.timeout, lambda: self._release(server_round)
        )
        if arrays is not None:
            self.result.arrays = arrays
        if metrics is not None:
            self.result.train_metrics_clientapp[server_round] = metrics

    def _release(self, server_round: int) -> None:
        if self.on_release:
            self.on_release(server_round, self.attempts[-1][1])

    def _evaluate(self, server_round: int) -> dict[str, Any]:
        """The metrics of the nodes and of the server, whose names have a prefix."""
        config = self._config(self.evaluate_config, server_round)
        with timed("prepare"):
            messages = self.strategy.configure_evaluate(server_round, self.result.arrays, config, self.grid)
        replies = self.strategy.send(self.grid, messages, self.timeout)
        metrics = self.strategy.aggregate_evaluate(server_round, replies)
        if metrics is not None:
            self.result.evaluate_metrics_clientapp[server_round] = metrics
            values = [f"{name} {value:.4g}" for name, value in metrics.items() if isinstance(value, float)]
            log(INFO, "round %s: %s", server_round, ", ".join(values[:_MAX_LOGGED]))
        central = self.evaluate_fn(server_round, self.result.arrays) if self.evaluate_fn else None
        if central is not None:
            self.result.evaluate_metrics_serverapp[server_round] = central
        of_server = {wire.SERVER_METRICS_PREFIX + name: value for name, value in (central or {}).items()}
        return {**self.strategy.report.evaluate, **of_server}

    def _judge(self, report: RoundReport) -> None:
        """Log why nothing of an evaluation can be used, and end the run after too many of these."""
        failure = report.evaluation_failure(self.tracked.metric if self.tracked else "")
        self.failed_evaluations = self.failed_evaluations + 1 if failure else 0
        if not failure:
            if missing := report.missing_metrics():
                log(WARNING, "round %s: no node has a finite %s", report.round, ", ".join(missing))
            return
        said = f"round {report.round}: the evaluation failed: {failure}"
        if self.failed_evaluations == self.max_failed_evaluations:
            raise FailedEvaluationsError(
                f"{said}. This is failed evaluation {self.failed_evaluations} in a row; the last snapshot has the "
                "parameters of this round (max-failed-evaluations = 0 would go on)"
            )
        log(ERROR, "%s (%s in a row)", said, self.failed_evaluations)

    def _track(self, server_round: int, report: RoundReport) -> bool:
        if self.tracked is None or not report.evaluate:
            return False
        if self.tracked.metric in report.missing_metrics():
            return self.best.update(self.tracked, server_round, nan)
        if self.tracked.metric not in report.evaluate:
            known = ", ".join(sorted(report.evaluate))
            raise ValueError(f"tracked metric {self.tracked.metric!r} is not reported; reported metrics: {known}")
        return self.best.update(self.tracked, server_round, float(report.evaluate[self.tracked.metric]))

    def _config(self, given: RoundConfig, server_round: int) -> ConfigRecord:
        config = given(server_round) if callable(given) else given
        # Nodes can delete private state that is older than the oldest round that the server can return to, but for that
        # of the best round, and that of rounds that the server went back behind.
        best = {wire.BEST_ROUND: self.best.round} if self.best.round else {}
        attempts = to_text(self.attempts)
        return ConfigRecord({**(config or {}), wire.DURABLE_ROUND: self.durable_round, wire.ATTEMPTS: attempts, **best})

    def _snapshot(self, server_round: int) -> Snapshot:
        shared = {f"shared.{name}": array for name, array in from_record(self.result.arrays).items()}
        state = {f"state.{name}": array for name, array in self.strategy.state().items()}
        history = {name: getattr(self.result, name) for name in _HISTORIES}
        facts: dict[str, Any] = {"best": asdict(self.best)}
        if is_simulated(self.grid):
            clock = clock_of(self.grid)
            facts |= {"clock": clock.now(), "busy": dict(clock.busy())}
        return Snapshot(server_round, {**shared, **state}, facts, self.attempts, history)

    def _restore(self, snapshot: Snapshot, initial: ArrayRecord) -> ArrayRecord:
        arrays = self.strategy.restore(snapshot, initial)
        self.best = BestRound(**snapshot.facts["best"])
        clock_of(self.grid).set_now(snapshot.facts.get("clock", 0.0), snapshot.facts.get("busy", {}))
        self.durable_round = self.checkpoints.oldest_round() if self.checkpoints else 0
        for name, metrics in snapshot.history.items():
            restored = {r: MetricRecord(dict(of_round)) for r, of_round in metrics.items() if r <= snapshot.round}
            getattr(self.result, name).update(restored)
        return arrays
