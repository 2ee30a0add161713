"""Flower's ``NumPyClient`` methods for a client that works on named arrays and numbered rounds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from fedapps.strategies.wire import SERVER_ROUND
from fedapps.tasks.base import Metrics
from flwr.app import ConfigRecord, RecordDict
from flwr.client import NumPyClient
from flwr.common.typing import Scalar

from .arrays import Arrays
from .local_part import ComposedParts, RoundResult
from .settings import RoundSettings

_COUNTER = "fedapps.fits"


class NumPyClientAdapter(NumPyClient):
    """``fit``, ``evaluate`` and ``get_parameters`` by way of the abstract methods, which a subclass implements.

    The lists are in the order of :meth:`initial_shared`.

    Parameters
    ----------
    settings : RoundSettings
        The defaults that a message's config overrides.
    parts : ComposedParts
        The local algorithms, whose hyper-parameters a message's config overrides.
    shared : sequence of str
        Glob patterns of the shared parameters.
    memory : RecordDict or None
        ``Context.state``, where the client counts rounds if the strategy does not number them.
    """

    def __init__(
        self, settings: RoundSettings, parts: ComposedParts, shared: Sequence[str], memory: RecordDict | None
    ) -> None:
        self.settings = settings
        self.parts = self._default_parts = parts
        self.shared = shared
        self.memory = memory

    # -- the core ------------------------------------------------------------------------------------------

    @abstractmethod
    def train_round(self, received: Arrays, settings: RoundSettings) -> RoundResult:
        """Train on this node's data; give back the received names."""

    @abstractmethod
    def evaluate_round(self, received: Arrays, settings: RoundSettings) -> RoundResult:
        """Evaluate on this node's data."""

    @abstractmethod
    def initial_shared(self) -> Arrays:
        """The initial parameters that match ``shared``, in ``state_dict`` order."""

    # -- NumPyClient ------------------------------------------------------------------------------------------

    def get_parameters(self, config: Mapping[str, object]) -> list[np.ndarray]:
        """The initial shared parameters, in ``state_dict`` order."""
        return list(self.initial_shared().values())

    def fit(
        self, parameters: list[np.ndarray], config: Mapping[str, object]
    ) -> tuple[list[np.ndarray], int, dict[str, Scalar]]:
        """One round of training; see :meth:`train_round`."""
        self._read(config)
        reply = self.train_round(self._named(parameters), self._settings(config, fitting=True))
        return list(reply.arrays.values()), reply.num_examples, _scalars(reply.metrics)

    def evaluate(
        self, parameters: list[np.ndarray], config: Mapping[str, object]
    ) -> tuple[float, int, dict[str, Scalar]]:
        """Loss (the task's first metric), number of test examples, metrics; see :meth:`evaluate_round`."""
        self._read(config)
        reply = self.evaluate_round(self._named(parameters), self._settings(config, fitting=False))
        metrics = _scalars(reply.metrics)
        return float(next(iter(metrics.values()))), reply.num_examples, metrics

    def _read(self, config: Mapping[str, object]) -> None:
        """Give the local parts the hyper-parameters of this message; those of earlier messages do not count."""
        self.parts = self._default_parts.read(config, RecordDict())

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
        names = list(self.initial_shared())
        if len(names) != len(parameters):
            raise ValueError(
                f"received {len(parameters)} arrays, but {len(names)} parameters match shared = "
                f"{list(self.shared)}: {', '.join(names)}"
            )
        return dict(zip(names, parameters, strict=True))


def _scalars(metrics: Metrics) -> dict[str, Scalar]:
    return {name: float(value) for name, value in metrics.items() if not isinstance(value, list)}
