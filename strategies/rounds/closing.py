"""Rounds that close before all nodes have replied: at enough replies, or at a deadline.

Bonawitz et al., Towards Federated Learning at Scale: System Design, MLSys 2019, https://arxiv.org/abs/1902.01046,
Sections 2.2 and 9: ask 1.3 times as many nodes as are needed, and close at the replies of that many, or at a deadline.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, inf, isfinite
from typing import Literal, get_args

from ..nodes.samplers import Sampler
from ..privacy import PrivacyMechanism
from ..staleness import Staleness

LateReplies = Literal["drop", "fold"]


@dataclass(frozen=True)
class Closing:
    """When a round of training closes, and what becomes of replies that arrive later.

    Parameters
    ----------
    over_selection : float
        ≥ 1, ask this number times as many nodes as the sampler chooses (rounded up), and close when as many replies
        are in as it chose. Bonawitz et al. use 1.3.
    deadline : float
        > 0, seconds after which a round closes with the replies that are in, once ``min_replies`` are. Evaluations by
        nodes close then, too. Infinite for none.
    late : "drop" or "fold"
        Whether a late reply is dropped, or enters the step of the round in which it arrives, weighted by its staleness.
    staleness : Staleness
        The weights of late replies under "fold".

    Raises
    ------
    ValueError
        A parameter is out of range.
    """

    over_selection: float = 1.0
    deadline: float = inf
    late: LateReplies = "drop"
    staleness: Staleness = field(default_factory=Staleness)

    def __post_init__(self) -> None:
        if not (isfinite(self.over_selection) and self.over_selection >= 1):
            raise ValueError(f"over_selection = {self.over_selection!r}: must be at least 1")
        if not self.deadline > 0:
            raise ValueError(f"deadline = {self.deadline!r}: must be above 0 seconds")
        if self.late not in get_args(LateReplies):
            raise ValueError(f"late = {self.late!r}: must be 'drop' or 'fold'")

    @property
    def early(self) -> bool:
        """Whether a round can close before all nodes have replied."""
        return self.over_selection > 1 or self.deadline < inf

    def asked(self, chosen: int) -> int:
        """How many nodes to ask where the sampler has chosen so many."""
        return ceil(self.over_selection * chosen - 1e-9)

    def refusal(
        self,
        sampler: Sampler,
        aggregation: object,
        privacy: PrivacyMechanism,
        in_flight: int | None,
        hooks: Sequence[str],
    ) -> str:
        """Why rounds of a strategy with these parts and own hooks cannot close early; empty if they can."""
        over, fold = self.over_selection > 1, self.late == "fold"
        if in_flight:
            return f"in_flight = {in_flight} sends messages only when others have replied"
        if over and sampler.random_size:
            return f"sampler = {sampler} decides by chance how many nodes take part"
        if over and aggregation:
            return f"with aggregation = {aggregation}, Byzantine nodes could be the first to reply"
        if fold and (aggregation or type(privacy) is not PrivacyMechanism):
            return f"late = 'fold' needs a mean without privacy, but aggregation = {aggregation}, privacy = {privacy}"
        if fold and hooks:
            return (
                "late = 'fold' brings updates of earlier versions, but the strategy expects the current one in "
                + ", ".join(hooks)
            )
        return ""
