"""The server of FedProto: the means of the nodes' class prototypes.

Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022, Section 4.3, Equation 6, and
Algorithm 1, https://arxiv.org/abs/2105.00243.
"""

from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from flwr.serverapp import Grid

from ..aggregation import Aggregate
from ..arrays import Arrays, to_record, views
from ..base import BaseStrategy
from ..profiles import Profile
from ..records import RoundStep
from ..replies import Reply
from ..wire import FEDPROTO_GLOBAL, FEDPROTO_LOCAL

_LARGEST = 1e30  # float64 sums of squares stay finite


class FedProto(BaseStrategy):
    """Nodes share no parameters, but the mean representation of each of their classes, which is not compressed.

    The prototype of a class is the mean of those that the replies of a round bring, each weighted by
    ``weighting(n)`` for the node's n examples of the class: "num-examples" is Equation 6, "uniform" the plain mean of
    the authors' code. A class that no reply brings keeps its prototype. All nodes need representations of one size; the
    first reply decides it.

    Parameters
    ----------
    **base
        As in :class:`~fedapps.strategies.base.BaseStrategy`. ``shared`` should be empty.

    Raises
    ------
    ValueError
        An argument is out of range, or ``privacy`` or ``aggregation`` is set.
    """

    privacy_gap: ClassVar[str] = (
        "nodes send the mean representation and the number of examples of each of their classes"
    )
    robustness_gap: ClassVar[str] = "it averages prototypes, no parameters"
    extra_reply_bytes: ClassVar[int] = 1 << 26  # a correct reply has 4 bytes per class and dimension
    kept: ClassVar[tuple[str, ...]] = ("prototypes",)

    def __init__(self, **base: Any) -> None:
        super().__init__(**base)
        self.prototypes: dict[int, np.ndarray] = {}
        self._sums: dict[int, np.ndarray] = {}
        self._weights: dict[int, float] = {}

    def begin_round(self, server_round: int, arrays: Arrays, config: ConfigRecord, grid: Grid) -> None:
        self._sums, self._weights = {}, {}

    def complete(self, phase: RoundStep, profile: Profile, content: RecordDict) -> None:
        if self.prototypes:
            content[FEDPROTO_GLOBAL] = self.record_once(FEDPROTO_GLOBAL, self._record)

    def refusal_reason(self, reply: Reply) -> str | None:
        try:
            _, prototypes, counts = _read(reply)
        except ValueError as refusal:
            return f"{FEDPROTO_LOCAL}: {refusal}"
        total = counts.sum(dtype=np.float64)  # integers could overflow
        if total > reply.num_examples:  # a node leaves out classes with few examples
            return f"{FEDPROTO_LOCAL}: counts add up to {total:.15g}, but num-examples is {reply.num_examples:g}"
        known = next(iter([*self.prototypes.values(), *self._sums.values()]), None)
        if known is not None and prototypes.shape[1] != known.size:
            return (
                f"{FEDPROTO_LOCAL}: prototypes have {prototypes.shape[1]} dimensions, those of the federation "
                f"{known.size}: all nodes need representations of one size"
            )
        return None

    def fold(self, reply: Reply, aggregate: Aggregate) -> None:
        super().fold(reply, aggregate)
        for label, prototype, count in zip(*_read(reply), strict=True):
            weight, name = self.weight_of(float(count)), int(label)
            self._sums[name] = self._sums.get(name, 0.0) + weight * prototype.astype(np.float64)
            self._weights[name] = self._weights.get(name, 0.0) + weight

    def close_round(self, server_round: int, current: Arrays, aggregate: Arrays) -> Arrays:
        # Equation 6: C_j is the mean of the nodes' prototypes of class j, weighted by their examples of it
        new = {label: total / self._weights[label] for label, total in self._sums.items()}
        self.prototypes = dict(sorted({**self.prototypes, **new}.items()))
        return super().close_round(server_round, current, aggregate)

    def round_info(self) -> dict[str, Any]:
        """The number of classes with a prototype, and of those that got a new one in the round."""
        return {"fedproto": {"classes": len(self.prototypes), "new": len(self._sums)}}

    def _record(self) -> ArrayRecord:
        classes = np.array(list(self.prototypes), np.int64)
        return to_record({"classes": classes, "prototypes": np.array(list(self.prototypes.values()), np.float32)})


def _read(reply: Reply) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The classes, their prototypes and their numbers of examples. Raises ``ValueError`` if the record is malformed."""
    record = reply.content.get(FEDPROTO_LOCAL)
    if not isinstance(record, ArrayRecord):
        raise ValueError("the reply has no ArrayRecord of this name")
    arrays = views(record)
    if set(arrays) != {"classes", "prototypes", "counts"}:
        raise ValueError(f"must have classes, prototypes and counts, not {', '.join(arrays) or 'nothing'}")
    classes, prototypes, counts = arrays["classes"], arrays["prototypes"], arrays["counts"]
    for name, array in (("classes", classes), ("counts", counts)):
        if array.ndim != 1 or array.dtype != np.int64 or array.size != len(classes):
            raise ValueError(f"{name} is {array.dtype} {list(array.shape)}: must be int64, one number per class")
    if not len(classes) or classes.min() < 0 or (np.diff(classes) <= 0).any() or counts.min() < 1:
        raise ValueError("must have at least one class, classes ≥ 0 in ascending order, and counts ≥ 1")
    if prototypes.ndim != 2 or prototypes.dtype != np.float32 or len(prototypes) != len(classes):
        raise ValueError(f"prototypes is {prototypes.dtype} {list(prototypes.shape)}: must be float32, a row per class")
    if not prototypes.size or not (np.abs(prototypes) < _LARGEST).all():  # NaN is not below, either
        raise ValueError("prototypes must be finite, with at least one dimension")
    return classes, prototypes, counts
