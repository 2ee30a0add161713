"""The base class of all strategies: federated averaging with replaceable parts.

The parts are the sampler, the weighting, the aggregation, the server optimizer and the privacy mechanism.
:class:`BaseStrategy` samples nodes, refuses invalid replies and aggregates the others one at a time. An algorithm is a
subclass that overrides methods of :class:`~fedapps.strategies.loop.RoundLoop`, in the order in which a round
calls them: ``begin_round``, ``untrained``, ``complete`` for each message that trains, ``refusal_reason`` and ``fold``
for each reply, ``close_round``, ``complete`` for each message that evaluates, and ``round_info``. ``label`` is called
when profiles are read. ``kept`` names the attributes that a snapshot has.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017.
Reddi et al., Adaptive Federated Optimization, ICLR 2021 (the server optimizers).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from logging import INFO
from numbers import Real
from typing import ClassVar

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.common import log
from flwr.serverapp import Grid

from . import wire
from .aggregation import IntegerPolicy, MetricMean, MetricRule
from .arrays import Buffers, shortened
from .bounds import SizeBound
from .checks import require_integer
from .closing import Closing
from .compression import Compression
from .loop import MetricsFunction, RoundLoop
from .optimizers import SGD, ServerOptimizer
from .privacy import PrivacyMechanism
from .profiles import Admission, ExampleLimits, Profile
from .records import RoundReport
from .registry import HeldOut, NodeRegistry
from .replies import Weighting, weighting_of
from .robust import RobustAggregation
from .samplers import Sampler, UniformFraction
from .secure_aggregation import SecureAggregation

_OF_FLOWER = ("fraction_train", "fraction_evaluate", "min_train_nodes", "min_evaluate_nodes", "weighted_by_key")
_SYNCHRONOUS_HOOKS = (
    *("begin_round", "untrained", "complete", "refusal_reason", "fold", "close_round"),
    *("configure_train", "aggregate_train", "kept"),
)


class BaseStrategy(RoundLoop):
    """FedAvg over the shared parameters, and the base class of the other strategies.

    Parameters
    ----------
    shared : sequence of str
        Glob patterns of the shared parameters, which the server sends and nodes return under the same names. Parameters
        that are not shared are private to each node. ``("*",)`` shares all (FedAvg), ``()`` none (local training).
    sampler, evaluate_sampler : Sampler
        Select the nodes that train and the nodes that evaluate; by default all of them.
    weighting : "num-examples", "uniform" or a Weighting
        The weight of a reply in the means of arrays and of metrics; by default "num-examples", or "uniform" where it
        must be (:attr:`equal_weights`).
    aggregation : RobustAggregation
        Combines the arrays of the replies in place of their weighted mean, for federations with Byzantine nodes:
        ``Median``, ``TrimmedMean``, ``Krum`` or ``MultiKrum`` (:mod:`fedapps.strategies.robust`). The
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
    secure_aggregation : SecureAggregation
        The server gets the sum of the updates alone, and by default no node evaluates; see
        :mod:`~fedapps.strategies.secure_aggregation`.
    example_limits : ExampleLimits
        Limits of the numbers of examples that nodes report; by default none.
    size_bound : float
        Above 1: refuse a train reply whose update, or another part, is larger than this number times the median of
        recent replies, see :class:`~fedapps.strategies.bounds.SizeBound`. 0, the default, for no bound. An
        ``aggregation``, or a ``privacy`` that clips, replaces it.
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
        :class:`~fedapps.strategies.registry.NodeRegistry`.
    poll : float
        > 0, seconds between the first two attempts to fetch a reply; the pause grows up to 0.5 s.
    closing : Closing
        When rounds close before all nodes have replied; by default they wait for all. Replies are then aggregated in
        the order of arrival, and nodes that are late get no message until they have replied.
    in_flight : int or None
        ≥ 1, the largest number of nodes that work at a time, including profile queries: the next message is sent when a
        node replies or times out. ``None`` sends all messages at once.
    profiles : bool or None
        Whether to ask each node for its profile (its stable key, its groups, its number of examples) before it takes
        part. ``None``, the default, asks if a part of the strategy needs to know: a sampler by groups, sizes or keys,
        ``admission``, ``example_limits``, ``held_out``, or the algorithm. Clients without a function for the query log
        an error when they are asked, and take part under Flower's node ids.
    fraction_train, fraction_evaluate : float, optional
        As in Flower's ``FedAvg``: the fractions of the nodes that train and evaluate, in [0, 1], rounded as in
        :class:`~fedapps.strategies.samplers.UniformFraction`. They stand for ``sampler`` and ``evaluate_sampler``. With
        0, nobody trains, or evaluates.
    min_train_nodes, min_evaluate_nodes : int, optional
        As in Flower: the smallest numbers of nodes that are drawn, with a fraction above 0. The first round waits for
        as many.
    min_available_nodes : int, optional
        As in Flower, but only the first round waits for them: another name of ``min_nodes``.
    weighted_by_key : str, optional
        As in Flower: the metric of replies that is their number of examples, ``num-examples`` by default.
    arrayrecord_key, configrecord_key : str
        As in Flower: the names of the arrays and of the config in messages, without a dot.
    train_metrics_aggr_fn, evaluate_metrics_aggr_fn : function of a list of RecordDict and a str, optional
        As in Flower: gives the metrics of the phase for the usable replies, without their arrays, and
        ``weighted_by_key``. It replaces ``metric_means``.

    Raises
    ------
    ValueError
        A parameter is out of range or excluded by another, ``privacy`` or ``aggregation`` does not protect this
        strategy, or it cannot use compressed updates and ``compression`` is set.
    """

    #: Why :class:`~fedapps.strategies.privacy.CentralPrivacy` does not cover the strategy; empty if it does.
    privacy_gap: ClassVar[str] = ""
    #: Why a robust aggregation does not protect the strategy from Byzantine nodes; empty if it does.
    robustness_gap: ClassVar[str] = ""
    #: Why the strategy cannot use compressed updates; empty if it can.
    compression_gap: ClassVar[str] = ""
    #: Why secure aggregation, which gives the sum of updates alone, is not enough; empty if it is. ``None``:
    #: :attr:`privacy_gap`, or hooks that read single replies.
    secrecy_gap: ClassVar[str | None] = None
    #: Whether the algorithm needs the nodes' keys, groups or numbers of examples from their profiles.
    needs_profiles: bool = False
    #: What to do in place of those arguments of Flower that mean nothing in the strategy, by their names.
    flower_gaps: ClassVar[Mapping[str, str]] = {}
    #: Why the weighting must be "uniform"; empty if it need not be.
    equal_weights: ClassVar[str] = ""

    def __init__(
        self,
        *,
        shared: Sequence[str] = ("*",),
        sampler: Sampler | None = None,
        evaluate_sampler: Sampler | None = None,
        weighting: str | Weighting | None = None,
        aggregation: RobustAggregation | None = None,
        metric_means: Mapping[str, MetricRule] | None = None,
        server_optimizer: ServerOptimizer | None = None,
        integers: IntegerPolicy = "newest",
        buffers: Sequence[str] = (),
        privacy: PrivacyMechanism | None = None,
        compression: Compression | None = None,
        secure_aggregation: SecureAggregation | None = None,
        example_limits: ExampleLimits | None = None,
        size_bound: float = 0.0,
        admission: Admission | None = None,
        held_out: HeldOut | None = None,
        min_replies: int = 1,
        min_nodes: int = 1,
        node_wait: float = 600.0,
        poll: float = 0.02,
        closing: Closing | None = None,
        in_flight: int | None = None,
        profiles: bool | None = None,
        fraction_train: float | None = None,
        fraction_evaluate: float | None = None,
        min_train_nodes: int | None = None,
        min_evaluate_nodes: int | None = None,
        min_available_nodes: int | None = None,
        weighted_by_key: str | None = None,
        arrayrecord_key: str = wire.ARRAYS,
        configrecord_key: str = wire.CONFIG,
        train_metrics_aggr_fn: MetricsFunction | None = None,
        evaluate_metrics_aggr_fn: MetricsFunction | None = None,
    ) -> None:
        arguments = (fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes, weighted_by_key)
        for name, argument in zip(_OF_FLOWER, arguments, strict=True):
            if argument is not None and name in self.flower_gaps:
                raise ValueError(
                    f"{name} = {argument!r}: {type(self).__name__} cannot use it; {self.flower_gaps[name]}"
                )
        if self.equal_weights and weighting not in (None, "uniform"):
            raise ValueError(
                f"weighting = {weighting!r}: must be 'uniform', because {self.equal_weights}; leave it out"
            )
        weighting = weighting or ("uniform" if self.equal_weights else "num-examples")
        if weighted_by_key is not None and weighting == "uniform":
            raise ValueError(f"weighted_by_key = {weighted_by_key!r}: weighting = 'uniform' ignores it; remove one")
        if min_available_nodes is not None and min_nodes > 1:
            raise ValueError(
                f"min_available_nodes = {min_available_nodes}: min_nodes = {min_nodes} is set, too; remove one"
            )
        for name, key in (("arrayrecord_key", arrayrecord_key), ("configrecord_key", configrecord_key)):
            if not key or "." in key:
                raise ValueError(f"{name} = {key!r}: must be a name without a dot")
            if compression and key not in (wire.ARRAYS, wire.CONFIG):
                raise ValueError(
                    f"{name} = {key!r}: compression = {compression} reads 'arrays' and 'config'; remove one"
                )
        if arrayrecord_key == configrecord_key:
            raise ValueError(f"arrayrecord_key = configrecord_key = {arrayrecord_key!r}: must be two names")
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
            ("secure_aggregation", secure_aggregation, SecureAggregation),
        )
        for name, part, kind in parts:
            if part is not None and not isinstance(part, kind):
                raise ValueError(f"{name} = {part!r}: must be an object of a class of {kind.__module__}, or None")
        numbers = (
            *(("min_replies", min_replies, 0), ("min_nodes", min_nodes, 1), ("in_flight", in_flight, 1)),
            *(("min_train_nodes", min_train_nodes, 0), ("min_evaluate_nodes", min_evaluate_nodes, 0)),
            ("min_available_nodes", min_available_nodes, 0),
        )
        for name, value, least in numbers:
            if value is not None:
                require_integer(name, value, least=least)
        if not (isinstance(node_wait, Real) and node_wait >= 0):
            raise ValueError(f"node_wait = {node_wait!r}: must be a number of seconds of at least 0")
        super().__init__()
        self.shared = tuple(shared)
        self.buffers = Buffers(tuple(buffers))
        self.sampler = _sampler("sampler", sampler, "train", fraction_train, min_train_nodes)
        if secure_aggregation and not secure_aggregation.evaluate and not evaluate_sampler:
            fraction_evaluate = fraction_evaluate or 0.0
        self.evaluate_sampler = _sampler(
            "evaluate_sampler", evaluate_sampler, "evaluate", fraction_evaluate, min_evaluate_nodes
        )
        if fraction_train == 0:
            min_replies = 0
        needed = (min_train_nodes, min_evaluate_nodes, min_available_nodes)
        min_nodes = max(min_nodes, *(number or 0 for number in needed))
        self.weighted_by_key = weighted_by_key or wire.NUM_EXAMPLES
        self.arrayrecord_key, self.configrecord_key = arrayrecord_key, configrecord_key
        self.train_metrics_aggr_fn = train_metrics_aggr_fn
        self.evaluate_metrics_aggr_fn = evaluate_metrics_aggr_fn
        self.weighting, self.weight_of = weighting, weighting_of(weighting)
        self.metric_means = dict(metric_means or {})
        MetricMean(self.metric_means)  # raises for an unknown rule
        self.server_optimizer = server_optimizer or SGD(1.0)
        self.integers, self.example_limits = integers, example_limits or ExampleLimits()
        self.privacy = privacy or PrivacyMechanism()
        # A bound relative to the updates of others would let few nodes decide whether theirs count.
        self.size_bound = SizeBound(0.0 if aggregation or self.privacy.bounds_updates else size_bound)
        if aggregation:
            steered = f"sampler = {self.sampler} prefers nodes by what they report" if self.sampler.by_reports else ""
            aggregation.check_strategy(self.robustness_gap or steered)
        self.aggregation = aggregation
        no_mean = f"its noise is that of a mean, and aggregation = {aggregation} is none" if aggregation else ""
        sampler_gap = f"sampler = {self.sampler} chooses nodes by what others report" if self.sampler.learns else ""
        self.privacy.check_strategy(self.privacy_gap or no_mean or sampler_gap)
        if compression and self.compression_gap:
            raise ValueError(f"compression = {compression}: cannot be used, because {self.compression_gap}")
        self.compression = compression
        closing = closing or Closing()
        hooks = self.own_hooks()
        reason = closing.refusal(self.sampler, aggregation, self.privacy, in_flight, hooks)
        if reason and closing.early:
            raise ValueError(f"closing = {closing}: cannot be used, because {reason}")
        self.closing, self.in_flight, self.poll, self.min_replies = closing, in_flight, poll, min_replies
        self.staleness, self.mixing, self.max_staleness = closing.staleness, False, None
        self.min_nodes, self.node_wait, self._needed = min_nodes, node_wait, min_replies
        self.secure_aggregation = secure_aggregation
        self.registry = NodeRegistry(
            self.example_limits,
            admission,
            held_out,
            min_nodes=min_nodes,
            min_replies=min_replies,
            node_wait=node_wait,
            in_flight=in_flight,
            asks=self._needs_profiles(admission, example_limits, held_out) if profiles is None else profiles,
        )
        if secure_aggregation:
            noised = self.privacy_gap if secure_aggregation.noise else ""
            secure_aggregation.check_strategy(self, self.secrecy_conflict() or noised)

    def _needs_profiles(self, *parts: object) -> bool:
        """Whether the strategy or one of its parts needs more than the nodes' ids."""
        samplers = (self.sampler, self.evaluate_sampler)
        return self.needs_profiles or any(parts) or any(sampler.needs_profiles for sampler in samplers)

    @classmethod
    def own_hooks(cls) -> list[str]:
        """Those hooks of the class that take all updates of a step to come from the current version."""
        return [name for name in _SYNCHRONOUS_HOOKS if getattr(cls, name) is not getattr(BaseStrategy, name)]

    @classmethod
    def secrecy_conflict(cls) -> str:
        """Why the sum of the updates is not enough for the strategy; empty if it is."""
        if cls.secrecy_gap is not None:
            return cls.secrecy_gap
        single = [name for name in ("refusal_reason", "fold") if name in cls.own_hooks()]
        return cls.privacy_gap or (f"it reads single replies ({', '.join(single)})" if single else "")

    def summary(self) -> None:
        """Log the parts of this strategy."""
        log(INFO, "\t├── shared: %s", shortened(self.shared) or "nothing")
        log(INFO, "\t├── sampler: %s; evaluation: %s", self.sampler, self.evaluate_sampler)
        if self.compression:
            log(INFO, "\t├── compression: %s", self.compression)
        if self.secure_aggregation:
            no_node = (
                "" if self.secure_aggregation.evaluate else "; no node evaluates, whose reply would show its metrics"
            )
            log(INFO, "\t├── secure aggregation: %s%s", self.secure_aggregation, no_node)
        log(INFO, "\t├── aggregation: %s", self.aggregation or "weighted mean")
        log(INFO, "\t└── server optimizer: %s; min_replies: %s", self.server_optimizer, self.min_replies)

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
        nodes = [self.label(node) for node in self.registry.connected(grid, held_out=True) if not node.ineligible]
        log(INFO, "%s nodes that were held out evaluate", len(nodes))
        arrays = self.share(arrays)
        messages = self._messages("evaluate", nodes, server_round, arrays, config)
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
        (message,) = self._messages("evaluate", nodes, server_round, arrays, config)
        return message


def _sampler(name: str, sampler: Sampler | None, phase: str, fraction: float | None, minimum: int | None) -> Sampler:
    """The sampler of a phase: the one that is set, or that of Flower's arguments; raises ``ValueError`` for both."""
    if sampler is None:
        share = 1.0 if fraction is None else fraction
        return UniformFraction(share, (minimum or 0) if share else 0)
    for argument, value in ((f"fraction_{phase}", fraction), (f"min_{phase}_nodes", minimum)):
        if value is not None:
            raise ValueError(f"{argument} = {value}: {name} = {sampler} decides who takes part; remove one of them")
    return sampler
