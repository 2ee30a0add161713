"""The ClientApp: a message comes in, the task's client does the work, a reply goes out."""

import traceback
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from logging import WARNING
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import Client, ClientApp
from flwr.common.logger import log

from clients.base import FederatedClient, RoundResult
from clients.data_sources import DataSource, cached_load, find_source
from clients.decomposed_client import ADAPTIVE, DecomposedClient, Knowledge
from clients.files import UnwritableError
from clients.fisher_client import FisherClient, FisherOrder
from clients.reconstruction import ReconstructingClient
from clients.round_settings import RoundSettings
from clients.state import ContextState, DiskState, PrivateState
from fedapps.catalogue import privacy_of, task_class
from fedapps.config.parsing import Config, parse
from fedapps.config.run_config import RunConfig
from fedapps.runs.run_folder import run_path
from strategies.arrays import from_record
from strategies.wire import HIERARCHICAL_SHARED
from tasks.base import DataError, Task

from .privacy import node_mod

Handler = Callable[[Message, Context], Message]
#: Where a deployed node keeps its private state if its node config has no state-dir.
DEFAULT_STATE = "~/fedapps/nodes"


class NodeFailedError(RuntimeError):
    """Work on a node failed; the message holds the traceback, because Flower's error replies carry no other."""


def told_in_full(handler: Handler) -> Handler:
    """Have the server see the traceback of what went wrong here; what is wrong with data or disk needs none."""

    def handle(message: Message, context: Context) -> Message:
        try:
            return handler(message, context)
        except NodeFailedError:
            raise
        except (DataError, UnwritableError) as error:
            raise NodeFailedError(str(error)) from None
        except Exception as error:
            raise NodeFailedError(f"{error}\n{traceback.format_exc()}") from None  # or it would be told twice

    return handle


app = ClientApp()


@app.query("profile")
@told_in_full
def profile(message: Message, context: Context) -> Message:
    """Who this node is: its stable key, how much it has to learn from, its groups.

    A deployed node whose data is missing or cannot be read says so, here and to the server, and is asked nothing more.
    """
    try:
        record = _profile(Node(context))
    except (DataError, OSError) as error:
        if not has_own_folder(context.node_config):
            raise
        log(WARNING, "this node takes no part in the run, it has no data for it: %s", error)
        record = ConfigRecord({"key": f"no-data-{context.node_id}", "num-examples": 0, "no-data": str(error)})
    return Message(RecordDict({"profile": record}), reply_to=message)


def private_training(message: Message, context: Context, call_next: Handler) -> Message:
    """Guards the reply as the run config's ``dp`` says, or the message's ``clipping_norm``."""

    def guarded(message: Message, context: Context) -> Message:
        config, _ = _config_and_task(tuple(sorted(context.run_config.items())))
        mod = node_mod(config.run, message, context)
        return mod(message, context, call_next) if mod else call_next(message, context)

    return told_in_full(guarded)(message, context)


@app.train(mods=[private_training])
@told_in_full
def train(message: Message, context: Context) -> Message:
    """Train on this node's data and give back the names that came."""
    node = Node(context)
    settings = node.settings(message)
    client = node.client(settings, message.content)
    reply = client.train_round(_arrays(message), settings)
    return _reply(message, reply, arrays=True, more=client.publish(reply, settings))


@app.query("adaptive")
@told_in_full
def adaptive(message: Message, context: Context) -> Message:
    """What this node learned in the stage that ended, for the knowledge base of FedWeIT."""
    node = Node(context)
    settings = node.settings(message)
    client = node.client(settings)
    if not isinstance(client, DecomposedClient):
        raise ValueError(f"decomposition = {settings.decomposition!r}: this node keeps nothing apart for a stage")
    return Message(RecordDict({ADAPTIVE: _to_record(client.adaptive(settings))}), reply_to=message)


@app.evaluate()
@told_in_full
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate on this node's data, personalised first where the server asks for it."""
    node = Node(context)
    settings = node.settings(message)
    rates = message.content.array_records.get("adaptive.rates")
    shared = message.content.array_records.get(HIERARCHICAL_SHARED)
    reply = node.client(settings).evaluate_round(
        _arrays(message),
        settings,
        None if rates is None else from_record(rates),
        None if shared is None else from_record(shared),
    )
    return _reply(message, reply, arrays=False)


