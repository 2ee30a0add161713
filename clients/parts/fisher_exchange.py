"""A node in a Fisher exchange: held near the other nodes' solutions, it reports the precision of its own.

Shoham et al., Overcoming Forgetting in Federated Learning on Non-IID Data, 2019 (FedCurv),
https://arxiv.org/abs/1910.07796. The records are those of the server's strategy ``FisherExchange``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self, cast, get_args

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor, nn

from clients.fisher import Estimator
from clients.local_part import LocalPart, NodeRound
from clients.measurements import fisher_of_node
from clients.named_arrays import Arrays
from clients.penalties import QuadraticPrior
from tasks.base import Metrics

ORDER = "fisher"
PRECISION = "fisher.precision"
PRIOR_PRECISION = "fisher.prior-precision"
PRIOR_LINEAR = "fisher.prior-linear"


@dataclass(frozen=True)
class FisherPrior(LocalPart):
    """Train under the prior that the message brings, and reply with the Fisher information of the result.

    Without a prior, training equals plain training bit for bit; without an estimator the reply brings nothing more.

    Parameters
    ----------
    estimator : Estimator or None
        How the Fisher information of the reply is estimated; ``None`` for no reply.
    received_prior : QuadraticPrior or None
        The precision and the linear term from the server.
    """

    estimator: Estimator | None = None
    received_prior: QuadraticPrior | None = None

    def read(self, config: Mapping[str, object], content: RecordDict) -> Self:
        """From the records of a message; a message without the ConfigRecord ``fisher`` asks for nothing.

        Raises
        ------
        ValueError
            The estimator is unknown, or one of the prior's two records is missing.
        """
        order = content.get(ORDER)
        if not isinstance(order, ConfigRecord):
            return type(self)()
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
        return type(self)(cast(Estimator, estimator), prior)

    def check(self, node_round: NodeRound) -> None:
        """Raise ``ValueError`` if the prior does not fit what was received."""
        if self.received_prior is not None:
            _check_fit(self.received_prior, node_round.received)

    def prior(
        self, shared: Mapping[str, nn.Parameter], model: nn.Module, node_round: NodeRound
    ) -> QuadraticPrior | None:
        return self.received_prior

    def records(self, trained: Arrays, model: nn.Module, node_round: NodeRound) -> Mapping[str, ArrayRecord]:
        if self.estimator is None:
            return {}
        arrays = self.precision(trained, node_round)
        return {PRECISION: ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})}

    def precision(self, trained: Arrays, node_round: NodeRound) -> Arrays:
        """The Fisher information on the training data at the parameters that go back to the server.

        Returns one array ≥ 0 per floating-point array of ``trained``, of its shape and dtype; zeros for what is no
        parameter (buffers). It changes no state and has a random generator for itself.
        """
        assert self.estimator is not None
        model = node_round.build(trained, node_round.state.load(node_round.settings.server_round + 1) or {})
        fisher = fisher_of_node(model, node_round, self.estimator)
        return {
            name: fisher[name] if name in fisher else np.zeros_like(array)
            for name, array in trained.items()
            if np.issubdtype(array.dtype, np.floating)
        }

    def count_parameters(
        self, counted: Metrics, shared: Mapping[str, nn.Parameter], memory: Arrays, model: nn.Module, stages: int
    ) -> Metrics:
        prior = self.received_prior
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
