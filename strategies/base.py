"""The base class of all strategies: federated averaging with replaceable parts.

The parts are the sampler, the weighting, the aggregation, the server optimizer and the privacy mechanism.
:class:`BaseStrategy` samples nodes, refuses invalid replies and aggregates the others one at a time. An algorithm is a
subclass that overrides :mod:`hooks <fedapps.strategies.hooks>`.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017.
Reddi et al., Adaptive Federated Optimization, ICLR 2021 (the server optimizers).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from logging import INFO
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from . import wire
from .aggregation.mean import Aggregate, IntegerPolicy
from .aggregation.metrics import MetricMean, MetricRule
from .aggregation.robust import RobustAggregation
from .arrays import Arrays, Buffers, from_record, is_float, select, shortened, to_record, without
from .checks import check_values
from .compression import Compression
from .node_exchange import NodeExchange
from .nodes.admission import Admission, ExampleLimits
from .nodes.held_out import HeldOut
from .nodes.profiles import Profile
from .nodes.registry import NodeRegistry
from .nodes.samplers import Sampler, UniformFraction
from .optimizers import SGD, ServerOptimizer
from .privacy import PrivacyMechanism
from .replies import Reply, ReplyFilter, Weighting, max_reply_bytes, to_weighting, too_few
from .rounds.clock import is_simulated
from .rounds.closing import Closing, OpenRound
from .rounds.flights import Flights
from .rounds.records import DivergedError, RoundReport, RoundStep, TooFewRepliesError
from .rounds.snapshots import under
from .rounds.transport import NodeFailure, Outcome
from .staleness import Staleness
from .stopwatch import timed
from .updates import Updates

_OPTIMIZER = "optimizer."
_SAMPLER = "sampler."
_SYNCHRONOUS_HOOKS = (
    *("prepare_round", "begin_round", "untrained", "train_records", "arrays_for", "refusal_reason", "aggregate_for"),
    *("fold_reply", "close_round", "configure_train", "aggregate_train", "train_round", "state"),
)


class BaseStrategy(NodeExchange):
    """FedAvg over the shared parameters, and the base class of the other strategies.

    Parameters
    ----------
    shared : sequence of str
        Glob patterns of the shared parameters, which the server sends and nodes return under the same names. Parameters
        that are not shared are private to each node. ``("*",)`` shares all (FedAvg), ``()`` none (local training).
    sampler, evaluate_sampler : Sampler
        Select the nodes that train and the nodes that evaluate; by default all of them.
    weighting : "num-examples", "uniform" or a Weighting
        The weight of a reply in the means of arrays and of metrics.
    aggregation : RobustAggregation
        Combines the arrays of the replies in place of their weighted mean, for federations with Byzantine nodes:
        ``Median``, ``TrimmedMean``, ``Krum`` or ``MultiKrum`` (:mod:`fedapps.strategies.aggregation.robust`). The
        server then stores all replies of a round.
    metric_means : mapping from names of metrics to "weighted", "uniform", "geometric" or a PooledMetric
        How :class:`MetricMean` averages metrics in both phases; metrics without an entry are "weighted". With an
        ``aggregation``, metrics are combined without weights, robustly.
    server_optimizer : ServerOptimizer
        Takes a step on the pseudo-gradient. SGD with learning rate 1, the default, is FedAvg, bit for bit.
    integers : "newest" or "round"
        How to average integer and boolean arrays: take the newest, or round the mean.
    buffers : sequence of str
        Glob patterns of arrays that are state of the model and not trained. The statistics of torch's normalisation
        layers always are (:class:`~fedapps.strategies.arrays.Buffers`). Buffers are averaged, but take no step of the
        server optimizer, get no noise and are not compressed.
    privacy : PrivacyMechanism
        Protects single nodes, such as :class:`~fedapps.strategies.privacy.CentralPrivacy`; by default no protection.
    compression : Compression
        How nodes compress their updates, such as :class:`~fedapps.strategies.compression.Int8`; by default not at all.
    example_limits : ExampleLimits
        Limits of the numbers of examples that nodes report; by default none.
    admission : Admission
        Which nodes may take part, by their groups and keys; by default all.
    held_out : HeldOut
        Which nodes neither train nor evaluate in any round, so that :meth:`evaluate_held_out` can measure what the
        result gives to a new node; by default none.
    min_replies : int
        ≥ 0, the number of usable replies that a round needs. A round whose sampler drew fewer nodes by chance needs a
        reply of each of them; without replies, the parameters stay as they are, or get noise alone under central
        privacy.
    min_nodes : int
        ≥ 1, the number of nodes that must be connected before the first round.
    node_wait : float
        ≥ 0, seconds to wait for nodes and profiles after the last sign of life; see
        :class:`~fedapps.strategies.nodes.registry.NodeRegistry`.
    poll : float
        > 0, seconds between the first two attempts to fetch a reply; the pause grows up to 0.5 s.
    closing : Closing
        When rounds close before all nodes have replied; by default they wait for all. Replies are then aggregated in
        the order of arrival, and nodes that are late get no message until they have replied.
    in_flight : int or None
        ≥ 1, the largest number of nodes that work at a time, including profile queries: the next message is sent when a
        node replies or times out. ``None`` sends all messages at once.

    Raises
    ------
    ValueError
        A parameter is out of range, ``privacy`` or ``aggregation`` does not protect this strategy, or it cannot use
        compressed updates and ``compression`` is set.
    """

    def __init__(
        self,
        *,
        shared: Sequence[str] = ("*",),
        sampler: Sampler | None = None,
        evaluate_sampler: Sampler | None = None,
        weighting: str | Weighting = "num-examples",
        aggregation: RobustAggregation | None = None,
        metric_means: Mapping[str, MetricRule] | None = None,
        server_optimizer: ServerOptimizer | None = None,
        integers: IntegerPolicy = "newest",
        buffers: Sequence[str] = (),
        privacy: PrivacyMechanism | None = None,
        compression: Compression | None = None,
        example_limits: ExampleLimits | None = None,
        admission: Admission | None = None,
        held_out: HeldOut | None = None,
        min_replies: int = 1,
        min_nodes: int = 1,
        node_wait: float = 600.0,
        poll: float = 0.02,
        closing: Closing | None = None,
        in_flight: int | None = None,
    ) -> None:
        for name, patterns in (("shared", shared), ("buffers", buffers)):
            if isinstance(patterns, str):
                raise ValueError(f"{name} = {patterns!r}: must be a list of patterns, for example [{patterns!r}]")
        parts = (
            ("sampler", sampler, Sampler),
            ("evaluate_sampler", evaluate_sampler, Sampler),
            ("aggregation", aggregation, RobustAggregation),
            ("server_optimizer", server_optimizer, ServerOptimizer),
            ("privacy", privacy, PrivacyMechanism),
            ("compression", compression, Compression),
        )
        for name, part, kind in parts:
            if part is not None and not isinstance(part, kind):
                raise ValueError(f"{name} = {part!r}: must be an object of a class of {kind.__module__}, or None")
        numbers = (("min_replies", min_replies, 0), ("min_nodes", min_nodes, 1), ("in_flight", in_flight, 1))
        for name, value, least in numbers:
            if value is not None and value < least:
                raise ValueError(f"{name} = {value}: must be at least {least}")
        self.shared = tuple(shared)
        self.buffers = Buffers(tuple(buffers))
        self.sampler = sampler or UniformFraction(1.0)
        self.evaluate_sampler = evaluate_sampler or UniformFraction(1.0)
        self.weight_of = to_weighting(weighting)
        self.metric_means = dict(metric_means or {})
        MetricMean(self.metric_means)  # raises for an unknown rule
        self.server_optimizer = server_optimizer or SGD(1.0)
        self.integers, self.example_limits = integers, example_limits or ExampleLimits()
        self.privacy = privacy or PrivacyMechanism()
        if aggregation:
            aggregation.check_strategy(self.robustness_gap)
        self.aggregation = aggregation
        no_mean = f"its noise is that of a mean, and aggregation = {aggregation} is none" if aggregation else ""
        self.privacy.check_strategy(self.privacy_gap or no_mean)
        if compression and self.compression_gap:
            raise ValueError(f"compression = {compression}: cannot be used, because {self.compression_gap}")
        self.compression = compression
        closing = closing or Closing()
        hooks = self.own_hooks()
        reason = closing.refusal(self.sampler, aggregation, self.privacy, in_flight, hooks)
        if reason and closing.early:
            raise ValueError(f"closing = {closing}: cannot be used, because {reason}")
        self.min_nodes, self.node_wait = min_nodes, node_wait
        registry = NodeRegistry(
            self.example_limits,
            admission,
            held_out,
            min_nodes=min_nodes,
            min_replies=min_replies,
            node_wait=node_wait,
            in_flight=in_flight,
        )
        super().__init__(registry, closing, min_replies, poll, in_flight)
        self._current: Arrays = {}
        self._returned: Arrays = {}  # those of the current arrays that replies contain
        self._needed_replies = min_replies
        self._wanted = 0

    @classmethod
    def own_hooks(cls) -> list[str]:
        """Those hooks of the class that take all updates of a step to come from the current version."""
        return [name for name in _SYNCHRONOUS_HOOKS if getattr(cls, name) is not getattr(BaseStrategy, name)]

    # -- Flower's interface ---------------------------------------------------------------------------------

    def summary(self) -> None:
        """Log the parts of this strategy."""
        log(INFO, "\t├── shared: %s", shortened(self.shared) or "nothing")
        log(INFO, "\t├── sampler: %s; evaluation: %s", self.sampler, self.evaluate_sampler)
        if self.compression:
            log(INFO, "\t├── compression: %s", self.compression)
        log(INFO, "\t├── aggregation: %s", self.aggregation or "weighted mean")
        log(INFO, "\t└── server optimizer: %s; at least %s replies", self.server_optimizer, self.min_replies)

    def share(self, arrays: ArrayRecord) -> ArrayRecord:
        """The shared parameters of a model.

        Raises
        ------
        ValueError
            A pattern in ``shared`` matches no parameter.
        """
        names = set(select(arrays.keys(), self.shared))
        return ArrayRecord({name: array for name, array in arrays.items() if name in names})

    def start(self, grid: Grid, initial_arrays: ArrayRecord, *positional: Any, **named: Any) -> Result:
        """As in :class:`ResumableStrategy`.

        Raises
        ------
        ValueError
            A pattern in ``buffers`` or ``shared`` matches no array, or ``privacy`` cannot protect the shared ones.
        """
        select(initial_arrays.keys(), self.buffers.patterns)
        self.privacy.check_arrays(self.share(initial_arrays).keys())
        self._flights = Flights(grid, self.poll)
        self.sampler.load_state({})
        return super().start(grid, initial_arrays, *positional, **named)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One TRAIN message per sampled node, in the order of the stable keys; nodes without examples do not train."""
        arrays, config = self._begin(server_round, arrays, config, grid)
        candidates = self.candidates(grid)
        cohort = self.sampler.sample(candidates, server_round, "train")
        self._wanted = len(cohort)
        if self.closing.early:
            cohort = self._ready(cohort, candidates, server_round, self.sampler)
        log(INFO, "round %s: %s nodes train", server_round, len(cohort))
        self._needed_replies = min(self.min_replies, len(cohort)) if self.sampler.random_size else self.min_replies
        return self._messages(cohort, MessageType.TRAIN, server_round, arrays, config, self.train_records)

    def _begin(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> tuple[ArrayRecord, ConfigRecord]:
        """Begin a round. Returns what its TRAIN messages have: the shared arrays and the entries of the config."""
        self.report = RoundReport(server_round)
        arrays = self.share(arrays)
        self.prepare_round(server_round, arrays, config, grid)
        self._current = from_record(arrays)
        self.begin_round(server_round, self._current)
        compression = self.compression.train_config() if self.compression else {}
        declared = {wire.BUFFERS: names} if (names := self._declared_buffers()) else {}
        untrained = self.untrained(server_round, list(self._current))
        self._returned = without(self._current, untrained)
        left_out = {wire.UNTRAINED: list(untrained)} if untrained else {}
        return arrays, ConfigRecord({**config, **self.privacy.train_config(), **compression, **declared, **left_out})

    def train_round(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
        timeout: float,
        release: Callable[[], None],
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        if not self.closing.early:
            return super().train_round(server_round, arrays, config, grid, timeout, release)
        with timed("prepare"):
            if self._flights:
                self._flights.look()  # who has replied since the last round is free
            messages = list(self.configure_train(server_round, arrays, config, grid))
        release()
        return self._aggregate(server_round, self._until_closed(server_round, messages, grid, timeout))

    def _until_closed(
        self, server_round: int, messages: Sequence[Message], grid: Grid, timeout: float
    ) -> Iterator[Reply]:
        """Send the messages of a round, and yield the updates that arrive before it closes, as they enter its step."""
        assert self._flights is not None, "the strategy has not been started"
        nodes = [self._known(message.metadata.dst_node_id) for message in messages]
        self._count(messages)
        self._note_failures(self._flights.launch(nodes, messages, server_round - 1, self._returned, timeout), nodes)
        updates = self._read_updates(server_round, self.closing.staleness)
        opened = OpenRound(self.closing, self._flights, updates, self._wanted, self._needed_replies)
        yield from opened.replies(partial(self.registry.poll, grid))

    def _read_updates(self, server_round: int, staleness: Staleness, **limits: Any) -> Updates:
        replies = self._reply_filter("train")
        return Updates(replies, server_round - 1, self._returned, staleness, self.sampler, **limits)

    def _note_failures(self, failures: Iterable[NodeFailure], nodes: Iterable[Profile]) -> None:
        """Record messages that were not accepted."""
        if failures := list(failures):
            replies = replace(self._reply_filter("train"), profiles={node.node_id: node for node in nodes})
            list(replies.usable(failures))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Outcome]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Add the replies to the aggregate one at a time, then take the server's step.

        Raises
        ------
        TooFewRepliesError
            There are fewer usable replies than the round or the aggregation needs.
        DivergedError
            The step produced invalid parameters.
        """
        return self._aggregate(server_round, self._usable(replies))

    def _usable(self, replies: Iterable[Outcome]) -> Iterator[Reply]:
        """Those of a round's replies that pass all checks, of which the sampler learns."""
        usable = self._reply_filter("train")
        for reply in replies:
            sent = "" if isinstance(reply, NodeFailure) else reply.metadata.reply_to_message_id
            found = usable.read(reply)
            del reply  # frees its memory while waiting for the next one
            if found is not None:
                self.sampler.observe(found.profile, self._seconds.get(sent, 0.0), found)
                yield found
            del found

    def _aggregate(self, server_round: int, replies: Iterable[Reply]) -> tuple[ArrayRecord, MetricRecord]:
        """As :meth:`aggregate_train`, from replies that have passed all checks."""
        aggregate, metrics = self.new_aggregate(), self._metric_mean()
        for usable in replies:
            with timed("fold"):
                reply = self.privacy.limit(usable, self._returned, self.buffers)
                self.aggregate_for(reply, aggregate).add(reply.arrays, reply.weight)
                metrics.add(reply.metrics, reply.weight)
                self.fold_reply(server_round, reply)
            del usable, reply  # frees their memory while waiting for the next one
        if metrics.count < self._needed_replies:
            raise TooFewRepliesError(too_few(self.report, metrics.count, self._needed_replies, self.registry.absent()))
        self.report.replies = metrics.count
        with timed("step"):
            arrays = aggregate.result() if aggregate.defined else {}
            del aggregate  # frees its memory
            closed = {**self._current, **self.close_round(server_round, self._returned, arrays)}
        if fault := check_values(self._current, closed):
            raise DivergedError(f"round {server_round}: after the step of {self.server_optimizer}, {fault}")
        self._current = self._returned = closed
        result = metrics.result()
        self.report.train = dict(result)
        return to_record(self._current), result

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One EVALUATE message per sampled node, in the order of the stable keys, without nodes that are late."""
        arrays, late = self.share(arrays), set() if is_simulated(grid) else self._late()
        present = [node for node in self.profiles(grid) if node.node_id not in late]
        nodes = self.evaluate_sampler.sample(present, server_round, "evaluate")
        return self._messages(nodes, MessageType.EVALUATE, server_round, arrays, config, self.evaluate_records)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Outcome]) -> MetricRecord | None:
        """The means of the metrics, ``None`` if there is no usable reply."""
        metrics = self._metric_mean()
        for reply in self._reply_filter("evaluate").usable(replies):
            metrics.add(reply.metrics, reply.weight)
            del reply
        if not metrics.count:
            return None
        result = metrics.result()
        self.report.evaluate = dict(result)
        return result

    def evaluate_held_out(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid, timeout: float = 3600
    ) -> RoundReport:
        """Send the nodes that are held out what nodes that evaluate receive; to be called after the last round.

        Parameters
        ----------
        server_round : int
            The last round.
        arrays : ArrayRecord
            The shared parameters.
        config : ConfigRecord
            Entries of the config of the messages.
        grid : Grid
            Flower's grid.
        timeout : float
            > 0, seconds that a node has to reply.

        Returns
        -------
        RoundReport
            ``nodes`` has the replies, and ``evaluate`` the means of their metrics; both are empty without such nodes.
        """
        report = self.report = RoundReport(server_round)
        nodes = [self.label(node) for node in self.registry.connected(grid, held_out=True)]
        log(INFO, "%s nodes that were held out evaluate", len(nodes))
        arrays = self.share(arrays)
        messages = self._messages(nodes, MessageType.EVALUATE, server_round, arrays, config, self.evaluate_records)
        self.aggregate_evaluate(server_round, self.send(grid, messages, timeout))
        return report

    def evaluate_message(
        self, server_round: int, profile: Profile, arrays: ArrayRecord, config: ConfigRecord
    ) -> Message:
        """The EVALUATE message to a node, which need not be connected.

        Parameters
        ----------
        server_round : int
        profile : Profile
            Of the node.
        arrays : ArrayRecord
            The shared parameters.
        config : ConfigRecord
            Entries of its config.
        """
        nodes, arrays = [self.label(profile)], self.share(arrays)
        (message,) = self._messages(nodes, MessageType.EVALUATE, server_round, arrays, config, self.evaluate_records)
        return message

    # -- aggregation and state ----------------------------------------------------------------------------------

    def _metric_mean(self) -> MetricMean:
        return MetricMean(self.metric_means, self.aggregation.middle if self.aggregation else None)

    def new_aggregate(self, label: str = "") -> Aggregate:
        """An empty aggregate for the replies of this round; ``label`` names its cluster, if it is that of a cluster."""
        if self.aggregation:
            place = f"round {self.report.round}" + (label and f", {label}")
            return self.aggregation.start(self.integers, place, self.buffers)
        return self.privacy.mean(self.integers, self._returned, self.report.round, self.buffers)

    def _declared_buffers(self) -> list[str]:
        """The shared floating-point arrays that are buffers by ``buffers`` alone."""
        always = Buffers()
        return [n for n, a in self._current.items() if is_float(a) and n in self.buffers and n not in always]

    def _reply_filter(self, phase: RoundStep) -> ReplyFilter:
        profiles = {node: self.label(profile) for node, profile in self.registry.known.items()}
        return ReplyFilter(
            self.report,
            phase,
            profiles,
            expected=self._returned if phase == "train" else None,
            weight_of=self.weight_of,
            metric_means=self.metric_means,
            max_bytes=max_reply_bytes(self._current, self.reply_records),
            example_limits=self.example_limits,
            refusal_reason=self.refusal_reason,
            compression=self.compression,
            buffers=self.buffers,
            seconds=self._seconds if phase == "train" and self._timed else {},
        )

    def close_round(self, server_round: int, current: Arrays, aggregate: Arrays) -> Arrays:
        return self.server_optimizer.step(current, aggregate, self.buffers) if aggregate else current

    def state(self) -> Arrays:
        """Arrays that a snapshot stores in addition to the shared parameters; :meth:`load_state` restores them."""
        moments = {_OPTIMIZER + name: array for name, array in self.server_optimizer.state().items()}
        learned = {_SAMPLER + name: array for name, array in self.sampler.state().items()}
        in_flight = {} if self._flights is None else self._flights.state()
        return {**moments, **learned, **self.registry.admission.state(), **self.registry.held_out.state(), **in_flight}

    def load_state(self, state: Arrays) -> None:
        """Restore the state of a snapshot."""
        self.server_optimizer.load_state(under(_OPTIMIZER, state))
        self.sampler.load_state(under(_SAMPLER, state))
        self.registry.admission.load_state(state)
        self.registry.held_out.load_state(state)
        self._resumed = state