class Node:
    """A node as one message finds it: config, task, data source."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.config, self.task = _config_and_task(tuple(sorted(context.run_config.items())))
        run = self.config.run
        torch.set_num_threads(run.node_cpus)
        self.source = data_source(run, self.task, context.node_config)

    def settings(self, message: Message) -> RoundSettings:
        """This round's settings: the run config's, overridden by the message's."""
        own = default_settings(self.config.run, self.context)
        return own.updated(message.content.config_records.get("config", {}))

    def client(self, settings: RoundSettings, content: RecordDict | None = None) -> FederatedClient:
        """The task's client on this node's data and private state, with the local algorithm that is asked for.

        ``content`` are the records of a TRAIN message, whose orders it takes.
        """
        run = self.config.run
        task = self.task.under(privacy_of(settings.method))
        own = cached_load(self.source, task, False)
        state = self._state(settings, own.key)
        kind = _kind(settings, content or RecordDict())
        return kind(
            task,
            cached_load(self.source, task, True) if settings.pooled else own,
            state,
            settings,
            collectors=state.siblings() if settings.pooled else [state],
            memory=self.context.state,
            seed=run.seed,
            device=choose_device(run.device),
        )

    def _state(self, settings: RoundSettings, key: str) -> PrivateState:
        run = self.config.run
        if run.state_backend == "context":
            return ContextState(self.context.state, scope=f"private.{settings.method}")
        return DiskState(state_root(run, self.context) / settings.run / settings.method / key)


def _profile(node: Node) -> ConfigRecord:
    first, *_ = node.config.run.method_names()
    data = cached_load(node.source, node.task.under(privacy_of(first)), False)
    groups = {f"group.{name}": label for name, label in data.groups.items()}
    return ConfigRecord({"key": data.key, "num-examples": data.count("train"), **groups})


def has_own_folder(node_config: Mapping[str, Any]) -> bool:
    """Whether a node with this config is a deployed one, which learns from a folder of its own."""
    return bool(node_config.get("data-dir")) or "partition-id" not in node_config


def data_source(run: RunConfig, task: Task, node_config: Mapping[str, Any]) -> DataSource:
    """Where a node with this config finds its data; see :func:`~clients.data_sources.find_source`."""
    cache_dir = Path(run.cache_dir or "~/fedapps/worlds").expanduser()
    return find_source(task, node_config, data_dir=run.data_dir, cache_dir=cache_dir, seed=run.seed)


def client_fn(context: Context) -> Client:
    """The same node behind Flower's older face: ``ClientApp(client_fn=client_fn)``."""
    node = Node(context)
    return node.client(default_settings(node.config.run, context)).to_client()


def default_settings(run: RunConfig, context: Context) -> RoundSettings:
    """How a node trains when the message does not say, as under Flower's own strategies."""
    return RoundSettings(
        run=f"run-{context.run_id}",
        epochs=run.epochs,
        learning_rate=run.learning_rate,
        batch_size=run.batch_size,
        optimizer=run.optimizer,  # type: ignore[arg-type]
        weight_decay=run.weight_decay,
        clip_norm=run.clip_norm,
        linear_decay=run.linear_decay,
        plateau_patience=run.plateau_patience,
        plateau_factor=run.plateau_factor,
        min_learning_rate=run.min_learning_rate,
        personal_epochs=run.personal_epochs,
        personal_learning_rate=run.personal_learning_rate,
    )


def state_root(run: RunConfig, context: Context) -> Path:
    """Where this node keeps its private state: its own ``state-dir``, or in simulation the run's folder."""
    if own := context.node_config.get("state-dir"):
        return Path(str(own)).expanduser()
    if "partition-id" in context.node_config:
        return run_path(run, context.run_id) / "nodes"
    return Path(DEFAULT_STATE).expanduser()


def choose_device(wanted: str) -> torch.device:
    """``auto`` is a GPU when there is one. Raises ``ValueError`` when ``cuda`` is wanted and there is none."""
    available = torch.cuda.is_available()
    if wanted == "cuda" and not available:
        raise ValueError("device = 'cuda', but torch finds no GPU on this node: use 'auto' or 'cpu'")
    return torch.device("cuda" if available and wanted != "cpu" else "cpu")


def _kind(settings: RoundSettings, content: RecordDict) -> Callable[..., FederatedClient]:
    if settings.reconstruct_epochs:
        return ReconstructingClient
    if settings.decomposition != "none":
        return partial(DecomposedClient, knowledge=Knowledge.read(content))
    order = FisherOrder.read(content)
    return FederatedClient if order.estimator is None else partial(FisherClient, order=order)


@lru_cache(maxsize=8)
def _config_and_task(run_config: tuple[tuple[str, Any], ...]) -> tuple[Config, Task]:
    config = parse(dict(run_config))
    return config, task_class(config.run.task)(config.options)


def _arrays(message: Message) -> dict[str, np.ndarray]:
    records = message.content.array_records
    if "arrays" not in records:
        raise ValueError(f"the message has no ArrayRecord 'arrays', only: {', '.join(records) or 'none'}")
    return from_record(records["arrays"])


def _to_record(arrays: Mapping[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def _reply(
    message: Message, reply: RoundResult, *, arrays: bool, more: Mapping[str, ArrayRecord] | None = None
) -> Message:
    metrics = MetricRecord({**reply.metrics, "num-examples": reply.num_examples})
    content = RecordDict({"metrics": metrics})
    if arrays:
        content["arrays"] = _to_record(reply.arrays)
    for name, record in (more or {}).items():
        content[name] = record
    return Message(content, reply_to=message)
