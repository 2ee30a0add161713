"""Local algorithms as parts that a node composes.

A part adds to a round what its algorithm needs: a term of the objective, a phase of training, memory between rounds,
records in the reply. :class:`~clients.base.FederatedClient` calls the hooks of all its parts in their order. No part
knows another one; parts that need the same thing for themselves say so in ``exclusive`` and cannot be combined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from flwr.app import ArrayRecord, RecordDict
from torch import Tensor, nn

from tasks.base import Batch, Metrics, NodeData, Task
from tasks.seeding import torch_seed

from .named_arrays import Arrays
from .penalties import QuadraticPrior
from .round_settings import RoundSettings, with_config
from .state import PrivateState
from .training import Phase

Loss = Callable[[nn.Module, Batch], Tensor]


@dataclass(frozen=True)
class NodeRound:
    """One round on one node, as the local parts see it.

    Parameters
    ----------
    task : Task
    data : NodeData
        The node's data in the stage of the round.
    settings : RoundSettings
    received : dict of arrays
        The shared parameters that the message brought.
    kept : dict of arrays
        The private arrays and the memory that the round starts from.
    seed : int
        The seed of the run.
    device : torch.device
    state : PrivateState
        Where the node keeps private arrays between rounds.
    num_stages : int
        Stages of the node's data, at least 1.
    initial_model : callable
        Builds the initial model of the run.
    build : callable
        ``build(received, kept)`` is the model with these arrays in it, as the parts make it.
    """

    task: Task
    data: NodeData
    settings: RoundSettings
    received: Arrays
    kept: Arrays
    seed: int
    device: torch.device
    state: PrivateState
    num_stages: int
    initial_model: Callable[[], nn.Module]
    build: Callable[[Arrays, Arrays], nn.Module]

    def torch_seed(self, purpose: str, *labels: int | str) -> AbstractContextManager[None]:
        """Seed torch's generator for one purpose in this round of this node."""
        return torch_seed(self.seed, purpose, self.settings.server_round, self.data.key, *labels)

    def epochs(self, model: nn.Module, data: NodeData) -> Callable[[int], Iterator[Batch]]:
        """``epochs(model, data)(batch_size)`` yields the batches of one epoch of training."""
        return lambda batch_size: self.task.training_batches(model, data, batch_size)


class LocalPart:
    """A local algorithm. Every hook defaults to changing nothing; a part is a frozen dataclass.

    The fields of a part are its hyper-parameters in a round. :meth:`read` takes them from the config of the message,
    where a field ``adapt_epochs`` has the key ``adapt-epochs``.
    """

    #: What the part needs for itself, in words. Two parts that name the same thing cannot be combined.
    exclusive: ClassVar[frozenset[str]] = frozenset()

    def read(self, config: Mapping[str, object], content: RecordDict) -> Self:
        """The part with the hyper-parameters and records of a message.

        Raises
        ------
        ValueError
            A value has the wrong type, or a record is missing or malformed.
        """
        return with_config(self, config)

    def check(self, node_round: NodeRound) -> None:
        """Raise ``ValueError`` if the part cannot train this round."""

    # -- memory between rounds -------------------------------------------------------------------------------

    def kept(self, kept: Arrays) -> Arrays:
        """What the round starts from, of the private arrays and memory that the last round left."""
        return kept

    def next_stage(self, carried: Arrays, kept: Arrays) -> Arrays:
        """What a new stage starts from: ``carried`` are the private arrays; ``kept`` has the memory, too."""
        return carried

    def remember(self, model: nn.Module, node_round: NodeRound) -> Arrays:
        """Memory to keep for the next round, beside the private parameters."""
        return {}

    # -- the model ---------------------------------------------------------------------------------------------

    def wrap(self, model: nn.Module, node_round: NodeRound) -> nn.Module:
        """The module to train in place of the task's model, on the CPU; by default the model itself."""
        return model

    def stage_model(self, model: nn.Module, stage: int) -> nn.Module:
        """The task's model to evaluate on the data of a stage, counted from 0."""
        return model

    def shared_parameters(self, model: nn.Module, node_round: NodeRound) -> Mapping[str, nn.Parameter] | None:
        """The trainable parameters that hold what was received; ``None`` for those of the received names."""
        return None

    def private(self, model: nn.Module, node_round: NodeRound) -> Arrays | None:
        """The trained arrays that stay on the node; ``None`` for all that were not received."""
        return None

    def outgoing(self, model: nn.Module, node_round: NodeRound) -> Arrays | None:
        """The arrays that go back; ``None`` for the model's values of the received names."""
        return None

    # -- training ----------------------------------------------------------------------------------------------

    def seed_labels(self) -> tuple[int | str, ...]:
        """Labels that the training's seed has beside the round and the node."""
        return ()

    def draw(self, data: NodeData, node_round: NodeRound) -> NodeData:
        """The examples of the round, drawn from torch's generator; its split ``train`` counts as trained on."""
        return data

    def plan(self, plan: Sequence[Phase], model: nn.Module, data: NodeData, node_round: NodeRound) -> Sequence[Phase]:
        """The phases of training; the last one of ``plan`` trains all parameters of ``model`` on ``data``."""
        return plan

    def loss(self, loss: Loss) -> Loss:
        """What training minimises on a batch, beside the prior."""
        return loss

    def prior(
        self, shared: Mapping[str, nn.Parameter], model: nn.Module, node_round: NodeRound
    ) -> QuadraticPrior | None:
        """A penalty on the parameters while they are trained; ``shared`` are those that hold what was received."""
        return None

    # -- the reply ---------------------------------------------------------------------------------------------

    def records(self, trained: Arrays, model: nn.Module, node_round: NodeRound) -> Mapping[str, ArrayRecord]:
        """Records of the reply beside the ``trained`` arrays; the private state is saved by then."""
        return {}

    def count_parameters(
        self, counted: Metrics, shared: Mapping[str, nn.Parameter], memory: Arrays, model: nn.Module, stages: int
    ) -> Metrics:
        """``trainable_parameters`` over all stages, and ``static_parameters`` held fixed beside them."""
        return counted

    def answer(self, query: str, node_round: NodeRound) -> Mapping[str, ArrayRecord] | None:
        """The answer to a QUERY message of this name; ``None`` if the part does not know it."""
        return None

    # -- evaluation --------------------------------------------------------------------------------------------

    def before_evaluation(self, model: nn.Module, node_round: NodeRound) -> None:
        """Train the model that is about to be evaluated, in place."""

    def also_evaluated(self) -> Mapping[str, Arrays]:
        """Further received models to evaluate, by the prefix of their metrics."""
        return {}

    def bytes_on_disk(self, model_bytes: int, version_bytes: int, stages: int) -> int:
        """What the part keeps on disk at most, beside the versions of the private arrays of one stage."""
        return 0


def composed(parts: Sequence[LocalPart]) -> tuple[LocalPart, ...]:
    """The parts of one node.

    Raises
    ------
    ValueError
        Two of them need the same thing for themselves.
    """
    owners: dict[str, LocalPart] = {}
    for part in parts:
        for need in sorted(part.exclusive):
            if need in owners:
                first, second = type(owners[need]).__name__, type(part).__name__
                raise ValueError(
                    f"the local algorithms {first} and {second} cannot be combined: both need {need} for themselves"
                )
            owners[need] = part
    return tuple(parts)
