"""Personalisation: a node trains a copy of the shared model on its own data before it evaluates it.

Nakanoya et al., Personalized Federated Learning of Driver Prediction Models for Autonomous Driving, Algorithm 1: the
rates of the copy are the same for all parameters (SPFL), or follow the variance between nodes (APFL), which the
server's strategy ``AdaptiveRates`` sends.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np
import torch
from fedapps.clients.arrays import get_arrays
from fedapps.clients.local_part import EVALUATED_MODEL, LocalPart, NodeRound, Prepared
from fedapps.clients.messages import read_arrays
from fedapps.clients.settings import LocalTraining
from fedapps.clients.training import Phase, run_plan
from fedapps.strategies.wire import ADAPTIVE_RATES
from flwr.app import ArrayRecord, RecordDict
from torch import nn

from fedapps.base.options import option


@dataclass(frozen=True)
class Personalisation(LocalPart):
    """Train the model before it is evaluated. The trained copy stays on the node.

    Parameters
    ----------
    personalise : bool
        Whether to personalise before this evaluation.
    personal_epochs : int
        Local epochs, at least 1.
    personal_learning_rate : float
        L, above 0.
    rates : mapping of names to arrays, or None
        Factors for the optimizer's steps: one array per parameter, of its shape or without dimensions. Parameters
        without an entry take the full step, and so do all parameters with ``None``.
    """

    exclusive: ClassVar[frozenset[str]] = frozenset({EVALUATED_MODEL})

    personalise: bool = False
    personal_epochs: int = option(1, "local epochs", minimum=1)
    personal_learning_rate: float = option(0.001, "the learning rate L", above=0)
    rates: Mapping[str, np.ndarray] | None = field(default=None, compare=False)

    def read(self, config: Mapping[str, object], content: RecordDict) -> Self:
        """Return the part with the hyper-parameters and the rates of a message.

        Raises
        ------
        ValueError
            A hyper-parameter is out of range, or a rate is not in [0, 1].
        """
        part = super().read(config, content)
        record = content.array_records.get(ADAPTIVE_RATES)
        return part if record is None else replace(part, rates=_rates(record))

    def before_evaluation(self, model: nn.Module, node_round: NodeRound) -> Prepared:
        """Personalise ``model``, and return its arrays under the name ``personal``."""
        if not self.personalise:
            return Prepared()
        phase = self._phase(node_round, self.personal_epochs)
        with node_round.torch_seed("personalise"):
            trained = run_plan(model, [phase], node_round.epochs(model, node_round.data), node_round.task.loss)
        return Prepared(trained.steps, {"personal": get_arrays(model, model.state_dict())})

    def adaptation(self, phase: Phase, model: nn.Module, node_round: NodeRound) -> Phase:
        """The phase of personalisation, with the epochs of ``phase``."""
        return self._phase(node_round, phase.training.epochs) if self.personalise else phase

    def _phase(self, node_round: NodeRound, epochs: int) -> Phase:
        given = node_round.settings.training
        return Phase(
            LocalTraining(
                epochs=epochs,
                learning_rate=self.personal_learning_rate,
                batch_size=given.batch_size,
                optimizer=given.optimizer,
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
