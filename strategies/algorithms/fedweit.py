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
from flwr.common.logger import log
from flwr.serverapp import Grid
from numpy.typing import NDArray

from .. import wire
from ..aggregation.masked_mean import MaskedMean, mask_error
from ..aggregation.mean import Aggregate
from ..arrays import Arrays, from_record, to_record
from ..base import BaseStrategy
from ..checks import truncate
from ..nodes.profiles import Profile
from ..replies import Reply, check_size, count_bytes, max_reply_bytes, read_arrays
from ..rounds.records import Refusal, RoundStep
from ..rounds.transport import NodeFailure, Outcome


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
        stage = wire.stage_of(config)
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
        self.report.bytes_up += count_bytes(answer.content)
        check_size(answer.content, max_reply_bytes(weights, 1))
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
