"""AdaptiveRates: a personalisation learning rate for each parameter, from its deviation across nodes.

Nakanoya et al. 2021, Personalized Federated Learning of Driver Prediction Models for Autonomous Driving
(https://arxiv.org/abs/2112.00956), Algorithm 1 (there called APFL, which is also the name of an unrelated method by
Deng et al. 2020). When a node personalises the shared model, parameters that differ between nodes get high learning
rates and parameters on which nodes agree get low ones.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from .. import wire
from ..aggregation import Aggregate
from ..arrays import Arrays, check_alike, in_blocks, to_record
from ..base import BaseStrategy
from ..checks import require_one_of, require_positive
from ..profiles import Profile
from ..records import RoundStep
from ..replies import Reply

Granularity = Literal["parameter", "tensor"]


class AdaptiveRates(BaseStrategy):
    """FedAvg that also sends a learning rate for the personalisation of each parameter.

    Training is FedAvg (lines 9 and 12 of Algorithm 1). From the deviation of the nodes' parameters around their mean
    (line 13) the server computes relative rates l/L in [0, 1] (line 14). It sends them with the next EVALUATE messages
    in the record ``adaptive.rates``; nodes use them to personalise their copy of the shared model (line 7). If all
    rates are 1, as before the first round, this is plain personalisation (SPFL in the paper).

    Parameters
    ----------
    granularity : "tensor" or "parameter"
        One rate per tensor (the paper's driving tasks) or per single parameter (its LQR toy).
    power : float
        Finite and above 0: 1.0 is the published ratio of squared deviations, 0.5 the ratio of standard deviations.
    **base
        As in :class:`BaseStrategy`.

    Raises
    ------
    ValueError
        A parameter is out of range.
    """

    privacy_gap: ClassVar[str] = (
        "it also computes the deviation of single replies and sends rates derived from it to all nodes"
    )
    robustness_gap: ClassVar[str] = (
        "the rates follow the deviation of all replies, which a single Byzantine reply can make as large as it likes"
    )

    compression_gap: ClassVar[str] = (
        "the rates follow the deviation of the replies, to which the errors of a compression would add"
    )
    kept: ClassVar[tuple[str, ...]] = ("rates",)

    def __init__(self, *, granularity: Granularity = "tensor", power: float = 1.0, **base: Any) -> None:
        super().__init__(**base)
        require_positive("power", power)
        require_one_of("granularity", granularity, get_args(Granularity))
        self.granularity = granularity
        self.power = power
        self.rates: Arrays = {}
        self._deviation = StreamingDeviation()

    def begin_round(self, server_round: int, arrays: Arrays, config: ConfigRecord, grid: Grid) -> None:
        self._deviation = StreamingDeviation()

    def fold(self, reply: Reply, aggregate: Aggregate) -> None:
        super().fold(reply, aggregate)
        self._deviation.add(self.buffers.parameters(reply.arrays))

    def close_round(self, server_round: int, current: Arrays, aggregate: Arrays) -> Arrays:
        if self._deviation.count:
            self.rates = adaptive_rates(self._deviation.result(), self.granularity, self.power)
        return super().close_round(server_round, current, aggregate)

    def complete(self, phase: RoundStep, profile: Profile, content: RecordDict) -> None:
        if phase == "evaluate":
            content[wire.ADAPTIVE_RATES] = self.record_once(wire.ADAPTIVE_RATES, partial(to_record, self.rates))

    def round_info(self) -> dict[str, Any]:
        return {"rates": {name: float(np.mean(rate)) for name, rate in self.rates.items()}}


def adaptive_rates(deviation: Arrays, granularity: Granularity = "parameter", power: float = 1.0) -> Arrays:
    """Learning rates as fractions of the base learning rate: l_i / L = (σ_i / max_j σ_j)^power.

    Parameters
    ----------
    deviation : dict of arrays
        σ, the sum of squared deviations Σ_k (θ_k − mean θ)² of every parameter: finite, ≥ 0, of any shape.
    granularity : "parameter" or "tensor"
        One rate for every parameter, or one for each array from the mean of σ over its elements (a sum would give
        large arrays the highest rates).
    power : float
        Above 0. 1 is the published ratio of squared deviations, 0.5 the ratio of standard deviations.

    Returns
    -------
    dict of arrays
        Float64 ratios in [0, 1] for each array: in its shape for "parameter", 0-d for "tensor".
        The maximum is taken over the whole model, so at least one ratio is 1. If all deviations are 0, as with a
        single node, every ratio is 1.
    """
    sigmas = {name: _sigma(array, granularity) for name, array in deviation.items()}
    largest = max((float(sigma.max()) for sigma in sigmas.values() if sigma.size), default=0.0)
    if largest == 0.0:
        return {name: np.ones(sigma.shape) for name, sigma in sigmas.items()}
    # Algorithm 1, line 14: l_i / L = σ_i / max_j σ_j
    return {name: np.asarray((sigma / largest) ** power) for name, sigma in sigmas.items()}


def _sigma(array: NDArray[Any], granularity: Granularity) -> NDArray[np.float64]:
    sigma = np.asarray(array, dtype=np.float64)
    if granularity == "parameter":
        return sigma
    return np.asarray(sigma.mean() if sigma.size else 0.0)


@dataclass
class StreamingDeviation:
    """Unweighted sum of squared deviations Σ_k (θ_k − mean θ)² of every parameter, computed in one pass.

    Welford's recurrence (1962; Knuth, The Art of Computer Programming 2, 4.2.2). Unlike Σ θ² − (Σ θ)²/n it loses no
    digits to cancellation, is never negative, and is exactly 0 for equal replies.
    """

    count: int = field(default=0, init=False)
    _means: Arrays = field(default_factory=dict, init=False, repr=False)
    _squares: Arrays = field(default_factory=dict, init=False, repr=False)

    def add(self, arrays: Arrays) -> None:
        """Add one reply to the deviation. The reply is neither kept nor changed.

        Raises
        ------
        ValueError
            Names or shapes differ from the first reply's.
        """
        if self.count == 0:
            self._means = {name: np.zeros(value.shape) for name, value in arrays.items()}
            self._squares = {name: np.zeros(value.shape) for name, value in arrays.items()}
        check_alike(self._means, {name: np.broadcast_to(np.zeros(()), value.shape) for name, value in arrays.items()})
        self.count += 1
        for name, value in arrays.items():
            for mean, squares, part in in_blocks(self._means[name], self._squares[name], value):
                # Algorithm 1, line 13, by Welford: M ← M + (θ − M) / k; S ← S + (θ − M before) (θ − M after)
                wide = part.astype(np.float64)
                before = wide - mean
                np.add(mean, before / self.count, out=mean)
                np.add(squares, before * (wide - mean), out=squares)

    def result(self) -> Arrays:
        """The sums so far: float64 arrays in the shapes of the replies, ≥ 0, and all 0 after a single reply.

        Raises
        ------
        ValueError
            No reply was added.
        """
        if self.count == 0:
            raise ValueError("the deviation of no replies is undefined")
        return {name: squares.copy() for name, squares in self._squares.items()}
