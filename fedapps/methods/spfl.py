"""SPFL: federated averaging, then every node personalises its copy before it is evaluated.

Nakanoya et al., Personalized Federated Learning of Driver Prediction Models for Autonomous Driving, Algorithm 1: the
rates of the copy are the same for all parameters (SPFL), or follow the variance between nodes (APFL), which the
server's strategy ``AdaptiveRates`` sends.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np
import torch
from flwr.app import ArrayRecord, RecordDict
from torch import nn

from fedapps.base.options import Around, option
from fedapps.clients.arrays import get_arrays
from fedapps.clients.local_part import EVALUATED_MODEL, LocalPart, NodeRound, Prepared
from fedapps.clients.settings import LocalTraining, read_arrays
from fedapps.clients.training import Phase, run_plan
from fedapps.strategies.wire import ADAPTIVE_RATES

from .base import Method


@dataclass(frozen=True)
class PersonalisationOptions:
    """The options of personalisation."""

    epochs: int = option(10, "epochs of personalisation before an evaluation", minimum=1)
    learning_rate: float = option(0.001, "learning rate L of personalisation", above=0, search=Around(10))


@dataclass(frozen=True)
class SpflOptions(PersonalisationOptions):
    """The options of SPFL."""

    rate_scale: float = option(1.0, "factor on learning-rate; 0.2 is the control for adaptive rates", above=0)


class PersonalisationMethod(Method):
    """FedAvg; before an evaluation each node trains its copy of the model."""

    @property
    def learning_rate(self) -> float:
        """L, above 0."""
        rate: float = self.options.learning_rate
        return rate

    def local_parts(self) -> Sequence[LocalPart]:
        return [Personalisation(self.options.epochs, self.learning_rate)]


class Spfl(PersonalisationMethod):
    """Personalisation at one rate for all parameters."""

    name = "spfl"
    summary = "FedAvg, then each node personalises all parameters at the same rate"
    citation = "Nakanoya et al., Personalized Federated Learning of Driver Prediction Models, 2021, Section III"
    keeps = "personal copy"
    work = "+ personal epochs"
    good_for = "enough own data to fine-tune"
    Options = SpflOptions

    @property
    def learning_rate(self) -> float:
        rate: float = super().learning_rate * self.options.rate_scale
        return rate


@dataclass(frozen=True)
class Personalisation(LocalPart):
    """Train the model before it is evaluated. The trained copy stays on the node.

    The optimizer and the batch size are those of training; it has no momentum, weight decay, clipping or plateau.

    Parameters
    ----------
    epochs : int
        Local epochs, at least 1.
    learning_rate : float
        L, above 0.
    rates : mapping of names to arrays, or None
        Factors for the optimizer's steps: one array per parameter, of its shape or without dimensions. Parameters
        without an entry take the full step, and so do all parameters with ``None``.
    """

    exclusive: ClassVar[frozenset[str]] = frozenset({EVALUATED_MODEL})

    epochs: int
    learning_rate: float
    rates: Mapping[str, np.ndarray] | None = field(default=None, compare=False)

    def read(self, config: Mapping[str, object], content: RecordDict) -> Self:
        """Return the part with the rates of a message. Raises ``ValueError`` for a rate that is not in [0, 1]."""
        record = content.array_records.get(ADAPTIVE_RATES)
        return self if record is None else replace(self, rates=_rates(record))

    def before_evaluation(self, model: nn.Module, node_round: NodeRound) -> Prepared:
        """Personalise ``model``, and return its arrays as ``personal``; a node without training data does nothing."""
        if node_round.data.count("train") == 0:
            return Prepared()
        # Algorithm 1, line 7: θ_k is trained on the data of the node with the learning rates l = L · rates
        phase = self._phase(node_round, self.epochs)
        with node_round.torch_seed("personalise"):
            trained = run_plan(model, [phase], node_round.epochs(model, node_round.data), node_round.task.loss)
        return Prepared(trained.steps, {"personal": get_arrays(model, model.state_dict())})

    def adaptation(self, phase: Phase, model: nn.Module, node_round: NodeRound) -> Phase:
        """The phase of personalisation, with the epochs of ``phase``."""
        return self._phase(node_round, phase.training.epochs)

    def _phase(self, node_round: NodeRound, epochs: int) -> Phase:
        training = node_round.settings.training
        return Phase(
            LocalTraining(
                epochs=epochs,
                learning_rate=self.learning_rate,
                batch_size=training.batch_size,
                optimizer=training.optimizer,
            ),
            rates=None if self.rates is None else {n: torch.as_tensor(r) for n, r in self.rates.items()},
        )

    def bytes_on_disk(self, model_bytes: int, version_bytes: int, stages: int) -> int:
        return model_bytes


def _rates(record: ArrayRecord) -> dict[str, np.ndarray]:
    rates = read_arrays(ADAPTIVE_RATES, record)
    if outside := [name for name, rate in rates.items() if not ((rate >= 0) & (rate <= 1)).all()]:
        raise ValueError(f"{ADAPTIVE_RATES}: the rates of {', '.join(outside)} must be from 0 to 1")
    return rates
