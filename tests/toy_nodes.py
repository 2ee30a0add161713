"""Nodes of this project on the toy task: their data in stages, their initial parameters, a ClientApp of them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from fedapps.clients.arrays import get_arrays
from fedapps.clients.base import FederatedClient
from fedapps.clients.local_part import LocalPart
from fedapps.clients.settings import LocalTraining, RoundSettings
from fedapps.clients.state import ContextState, DiskState
from fedapps.tasks.base import NodeData, Task
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import ClientApp
from toys import Arrays, ToyTask, arrays_of, record_of

from fedapps.base.options import with_values
from fedapps.base.seeding import torch_seed
from fedapps.methods.fedvocab import FedVocabOptions, FedVocabPart

NAMES = ["encoder.weight", "head.weight", "head.bias", "passes"]
SEED = 3
SETTINGS = RoundSettings(training=LocalTraining(epochs=2, learning_rate=0.05, batch_size=4))

ClientOf = Callable[[int, Message, Context], tuple[FederatedClient, RoundSettings]]
Records = Mapping[str, ArrayRecord]


def initial(names: list[str] = NAMES, seed: int = SEED) -> Arrays:
    """Parameters of the model that the nodes of a run with this seed start from."""
    with torch_seed(seed, "model"):
        return get_arrays(ToyTask().build_model(), names)


def staged(partition: int) -> NodeData:
    """Three stages: the data of partitions k, k + 3 and k + 6. They are validated on their test data."""
    task = ToyTask()
    stages = [task.data(partition + 3 * stage).splits for stage in range(3)]
    return replace(
        task.data(partition), stages=tuple({**splits, "validation": splits["test"]} for splits in stages)
    )  # fmt: skip


def node(
    state: Path | DiskState | ContextState,
    *parts: LocalPart,
    data: NodeData | None = None,
    task: Task | None = None,
    **more: Any,
) -> FederatedClient:
    """A node with these local parts, by default on the data of partition 1."""
    state = DiskState(state) if isinstance(state, Path) else state
    task, data = task or ToyTask(), data or ToyTask().data(1)
    return FederatedClient(
        task, data, state, parts=parts, **{"seed": SEED, "device": torch.device("cpu"), **more}
    )  # fmt: skip


def at(server_round: int, stage: int = 0, **changes: Any) -> RoundSettings:
    """The settings of a round."""
    return with_values(SETTINGS, {"server_round": server_round, "stage": stage, **changes})


def steps_by_autograd(penalty: Callable[[Mapping[str, Any], Mapping[str, Any]], Any]) -> Arrays:
    """The parameters of partition 1 after three steps of .05 on all its examples, from the initial ones.

    The gradient is that of the loss plus ``penalty(parameters, initial parameters)``.
    """
    task = ToyTask()
    model, batch = task.build_model(), task.data(1).splits["train"]
    model.load_state_dict({name: torch.from_numpy(array) for name, array in initial().items()})
    named = dict(model.named_parameters())
    start = {name: parameter.detach().clone() for name, parameter in named.items()}
    for _ in range(3):
        loss = task.loss(model, batch) + penalty(named, start)
        gradients = torch.autograd.grad(loss, list(named.values()))
        with torch.no_grad():
            for parameter, gradient in zip(named.values(), gradients, strict=True):
                parameter -= 0.05 * gradient
    return {name: parameter.detach().numpy() for name, parameter in named.items()}


def partition_of(context: Context) -> int:
    """Which toy node this is."""
    return int(context.node_config["partition-id"])


def nodes_app(client_of: ClientOf, more: Callable[[Any, Records], dict[str, float]] | None = None) -> ClientApp:
    """A ClientApp of the nodes that ``client_of(partition, message, context)`` gives, with their settings.

    It evaluates nothing. ``more(client, records of the reply)`` gives further metrics of training.
    """
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        client, settings = client_of(partition_of(context), message, context)
        reply = client.train_round(arrays_of(message.content["arrays"]), settings)
        further = more(client, reply.records) if more else {}
        metrics = MetricRecord({"num-examples": reply.num_examples, **further})
        content = {"arrays": record_of(reply.arrays), "metrics": metrics, **reply.records}
        return Message(RecordDict(content), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

    @app.query("profile")
    def profile(message: Message, context: Context) -> Message:
        record = ConfigRecord({"key": f"toy-{partition_of(context)}"})
        return Message(RecordDict({"profile": record}), reply_to=message)

    return app


def adaptive_updating(epochs: int = 0, rate: float = 1.0, before_evaluation: bool = False) -> FedVocabPart:
    """The local part of FedVocab; without epochs a round is plain training."""
    return FedVocabPart(
        FedVocabOptions(adapt_epochs=epochs, adapt_rate=rate, adapt_before_evaluation=before_evaluation)
    )
