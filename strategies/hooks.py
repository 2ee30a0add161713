"""The hooks of an algorithm: what a subclass of :class:`~fedapps.strategies.base.BaseStrategy` overrides.

They are called in every round in this order:

1. ``prepare_round`` and ``begin_round``;
2. ``untrained``; ``arrays_for`` and ``train_records`` for each node that trains;
3. ``refusal_reason``, ``aggregate_for`` and ``fold_reply`` for each train reply;
4. ``close_round``;
5. ``arrays_for`` and ``evaluate_records`` for each node that evaluates;
6. ``round_info`` and, if there are checkpoints, ``state``.

``label`` is called when profiles are read, and ``load_state`` when a run resumes.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid

from .aggregation.mean import Aggregate
from .arrays import Arrays
from .nodes.profiles import Profile
from .replies import Reply
from .rounds.loop import ResumableStrategy

#: Records of a message in addition to ``arrays`` and ``config``, by name.
ExtraRecords = Mapping[str, ArrayRecord | ConfigRecord]


class RoundHooks(ResumableStrategy):
    """The hooks of an algorithm, with what they do if they are not overridden."""

    #: Why :class:`~fedapps.strategies.privacy.CentralPrivacy` does not cover the strategy; empty if it does.
    privacy_gap: ClassVar[str] = ""
    #: Why a robust aggregation does not protect the strategy from Byzantine nodes; empty if it does.
    robustness_gap: ClassVar[str] = ""
    #: Why the strategy cannot use compressed updates; empty if it can.
    compression_gap: ClassVar[str] = ""
    #: Largest number of ArrayRecords in the form of the shared parameters that a reply can contain.
    reply_records: ClassVar[int] = 1

    # -- what is sent -----------------------------------------------------------------------------------------------

    def prepare_round(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> None:
        """Called first in a round, with the shared parameters; can query nodes before any are sampled."""

    def begin_round(self, server_round: int, arrays: Arrays) -> None:
        """Called before the messages of a round are built; ``arrays`` are the shared parameters."""

    def untrained(self, server_round: int, names: Sequence[str]) -> Sequence[str]:
        """The names of shared arrays that nodes neither train nor return in this round; by default none."""
        return ()

    def label(self, profile: Profile) -> Profile:
        """The profile that samplers and reports see: an algorithm can add groups."""
        return profile

    def arrays_for(self, profile: Profile, shared: ArrayRecord) -> ArrayRecord:
        """The arrays that a node receives in both phases, with the names, shapes and dtypes of ``shared``."""
        return shared

    def train_records(self, server_round: int, profile: Profile) -> ExtraRecords:
        """Records that a training node receives in addition to ``arrays`` and ``config``, by name."""
        return {}

    def evaluate_records(self, server_round: int, profile: Profile) -> ExtraRecords:
        """Records that an evaluating node receives in addition to ``arrays`` and ``config``, by name."""
        return {}

    # -- what becomes of the replies --------------------------------------------------------------------------------

    def refusal_reason(self, reply: Reply) -> str | None:
        """Why the algorithm cannot use a train reply that passed all other checks; ``None`` if it can."""
        return None

    def aggregate_for(self, reply: Reply, aggregate: Aggregate) -> Aggregate:
        """The aggregate that a usable train reply is added to; ``aggregate`` is that of the round."""
        return aggregate

    def fold_reply(self, server_round: int, reply: Reply) -> None:
        """Called with each usable train reply. Copy what the algorithm needs, but keep no reference to the reply."""

    @abstractmethod
    def close_round(self, server_round: int, current: Arrays, aggregate: Arrays) -> Arrays:
        """The next shared parameters, from the current ones and the aggregate, which is empty without replies.

        Both are without the arrays of :meth:`untrained`, which keep their values unless the result has them.
        """

    def round_info(self) -> dict[str, Any]:
        """Facts about the round for the records of the run, after its last phase. They must be JSON serialisable."""
        return {}
