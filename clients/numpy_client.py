"""Flower's ``NumPyClient`` methods for a node that works on named arrays and numbered rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from fedapps.strategies.wire import SERVER_ROUND
from fedapps.tasks.base import Metrics
from flwr.app import ConfigRecord, RecordDict
from flwr.client import NumPyClient
from flwr.common import Scalar

from .arrays import Arrays
from .base import FederatedClient
from .settings import RoundSettings

_COUNTER = "fedapps.fits"


class NumPyClientAdapter(NumPyClient):
    """A node as Flower's ``NumPyClient``. The lists are in the order of :meth:`FederatedClient.initial_shared`.

    Parameters
    ----------
    node : FederatedClient
        A message's config overrides the hyper-parameters of its local parts.
    settings : RoundSettings
        The defaults that a message's config overrides.
    shared : sequence of str
        Glob patterns of the shared parameters.
    memory : RecordDict, optional
        ``Context.state``, where the client counts rounds if the strategy does not number them.
    """

    def __init__(
        self,
        node: FederatedClient,
        settings: RoundSettings,
        shared: Sequence[str] = ("*",),
        memory: RecordDict | None = None,
    ) -> None:
        self.node = node
        self.parts = node.parts
        self.settings = settings
        self.shared = shared
        self.memory = memory

    def get_parameters(self, config: Mapping[str, object]) -> list[np.ndarray]:
        """The initial shared parameters, in ``state_dict`` order."""
        return list(self.node.initial_shared(self.shared).values())

    def fit(
        self, parameters: list[np.ndarray], config: Mapping[str, object]
    ) -> tuple[list[np.ndarray], int, dict[str, Scalar]]:
        """One round of training; see :meth:`FederatedClient.train_round`."""
        self._read(config)
        reply = self.node.train_round(self._named(parameters), self._settings(config, fitting=True))
        return list(reply.arrays.values()), reply.num_examples, _scalars(reply.metrics)

    def evaluate(
        self, parameters: list[np.ndarray], config: Mapping[str, object]
    ) -> tuple[float, int, dict[str, Scalar]]:
        """Loss (the first metric), number of examples, and all metrics; see :meth:`FederatedClient.evaluate_round`."""
        self._read(config)
        reply = self.node.evaluate_round(self._named(parameters), self._settings(config, fitting=False))
        metrics = _scalars(reply.metrics)
        return float(next(iter(metrics.values()))), reply.num_examples, metrics

    def _read(self, config: Mapping[str, object]) -> None:
        """Give the local parts the hyper-parameters of this message; those of earlier messages do not count."""
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


def _scalars(metrics: Metrics) -> dict[str, Scalar]:
    return {name: float(value) for name, value in metrics.items() if not isinstance(value, list)}
