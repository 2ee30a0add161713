"""FedWeIT: nodes share a base, keep what is their own, and borrow from what the others learned in the stage before.

Yoon et al., Federated Continual Learning with Weighted Inter-client Transfer, ICML 2021, Section 3.2 and Algorithm 1,
https://arxiv.org/abs/2003.03196.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from logging import INFO, WARNING
from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from numpy.typing import NDArray

from .aggregation import StreamingMean
from .arrays import Arrays, from_record, is_float, to_record
from .base import BaseStrategy
from .masked_mean import MaskedMean, mask_error
from .profiles import Profile
from .quadratic_terms import flat_by_key, nested_by_key
from .replies import Reply, check_size, count_bytes, most_bytes, read_arrays
from .round_messages import ExtraRecords
from .round_records import Refusal, RoundReport
from .sanitize import truncate
from .transport import NodeFailure

QUERY = "query.adaptive"
ADAPTIVE = "fedweit.adaptive"
MASK = "fedweit.mask"
ORDER = "fedweit"
KNOWLEDGE = "fedweit.knowledge."
_STATE = "fedweit."


class FedWeIT(BaseStrategy):
    """FedAvg over the units that nodes send, and once per stage an exchange of what they learned in the last one.

    A node's model in stage t is θ = B ⊙ σ(m_t) + A_t + Σ_k α_k A_k: a base B that travels, a mask m_t and adaptive
    parameters A_t that are its own, and a weighted sum of the adaptive parameters that all nodes had at the end of
    stage t − 1, the knowledge base. The server only ever sees B and, once, A. A stage is the integer ``stage`` in
    the train config, 0 if there is none; without stages this is an average of masked bases alone.

    On the wire, names and shapes being those of the shared parameters:

    - A train reply may bring the ArrayRecord ``fedweit.mask``: for some or all of the floating-point arrays which units
      of them it sends, as booleans (or integers 0 and 1) of as many dimensions, with length 1 along those that the mask
      does not tell apart: [8, 1] for the rows of an [8, 3] matrix. What it does not send counts for nothing.
      Arrays without a mask were sent whole, as by any node that does not know FedWeIT.
    - Every unit is averaged over those who sent it. One that nobody sent in the last round goes out as zeros, in TRAIN
      and EVALUATE messages: each node keeps its own there. The server's result has its last known value.
    - When the stage changes, all connected nodes get a message of type ``query.adaptive`` with the ConfigRecord
      ``config``: the train config, but with the ``stage`` that ended. They answer with the ArrayRecord
      ``fedweit.adaptive``: their A of that stage for every shared floating-point array of two or more dimensions,
      in its shape and dtype. Answers that do not fit are refused with the reason; the others make the knowledge base.
    - The first TRAIN message to a node in the stage brings it: the ConfigRecord ``fedweit`` with ``stage`` and
      ``keys``, the stable keys of the nodes it comes from, and for the i-th of them the ArrayRecord
      ``fedweit.knowledge.<i>``. First means: until a reply of the node was accepted. A node so gets one model per node
      and stage, its own A among them, and nothing beside the base in all other rounds.

    All masks one, in one stage, is FedAvg over the shared arrays, bit for bit. The server's memory, and its
    checkpoints, hold the knowledge base: one model per node.

    Parameters
    ----------
    query_timeout : float
        Seconds, > 0, that the nodes have to answer the query, all together.
    **base
        As in :class:`BaseStrategy`; ``shared`` names the parameters that are decomposed, such as ``["*.weight"]``. A
        server optimizer other than the default moves the units that nobody sent by its momentum, unseen by the nodes.
    """

    beside_the_mean: ClassVar[str] = (
        "nodes also send masks and, once per stage, adaptive parameters that are handed on to the others"
    )
    reply_records: ClassVar[int] = 3  # a mask of 64-bit integers is larger than what it masks

    def __init__(self, *, query_timeout: float = 60.0, **base: Any) -> None:
        super().__init__(**base)
        if not query_timeout > 0:
            raise ValueError(f"query_timeout = {query_timeout!r}: must be above 0 seconds")
        self.query_timeout = query_timeout
        self.stage: int | None = None  # none yet
        self._knowledge: dict[str, Arrays] = {}
        self._served: set[str] = set()
        self._sent: dict[str, NDArray[np.bool_]] = {}
        self._mean = MaskedMean(self.integers)
        self._records: dict[str, ArrayRecord] = {}  # of the messages that are being made, one for all nodes

    @property
    def knowledge(self) -> Mapping[str, Arrays]:
        """The adaptive parameters of the last stage by the stable keys of their nodes; not to be changed."""
        return self._knowledge

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As in :class:`BaseStrategy`; a new ``stage`` in ``config`` first asks the nodes what they learned."""
        stage = config.get("stage", 0)
        if not isinstance(stage, int) or isinstance(stage, bool):
            raise ValueError(f"config stage = {stage!r}: must be an integer")
        if self.report.round != server_round:  # Flower's own loop makes no reports
            self.report = RoundReport(server_round)
        if stage != self.stage:
            ended = {**config, "server-round": server_round, "stage": self.stage or 0}
            asked = self.stage is not None and stage > 0
            self._knowledge = self._collected(grid, ConfigRecord(ended), self.share(arrays)) if asked else {}
            self._served = set()
            self.stage = stage
        messages = super().configure_train(server_round, arrays, config, grid)
        self._records = {}
        return messages

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages = super().configure_evaluate(server_round, arrays, config, grid)
        self._records = {}
        return messages

    def begin_round(self, server_round: int, arrays: Arrays) -> None:
        self._mean = MaskedMean(self.integers)

    def arrays_for(self, profile: Profile, shared: ArrayRecord) -> ArrayRecord:
        if all(sent.all() for sent in self._sent.values()):
            return shared
        if "arrays" not in self._records:
            arrays = from_record(shared)
            zeroed = {name: np.where(sent, arrays[name], 0) for name, sent in self._sent.items() if not sent.all()}
            self._records["arrays"] = to_record(
                {name: zeroed.get(name, array).astype(array.dtype) for name, array in arrays.items()}
            )
        return self._records["arrays"]

    def train_records(self, server_round: int, profile: Profile) -> ExtraRecords:
        if not self._knowledge or profile.key in self._served:
            return {}
        records: dict[str, ArrayRecord | ConfigRecord] = {
            ORDER: ConfigRecord({"stage": self.stage or 0, "keys": list(self._knowledge)})
        }
        for index, arrays in enumerate(self._knowledge.values()):
            name = f"{KNOWLEDGE}{index}"
            if name not in self._records:
                self._records[name] = to_record(arrays)
            records[name] = self._records[name]
        return records

    def reason_against(self, reply: Reply) -> str | None:
        try:
            reason = mask_error(_masks_of(reply.content), self._current)
        except ValueError as refusal:
            reason = str(refusal)
        return f"{MASK}: {reason}" if reason else None

    def mean_for(self, reply: Reply, mean: StreamingMean) -> StreamingMean:
        masks = _masks_of(reply.content)
        return self._mean.masked_view({name: mask.astype(np.bool_) for name, mask in masks.items()})

    def fold_reply(self, server_round: int, reply: Reply) -> None:
        self._served.add(reply.profile.key)

    def close_round(self, server_round: int, current: Arrays, mean: Arrays) -> Arrays:
        self._sent = self._mean.sent_units()
        mean = self._mean.result()
        for name, sent in self._sent.items():
            if not sent.all():  # no pseudo-gradient where nobody sent
                mean[name] = np.where(sent, mean[name], current[name])
        return super().close_round(server_round, current, mean)

    def state(self) -> Arrays:
        kept: Arrays = {f"{_STATE}sent.{name}": sent for name, sent in self._sent.items()}
        if self.stage is not None:
            kept[f"{_STATE}stage"] = np.array(self.stage, dtype=np.int64)
        for key, arrays in self._knowledge.items():
            kept |= flat_by_key(f"{_STATE}knowledge.", key, adaptive=arrays)
        for key in sorted(self._served):
            kept |= flat_by_key(f"{_STATE}served.", key, train={"round": np.array(True)})
        return {**super().state(), **kept}

    def load_state(self, state: Arrays) -> None:
        super().load_state(state)
        self.stage = int(state[f"{_STATE}stage"]) if f"{_STATE}stage" in state else None
        knowledge = nested_by_key(f"{_STATE}knowledge.", state)
        self._knowledge = {key: knowledge[key]["adaptive"] for key in sorted(knowledge)}
        self._served = set(nested_by_key(f"{_STATE}served.", state))
        prefix = f"{_STATE}sent."
        self._sent = {name.removeprefix(prefix): a for name, a in state.items() if name.startswith(prefix)}

    def round_info(self) -> dict[str, Any]:
        """The stage, how many nodes' knowledge there is, how many nodes have it, and the units nobody sent."""
        unsent = {name: int((~sent).sum()) for name, sent in self._sent.items() if not sent.all()}
        served = len(self._served) if self._knowledge else 0
        return {"fedweit": {"stage": self.stage, "knowledge": len(self._knowledge), "served": served, "unsent": unsent}}

    # -- the machinery -------------------------------------------------------------------------------------

    def _collected(self, grid: Grid, config: ConfigRecord, shared: ArrayRecord) -> dict[str, Arrays]:
        """The answers to the query that can be used, in the order of the stable keys."""
        weights = {name: a for name, a in from_record(shared).items() if is_float(a) and a.ndim >= 2}
        nodes = self.profiles(grid)
        messages = [Message(RecordDict({"config": config}), node.node_id, QUERY) for node in nodes]
        found: dict[str, Arrays] = {}
        for node, answer in zip(nodes, self.send(grid, messages, self.query_timeout), strict=True):
            try:
                found[node.key] = self._adaptive_of(answer, weights)
            except ValueError as refusal:
                reason = truncate(str(refusal))
                log(WARNING, "refused what node %s learned in the last stage: %s", node.key, reason)
                self.report.refused.append(Refusal(node.key, "train", f"{ADAPTIVE}: {reason}"))
            del answer
        log(INFO, "%s of %s nodes told what they learned in stage %s", len(found), len(nodes), config["stage"])
        return found

    def _adaptive_of(self, answer: Message | NodeFailure, weights: Arrays) -> Arrays:
        if isinstance(answer, NodeFailure):
            raise ValueError(answer.reason)
        self.report.bytes_up += count_bytes(answer.content)
        check_size(answer.content, most_bytes(weights, 1))
        record = answer.content.get(ADAPTIVE)
        if not isinstance(record, ArrayRecord):
            raise ValueError("no ArrayRecord of this name in the answer")
        arrays = read_arrays(record, weights)
        return {name: arrays[name] for name in weights}


def _masks_of(content: RecordDict) -> Arrays:
    record = content.get(MASK)
    if record is None:
        return {}
    if not isinstance(record, ArrayRecord):
        raise ValueError(f"must be an ArrayRecord, not a {type(record).__name__}")
    return from_record(record)
