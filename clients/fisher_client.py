"""A node that takes part in a Fisher exchange: held near the others' solutions, it says how sure it is of its own.

Shoham et al., Overcoming Forgetting in Federated Learning on Non-IID Data, 2019, https://arxiv.org/abs/1910.07796.
The records are those of the server's strategy ``FisherExchange``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast, get_args

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor, nn

from tasks.base import Metrics

from .base import FederatedClient, RoundResult
from .fisher import Estimator
from .named_arrays import Arrays
from .penalties import QuadraticPrior, sum_of
from .round_settings import RoundSettings

ORDER = "fisher"
PRECISION = "fisher.precision"
PRIOR_PRECISION = "fisher.prior-precision"
PRIOR_LINEAR = "fisher.prior-linear"


@dataclass(frozen=True)
class FisherOrder:
    """What a TRAIN message asks of a node beside training. Empty: plain training, nothing to publish.

    ``estimator`` names the Fisher information to publish; ``prior`` is what holds the node while it trains.
    """

    estimator: Estimator | None = None
    prior: QuadraticPrior | None = None

    @classmethod
    def read(cls, content: RecordDict) -> FisherOrder:
        """From a message's records; a message of another strategy gives the empty order.

        Raises ``ValueError`` for an unknown estimator, and when one of the prior's two records is missing.
        """
        order = content.get(ORDER)
        if not isinstance(order, ConfigRecord):
            return cls()
        estimator = order.get("estimator")
        if estimator not in get_args(Estimator):
            allowed = ", ".join(map(repr, get_args(Estimator)))
            raise ValueError(f"{ORDER} estimator = {estimator!r}: must be one of {allowed}")
        precision, linear = content.get(PRIOR_PRECISION), content.get(PRIOR_LINEAR)
        prior = None
        if isinstance(precision, ArrayRecord) and isinstance(linear, ArrayRecord):
            prior = QuadraticPrior(_tensors(precision), _tensors(linear))
        elif precision is not None or linear is not None:
            raise ValueError(f"{PRIOR_PRECISION} and {PRIOR_LINEAR} must come together, as ArrayRecords")
        return cls(cast(Estimator, estimator), prior)


class FisherClient(FederatedClient):
    """A :class:`FederatedClient` under the order of one message: make one per message.

    Its round is that of its parent with the order's prior added to the plan's. An order without a prior trains
    bit for bit as the parent does.

    Parameters
    ----------
    order : FisherOrder
        From :meth:`FisherOrder.read`.
    other parameters
        Those of :class:`FederatedClient`.
    """

    def __init__(self, *parent: Any, order: FisherOrder, **named: Any) -> None:
        super().__init__(*parent, **named)
        self.order = order

    def train_round(self, received: Arrays, settings: RoundSettings) -> RoundResult:
        """As in the parent. Raises ``ValueError`` when the prior does not fit what was received."""
        if self.order.prior is not None:
            _check_fit(self.order.prior, received)
        return super().train_round(received, settings)

    def precision(self, reply: RoundResult, settings: RoundSettings) -> Arrays:
        """The Fisher information on the training data at the parameters that ``train_round`` gave back.

        One array per floating-point array of ``reply``, of its shape and dtype, ≥ 0; zeros for what is no parameter
        (buffers). Changes no state, and draws from a generator of its own: training is the same with and without.
        Raises ``ValueError`` when the order asks for none.
        """
        if self.order.estimator is None:
            raise ValueError("no Fisher information was asked for: the message has no record 'fisher'")
        model = self._model(reply.arrays, self._kept(settings.server_round + 1, settings))
        fisher = self._fisher(model, self._staged(settings.stage), settings, self.order.estimator)
        return {
            name: fisher[name] if name in fisher else np.zeros_like(array)
            for name, array in reply.arrays.items()
            if np.issubdtype(array.dtype, np.floating)
        }

    def publish(self, reply: RoundResult, settings: RoundSettings) -> dict[str, ArrayRecord]:
        """The records to add to the train reply; none where the order asks for none."""
        if self.order.estimator is None:
            return {}
        arrays = self.precision(reply, settings)
        return {PRECISION: ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})}

    def _prior(
        self, model: nn.Module, received: Arrays, kept: Arrays, settings: RoundSettings
    ) -> QuadraticPrior | None:
        return sum_of([super()._prior(model, received, kept, settings), self.order.prior])

    def _parameters(self, model: nn.Module, received: Arrays, memory: Arrays, settings: RoundSettings) -> Metrics:
        counted = super()._parameters(model, received, memory, settings)
        prior = self.order.prior
        held = 0 if prior is None else sum(t.numel() for part in (prior.precision, prior.linear) for t in part.values())
        return counted | {"static_parameters": float(str(counted["static_parameters"])) + held}


def _tensors(record: ArrayRecord) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array.numpy()) for name, array in record.items()}


def _check_fit(prior: QuadraticPrior, received: Arrays) -> None:
    for record, tensors in ((PRIOR_PRECISION, prior.precision), (PRIOR_LINEAR, prior.linear)):
        for name, tensor in tensors.items():
            if name not in received:
                raise ValueError(f"{record}: {name!r} is not among the received parameters")
            if tuple(tensor.shape) != received[name].shape:
                raise ValueError(f"{record}: {name!r} is {list(tensor.shape)}, not {list(received[name].shape)}")
    if prior.precision.keys() != prior.linear.keys():
        raise ValueError(f"{PRIOR_PRECISION} and {PRIOR_LINEAR} must have the same names")
