"""The ClientApp: a message comes in, the task's client does the work, a reply goes out.

Whatever needs torch is imported where a node trains or evaluates: a worker that only says who its node is starts
without (:mod:`fedapps.profile_query`).
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import Client, ClientApp

from clients.files import UnwritableError
from clients.sources import cached_load
from tasks.profiles import DataError

from .catalogue import privacy_of, task_class
from .profile_query import data_source, profile_record
from .run_config import RunConfig

if TYPE_CHECKING:
    import numpy as np
    import torch

    from clients.base import FederatedClient, Reply
    from clients.settings import RoundSettings
    from clients.state import PrivateState
    from tasks.base import Task

    from .config import Config

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
    """Who this node is: its stable key, how much it has to learn from, its groups."""
    return Message(RecordDict({"profile": profile_record(context)}), reply_to=message)


def private_training(message: Message, context: Context, call_next: Handler) -> Message:
    """Guards the reply as the run config's ``dp`` says, or the message's ``clipping_norm``."""

    def guarded(message: Message, context: Context) -> Message:
        from .privacy import node_mod

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
    from clients.decomposed_client import ADAPTIVE, DecomposedClient

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
    from strategies.arrays import from_record
    from strategies.hierarchical import SHARED

    node = Node(context)
    settings = node.settings(message)
    rates = message.content.array_records.get("adaptive.rates")
    shared = message.content.array_records.get(SHARED)
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
        import torch

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
        from clients.state import ContextState, DiskState

        run = self.config.run
        if run.state_backend == "context":
            return ContextState(self.context.state, scope=f"private.{settings.method}")
        return DiskState(state_root(run, self.context) / settings.run / settings.method / key)


def client_fn(context: Context) -> Client:
    """The same node behind Flower's older face: ``ClientApp(client_fn=client_fn)``."""
    node = Node(context)
    return node.client(default_settings(node.config.run, context)).to_client()


def default_settings(run: RunConfig, context: Context) -> RoundSettings:
    """How a node trains when the message does not say, as under Flower's own strategies."""
    from clients.settings import RoundSettings

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
        from .run_folder import run_path

        return run_path(run, context.run_id) / "nodes"
    return Path(DEFAULT_STATE).expanduser()


def choose_device(wanted: str) -> torch.device:
    """``auto`` is a GPU when there is one. Raises ``ValueError`` when ``cuda`` is wanted and there is none."""
    import torch

    available = torch.cuda.is_available()
    if wanted == "cuda" and not available:
        raise ValueError("device = 'cuda', but torch finds no GPU on this node: use 'auto' or 'cpu'")
    return torch.device("cuda" if available and wanted != "cpu" else "cpu")


def _kind(settings: RoundSettings, content: RecordDict) -> Callable[..., FederatedClient]:
    from clients.base import FederatedClient
    from clients.decomposed_client import DecomposedClient, Knowledge
    from clients.fisher_client import FisherClient, FisherOrder
    from clients.reconstruction import ReconstructingClient

    if settings.reconstruct_epochs:
        return ReconstructingClient
    if settings.decomposition != "none":
        return partial(DecomposedClient, knowledge=Knowledge.read(content))
    order = FisherOrder.read(content)
    return FederatedClient if order.estimator is None else partial(FisherClient, order=order)


@lru_cache(maxsize=8)
def _config_and_task(run_config: tuple[tuple[str, Any], ...]) -> tuple[Config, Task]:
    from .config import parse

    config = parse(dict(run_config))
    return config, task_class(config.run.task)(config.options)


def _arrays(message: Message) -> dict[str, np.ndarray]:
    from strategies.arrays import from_record

    records = message.content.array_records
    if "arrays" not in records:
        raise ValueError(f"the message has no ArrayRecord 'arrays', only: {', '.join(records) or 'none'}")
    return from_record(records["arrays"])


def _to_record(arrays: Mapping[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def _reply(message: Message, reply: Reply, *, arrays: bool, more: Mapping[str, ArrayRecord] | None = None) -> Message:
    metrics = MetricRecord({**reply.metrics, "num-examples": reply.num_examples})
    content = RecordDict({"metrics": metrics})
    if arrays:
        content["arrays"] = _to_record(reply.arrays)
    for name, record in (more or {}).items():
        content[name] = record
    return Message(content, reply_to=message)
