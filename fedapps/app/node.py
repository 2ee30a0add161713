"""A node as one message finds it: config, task, method, data; and what it does with the message."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from logging import WARNING
from pathlib import Path
from typing import TypeVar

import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.common import log
from torch import nn

from fedapps.base.atomic import UnwritableError
from fedapps.base.seeding import has_gpus
from fedapps.clients.arrays import private_of
from fedapps.clients.base import FederatedClient, PreparedModel, RoundResult
from fedapps.clients.data import DataSource, cached_load, cached_on
from fedapps.clients.guard import Guard
from fedapps.clients.kept_models import KeptModels, check_accepted, keeps_models
from fedapps.clients.local_part import LocalPart, composed
from fedapps.clients.new_node import NewNode
from fedapps.clients.numpy_client import NumPyClientAdapter
from fedapps.clients.rules import NodeLimits, RulesError
from fedapps.clients.settings import LocalTraining, RoundSettings, received_arrays
from fedapps.clients.state import ContextState, DiskState, PrivateState, known_words
from fedapps.methods.base import Method
from fedapps.strategies import wire
from fedapps.strategies.arrays import to_record
from fedapps.strategies.stopwatch import timed
from fedapps.tasks.base import Metrics, NodeData, Task
from fedapps.tasks.profiles import OtherFilesError, PrivateParameters
from fedapps.tasks.trained import Origin, TrainedModel, trained_class, versions

from .disclosure import Disclosure, UntrainedError, registry_label

Client = TypeVar("Client", bound=FederatedClient)


class Node:
    """A node that works on one message."""

    def __init__(self, message: Message, context: Context) -> None:
        self.message = message
        self.context = context
        self.disclosure = Disclosure.of(context)
        self.config = self.disclosure.config
        torch.set_num_threads(self.config.run.node_cpus)
        sent = message.content.get(wire.CONFIG)
        self.round_config = sent if isinstance(sent, ConfigRecord) else ConfigRecord()
        label = str(self.round_config["method"]) if "method" in self.round_config else None
        self.work = _work_of(self.disclosure, label)
        self.method = self.work.method
        default = RoundSettings(run=f"run-{context.run_id}", training=self.work.training)
        self.settings = default.with_config(self.round_config)

    def train(self) -> Message:
        """The reply to a TRAIN message."""
        client = self._client(FederatedClient, pooled=self.method.pools_data)
        if self.work.source.partition is None:
            whole = cached_load(self.work.source, client.task, pooled=False)
            self.disclosure.note_examples(whole.key, self.disclosure.trained(whole.count("train")))
        return self._reply(client.train_round(received_arrays(self.message), self.settings), arrays=True)

    def evaluate(self) -> Message:
        """The reply to an EVALUATE message."""
        if wire.PROMOTE in self.round_config:
            return self._reply(self._promoted(), arrays=False)
        if self.round_config.get(wire.HELD_OUT):
            return self._reply(self._as_new_node(), arrays=False)
        if self.config.run.gate:
            client = self.client()
            return self._reply(client.evaluate_prepared(self._as_used(client)), arrays=False)
        return self._reply(self.client().evaluate_round(received_arrays(self.message), self.settings), arrays=False)

    def answer(self, query: str) -> Message:
        """The reply to a QUERY message of the method.

        Raises ``ValueError`` for a query that the method does not have, whatever its local parts can answer.
        """
        if query not in self.method.queries:
            known = ", ".join(self.method.queries) or "none"
            raise ValueError(f"query {query!r}: the method {self.settings.method!r} answers {known}")
        records = self.client().answer(query, self.settings)
        return Message(RecordDict(dict(records)), reply_to=self.message)

    def client(self) -> FederatedClient:
        """The client on this node's data and private state, with the method's local parts as the message sets them."""
        return self._client(FederatedClient)

    def new_node(self) -> NewNode:
        """The same as a node that took no part in the rounds."""
        return self._client(NewNode)

    def numpy_client(self) -> NumPyClientAdapter:
        """The client as Flower's ``NumPyClient``.

        Raises
        ------
        RulesError
            The run has local privacy or secure aggregation, or the node config limits what may leave. The mods of the
            ClientApp see to all, and a ``NumPyClient`` does not pass them.
        """
        disclosure = self.disclosure
        if disclosure.hides:
            raise RulesError(
                f"{disclosure.hides}: a NumPyClient sends its updates without noise or masks; use client_app:app"
            )
        if limits := disclosure.rules.may_leave:
            raise RulesError(f"may-leave = {limits!r}: a NumPyClient sends all metrics; use the app of client_app")
        return NumPyClientAdapter(self.client(), self.settings, memory=self.context.state, working=self._working)

    def _working(self) -> AbstractContextManager[None]:
        """The limits of the node. Raises :class:`RulesError` if it may not work now."""
        self.disclosure.rules.check_eligible()
        return NodeLimits.of(self.context.node_config).applied()

    def compression_state(self) -> PrivateState:
        """The errors of the node's compressed replies."""
        return self._state(self._data(self.work.task, pooled=False).key, "compression")

    def _client(self, kind: type[Client], *, pooled: bool = False) -> Client:
        run, task = self.config.run, self.work.task
        self._check_files(task)
        parts = [part.read(self.round_config, self.message.content) for part in self.work.parts]
        own = self._data(task, pooled=False)
        words = task.words(own)
        trains = self.message.metadata.message_type.startswith("train")
        if self.disclosure.note_run(own.key, self.settings, trains=trains):
            _disk_state.cache_clear()
        state = self._state(own.key)
        if words and (known := known_words(state)) not in ((), words):
            task = task.knowing(known)
            own = self._data(task, pooled=False)
        return kind(
            task,
            self._data(task, pooled=True) if pooled else own,
            state,
            parts=parts,
            collectors=state.siblings() if pooled else [state],
            seed=run.seed,
            device=choose_device(run.device),
            guard=self.work.guard,
            keep=partial(self._keep, task, own) if self.work.keeps else None,
        )

    def _check_files(self, task: Task) -> None:
        """Raise :class:`OtherFilesError` if what is never trained differs from the server's."""
        digest = self.round_config.get(wire.FIXED_DIGEST)
        if digest and (own := task.fixed_digest) != digest:
            raise OtherFilesError(
                f"{task.fixed_source}: the frozen weights of this node differ from the server's "
                f"(digest {own[:12]} here, {str(digest)[:12]} there); give this node a copy of the server's files"
            )

    def _as_new_node(self) -> RoundResult:
        """The metrics of the model that came, of the same after adaptation, and of one trained alone for as long."""
        settings, received = self.settings, received_arrays(self.message)
        received_as_is = replace(settings, training=settings.training.for_epochs(0))
        alone = replace(settings, training=self.config.run.training.for_epochs(settings.training.epochs))
        node = self.new_node()
        results = (
            node.adapt_round(received, received_as_is),
            node.adapt_round(received, settings),
            self._alone(node).adapt_round({}, alone),
        )
        metrics = {
            prefix + name: value
            for prefix, result in zip(wire.HELD_OUT_PREFIXES, results, strict=True)
            for name, value in result.metrics.items()
        }
        return RoundResult({}, results[0].num_examples, metrics)

    def _alone(self, node: NewNode) -> NewNode:
        """The same node under no method: it shares nothing."""
        task = self.config.task.under(PrivateParameters(("*",)))
        data = self._data(task, pooled=False)
        return NewNode(task, data, node.private, seed=node.seed, device=node.device)

    def _data(self, task: Task, *, pooled: bool) -> NodeData:
        with timed("data"):
            data = cached_on(choose_device(self.config.run.device), self.work.source, task, pooled)
        run = self.config.run
        if run.held_back or run.newest != "all":
            data = self._newest(task, data)
        return task.without_test(data) if self.config.run.withhold_test else data

    def _newest(self, task: Task, data: NodeData) -> NodeData:
        """The data with those training examples that the run takes; a gate tests on those that are held back."""
        count = data.count("train")
        end = self.disclosure.trained(count)
        start = end - self.disclosure.taken(data.key, end)
        return task.within(data, start, end, test=bool(self.config.run.gate) and end < count)

    def _state(self, key: str, *part: str) -> PrivateState:
        """The private state of a node, or a part of it."""
        run = self.config.run
        if run.state_backend == "context":
            return ContextState(self.context.state, scope=".".join(["private", self.settings.method, *part]))
        runs, durable = (self.settings.run, *self.settings.lineage), self.disclosure.durable
        return _disk_state(self.disclosure.root, runs, self.settings.method, key, *part, durable=durable)

    def _keep(
        self, task: Task, data: NodeData, phase: str, module: nn.Module, settings: RoundSettings, result: RoundResult
    ) -> None:
        """Keep the node's personal model for other programs. If it cannot be written, the round goes on."""
        name = self.config.run.name or settings.run
        model = self._trained(task, data, module, settings, result.metrics)
        models = KeptModels.of(self.disclosure.root, name, settings.method, data.key)
        try:
            models.keep(model, phase)
        except UnwritableError as error:
            log(WARNING, "the model of round %s is not kept: %s", settings.server_round, error)

    def _trained(
        self, task: Task, data: NodeData, module: nn.Module, settings: RoundSettings, metrics: Metrics
    ) -> TrainedModel:
        """The node's personal model in a round."""
        run = self.config.run
        origin = Origin(
            run=run.name or settings.run,
            method=settings.method,
            node=data.key,
            round=settings.server_round,
            stage=settings.stage,
            rounds=run.rounds,
            seed=run.seed,
            examples=data.count("train"),
            metrics=metrics,
            versions=versions(),
            settings=self.config.flat(),
        )
        private = self.method.private(self.config.task)
        return trained_class(task)(task, module, task.facts(data), origin, private=private, own=data)

    def _as_used(self, client: FederatedClient) -> PreparedModel:
        """The model of a champion or a challenger as this node uses it. Raises :class:`UntrainedError`."""
        prepared = client.prepared_model(received_arrays(self.message), self.settings)
        private = self.method.private(self.config.task).patterns
        if private and not private_of(prepared.node_round.kept) and not prepared.prepared.steps:
            raise UntrainedError(
                f"{', '.join(private)} of the model would be untrained on node {client.data.key}, which took no part "
                "in its run"
            )
        return prepared

    def _promoted(self) -> RoundResult:
        """Use the model that the message makes on this node from now on; its metrics do not leave the node."""
        client, settings = self.client(), self.settings
        prepared = self._as_used(client)
        model = self._trained(client.task, client.data, prepared.at(settings.stage), settings, {})
        generation = self.round_config[wire.PROMOTE]
        if type(generation) is not int or generation < 1:
            raise ValueError(f"config {wire.PROMOTE} = {generation!r}: must be a whole number of at least 1")
        check = partial(check_accepted, self.context.node_config)
        label = registry_label(self.round_config)
        self.disclosure.champions(client.data.key, label).keep(model, f"generation{generation}", check)
        return RoundResult({}, 1, {})

    def _reply(self, result: RoundResult, *, arrays: bool) -> Message:
        metrics = MetricRecord({**result.metrics, wire.NUM_EXAMPLES: result.num_examples})
        content = RecordDict({wire.METRICS: metrics})
        if arrays:
            with timed("encode"):
                content[wire.ARRAYS] = to_record(result.arrays)
        for name, record in result.records.items():
            content[name] = record
        return Message(content, reply_to=self.message)


