"""The rounds of a run, from the sampler to the snapshot, and what an algorithm changes in them.

The numbered comments are the steps of a round. A synchronous round, one that closes early and a step of an asynchronous
run differ in two things only: the order in which the mailbox hands out replies, and when enough of them are in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from logging import INFO, WARNING
from math import inf
from typing import Any, ClassVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from . import records, wire
from .aggregation import Aggregate, IntegerPolicy, MetricMean, MetricRule, MetricsOfReplies
from .arrays import Arrays, Buffers, check_kinds, from_record, is_float, select, to_record, views, without
from .bounds import UPDATE, SizeBound, norms_of
from .callbacks import Callback, RequireEvaluations, Run
from .checks import MAX_NAME_LENGTH, check_arrays, check_values, require_integer, stage_of, truncate
from .closing import Closing, Staleness, brought_forward
from .compression import Compression
from .mailbox import Arrival, Flight, Mailbox
from .optimizers import ServerOptimizer
from .privacy import PrivacyMechanism
from .profiles import ExampleLimits, Profile, in_key_order
from .registry import NodeRegistry
from .replies import Reply, ReplyFilter, Weighting, count_bytes, max_reply_bytes, too_few
from .robust import RobustAggregation
from .samplers import Sampler
from .secure_aggregation import FEWEST, SecureAggregation, SecureRound
from .stopwatch import measured, timed
from .transport import NodeFailure, Outcome, clock_of, has_virtual_time

#: Flower's aggregation of metrics: of the contents of replies, and the name of the metric that weights them.
MetricsFunction = Callable[[list[RecordDict], str], MetricRecord]
#: Flower's ``evaluate_fn``: the metrics of the shared parameters after a round, on the server.
CentralEvaluation = Callable[[int, ArrayRecord], MetricRecord | None]
RoundConfig = ConfigRecord | Callable[[int], ConfigRecord] | None
#: Bytes of early replies that the server keeps in memory; other early replies wait in the SuperLink.
MAX_BUFFERED_BYTES = 2**27
#: Bytes of replies that the server fetches together from nodes in its own process, so that they stay in the cache.
MAX_CACHED_BYTES = 2**21
_MAX_LOGGED = 6  # metrics per line of the log
_LONGEST_WAIT = 7 * 86_400.0  # simulated seconds without enough nodes at a time, after which a run ends


class RoundLoop(records.Stateful, Strategy):
    """A strategy of Flower with rounds of its own; :class:`~fedapps.strategies.base.BaseStrategy` has its parts."""

    shared: tuple[str, ...]
    buffers: Buffers
    registry: NodeRegistry
    sampler: Sampler
    evaluate_sampler: Sampler
    weighting: str | Weighting
    weight_of: Weighting
    aggregation: RobustAggregation | None
    metric_means: dict[str, MetricRule]
    server_optimizer: ServerOptimizer
    integers: IntegerPolicy
    privacy: PrivacyMechanism
    compression: Compression | None
    secure_aggregation: SecureAggregation | None
    closing: Closing
    min_replies: int
    in_flight: int | None
    poll: float
    example_limits: ExampleLimits
    size_bound: SizeBound
    staleness: Staleness
    mixing: bool = False
    max_staleness: int | None = None
    weighted_by_key: str
    arrayrecord_key: str
    configrecord_key: str
    train_metrics_aggr_fn: MetricsFunction | None
    evaluate_metrics_aggr_fn: MetricsFunction | None

    #: Largest number of ArrayRecords in the form of the shared parameters that a reply can contain.
    reply_records: ClassVar[int] = 1
    #: Bytes that a reply can have in addition to these.
    extra_reply_bytes: ClassVar[int] = 0
    #: Whether the server waits for no node in particular, so that any reply counts, of whatever version.
    asynchronous: ClassVar[bool] = False
    kept: ClassVar[tuple[str, ...]] = ("server_optimizer", "sampler", "registry", "size_bound", "in_transit")

    def __init__(self) -> None:
        self.report = records.RoundReport(0)
        self.mailbox: Mailbox | None = None  # the TRAIN messages, some of which a round need not wait for
        self._current: Arrays = {}
        self._returned: Arrays = {}  # those of the current arrays that replies contain
        self._version = 0  # the number of server steps that led to them
        self._wanted: float = inf  # at this number of replies a round closes
        self._needed = 0  # after the deadline at this one
        self._used = 0  # replies that count towards these
        self._filter: ReplyFilter | None = None
        self._secure_rounds: list[SecureRound] = []
        self._records_seconds = False  # from messages to replies; where they decide something
        self._records: dict[Hashable, ArrayRecord] = {}
        self._resumed: dict[str, Any] = {}  # the messages in flight of a snapshot, until the nodes are there
        self._started = False
        self._loaded = False  # whether a state was loaded that no run has gone on from

    # -- what an algorithm overrides ------------------------------------------------------------------------------

    def begin_round(self, server_round: int, arrays: Arrays, config: ConfigRecord, grid: Grid) -> None:
        """Called first in a round, with the shared parameters; can query nodes before any are sampled."""

    def label(self, profile: Profile) -> Profile:
        """The profile that samplers and reports see: an algorithm can add groups."""
        return profile

    def untrained(self, server_round: int, names: Sequence[str]) -> Sequence[str]:
        """The names of shared arrays that nodes neither train nor return in this round; by default none."""
        return ()

    def complete(self, phase: records.RoundStep, profile: Profile, content: RecordDict) -> None:
        """Complete a message to a node, which has ``arrays`` and ``config``.

        Records can be added and replaced; the arrays of a message have the names, shapes and dtypes of the shared ones.
        A record that several nodes receive is made by :meth:`record_once`. The config is the message's own.
        """

    def cohorts(self, messages: Sequence[Message]) -> Iterable[tuple[Profile, Sequence[Message]]]:
        """The TRAIN messages whose replies are summed together under secure aggregation, and the sender of the sum.

        All nodes of a cohort have received the same arrays. By default it is all of the round.
        """
        return [(Profile(0, ""), messages)]

    def refusal_reason(self, reply: Reply) -> str | None:
        """Why the algorithm cannot use a train reply that passed all other checks; ``None`` if it can."""
        return None

    def further_sizes(self, reply: Reply) -> dict[str, float]:
        """Sizes ≥ 0 of what the algorithm takes from a train reply beside its arrays, bounded as the update is."""
        return {}

    def fold(self, reply: Reply, aggregate: Aggregate) -> None:
        """Add a usable train reply to the aggregate of the round, or to another one.

        Copy what the algorithm needs beside it, but keep no reference to the reply.
        """
        aggregate.add(reply.arrays, reply.weight)

    def close_round(self, server_round: int, current: Arrays, aggregate: Arrays) -> Arrays:
        """The next shared parameters, from the current ones and the aggregate, which is empty without replies.

        Both are without the arrays of :meth:`untrained`, which keep their values unless the result has them.
        """
        return self.server_optimizer.step(current, aggregate, self.buffers) if aggregate else current

    def round_info(self) -> dict[str, Any]:
        """Facts about the round for the records of the run, after its last phase. They must be JSON serialisable."""
        return {}

    # -- the run --------------------------------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: RoundConfig = None,
        evaluate_config: RoundConfig = None,
        evaluate_fn: CentralEvaluation | None = None,
        *,
        should_stop: Callable[[int, Result], bool] | None = None,
        evaluate_every: int = 1,
        callbacks: Sequence[Callback] = (),
    ) -> Result:
        """Run all rounds. The parameters up to ``should_stop`` are Flower's, and the others extend them.

        A strategy runs once; it starts again only from a state that :meth:`load_state` or a callback has restored.

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
        should_stop : function of the round and the result so far
            Asked after each round whether to end the run.
        evaluate_every : int
            ≥ 1, rounds between two evaluations. The last round is always evaluated.
        callbacks : sequence of Callback
            What happens between rounds, in this order; see :mod:`~fedapps.strategies.callbacks`. Without a
            :class:`~.callbacks.RequireEvaluations` the run has one with the default limit, after all others.

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
            The snapshot does not fit the model, a shared value is not finite, a parameter is out of range, or the
            strategy has run before.
        TypeError
            A shared array is neither floating-point, integer nor boolean.
        """
        require_integer("num_rounds", num_rounds, least=1)
        require_integer("evaluate_every", evaluate_every, least=1)
        if num_rounds > wire.LAST_ROUND:
            raise ValueError(f"num_rounds = {num_rounds}: must be at most {wire.LAST_ROUND}")
        select(initial_arrays.keys(), self.buffers.patterns)
        if not any(isinstance(callback, RequireEvaluations) for callback in callbacks):
            callbacks = (*callbacks, RequireEvaluations())
        run = Run(self, grid, num_rounds, callbacks)
        run.result.arrays = self.share(initial_arrays)
        shared = views(run.result.arrays)
        check_kinds(shared)
        if fault := check_values(shared, shared):
            raise ValueError(
                f"initial_arrays: {fault}; replies with such values are refused: leave these arrays out of shared; "
                "torch's register_buffer(persistent=False) keeps a mask out of the state_dict"
            )
        self.privacy.check_arrays(shared)
        if self.secure_aggregation:
            self.secure_aggregation.check_arrays(shared, self.buffers)
        self.mailbox = self._new_mailbox(grid)
        self._records_seconds = has_virtual_time(grid) or self.closing.early or self.asynchronous
        if not self._loaded:
            self.sampler.load_state({})  # another strategy can have used these
            self.server_optimizer.load_state({})
        for callback in callbacks:
            callback.begin(run)
        if self._started and not self._loaded:
            raise ValueError(
                f"start: this {type(self).__name__} has run before, and its state belongs to that run; create a new "
                "strategy for another run, or resume with the callback Save(checkpoints, resume=True)"
            )
        self._started, self._loaded = True, False
        run.attempts = records.next_attempts(run.attempts, run.round)
        log(INFO, "Starting %s for %s rounds:", type(self).__name__, num_rounds)
        self.summary()
        if not run.round:
            _evaluate_centrally(run, 0, evaluate_fn)
        self._await_nodes(grid, timeout)  # does not count as time of the first round
        begun, first = time.monotonic(), run.round
        seconds_saving: dict[str, float] = {}
        while run.round < num_rounds and not _stops(run, should_stop):
            server_round = run.round + 1
            due = server_round % evaluate_every == 0 or server_round == num_rounds
            round_begun = time.monotonic()
            with measured() as watch:
                self._train(run, server_round, _config(run, train_config, server_round), timeout)
                evaluated: dict[str, Any] = {}
                if due:
                    with clock_of(grid).evaluation():
                        settings = _config(run, evaluate_config, server_round)
                        evaluated = self._evaluate(run, server_round, settings, timeout, evaluate_fn)
            # 10. The report of the round is complete.
            seconds = time.monotonic() - round_begun
            rest = max(seconds - sum(watch.seconds.values()), 0.0)
            report = replace(
                self.report,
                evaluate=evaluated,
                strategy={**self.round_info(), **self._secure_info()},
                seconds=seconds,
                timings={**watch.seconds, "other": rest, **seconds_saving},
                clock=clock_of(grid).now() if has_virtual_time(grid) else None,
            )
            # 11. The callbacks record it, find the best round and store a snapshot.
            run.round = run.durable_round = server_round
            with measured() as watch, watch.phase("save"):
                for callback in callbacks:
                    callback.after_round(run, report)
            seconds_saving = watch.seconds
            left = (time.monotonic() - begun) / (server_round - first) * (num_rounds - server_round)
            log(INFO, "round %s/%s took %.1f s, about %.0f s to go", server_round, num_rounds, report.seconds, left)
        return run.result

    def _train(self, run: Run, server_round: int, config: ConfigRecord, timeout: float) -> None:
        """Steps 1 to 7 of a round: train."""
        with timed("prepare"):
            messages = list(self.configure_train(server_round, run.result.arrays, config, run.grid))
        # 3. The round is noted, for privacy accounting, before its first message leaves.
        for callback in run.callbacks:
            callback.before_training(run, server_round)
        arrivals: Iterable[Arrival | Reply] = self._arrivals(run.grid, messages, timeout)
        if self.secure_aggregation:
            arrivals = self._secure_sums(self.secure_aggregation, run.grid, messages, timeout)
        arrays, metrics = self.aggregate_train(server_round, arrivals)
        if arrays is not None:
            run.result.arrays = arrays
        if metrics is not None:
            run.result.train_metrics_clientapp[server_round] = metrics

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One TRAIN message per sampled node, in the order of the stable keys; nodes without examples do not train."""
        arrays, config = self._open_round(server_round, arrays, config, grid)
        # 1. The sampler chooses nodes; a round that can close early asks more, and others in place of those at work.
        candidates = self.candidates(grid)
        cohort = self.sampler.sample(candidates, server_round, "train")
        self._needed = min(self.min_replies, len(cohort)) if self.sampler.random_size else self.min_replies
        if self.closing.early:
            self._wanted = len(cohort)
            busy = self.mailbox.busy if self.mailbox else set()
            ready = [node for node in cohort if node.node_id not in busy]
            taken = busy | {node.node_id for node in cohort}
            free = [node for node in candidates if node.node_id not in taken]
            more = self.closing.asked(len(cohort)) - len(ready)
            cohort = in_key_order([*ready, *self.sampler.further(free, more, server_round, "train")])
        resting = self.report.ineligible
        aside = f"; {len(resting)} may not work now: {truncate(', '.join(resting), MAX_NAME_LENGTH)}" if resting else ""
        log(INFO, "round %s: %s nodes train%s", server_round, len(cohort), aside)
        # 2. Each of them gets a message.
        return self._messages("train", cohort, server_round, arrays, config)

    def _open_round(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> tuple[ArrayRecord, ConfigRecord]:
        """Begin a round. Returns what its TRAIN messages have: the shared arrays and the entries of the config."""
        if self.mailbox and not self.asynchronous:
            self.mailbox.look_on()  # who has replied since the last round is free
        self.report, self._version = records.RoundReport(server_round), server_round - 1
        self.registry.ask_again()
        arrays = self.share(arrays)
        self.size_bound.begin_round(stage_of(config))
        self._current = from_record(arrays)
        self.begin_round(server_round, self._current, config, grid)
        names = self.untrained(server_round, list(self._current))
        self._returned = without(self._current, names)
        self._used, self._wanted, self._filter = 0, inf, None
        always = Buffers()
        buffers = [n for n, a in self._current.items() if is_float(a) and n in self.buffers and n not in always]
        entries = {**config, **self.privacy.train_config()}
        entries |= self.compression.train_config() if self.compression else {}
        entries |= {wire.BUFFERS: buffers} if buffers else {}
        entries |= {wire.UNTRAINED: list(names)} if names else {}
        return arrays, ConfigRecord(entries)

    def _arrivals(self, grid: Grid, messages: Sequence[Message], timeout: float) -> Iterator[Arrival]:
        """Send the messages of a round, and yield what becomes of them until the round closes.

        A round without early closing waits for all replies, in the order of the messages. Others take replies in the
        order of arrival, until as many as they want are used, or the deadline is over and as many as they need are; an
        asynchronous one sends further messages whenever a node is free.
        """
        mailbox = self._mailbox_of(grid)
        self._post(mailbox, messages, timeout)
        until = mailbox.now() + (inf if self.asynchronous else self.closing.deadline)
        while self._used < self._wanted:
            # 4. Messages leave; in an asynchronous run also in later turns of this loop.
            self._post(mailbox, self.further_messages(grid, mailbox), timeout)
            if not (mailbox if self.asynchronous else mailbox.has(self._version)):
                return
            # 5. A reply arrives.
            with timed("wait"):
                arrival = mailbox.next()
                if arrival is None:
                    if mailbox.now() >= until:
                        if self._used >= self._needed:
                            return
                        until = inf
                    self.registry.poll(grid, mailbox.working)
                    mailbox.wait(until)
            if arrival is not None:
                yield arrival
            del arrival  # frees its memory while waiting for the next one

    def _secure_sums(
        self, part: SecureAggregation, grid: Grid, messages: Sequence[Message], timeout: float
    ) -> Iterator[Reply]:
        """The sum of each cohort. One of several that is too small, or loses too many nodes, is left out."""
        cohorts, needed, wanted = list(self.cohorts(messages)), self._needed, self._wanted
        if self.sampler.random_size:  # by chance, a cohort can be too small for a sum
            drawn = cohorts
            cohorts = [(sender, of_cohort) for sender, of_cohort in drawn if len(of_cohort) >= FEWEST]
            needed = min(needed, sum(len(of_cohort) for _, of_cohort in cohorts))
            if len(cohorts) < len(drawn):
                log(INFO, "a cohort with fewer than %s nodes was drawn and is left out, because it has no sum", FEWEST)
        self._secure_rounds = []
        for sender, of_cohort in cohorts:
            if len(cohorts) > 1:
                self._used, self._needed = 0, 0
                self._wanted = len(of_cohort) / self.closing.over_selection if self.closing.early else inf
            secure_round = SecureRound(part, self, grid, timeout, sender)
            self._secure_rounds.append(secure_round)
            try:
                yield from secure_round.replies(of_cohort)
            except records.TooFewRepliesError as error:
                if len(cohorts) == 1:
                    raise
                log(WARNING, "%s is left out of the round: %s", sender.key or "a cohort", str(error).partition(". ")[0])
        self._needed, self._wanted = needed, wanted

    def _secure_info(self) -> dict[str, Any]:
        return {"secagg": [of_cohort.info() for of_cohort in self._secure_rounds]} if self._secure_rounds else {}

    def further_messages(self, grid: Grid, mailbox: Mailbox) -> Sequence[Message]:
        """TRAIN messages to nodes that are free while a round is open; none unless it is asynchronous."""
        return ()

    def aggregate_train(
        self, server_round: int, replies: Iterable[Outcome | Arrival | Reply]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Add the replies to the aggregate one at a time, then take the server's step.

        Under secure aggregation there is one for each cohort, the mean of its nodes, which has been checked.

        ``replies`` are not messages: each holds a message or a failure, which is not checked yet and can be compressed.
        A subclass looks at single replies in :meth:`fold` or, to refuse some, in :meth:`refusal_reason`.

        Raises
        ------
        TooFewRepliesError
            There are fewer usable replies than the round or the aggregation needs.
        DivergedError
            The step produced invalid parameters.
        """
        aggregate, metrics = self.new_aggregate(), self._metric_mean(self.train_metrics_aggr_fn)
        count = 0
        for arrival in replies:
            # 6. It is checked, and added to the aggregate with what the algorithm takes from it.
            if isinstance(arrival, Reply):
                reply: Reply | None = arrival
            else:
                reply = self._read(arrival if isinstance(arrival, Arrival) else self._arrival_of(arrival))
            del arrival
            if reply is not None:
                count += reply.nodes
                with timed("fold"):
                    reply = self.privacy.limit(reply, self._returned, self.buffers)
                    metrics.add(reply.metrics, reply.weight, reply.content)
                    self.fold(reply, aggregate)
            del reply  # frees its memory while waiting for the next one
        if count < self._needed:
            raise records.TooFewRepliesError(too_few(self.report, count, self._needed, self.registry.absent()))
        self.report.replies = count
        # 7. The round closes: the server takes its step.
        with timed("step"):
            arrays = aggregate.result() if aggregate.defined else {}
            del aggregate  # frees its memory
            closed = {**self._current, **self.close_round(server_round, self._returned, arrays)}
        if fault := check_values(self._current, closed):
            raise records.DivergedError(f"round {server_round}: after the step of {self.server_optimizer}, {fault}")
        self._current = self._returned = closed
        result = metrics.result()
        self.report.train = dict(result)
        return to_record(self._current), result

    def _read(self, arrival: Arrival) -> Reply | None:
        """A train reply with its arrays as they enter the step, ``None`` if it is refused or too late."""
        flight, outcome = arrival.flight, arrival.outcome
        steps = self._version - flight.version
        if steps and not self.asynchronous and self.closing.late == "drop" and isinstance(outcome, Message):
            self.report.dropped.append(records.LateReply(flight.profile.key, flight.version + 1, arrival.seconds))
            self.report.count_reply("train", count_bytes(outcome.content))
            return None
        self._filter = self._filter or self._reply_filter("train")
        reply = self._filter.read(arrival, steps)
        if reply is None:
            return None
        self._used += not steps or self.asynchronous
        self.sampler.observe(flight.profile, arrival.seconds, reply)
        versions = (flight.start, self._returned)
        arrays = brought_forward(reply.arrays, *versions, self.staleness(steps), self.buffers, mixing=self.mixing)
        return reply if arrays is reply.arrays else replace(reply, arrays=arrays)

    def _evaluate(
        self, run: Run, server_round: int, config: ConfigRecord, timeout: float, evaluate_fn: CentralEvaluation | None
    ) -> dict[str, Any]:
        """Steps 8 and 9 of a round: the metrics of the nodes and of the server, whose names have a prefix."""
        # 8. Nodes evaluate the new parameters.
        with timed("prepare"):
            messages = self.configure_evaluate(server_round, run.result.arrays, config, run.grid)
        metrics = self.aggregate_evaluate(server_round, self.send(run.grid, messages, timeout))
        if metrics is not None:
            run.result.evaluate_metrics_clientapp[server_round] = metrics
            log(INFO, "round %s: %s", server_round, _listed(metrics))
        # 9. So does the server.
        central = _evaluate_centrally(run, server_round, evaluate_fn)
        of_server = {wire.SERVER_METRICS_PREFIX + name: value for name, value in central.items()}
        return {**self.report.evaluate, **of_server}

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One EVALUATE message per sampled node, in the order of the stable keys, without nodes that are late."""
        late: set[int] = set()
        if self.mailbox and (self.closing.early or self.asynchronous) and not has_virtual_time(grid):
            late = self.mailbox.busy_for(0.0 if self.closing.over_selection > 1 else self.closing.deadline)
        present = [node for node in self.profiles(grid) if node.node_id not in late]
        nodes = self.evaluate_sampler.sample(present, server_round, "evaluate")
        return self._messages("evaluate", nodes, server_round, self.share(arrays), config)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Outcome | Arrival]) -> MetricRecord | None:
        """The means of the metrics, ``None`` if there is no usable reply."""
        metrics = self._metric_mean(self.evaluate_metrics_aggr_fn)
        replies_of_phase = self._reply_filter("evaluate")
        for arrival in replies:
            reply = replies_of_phase.read(arrival if isinstance(arrival, Arrival) else self._arrival_of(arrival))
            if reply is not None:
                metrics.add(reply.metrics, reply.weight, reply.content)
            del arrival, reply
        if not metrics.count:
            return None
        result = metrics.result()
        self.report.evaluate = dict(result)
        return result

    # -- nodes and messages ---------------------------------------------------------------------------------------

    def share(self, arrays: ArrayRecord) -> ArrayRecord:
        """The shared parameters of a model.

        Raises
        ------
        ValueError
            A pattern in ``shared`` matches no parameter.
        """
        names = set(select(arrays.keys(), self.shared))
        return ArrayRecord({name: array for name, array in arrays.items() if name in names})

    def profiles(self, grid: Grid) -> list[Profile]:
        """The connected nodes with a profile and data that may work now, in the order of their keys."""
        nodes = [node for node in self.registry.connected(grid) if not node.no_data]
        self.report.ineligible |= {node.key: node.ineligible for node in nodes if node.ineligible}
        return [self.label(node) for node in nodes if not node.ineligible]

    def candidates(self, grid: Grid) -> list[Profile]:
        """The nodes that can train, by their keys. Waits for late nodes if there are too few others.

        Raises
        ------
        TooFewRepliesError
            In simulated time, too few nodes will ever be there, or were there at a time in a week.
        """
        mailbox = self._mailbox_of(grid)
        until = mailbox.now() + _LONGEST_WAIT
        while True:
            nodes = [node for node in self.profiles(grid) if node.num_examples != 0]
            busy = mailbox.busy
            free = sum(node.node_id not in busy for node in nodes)
            if free >= max(1, self.min_replies) or not (busy or has_virtual_time(grid)):
                return nodes
            try:
                mailbox.wait()
                mailbox.look()
                if has_virtual_time(grid) and mailbox.now() > until:
                    raise RuntimeError("too few were on at a time for a week")
            except RuntimeError as error:
                raise records.TooFewRepliesError(
                    f"{free} nodes can train, but min_replies is {self.min_replies} (key min-replies), and no other "
                    f"node will come ({error})"
                ) from error

    def _await_nodes(self, grid: Grid, timeout: float) -> None:
        """Wait for the nodes of the first round; ``timeout`` is the seconds that a node has to send its profile."""
        self.registry.queries.timeout = timeout
        self.registry.connected(grid)
        if self._resumed and self.mailbox is not None and has_virtual_time(grid):
            with clock_of(grid).evaluation():  # all nodes are there
                nodes = [self.label(node) for node in self.registry.connected(grid)]
            self.mailbox.load_state(self._resumed, {node.key: node for node in nodes})
        self._resumed = {}

    def _messages(
        self,
        phase: records.RoundStep,
        cohort: Iterable[Profile],
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
    ) -> list[Message]:
        """One message for each node of the cohort, in the same order; each has its own copy of the config."""
        self._records = {}
        numbered = ConfigRecord({**config, wire.SERVER_ROUND: server_round})
        shared = RecordDict({wire.ARRAYS: arrays})
        kind = MessageType.TRAIN if phase == "train" else MessageType.EVALUATE
        messages = []
        for node in cohort:
            content = shared.copy()  # takes less time than a new one
            content[wire.CONFIG] = numbered.copy()
            self.complete(phase, node, content)
            for name, key in ((wire.ARRAYS, self.arrayrecord_key), (wire.CONFIG, self.configrecord_key)):
                if key != name:
                    content[key] = content.pop(name)
            messages.append(Message(content, node.node_id, kind))
        self._records = {}
        return messages

    def record_once(self, key: Hashable, make: Callable[[], ArrayRecord]) -> ArrayRecord:
        """A record that is made once for all messages of a phase; ``key`` tells it from the others."""
        if key not in self._records:
            self._records[key] = make()
        return self._records[key]

    def send(self, grid: Grid, messages: Iterable[Message], timeout: float) -> Iterator[Arrival]:
        """Send messages and yield one reply or failure for each, in the order of the messages; counts their bytes."""
        with timed("prepare"):
            outgoing = list(messages)
        if outgoing and outgoing[0].metadata.message_type == MessageType.EVALUATE:
            timeout = min(timeout, self.closing.deadline)
        mailbox = self._new_mailbox(grid, in_order=True)
        self._post(mailbox, outgoing, timeout)
        while mailbox:
            with timed("wait"):
                arrival = mailbox.next()
                if arrival is None:
                    self.registry.poll(grid, mailbox.working)
                    mailbox.wait()
            if arrival is not None:
                yield arrival
            del arrival

    def _mailbox_of(self, grid: Grid) -> Mailbox:
        """That of the run, or a new one for Flower's own loop."""
        if self.mailbox is None:
            self.mailbox = self._new_mailbox(grid)
        return self.mailbox

    def _new_mailbox(self, grid: Grid, *, in_order: bool | None = None) -> Mailbox:
        if in_order is None:
            # In the order of the messages, a fast node after a slow one can seem as slow to a sampler that learns.
            by_speed = self.sampler.learns and not has_virtual_time(grid)
            in_order = not (self.closing.early or self.asynchronous or by_speed)
        count_busy = lambda: self.registry.queries.working  # noqa: E731
        return Mailbox(grid, in_order=in_order, poll=self.poll, in_flight=self.in_flight, count_busy=count_busy)

    def _post(self, mailbox: Mailbox, messages: Sequence[Message], timeout: float) -> None:
        """Send messages, and count their bytes in the report."""
        if not messages:
            return
        with timed("prepare"):
            letters, largest = [], 1
            for message in messages:
                largest = max(largest, size := count_bytes(message.content))
                self.report.count_message(message.metadata.message_type, size)
                letters.append((self._known(message.metadata.dst_node_id), message))
        with timed("wait"):
            mailbox.post(
                letters,
                timeout,
                version=self._version,
                start=self._returned,
                ahead=MAX_BUFFERED_BYTES // largest,  # a train reply is about as large as its message
                together=max(1, MAX_CACHED_BYTES // largest),
            )

    def _known(self, node_id: int) -> Profile:
        profile = self.registry.known.get(node_id)
        return self.label(profile) if profile else Profile.unknown(node_id)

    def _arrival_of(self, outcome: Outcome) -> Arrival:
        """A reply that came by Flower's own loop."""
        node_id = outcome.node_id if isinstance(outcome, NodeFailure) else outcome.metadata.src_node_id
        return Arrival(Flight(node_id, "", self._known(node_id), self._version, self._returned), outcome)

    # -- aggregation and state ------------------------------------------------------------------------------------

    def new_aggregate(self, label: str = "") -> Aggregate:
        """An empty aggregate for the replies of this round; ``label`` names its cluster, if it is that of a cluster."""
        if self.aggregation:
            title = f"round {self.report.round}" + (label and f", {label}")
            return self.aggregation.start(self.integers, title, self.buffers)
        return self.privacy.mean(self.integers, self._returned, self.report.round, self.buffers)

    def _metric_mean(self, of_replies: MetricsFunction | None) -> MetricMean:
        if of_replies:
            return MetricsOfReplies(of_replies, self.weighted_by_key)
        return MetricMean(self.metric_means, self.aggregation.middle if self.aggregation else None)

    def size_refusal_reason(self, reply: Reply, start: Arrays) -> str | None:
        """Why a train reply is too large; ``start`` are the arrays that its node received."""
        name = self.update_name()
        sizes = norms_of(reply.arrays, start, reply.content, self.buffers, name) | self.further_sizes(reply)
        limits: dict[str, float] = {}
        if not all(map(self.size_bound.median, sizes)):
            limits = self.size_bound.first_limits(start, reply.content, self.buffers, name)
        return self.size_bound.refusal_reason(sizes, limits)

    def update_name(self) -> str:
        """What updates of this round are called: their sizes are compared with those of the same name."""
        return UPDATE

    def _reply_filter(self, phase: records.RoundStep) -> ReplyFilter:
        return ReplyFilter(
            self.report,
            phase,
            weight_of=self.weight_of,
            metric_means=self.metric_means,
            max_bytes=max_reply_bytes(self._current, self.reply_records) + self.extra_reply_bytes,
            example_limits=self.example_limits,
            refusal_reason=self.refusal_reason,
            size_refusal=self.size_refusal_reason if self.size_bound.factor else None,
            compression=self.compression,
            buffers=self.buffers,
            records_seconds=phase == "train" and self._records_seconds,
            max_staleness=self.max_staleness,
            examples_key=self.weighted_by_key,
        )

    def load_state(self, state: Arrays) -> None:
        super().load_state(state)
        self._loaded = True

    @property
    def in_transit(self) -> dict[str, Any]:
        """What is in flight, for a snapshot."""
        return {} if self.mailbox is None else self.mailbox.state()

    @in_transit.setter
    def in_transit(self, state: dict[str, Any]) -> None:
        self._resumed = state

    def restore(self, snapshot: records.Snapshot, initial: ArrayRecord) -> ArrayRecord:
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
        shared = records.under("shared.", snapshot.arrays)
        if mismatch := check_arrays(from_record(initial), shared):
            raise ValueError(f"the checkpoint of round {snapshot.round} does not fit this model: {mismatch}")
        self.load_state(records.under("state.", snapshot.arrays))
        return to_record({name: shared[name] for name in initial})


def _stops(run: Run, should_stop: Callable[[int, Result], bool] | None) -> bool:
    """Whether a run ends before its next round; logs why."""
    reasons = [callback.reason_to_stop(run) for callback in run.callbacks]
    if should_stop is not None and run.round and should_stop(run.round, run.result):
        reasons.append(f"should_stop({run.round}, result) is true")
    if reason := next(filter(None, reasons), ""):
        log(INFO, "stopping early: %s", reason)
        return True
    return False


def _evaluate_centrally(run: Run, server_round: int, evaluate_fn: CentralEvaluation | None) -> MetricRecord:
    """The metrics of the server, which are logged; empty without any."""
    metrics = evaluate_fn(server_round, run.result.arrays) if evaluate_fn else None
    if metrics is None:
        return MetricRecord()
    run.result.evaluate_metrics_serverapp[server_round] = metrics
    log(INFO, "round %s, on the server: %s", server_round, _listed(metrics))
    return metrics


def _listed(metrics: MetricRecord) -> str:
    values = [f"{name} {value:.4g}" for name, value in metrics.items() if isinstance(value, float)]
    return ", ".join(values[:_MAX_LOGGED])


def _config(run: Run, settings: RoundConfig, server_round: int) -> ConfigRecord:
    """The config of a round's messages.

    Nodes can delete private state that is older than the oldest round that the server can return to, but for that of
    the best round, and that of rounds that the server went back behind.
    """
    entries = settings(server_round) if callable(settings) else settings
    best = {wire.BEST_ROUND: run.best_round} if run.best_round else {}
    attempts = records.to_text(run.attempts)
    return ConfigRecord({**(entries or {}), wire.DURABLE_ROUND: run.durable_round, wire.ATTEMPTS: attempts, **best})
