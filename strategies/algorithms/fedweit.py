"""FedWeIT: shared base parameters, node-specific adaptive parameters, and transfer between nodes at each new stage.

Yoon et al., Federated Continual Learning with Weighted Inter-client Transfer, ICML 2021, Section 3.2 and Algorithm 1,
https://arxiv.org/abs/2003.03196.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from logging import INFO, WARNING
from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common import log
from flwr.serverapp import Grid
from numpy.typing import NDArray

from .. import wire
from ..aggregation import Aggregate, IntegerPolicy, RunningMean, StreamingMean
from ..arrays import Arrays, check_alike, from_record, is_float, to_record
from ..base import BaseStrategy
from ..checks import stage_of, truncate
from ..profiles import Profile
from ..records import Refusal, RoundStep
from ..replies import Reply, check_size, count_bytes, max_reply_bytes, read_arrays
from ..transport import NodeFailure, Outcome

#: Name -> which units of a floating-point array were sent: a boolean array with as many dimensions as the array and
#: length 1 along dimensions that the mask does not distinguish ([8, 1] for the rows of an [8, 3] matrix). An array
#: without a mask was sent completely.
Masks = Mapping[str, NDArray[np.bool_]]
_COMPLETE = np.ones((), dtype=np.bool_)


class MaskedMean:
    """Σ_k w_k M_k θ_k / Σ_k w_k M_k for every unit, over replies k of weight w_k with masks M_k of zeros and ones.

    Until a reply leaves out a unit of an array, its mean is that of :class:`StreamingMean`, bit for bit; after that it
    is a running mean in float64 with a total weight for every unit. A unit that no reply contains is 0.

    Parameters
    ----------
    integers : "newest" or "round"
        How integer and boolean arrays, which have no masks, are combined; see :class:`StreamingMean`.
    """

    def __init__(self, integers: IntegerPolicy = "newest") -> None:
        self._discrete = StreamingMean(integers)
        self._complete: dict[str, RunningMean] = {}  # until a reply leaves a unit of the array out
        self._means: Arrays = {}
        self._weights: dict[str, NDArray[np.float64]] = {}
        self._template: Arrays = {}

    @property
    def count(self) -> int:
        """Number of replies added."""
        return self._discrete.count

    def add(self, arrays: Arrays, weight: float, masks: Masks) -> None:
        """Add one reply to the mean. The reply is neither kept nor changed.

        Parameters
        ----------
        arrays : dict of arrays
            Finite values. Values of units that were not sent are ignored. The first reply sets names, shapes and
            dtypes.
        weight : float
            Finite and above 0.
        masks : mapping of names to arrays of booleans
            See :data:`Masks`.

        Raises
        ------
        ValueError
            The weight is out of range, names, shapes or dtypes differ from the first reply's, or a mask does not fit.
        """
        if reason := mask_error(masks, arrays):
            raise ValueError(f"mask {reason}")
        if self.count == 0:
            self._template = {name: np.broadcast_to(np.zeros((), a.dtype), a.shape) for name, a in arrays.items()}
        check_alike(self._template, arrays)
        self._discrete.add({name: array for name, array in arrays.items() if not is_float(array)}, weight)
        for name, array in arrays.items():
            if is_float(array):
                self._fold(name, array, float(weight), masks.get(name, _COMPLETE))

    def result(self) -> Arrays:
        """The mean as new arrays in the dtypes of the replies.

        Raises
        ------
        ValueError
            No reply was added.
        """
        means = self._discrete.result()
        for name, template in self._template.items():
            if name in self._complete:
                means[name] = self._complete[name].result(template.dtype)
            elif name in self._means:
                means[name] = self._means[name].astype(template.dtype)
        return {name: means[name] for name in self._template}

    def sent_units(self) -> dict[str, NDArray[np.bool_]]:
        """For every floating-point array, the units that at least one reply contained.

        Returns
        -------
        dict of arrays of bool
            In the shape that the masks of the replies broadcast to; 0-d if all replies contained the complete array.
        """
        return {name: np.asarray(total > 0) for name, total in self._weights.items()}

    def _fold(self, name: str, value: NDArray[Any], weight: float, mask: NDArray[np.bool_]) -> None:
        before = self._weights.get(name, np.zeros(()))
        if not before.ndim and mask.all():
            mask = _COMPLETE
        total = self._weights[name] = np.asarray(before + weight * mask)
        if mask is _COMPLETE and name not in self._means:  # all replies so far were complete
            self._complete.setdefault(name, RunningMean()).add(value, weight)
            return
        if known := self._complete.pop(name, None):
            self._means[name] = known.result(np.float64)
        mean = self._means.setdefault(name, np.zeros(value.shape))
        new = mask & (before == 0)  # 0 + 1 · −0 would lose the sign
        share = np.divide(weight * mask, total, out=np.zeros_like(total), where=total > 0)
        np.copyto(mean, value, where=new)
        np.subtract(mean, share * (mean - value), out=mean, where=mask)


def mask_error(masks: Mapping[str, NDArray[Any]], arrays: Arrays) -> str | None:
    """Check masks against the arrays they belong to.

    Parameters
    ----------
    masks : mapping of names to arrays
        Booleans, or integers 0 and 1 from nodes that cannot send booleans; shapes as in :data:`Masks`.
    arrays : dict of arrays
        The shared arrays.

    Returns
    -------
    str or None
        The first fault found, ``None`` if all masks fit.
    """
    for name, mask in masks.items():
        if name not in arrays or not is_float(arrays[name]):
            return f"{name!r} belongs to no shared floating-point array"
        shape = arrays[name].shape
        if mask.ndim != len(shape) or any(
            length not in (1, full) for length, full in zip(mask.shape, shape, strict=True)
        ):
            return f"{name!r} has shape {list(mask.shape)}: must be {list(shape)}, or 1 along some dimensions"
        if not (mask.dtype == np.bool_ or np.issubdtype(mask.dtype, np.integer)) or not np.isin(mask, (0, 1)).all():
            return f"{name!r}: must hold booleans, or the integers 0 and 1"
    return None


class FedWeIT(BaseStrategy):
    """FedAvg over the units that nodes send, and an exchange of adaptive parameters at the start of each stage.

    A node's model in stage t is θ = B ⊙ σ(m_t) + A_t + Σ_k α_k A_k, with a shared base B, a private mask m_t, private
    adaptive parameters A_t, and a weighted sum of the adaptive parameters that all nodes had at the end of stage t − 1
    (the knowledge base). The server sees only B and, once per stage, A. The stage is the integer ``stage`` in the train
    config, 0 if missing; without stages this strategy averages masked bases and does nothing else.

    On the wire, with the names and shapes of the shared parameters:

    - A train reply can contain the ArrayRecord ``fedweit.mask``: for some or all floating-point arrays, which of their
      units the node sends, as booleans (or integers 0 and 1) with as many dimensions as the array and length 1 along
      dimensions that the mask does not distinguish: [8, 1] for the rows of an [8, 3] matrix. Units that are not sent
      are ignored. An array without a mask was sent completely; so are all arrays of nodes without FedWeIT.
    - Each unit is averaged over the nodes that sent it. TRAIN and EVALUATE messages contain zeros for units that no
      node sent in the last round; nodes keep their own values there. The server's result has the last known value.
    - When the stage changes, all connected nodes get a message of type ``query.adaptive`` with the ConfigRecord
      ``config``: the train config with the ``stage`` that ended. They answer with the ArrayRecord ``fedweit.adaptive``:
      their A of that stage for every shared parameter of two or more dimensions, in its shape and dtype.
      Invalid answers are refused with a reason; the valid ones form the knowledge base.
    - The first TRAIN message to a node in a stage contains the knowledge base: the ConfigRecord ``fedweit`` with
      ``stage`` and ``keys``, the stable keys of the nodes it comes from, and for the i-th of them the ArrayRecord
      ``fedweit.knowledge.<i>``. The knowledge base is repeated until the server has accepted a reply of the node. Each
      node thus receives one model per node and stage, including its own A; all other messages contain only the base.

    With all masks one and a single stage this is FedAvg over the shared arrays, bit for bit. The server and its
    checkpoints store the knowledge base: one model per node.

    Parameters
    ----------
    query_timeout : float
        > 0, seconds until all nodes must have answered ``query.adaptive``.
    **base
        As in :class:`BaseStrategy`; ``shared`` names the parameters that are decomposed, such as ``["*.weight"]``. A
        server optimizer with momentum also changes units that no node sent, and nodes do not see this change.

    Raises
    ------
    ValueError
        ``query_timeout`` is not above 0.
    """

    privacy_gap: ClassVar[str] = (
        "nodes also send masks and, once per stage, adaptive parameters that are sent on to the other nodes"
    )
    robustness_gap: ClassVar[str] = (
        "each unit is averaged over the nodes that sent it, and the adaptive parameters of a node are sent on to the "
        "other nodes"
    )
    compression_gap: ClassVar[str] = "nodes already send only a part of each array, the units of their masks"
    kept: ClassVar[tuple[str, ...]] = ("stage", "_knowledge", "_served", "_sent")
    reply_records: ClassVar[int] = 3  # a mask of 64-bit integers is larger than the array it masks

    def __init__(self, *, query_timeout: float = 60.0, **base: Any) -> None:
        super().__init__(**base)
        if not query_timeout > 0:
            raise ValueError(f"query_timeout = {query_timeout!r}: must be above 0 seconds")
        self.query_timeout = query_timeout
        self.stage: int | None = None  # before the first round
        self._knowledge: dict[str, Arrays] = {}
        self._served: set[str] = set()
        self._sent: dict[str, NDArray[np.bool_]] = {}
        self._mean = MaskedMean(self.integers)

    @property
    def knowledge(self) -> Mapping[str, Arrays]:
        """The adaptive parameters of the last stage by the stable keys of their nodes. Do not change them."""
        return self._knowledge

    def begin_round(self, server_round: int, arrays: Arrays, config: ConfigRecord, grid: Grid) -> None:
        """If ``config`` has a new ``stage``, query the adaptive parameters of the stage that ended.

        Raises
        ------
        ValueError
            The stage is not an integer.
        """
        stage = stage_of(config)
        if stage != self.stage:
            ended = {**config, wire.SERVER_ROUND: server_round, wire.STAGE: self.stage or 0}
            exchange = self.stage is not None and stage > 0
            self._knowledge = self._collect(grid, ConfigRecord(ended), arrays) if exchange else {}
            self._served = set()
            self.stage = stage
        self._mean = MaskedMean(self.integers)

    def complete(self, phase: RoundStep, profile: Profile, content: RecordDict) -> None:
        if not all(sent.all() for sent in self._sent.values()):
            shared = content.array_records[wire.ARRAYS]
            content[wire.ARRAYS] = self.record_once(wire.ARRAYS, partial(self._with_zeros, shared))
        if phase != "train" or not self._knowledge or profile.key in self._served:
            return
        content[wire.FEDWEIT] = ConfigRecord({wire.STAGE: self.stage or 0, wire.FEDWEIT_KEYS: list(self._knowledge)})
        for index, arrays in enumerate(self._knowledge.values()):
            name = f"{wire.FEDWEIT_KNOWLEDGE_PREFIX}{index}"
            content[name] = self.record_once(name, partial(to_record, arrays))

    def refusal_reason(self, reply: Reply) -> str | None:
        try:
            reason = mask_error(_masks_of(reply.content), self._current)
        except ValueError as refusal:
            reason = str(refusal)
        return f"{wire.FEDWEIT_MASK}: {reason}" if reason else None

    def fold(self, reply: Reply, aggregate: Aggregate) -> None:
        # Algorithm 1 divides the sum of masked bases by all nodes, the authors' code by those that sent the unit
        masks = {name: mask.astype(np.bool_) for name, mask in _masks_of(reply.content).items()}
        self._mean.add(reply.arrays, reply.weight, masks)
        self._served.add(reply.profile.key)

    def close_round(self, server_round: int, current: Arrays, aggregate: Arrays) -> Arrays:
        if not self._mean.count:
            return current
        self._sent = self._mean.sent_units()
        mean = self._mean.result()
        for name, sent in self._sent.items():
            if not sent.all():  # no pseudo-gradient for units that no node sent
                mean[name] = np.where(sent, mean[name], current[name])
        return super().close_round(server_round, current, mean)

    def round_info(self) -> dict[str, Any]:
        """The stage, the numbers of nodes in and with the knowledge base, and of units that no node sent, by array."""
        unsent = {name: int((~sent).sum()) for name, sent in self._sent.items() if not sent.all()}
        served = len(self._served) if self._knowledge else 0
        return {"fedweit": {"stage": self.stage, "knowledge": len(self._knowledge), "served": served, "unsent": unsent}}

    def _with_zeros(self, shared: ArrayRecord) -> ArrayRecord:
        """The shared parameters with zeros for the units that no node sent in the last round."""
        arrays = from_record(shared)
        for name, sent in self._sent.items():
            arrays[name] = np.where(sent, arrays[name], 0).astype(arrays[name].dtype)
        return to_record(arrays)

    def _collect(self, grid: Grid, config: ConfigRecord, shared: Arrays) -> dict[str, Arrays]:
        """The valid answers to the query by stable key, in the order of the keys."""
        weights = {name: a for name, a in self.buffers.parameters(shared).items() if a.ndim >= 2}
        nodes = self.profiles(grid)
        messages = [Message(RecordDict({wire.CONFIG: config}), node.node_id, wire.ADAPTIVE_QUERY) for node in nodes]
        adaptive: dict[str, Arrays] = {}
        for node, answer in zip(nodes, self.send(grid, messages, self.query_timeout), strict=True):
            try:
                adaptive[node.key] = self._adaptive_of(answer.outcome, weights)
            except ValueError as refusal:
                reason = truncate(str(refusal))
                log(WARNING, "refused the adaptive parameters of node %s: %s", node.key, reason)
                self.report.refused.append(Refusal(node.key, "train", f"{wire.FEDWEIT_ADAPTIVE}: {reason}"))
            del answer
        log(INFO, "%s of %s nodes sent adaptive parameters of stage %s", len(adaptive), len(nodes), config[wire.STAGE])
        return adaptive

    def _adaptive_of(self, answer: Outcome, weights: Arrays) -> Arrays:
        if isinstance(answer, NodeFailure):
            raise ValueError(answer.reason)
        size = count_bytes(answer.content)
        self.report.bytes_up += size
        check_size(size, max_reply_bytes(weights, 1))
        record = answer.content.get(wire.FEDWEIT_ADAPTIVE)
        if not isinstance(record, ArrayRecord):
            raise ValueError("the answer has no ArrayRecord of this name")
        arrays = read_arrays(record, weights)
        return {name: arrays[name] for name in weights}


def _masks_of(content: RecordDict) -> Arrays:
    record = content.get(wire.FEDWEIT_MASK)
    if record is None:
        return {}
    if not isinstance(record, ArrayRecord):
        raise ValueError(f"must be an ArrayRecord, not a {type(record).__name__}")
    return from_record(record)
