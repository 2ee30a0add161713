"""FedCurv: nodes are held near the present solutions of the others.

Shoham et al., Overcoming Forgetting in Federated Learning on Non-IID Data, 2019 (FedCurv),
https://arxiv.org/abs/1910.07796. The server's strategy ``FisherExchange`` sends and reads the records.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import ClassVar, Self, cast, get_args

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor, nn

from fedapps.base.options import Range, option
from fedapps.clients.arrays import Arrays
from fedapps.clients.fisher import Estimator, fisher_of_node
from fedapps.clients.local_part import PARAMETER_NAMES, LocalPart, NodeRound
from fedapps.clients.penalties import QuadraticPrior
from fedapps.clients.settings import read_arrays
from fedapps.config.run_config import RunConfig
from fedapps.strategies import BaseStrategy, FisherExchange, wire
from fedapps.tasks.base import Task

from .base import Conflict, Method, StrategyParts
from .continual import estimator_conflicts, estimator_option


@dataclass(frozen=True)
class FedCurvOptions:
    """The options of FedCurv."""

    lambda_: float = option(
        0.5, "weight λ, with the 1/2 of a quadratic penalty before it", minimum=0, search=Range(1e-4, 100, log=True)
    )
    estimator: str = estimator_option()


class FisherMethod(Method):
    """A method whose nodes exchange the diagonal of their Fisher information."""

    def local_parts(self) -> Sequence[LocalPart]:
        return [FisherPrior()]

    def conflicts(self, run: RunConfig, task: Task) -> Iterator[Conflict]:
        yield from super().conflicts(run, task)
        yield from estimator_conflicts(self, task)


class FedCurv(FisherMethod):
    """FedAvg with EWC between nodes."""

    name = "fedcurv"
    summary = "FedCurv: nodes are held near the other nodes' present solutions"
    citation = (
        "Shoham et al., Overcoming Forgetting in Federated Learning on Non-IID Data, 2019, "
        "https://arxiv.org/abs/1910.07796"
    )
    keeps = "Fisher information"
    sends = "+ Fisher, priors"
    work = "+ Fisher estimate"
    good_for = "uneven data, few rounds"
    message_sizes = (3.0, 2.0)
    Options = FedCurvOptions
    Strategy = FisherExchange

    def strategy(self, parts: StrategyParts) -> BaseStrategy:
        weights = {"own_past": 0.0, "others_past": 0.0, "others_now": self.options.lambda_}
        # Without stages the anchors have no effect; they have the default of the strategy's other user.
        return parts.build(self.Strategy, **weights, anchors="online", estimator=self.options.estimator)


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

    exclusive: ClassVar[frozenset[str]] = frozenset({PARAMETER_NAMES})

    estimator: Estimator | None = None
    received_prior: QuadraticPrior | None = None

    def read(self, config: Mapping[str, object], content: RecordDict) -> Self:
        """Return the part with the records of a message, or the part as it is if there is no ConfigRecord ``fisher``.

        Raises
        ------
        ValueError
            The estimator is unknown, one of the two records of the prior is missing, or a value is out of range.
        """
        order = content.get(wire.FISHER)
        if not isinstance(order, ConfigRecord):
            return self
        estimator = order.get(wire.FISHER_ESTIMATOR)
        if estimator not in get_args(Estimator):
            allowed = ", ".join(map(repr, get_args(Estimator)))
            raise ValueError(f"{wire.FISHER} {wire.FISHER_ESTIMATOR} = {estimator!r}: must be one of {allowed}")
        precision, linear = content.get(wire.FISHER_PRIOR_PRECISION), content.get(wire.FISHER_PRIOR_LINEAR)
        prior = None
        if isinstance(precision, ArrayRecord) and isinstance(linear, ArrayRecord):
            prior = QuadraticPrior(
                _tensors(wire.FISHER_PRIOR_PRECISION, precision, least=0.0), _tensors(wire.FISHER_PRIOR_LINEAR, linear)
            )
        elif precision is not None or linear is not None:
            raise ValueError(
                f"{wire.FISHER_PRIOR_PRECISION} and {wire.FISHER_PRIOR_LINEAR} must come together, as ArrayRecords"
            )
        return replace(self, estimator=cast(Estimator, estimator), received_prior=prior)

    def check(self, node_round: NodeRound) -> None:
        """Raise ``ValueError`` if the prior does not fit what was received."""
        if self.received_prior is not None:
            _check_fit(self.received_prior, node_round.received)

    def prior(
        self, shared: Mapping[str, nn.Parameter], model: nn.Module, node_round: NodeRound
    ) -> QuadraticPrior | None:
        return self.received_prior

    def records(self, trained: Arrays, model: nn.Module, node_round: NodeRound) -> Mapping[str, ArrayRecord]:
        """Return the record ``fisher.precision``: the Fisher information of the training data at the trained model.

        It has one array for every floating-point array of ``trained``, of the same shape and dtype, with values ≥ 0;
        the array is zero for what is not a parameter (buffers). Nothing that is trained or kept depends on it.
        """
        if self.estimator is None:
            return {}
        fisher = fisher_of_node(model, node_round, self.estimator)
        precision = {
            name: fisher[name] if name in fisher else np.zeros_like(array)
            for name, array in trained.items()
            if np.issubdtype(array.dtype, np.floating)
        }
        return {
            wire.FISHER_PRECISION: ArrayRecord({name: Array(np.asarray(array)) for name, array in precision.items()})
        }

    def static_parameters(self, shared: Mapping[str, nn.Parameter], memory: Arrays) -> int:
        prior = self.received_prior
        return 0 if prior is None else sum(t.numel() for term in (prior.precision, prior.linear) for t in term.values())


def _tensors(record_name: str, record: ArrayRecord, least: float = -inf) -> dict[str, Tensor]:
    arrays = read_arrays(record_name, record)
    if outside := [name for name, array in arrays.items() if not (np.isfinite(array) & (array >= least)).all()]:
        raise ValueError(f"{record_name}: {', '.join(outside)} must be finite and at least {least:g}")
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _check_fit(prior: QuadraticPrior, received: Arrays) -> None:
    for record, tensors in ((wire.FISHER_PRIOR_PRECISION, prior.precision), (wire.FISHER_PRIOR_LINEAR, prior.linear)):
        for name, tensor in tensors.items():
            if name not in received:
                raise ValueError(f"{record}: {name!r} is not among the received parameters")
            if tuple(tensor.shape) != received[name].shape:
                raise ValueError(f"{record}: {name!r} is {list(tensor.shape)}, not {list(received[name].shape)}")
    if prior.precision.keys() != prior.linear.keys():
        raise ValueError(f"{wire.FISHER_PRIOR_PRECISION} and {wire.FISHER_PRIOR_LINEAR} must have the same names")
