"""Flower's ``NumPyClient`` methods for a node that works on named arrays and numbered rounds."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import numpy as np
import torch
from fedapps.strategies.wire import SERVER_ROUND
from fedapps.tasks.base import Metrics, missing
from flwr.app import ConfigRecord, RecordDict
from flwr.client import NumPyClient
from flwr.common import Scalar

from .arrays import Arrays
from .base import FederatedClient, PreparedModel
from .settings import RoundSettings
from .training import EXAMPLES_AT_ONCE, mean_loss

_COUNTER = "fedapps.fits"


class NumPyClientAdapter(NumPyClient):
    """A node as Flower's ``NumPyClient``. The lists are in the order of :meth:`FederatedClient.initial_shared`.

    Parameters
    ----------
    node : FederatedClient
    settings : RoundSettings
        The defaults that a message's config overrides.
    shared : sequence of str
        Glob patterns of the shared parameters.
    memory : RecordDict, optional
        ``Context.state``, where the client counts rounds if the strategy does not number them.
    working : function
        Returns the context of the work of each message, such as the limits of the node; raises if it may not work.
    """

    def __init__(
        self,
        node: FederatedClient,
        settings: RoundSettings,
        shared: Sequence[str] = ("*",),
        memory: RecordDict | None = None,
        working: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.node = node
        self.parts = node.parts
        self.settings = settings
        self.shared = shared
        self.memory = memory
        self.working = working

    def get_parameters(self, config: Mapping[str, object]) -> list[np.ndarray]:
        """The initial shared parameters, in ``state_dict`` order."""
        return list(self.node.initial_shared(self.shared).values())

    def fit(
        self, parameters: list[np.ndarray], config: Mapping[str, object]
    ) -> tuple[list[np.ndarray], int, dict[str, Scalar]]:
        """One round of training; see :meth:`FederatedClient.train_round`."""
        with self.working():
            self._read(config)
            reply = self.node.train_round(self._named(parameters), self._settings(config, fitting=True))
        return list(reply.arrays.values()), reply.num_examples, _scalars(reply.metrics)

    def evaluate(
        self, parameters: list[np.ndarray], config: Mapping[str, object]
    ) -> tuple[float, int, dict[str, Scalar]]:
        """The task's loss, the number of examples, and all metrics; see :meth:`FederatedClient.evaluate_round`.

        The loss is the mean over the node's test examples, or over those for validation or training if it has no
        others. Where a task mines its examples with the model, it is the mean over one epoch of training batches.
        """
        with self.working():
            self._read(config)
            prepared = self.node.prepared_model(self._named(parameters), self._settings(config, fitting=False))
            reply = self.node.evaluate_prepared(prepared)
            return evaluation_loss(prepared), reply.num_examples, _scalars(reply.metrics)

    def _read(self, config: Mapping[str, object]) -> None:
        """Give the local parts what this message brings; what earlier messages brought does not count."""
        self.node.parts = self.parts.read(config, RecordDict())

    def _settings(self, config: Mapping[str, object], *, fitting: bool) -> RoundSettings:
        """The settings of a message. If it has no round number, the round is counted in the context."""
        settings = self.settings.with_config(config)
        if SERVER_ROUND in config or self.memory is None:
            return settings
        before = self.memory.config_records.get(_COUNTER, ConfigRecord({"fits": 0}))
        fits = int(str(before["fits"])) + fitting
        self.memory[_COUNTER] = ConfigRecord({"fits": fits})
        return replace(settings, server_round=max(fits, 1))

    def _named(self, parameters: list[np.ndarray]) -> Arrays:
        names = list(self.node.initial_shared(self.shared))
        if len(names) != len(parameters):
            raise ValueError(
                f"received {len(parameters)} arrays, but {len(names)} parameters match shared = "
                f"{list(self.shared)}: {', '.join(names)}"
            )
        return dict(zip(names, parameters, strict=True))


def evaluation_loss(prepared: PreparedModel) -> float:
    """The task's mean loss of a model on the data of its round (:meth:`NumPyClientAdapter.evaluate`)."""
    node_round = prepared.node_round
    task, data, device = node_round.task, node_round.data, node_round.device
    model = prepared.at(node_round.settings.stage)
    mined = bool(missing(task, "examples"))
    splits = ("train",) if mined else ("test", "validation", "train")
    split = next((name for name in splits if data.count(name)), "")
    if not split:
        raise ValueError(f"node {data.key} has no examples to measure a loss on: leave it out of evaluations")
    total, examples = 0.0, 0
    with node_round.torch_seed("loss"), torch.no_grad():
        if not mined:
            return mean_loss(task, model, data, split, device)
        for batch in node_round.epochs(model, data)(EXAMPLES_AT_ONCE):
            size = len(next(iter(batch.values())))
            tensors = {name: tensor.to(device) for name, tensor in batch.items()}
            total, examples = total + size * float(task.loss(model, tensors)), examples + size
    return total / examples


def _scalars(metrics: Metrics) -> dict[str, Scalar]:
    return {name: float(value) for name, value in metrics.items() if not isinstance(value, list)}
