"""The hooks that an algorithm overrides to change federated averaging.

:class:`~fedapps.strategies.base.BaseStrategy` calls them in every round in this order:

1. ``prepare_round`` and ``begin_round``;
2. ``arrays_for`` and ``train_records`` for each node that trains;
3. ``refusal_reason``, ``aggregate_for`` and ``fold_reply`` for each train reply;
4. ``close_round``;
5. ``arrays_for`` and ``evaluate_records`` for each node that evaluates;
6. ``round_info`` and, if there are checkpoints, ``state``.

It calls ``label`` when it reads profiles, and ``load_state`` when a run resumes.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from . import wire
from .aggregation.mean import Aggregate
from .arrays import Arrays
from .nodes.profiles import Profile
from .nodes.registry import NodeRegistry
from .optimizers import ServerOptimizer
from .replies import Reply
from .rounds.snapshots import under

ExtraRecords = Mapping[str, ArrayRecord | ConfigRecord]


def build_messages(
    cohort: Sequence[Profile],
    kind: str,
    server_round: int,
    arrays: ArrayRecord,
    config: ConfigRecord,
    arrays_for: Callable[[Profile, ArrayRecord], ArrayRecord],
    records_for: Callable[[int, Profile], ExtraRecords],
) -> list[Message]:
    """Build one message for each node.

    Parameters
    ----------
    cohort : sequence of Profile
        The receivers; messages have the same order.
    kind : str
        Flower's message type.
    server_round : int
        Number of the round, which is added to the config.
    arrays : ArrayRecord
        The shared arrays.
    config : ConfigRecord
        Entries of the config of all messages; each message gets a copy.
    arrays_for : function of a Profile and the shared arrays
        The arrays that a node receives.
    records_for : function of the round and a Profile
        Further records that a node receives, by name.
    """
    messages = []
    numbered = ConfigRecord({**config, wire.SERVER_ROUND: server_round})
    for node in cohort:
        further = records_for(server_round, node)
        content = RecordDict({wire.ARRAYS: arrays_for(node, arrays), wire.CONFIG: numbered.copy(), **further})
        messages.append(Message(content, node.node_id, kind))
    return messages


def stage_of(config: ConfigRecord) -> int:
    """The stage in the config of a round, 0 if it names none.

    Raises
    ------
    ValueError
        The stage is not an integer.
    """
    stage = config.get(wire.STAGE, 0)
    if not isinstance(stage, int) or isinstance(stage, bool):
        raise ValueError(f"config {wire.STAGE} = {stage!r}: must be an integer")
    return stage


_OPTIMIZER = "optimizer."


class StrategyHooks:
    """The hooks, with the behaviour of FedAvg."""

    server_optimizer: ServerOptimizer
    registry: NodeRegistry
    #: The shared parameters: those at the start of the round until :meth:`close_round` has returned, then the new ones.
    _current: Arrays

    def prepare_round(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> None:
        """Called first in a round, with the shared parameters; can query nodes before any are sampled."""

    def begin_round(self, server_round: int, arrays: Arrays) -> None:
        """Called before the messages of a round are built; ``arrays`` are the shared parameters."""

    def train_records(self, server_round: int, profile: Profile) -> ExtraRecords:
        """Records that a training node receives in addition to ``arrays`` and ``config``, by name."""
        return {}

    def evaluate_records(self, server_round: int, profile: Profile) -> ExtraRecords:
        """Records that an evaluating node receives in addition to ``arrays`` and ``config``, by name."""
        return {}

    def label(self, profile: Profile) -> Profile:
        """The profile that samplers and reports see: an algorithm can add groups."""
        return profile

    def arrays_for(self, profile: Profile, shared: ArrayRecord) -> ArrayRecord:
        """The arrays that a node receives in both phases, with the names, shapes and dtypes of ``shared``."""
        return shared

    def refusal_reason(self, reply: Reply) -> str | None:
        """Why the algorithm cannot use a train reply that passed all other checks; ``None`` if it can."""
        return None

    def aggregate_for(self, reply: Reply, aggregate: Aggregate) -> Aggregate:
        """The aggregate that a usable train reply is added to; ``aggregate`` is that of the round."""
        return aggregate

    def fold_reply(self, server_round: int, reply: Reply) -> None:
        """Called with each usable train reply. Copy what the algorithm needs, but keep no reference to the reply."""

    def close_round(self, server_round: int, current: Arrays, aggregate: Arrays) -> Arrays:
        """The next shared parameters, from the current ones and the aggregate, which is empty without replies."""
        return self.server_optimizer.step(current, aggregate) if aggregate else current

    def state(self) -> Arrays:
        """Arrays that a snapshot stores in addition to the shared parameters; :meth:`load_state` restores them."""
        moments = {_OPTIMIZER + name: array for name, array in self.server_optimizer.state().items()}
        return {**moments, **self.registry.admission.state()}

    def load_state(self, state: Arrays) -> None:
        """Restore the state of a snapshot."""
        self.server_optimizer.load_state(under(_OPTIMIZER, state))
        self.registry.admission.load_state(state)

    def round_info(self) -> dict[str, Any]:
        """Facts about the round for the records of the run, after its last phase. They must be JSON serialisable."""
        return {}