def choose_device(wanted: str) -> torch.device:
    """The device of the nodes; ``auto`` is a GPU if there is one.

    Raises
    ------
    ValueError
        ``cuda`` is wanted and there is no GPU, or the device is unknown.
    """
    if wanted not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device = {wanted!r}: must be auto, cpu or cuda")
    available = has_gpus()
    if wanted == "cuda" and not available:
        raise ValueError("device = 'cuda', but torch finds no GPU on this node: use 'auto' or 'cpu'")
    return torch.device("cuda" if available and wanted != "cpu" else "cpu")


@dataclass(frozen=True)
class _Work:
    """What the messages of one method to a node of a run have in common: it is found out once a process."""

    method: Method
    task: Task
    training: LocalTraining
    parts: tuple[LocalPart, ...]
    source: DataSource
    guard: Guard
    keeps: bool


@lru_cache(maxsize=4096)  # of the nodes of a process
def _work_of(node: Disclosure, label: str | None) -> _Work:
    """The work of the method that a message names; of plain federated averaging where it names none, as Flower's
    strategies do.

    A message that names no method may ask for what one of the run's methods shares. Otherwise a server would only have
    to leave the name out. Raises ``ValueError`` for a method that the run config does not have.
    """
    config = node.config.checked
    if label is not None and label not in config.methods:
        raise ValueError(f"config method = {label!r}: the run config has the methods {', '.join(config.methods)}")
    method = Method() if label is None else config.methods[label]
    methods = list(config.methods.values()) if label is None else [method]
    return _Work(
        method,
        config.task_of(method),
        method.training(config.run_of(label or "").training),
        composed(method.local_parts()),
        config.run.source(config.task, node.node_config),
        Guard.of(node.node_config, [one.private(config.task).patterns for one in methods]),
        keeps_models(node.node_config),
    )


@lru_cache(maxsize=4096)
def _disk_state(root: Path, runs: tuple[str, ...], method: str, key: str, *part: str, durable: bool) -> DiskState:
    """The state of a node, or a part of it. In its first message of a run it begins as that of an earlier run."""
    own, *earlier = (DiskState.of(root, run, method, key, durable=durable) for run in runs)
    own.begin_from(state.folder for state in earlier)
    return DiskState.of(own.folder, *part, durable=durable)
