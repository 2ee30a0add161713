"""SCAFFOLD: control variates correct the drift of local training.

Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020, Algorithm 1 with
Option II, https://arxiv.org/abs/1910.06378.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import torch
from flwr.app import RecordDict
from torch import nn

from fedapps.base.options import option
from fedapps.clients.arrays import Arrays, Counted, counted_round, get_arrays, kept_arrays, memory_of
from fedapps.clients.local_part import LocalPart, NodeRound
from fedapps.clients.penalties import QuadraticPrior
from fedapps.clients.settings import read_arrays
from fedapps.config.run_config import RunConfig
from fedapps.strategies import BaseStrategy
from fedapps.strategies import Scaffold as ScaffoldStrategy
from fedapps.strategies.wire import SCAFFOLD_CONTROL, SCAFFOLD_LENGTH
from fedapps.tasks.base import Metrics, Task

from .base import Conflict, Method, Scalar, StrategyParts, required

_CONTROL = Counted("scaffold.control")


@dataclass(frozen=True)
class ScaffoldOptions:
    """The options of SCAFFOLD."""

    global_learning_rate: float = option(1.0, "global step size η_g of the server", above=0)


class Scaffold(Method):
    """Nodes add the difference between the server's and their own control variate to every local gradient.

    In the paper all nodes take equally many steps. Where nodes have unequal numbers of examples, set ``steps`` rather
    than ``epochs``.
    """

    name = "scaffold"
    summary = "SCAFFOLD: FedAvg with control variates that correct the drift of local SGD"
    citation = (
        "Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020, "
        "https://arxiv.org/abs/1910.06378"
    )
    keeps = "control variate"
    good_for = "uneven data, equal numbers of SGD steps"
    message_sizes = (2.0, 1.0)
    Options = ScaffoldOptions
    Strategy = ScaffoldStrategy

    def strategy(self, parts: StrategyParts) -> BaseStrategy:
        server_optimizer = parts.optimizer("sgd", self.options.global_learning_rate)
        return parts.build(self.Strategy, server_optimizer=server_optimizer)

    def conflicts(self, run: RunConfig, task: Task) -> Iterator[Conflict]:
        why = "a control variate is the plain mean of K gradients, taken from K steps of SGD at one learning rate"
        plain: dict[str, Scalar] = {
            "optimizer": "sgd",
            "momentum": 0.0,
            "clip_norm": 0.0,
            "linear_decay": False,
            "plateau_patience": 0,
        }
        yield from required(run, self.name, why, weighting="uniform", **plain)

    def local_parts(self) -> Sequence[LocalPart]:
        return [ScaffoldPart()]


@dataclass(frozen=True)
class ScaffoldPart(LocalPart):
    """Add c − c_i to every local gradient; after K steps set c_i⁺ = c_i − c + (x − y) / (K η_l).

    x are the received parameters, y the trained ones, η_l is the local learning rate. c_i starts at 0 and stays on the
    node; the reply brings K η_l, so that the server can compute c_i⁺ − c_i. While all control variates are 0, training
    equals plain training bit for bit.

    Parameters
    ----------
    server_control : dict of arrays, or None
        c, from the record ``scaffold.control`` of a TRAIN message, with the names and shapes of the received
        floating-point arrays.
    counted : int or None
        The round of the node's last reply that is in c; if c_i is of a later one, the node goes back to what it was
        before. ``None`` if the message does not say so.
    """

    server_control: Arrays | None = field(default=None, compare=False)
    counted: int | None = field(default=None, compare=False)

    def read(self, config: Mapping[str, object], content: RecordDict) -> Self:
        record = content.array_records.get(SCAFFOLD_CONTROL)
        control = self.server_control if record is None else read_arrays(SCAFFOLD_CONTROL, record)
        return replace(self, server_control=control, counted=counted_round(content))

    def check(self, node_round: NodeRound) -> None:
        """Raise ``ValueError`` if the message brought no control variate, or one that does not fit the parameters."""
        if self.server_control is None:
            raise ValueError(f"the message has no ArrayRecord {SCAFFOLD_CONTROL!r}: train with the strategy Scaffold")
        for name, control in self.server_control.items():
            received = node_round.received.get(name)
            if received is None or received.shape != control.shape:
                reason = "it was not received" if received is None else f"the parameter is {list(received.shape)}"
                raise ValueError(f"{SCAFFOLD_CONTROL}: {name!r} is {list(control.shape)}, but {reason}")

    def prior(
        self, shared: Mapping[str, nn.Parameter], model: nn.Module, node_round: NodeRound
    ) -> QuadraticPrior | None:
        """The linear penalty (c − c_i)ᵀθ, whose gradient is c − c_i."""
        # Equation 3: a local step is y ← y − η_l (g(y) + c − c_i)
        own = self._own(node_round)
        names = [name for name in shared if name in self._server]
        linear = {name: torch.from_numpy(np.asarray(own[name] - self._server[name])) for name in names}
        return QuadraticPrior({name: torch.zeros_like(tensor) for name, tensor in linear.items()}, linear)

    def remember(self, model: nn.Module, node_round: NodeRound) -> Arrays:
        server_round = node_round.settings.server_round
        return _CONTROL.after(server_round, self._own(node_round), self._updated(model, node_round))

    def next_stage(self, carried: Arrays, kept: Arrays) -> Arrays:
        # The server's mean still contains the control variate of the last stage.
        return kept_arrays(carried, _CONTROL.of(memory_of(kept)))

    def metrics(self, model: nn.Module, node_round: NodeRound) -> Metrics:
        return {SCAFFOLD_LENGTH: node_round.steps * node_round.settings.training.learning_rate}

    @property
    def _server(self) -> Arrays:
        return self.server_control or {}

    def _own(self, node_round: NodeRound) -> Arrays:
        """c_i as the last counted round left it, zeros before the first."""
        own = _CONTROL.start(memory_of(node_round.kept), self.counted)
        return {name: own.get(name, np.zeros_like(control)) for name, control in self._server.items()}

    def _updated(self, model: nn.Module, node_round: NodeRound) -> Arrays:
        """c_i⁺ in the dtypes of c, computed in float64; c_i for what is not a parameter (buffers)."""
        own, parameters = self._own(node_round), {name for name, _ in model.named_parameters()}
        trained = get_arrays(model, [name for name in own if name in parameters])
        drift = node_round.steps * node_round.settings.training.learning_rate
        updated = dict(own)
        for name, y in trained.items():
            # Equation 4, Option II: c_i⁺ = c_i − c + (x − y) / (K η_l)
            x = node_round.received[name].astype(np.float64)
            control = own[name].astype(np.float64) - self._server[name] + (x - y) / drift
            updated[name] = np.asarray(control, dtype=own[name].dtype)
        return updated
