"""AdaptiveRates: a personalisation learning rate for each parameter, from its deviation across nodes.

Nakanoya et al., Personalized Federated Learning of Driver Prediction Models for Autonomous Driving, Algorithm 1
(there called APFL, which is also the name of an unrelated method by Deng et al. 2020).
"""

from typing import Any, ClassVar

import numpy as np

from . import wire
from .aggregation import StreamingDeviation
from .arrays import Arrays, to_record
from .base import BaseStrategy
from .profiles import Profile
from .rates import Granularity, adaptive_rates
from .replies import Reply
from .round_messages import ExtraRecords
from .snapshot_names import under


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
        Above 0: 1.0 is the published ratio of squared deviations, 0.5 the ratio of standard deviations.
    **base
        As in :class:`BaseStrategy`.
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

    def __init__(self, *, granularity: Granularity = "tensor", power: float = 1.0, **base: Any) -> None:
        super().__init__(**base)
        if not power > 0 or granularity not in ("tensor", "parameter"):
            raise ValueError(
                f"granularity = {granularity!r}, power = {power}: granularity must be 'tensor' or 'parameter', "
                "power above 0"
            )
        self.granularity = granularity
        self.power = power
        self.rates: Arrays = {}
        self._deviation = StreamingDeviation()

    def begin_round(self, server_round: int, arrays: Arrays) -> None:
        self._deviation = StreamingDeviation()

    def fold_reply(self, server_round: int, reply: Reply) -> None:
        self._deviation.add(reply.arrays)

    def close_round(self, server_round: int, current: Arrays, aggregate: Arrays) -> Arrays:
        if self._deviation.count:
            self.rates = adaptive_rates(self._deviation.result(), self.granularity, self.power)
        return super().close_round(server_round, current, aggregate)

    def evaluate_records(self, server_round: int, profile: Profile) -> ExtraRecords:
        return {wire.ADAPTIVE_RATES: to_record(self.rates)}

    def state(self) -> Arrays:
        return {**super().state(), **{f"rates.{name}": array for name, array in self.rates.items()}}

    def load_state(self, state: Arrays) -> None:
        super().load_state(state)
        self.rates = under("rates.", state)

    def round_info(self) -> dict[str, Any]:
        return {"rates": {name: float(np.mean(rate)) for name, rate in self.rates.items()}}
