"""The base of all our strategies: federated averaging made of four replaceable parts.

An algorithm overrides the hooks at the end of :class:`BaseStrategy`; everything a federation needs in order to
stand up (sampling, refusing bad replies, streaming aggregation, checkpoints, resuming) is written here once.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017.
Reddi et al., Adaptive Federated Optimization, ICLR 2021 (the server optimizers).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from logging import INFO
from typing import Any, ClassVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from .aggregation import IntegerPolicy, StreamingMean
from .arrays import Arrays, from_record, select, to_record
from .example_limits import ExampleLimits
from .message_loop import exchange
from .metrics import MetricMean, MetricRule
from .node_registry import NodeRegistry
from .optimizers import SGD
from .privacy import PrivacyMechanism
from .profiles import Profile
from .replies import Reply, count_bytes, max_reply_bytes
from .reply_filter import ReplyFilter, too_few
from .round_loop import RoundConfig, Training
from .round_messages import ExtraRecords, build_messages
from .round_records import Checkpoints, DivergedError, RoundReport, RoundStep, TooFewRepliesError, TrackedMetric
from .samplers import Sampler, UniformFraction
from .server_optimizer import ServerOptimizer
from .transport import NodeFailure
from .validation import check_values
from .weighting import Weighting, to_weighting

#: So many bytes of replies that come before their turn are kept at the server; the others wait in the SuperLink.
EARLY_BYTES = 2**27
_OPTIMIZER = "optimizer."


class BaseStrategy(Strategy):
    """FedAvg over the shared parameters; the parent of every strategy of this package.

    Parameters
    ----------
    shared : sequence of str
        Glob patterns of the parameters that travel. A node returns exactly what it received; what is not
        shared is private to it. ``("*",)`` shares all (FedAvg), ``()`` nothing (local training only).
    sampler, evaluate_sampler : Sampler
        Which nodes train, and which evaluate; all of them by default.
    weighting : "num-examples", "uniform" or a Weighting
        The weight of a reply in the means of arrays and of metrics.
    metric_means : mapping from names of metrics to "weighted", "uniform" or "geometric"
        How :class:`MetricMean` averages them, in both phases; what is not named is "weighted".
    server_optimizer : ServerOptimizer
        Steps on the pseudo-gradient; SGD with learning rate 1 (the default) is FedAvg, bit for bit.
    integers : "newest" or "round"
        What becomes of integer and boolean arrays, which are never averaged into floats.
    privacy : PrivacyMechanism
        Hides single nodes in the mean: :class:`~strategies.privacy.CentralPrivacy`; nothing by default.
    sizes : ExampleLimits
        How many examples nodes may claim to have; any number by default.
    min_replies : int
        A round with fewer usable replies raises :class:`TooFewRepliesError`.
    min_nodes, node_wait : int, float
        Training starts when so many nodes are connected. Waiting for them and for their profiles ends so many seconds
        after the last sign of life (:class:`~strategies.connected.Roster`).
    poll : float
        Seconds between two looks for a reply, at first; grows to 0.5 while nothing comes.
    in_flight : int or None
        How many nodes work at a time, ``None`` for all: the next gets its message, profile queries included, when one
        has replied or is late.
    """

    #: Why :class:`~strategies.privacy.CentralPrivacy`, which guards the mean of the replies alone, is not enough.
    privacy_gap: ClassVar[str] = ""
    #: How many records of the form of the shared parameters a reply may bring: much larger ones are not looked into.
    reply_records: ClassVar[int] = 1

    def __init__(
        self,
        *,
        shared: Sequence[str] = ("*",),
        sampler: Sampler | None = None,
        evaluate_sampler: Sampler | None = None,
        weighting: str | Weighting = "num-examples",
        metric_means: Mapping[str, MetricRule] | None = None,
        server_optimizer: ServerOptimizer | None = None,
        integers: IntegerPolicy = "newest",
        privacy: PrivacyMechanism | None = None,
        sizes: ExampleLimits | None = None,
        min_replies: int = 1,
        min_nodes: int = 1,
        node_wait: float = 600.0,
        poll: float = 0.02,
        in_flight: int | None = None,
    ) -> None:
        if isinstance(shared, str):
            raise ValueError(f"shared = {shared!r}: must be a list of patterns, for example [{shared!r}]")
        for name, least in (("min_replies", min_replies), ("min_nodes", min_nodes), ("in_flight", in_flight)):
            if least is not None and least < 1:
                raise ValueError(f"{name} = {least}: must be at least 1")
        self.shared = tuple(shared)
        self.sampler = sampler or UniformFraction(1.0)
        self.evaluate_sampler = evaluate_sampler or UniformFraction(1.0)
        self.weight_of = to_weighting(weighting)
        self.metric_means = dict(metric_means or {})
        MetricMean(self.metric_means)  # raises now, and not after a round of training
        self.server_optimizer = server_optimizer or SGD(1.0)
        self.integers, self.sizes = integers, sizes or ExampleLimits()
        self.privacy = privacy or PrivacyMechanism()
        self.privacy.check_strategy(self.weight_of, self.privacy_gap)
        self.min_replies, self.min_nodes = min_replies, min_nodes
        self.node_wait, self.poll, self.in_flight = node_wait, poll, in_flight
        self.report = RoundReport(0)
        self.registry = NodeRegistry(
            self.sizes, min_nodes=min_nodes, min_replies=min_replies, node_wait=node_wait, in_flight=in_flight
        )
        self._current: Arrays = {}

    # -- Flower's face -------------------------------------------------------------------------------------

    def summary(self) -> None:
        """Log what this strategy is made of."""
        log(INFO, "\t├── shared: %s", ", ".join(self.shared) or "nothing")
        log(INFO, "\t├── sampler: %s; evaluation: %s", self.sampler, self.evaluate_sampler)
        log(INFO, "\t└── server optimizer: %s; at least %s replies", self.server_optimizer, self.min_replies)

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
        checkpoints: Checkpoints | None = None,
        resume: bool = False,
        on_round: Callable[[RoundReport], None] | None = None,
    ) -> Result:
        """Run the federation and return Flower's ``Result``; its ``arrays`` are the shared parameters.

        Beyond Flower's arguments: ``train_config`` and ``evaluate_config`` may be functions of the round;
        ``evaluate_every`` spaces evaluations out (the last round is always evaluated); ``tracked`` names the
        metric of the best round and of early stopping; ``checkpoints`` keeps a snapshot after every round, from
        which ``resume`` goes on; ``on_round`` sees every round's report before its snapshot is kept.

        Raises :class:`TooFewRepliesError` when a round has fewer usable replies than ``min_replies``, and
        ``ValueError`` when the snapshot to resume from does not fit.
        """
        training = Training(
            strategy=self,
            grid=grid,
            num_rounds=num_rounds,
            timeout=timeout,
            train_config=train_config,
            evaluate_config=evaluate_config,
            evaluate_fn=evaluate_fn,
            evaluate_every=evaluate_every,
            tracked=tracked,
            checkpoints=checkpoints,
            on_round=on_round,
        )
        return training.run(self.share(initial_arrays), resume=resume)

    def share(self, arrays: ArrayRecord) -> ArrayRecord:
        """The part of a full model that travels. Raises ``ValueError`` for a pattern that matches nothing."""
        names = set(select(arrays.keys(), self.shared))
        return ArrayRecord({name: array for name, array in arrays.items() if name in names})

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One TRAIN message per sampled node, in the order of the stable keys; nodes without examples are left out."""
        if self.report.round != server_round:  # Flower's own loop makes no reports
            self.report = RoundReport(server_round)
        arrays = self.share(arrays)
        self._current = from_record(arrays)
        self.begin_round(server_round, self._current)
        able = [node for node in self.profiles(grid) if node.num_examples != 0]
        cohort = self.sampler.sample(able, server_round, "train")
        log(INFO, "round %s: %s nodes train", server_round, len(cohort))
        config = ConfigRecord({**config, **self.privacy.train_config()})
        return build_messages(
            cohort, MessageType.TRAIN, server_round, arrays, config, self.arrays_for, self.train_records
        )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message | NodeFailure]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Fold the replies one at a time into the mean, then let the round close."""
        mean, metrics = self.new_mean(), MetricMean(self.metric_means)
        for usable in self._intake("train").usable(replies):
            reply = self.privacy.clip_reply(usable, self.sent_to(usable.profile))
            self.mean_for(reply, mean).add(reply.arrays, reply.weight)
            metrics.add(reply.metrics, reply.weight)
            self.fold_reply(server_round, reply)
            del usable, reply  # or they would live on while the next one is awaited
        if metrics.count < self.min_replies:
            raise TooFewRepliesError(too_few(self.report, metrics.count, self.min_replies, self.registry.absent()))
        self.report.replies = metrics.count
        closed = self.close_round(server_round, self._current, mean.result() if mean.count else {})
        if fault := check_values(self._current, closed):
            raise DivergedError(f"round {server_round}: after the step of {self.server_optimizer}, {fault}")
        self._current = closed
        return to_record(self._current), metrics.result()

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One EVALUATE message per sampled node, in the order of the stable keys."""
        arrays = self.share(arrays)
        nodes = self.evaluate_sampler.sample(self.profiles(grid), server_round, "evaluate")
        return build_messages(
            nodes, MessageType.EVALUATE, server_round, arrays, config, self.arrays_for, self.evaluate_records
        )

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message | NodeFailure]) -> MetricRecord | None:
        """The means of the nodes' metrics, ``None`` when no node evaluated."""
        metrics = MetricMean(self.metric_means)
        for reply in self._intake("evaluate").usable(replies):
            metrics.add(reply.metrics, reply.weight)
            del reply
        return metrics.result() if metrics.count else None

    # -- what algorithms override --------------------------------------------------------------------------

    def begin_round(self, server_round: int, arrays: Arrays) -> None:
        """Called before the round's messages are made."""

    def train_records(self, server_round: int, profile: Profile) -> ExtraRecords:
        """Records that a training node receives beside ``arrays`` and ``config``."""
        return {}

    def evaluate_records(self, server_round: int, profile: Profile) -> ExtraRecords:
        """Records that an evaluating node receives beside ``arrays`` and ``config``."""
        return {}

    def label(self, profile: Profile) -> Profile:
        """A node as samplers and records see it: with the groups that the algorithm knows of, beside its own."""
        return profile

    def arrays_for(self, profile: Profile, shared: ArrayRecord) -> ArrayRecord:
        """What a node gets as ``arrays``, to train or to evaluate; of the same names, shapes and dtypes."""
        return shared

    def sent_to(self, profile: Profile) -> Arrays:
        """What :meth:`arrays_for` gave the node to train in this round."""
        return self._current

    def refusal_reason(self, reply: Reply) -> str | None:
        """Why a train reply that passed all other checks cannot be used, by what it brings beside the parameters."""
        return None

    def mean_for(self, reply: Reply, mean: StreamingMean) -> StreamingMean:
        """The running mean that takes in a usable train reply: the round's, where the algorithm keeps no others."""
        return mean

    def fold_reply(self, server_round: int, reply: Reply) -> None:
        """Take from a usable train reply whatever the algorithm needs beside the mean; keep no reply."""

    def close_round(self, server_round: int, current: Arrays, mean: Arrays) -> Arrays:
        """The next shared parameters, from the present ones and the weighted mean (empty if it took no reply in)."""
        return self.server_optimizer.step(current, mean)

    def state(self) -> Arrays:
        """What a snapshot keeps beside the shared parameters; :meth:`load_state` takes it back."""
        return {_OPTIMIZER + name: array for name, array in self.server_optimizer.state().items()}

    def load_state(self, state: Arrays) -> None:
        """Go on from the state of a snapshot."""
        saved = {name[len(_OPTIMIZER) :]: array for name, array in state.items() if name.startswith(_OPTIMIZER)}
        self.server_optimizer.load_state(saved)

    def round_info(self) -> dict[str, Any]:
        """Facts about the closed round for the run's records, JSON-able."""
        return {}

    # -- the machinery -------------------------------------------------------------------------------------

    def profiles(self, grid: Grid) -> list[Profile]:
        """The connected nodes with data that have told their profile, in the order of their keys."""
        return [self.label(node) for node in self.registry.connected(grid) if not node.no_data]

    def send(self, grid: Grid, messages: Iterable[Message], timeout: float) -> Iterable[Message | NodeFailure]:
        """Send the messages; yields a reply or a failure per message, in the order of the messages."""
        outgoing, largest = list(messages), 1
        for message in outgoing:
            largest = max(largest, size := count_bytes(message.content))
            self.report.count_message(message.metadata.message_type, size)
        ahead = EARLY_BYTES // largest  # a reply to training is about as large as its message
        return exchange(
            grid,
            outgoing,
            timeout,
            self.poll,
            ahead=ahead,
            in_flight=self.in_flight,
            beside=lambda: self.registry.queries.working,
            meanwhile=partial(self.registry.poll, grid),
        )

    def new_mean(self, label: str = "") -> StreamingMean:
        """An empty mean for replies of this round, one for each ``label``."""
        return self.privacy.mean(self.integers, self._current, self.report.round, label)

    def _intake(self, phase: RoundStep) -> ReplyFilter:
        profiles = {node: self.label(profile) for node, profile in self.registry.known.items()}
        expected, size = self._current if phase == "train" else None, max_reply_bytes(self._current, self.reply_records)
        parts = (self.weight_of, self.metric_means, size, self.sizes, self.refusal_reason)
        return ReplyFilter(self.report, phase, profiles, expected, *parts)
