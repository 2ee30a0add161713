"""Local algorithms as parts that a node composes.

A part adds to a round what its algorithm needs: a term of the objective, a phase of training, memory between rounds,
records in the reply. :class:`~fedapps.clients.base.FederatedClient` calls the hooks of its parts in their order. No
part knows another one; a part that needs something for itself says so in ``exclusive``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import combinations
from typing import ClassVar, Self

import torch
from fedapps.sim.seeding import torch_seed
from fedapps.tasks.base import Batch, NodeData, Task
from flwr.app import ArrayRecord, RecordDict
from torch import nn

from .named_arrays import Arrays
from .penalties import QuadraticPrior
from .settings import RoundSettings, with_config
from .training import Loss, Phase

#: What a part can need for itself (``LocalPart.exclusive``).
EARLIER_STAGES = "the memory of earlier stages"
EVALUATED_MODEL = "the evaluated model"
PARAMETER_NAMES = "the names of the parameters"
PHASES = "the phases of training"


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
        The shared parameters from the message.
    kept : dict of arrays
        The private arrays and the memory from earlier rounds (:mod:`fedapps.clients.node_memory`).
    seed : int
        The seed of the run.
    device : torch.device
    initial_model : callable
        Builds the initial model of the run.
    steps : int
        Optimizer steps of the round's training, for the hooks that are called after it; 0 before.
    """

    task: Task
    data: NodeData
    settings: RoundSettings
    received: Arrays
    kept: Arrays
    seed: int
    device: torch.device
    initial_model: Callable[[], nn.Module]
    steps: int = 0

    def torch_seed(self, purpose: str, *labels: int | str) -> AbstractContextManager[None]:
        """Seed torch's generator for one purpose in this round of this node."""
        return torch_seed(self.seed, purpose, self.settings.server_round, self.data.key, *labels)

    def epochs(self, model: nn.Module, data: NodeData) -> Callable[[int], Iterator[Batch]]:
        """Return the function ``epoch(batch_size)``, which yields the batches of one epoch of training."""
        return lambda batch_size: self.task.training_batches(model, data, batch_size)


@dataclass(frozen=True)
class Prepared:
    """What was done to a model before its evaluation.

    Parameters
    ----------
    steps : int
        Optimizer steps.
    kept : mapping of str to arrays
        What the node keeps, by name; the private arrays and the memory of later rounds stay as they are.
    """

    steps: int = 0
    kept: Mapping[str, Arrays] = field(default_factory=dict)


class LocalPart:
    """A local algorithm. By default no hook changes anything. Write a part as a frozen dataclass.

    The fields of a part are its hyper-parameters in a round, and what the records of the message bring. :meth:`read`
    takes the hyper-parameters from the config of the message, where a field ``adapt_epochs`` has the key
    ``adapt-epochs``.

    Hooks that change a value are called in the order of the parts; each gets the value that the last one returned. Of
    the hooks whose default is ``None`` the first other value counts.
    """

    #: What the part needs for itself, in words. Two parts that need the same thing cannot be combined.
    exclusive: ClassVar[frozenset[str]] = frozenset()

    def read(self, config: Mapping[str, object], content: RecordDict) -> Self:
        """Return the part with the hyper-parameters and the records of a message. What is missing there stays as it is.

        Parameters
        ----------
        config : mapping
            The config of the message. Keys of other parts are ignored.
        content : RecordDict
            All records of the message.

        Raises
        ------
        ValueError
            A value has the wrong type or is out of range, or a record is malformed.
        """
        part = with_config(self, config)
        part.validate()
        return part

    def validate(self) -> None:
        """Raise ``ValueError`` if a hyper-parameter is out of range; names are those in the config."""

    def check(self, node_round: NodeRound) -> None:
        """Raise ``ValueError`` if the part cannot train this round."""

    # -- memory between rounds -------------------------------------------------------------------------------

    def kept(self, kept: Arrays) -> Arrays:
        """Change the private arrays and the memory that a round starts from."""
        return kept

    def next_stage(self, carried: Arrays, kept: Arrays) -> Arrays:
        """Change what a new stage starts from.

        ``carried`` are the private arrays, without the memory; ``kept`` is everything that the last stage left.
        """
        return carried

    def remember(self, model: nn.Module, node_round: NodeRound) -> Arrays:
        """Return the part's memory for later rounds. Two parts must not use the same name."""
        return {}

    # -- the model ---------------------------------------------------------------------------------------------

    def wrap(self, model: nn.Module, node_round: NodeRound) -> nn.Module:
        """Return the module to train in place of the task's model. It is on the CPU at this point."""
        return model

    def stage_model(self, model: nn.Module, stage: int) -> nn.Module:
        """Return the task's model to evaluate on the data of a stage, counted from 0."""
        return model

    def shared_parameters(self, model: nn.Module, node_round: NodeRound) -> Mapping[str, nn.Parameter] | None:
        """Return the trainable parameters that hold received values; by default those whose names were received."""
        return None

    def private(self, model: nn.Module, node_round: NodeRound) -> Arrays | None:
        """Return the trained arrays that stay on the node; by default all that were not received."""
        return None

    def outgoing(self, model: nn.Module, node_round: NodeRound) -> Arrays | None:
        """Return the arrays of the reply; by default the model's values of the received names."""
        return None

    # -- training ----------------------------------------------------------------------------------------------

    def seed_labels(self) -> tuple[int | str, ...]:
        """Return further labels for the seed of training, beside the round and the node."""
        return ()

    def draw(self, data: NodeData, node_round: NodeRound) -> NodeData:
        """Select the examples of the round, with torch's generator. The split ``train`` gives the example count."""
        return data

    def plan(self, plan: Sequence[Phase], model: nn.Module, data: NodeData, node_round: NodeRound) -> Sequence[Phase]:
        """Change the phases of training. The last phase of ``plan`` trains all parameters of ``model`` on ``data``."""
        return plan

    def loss(self, loss: Loss) -> Loss:
        """Change the loss of a batch. The prior is added to it later."""
        return loss

    def prior(
        self, shared: Mapping[str, nn.Parameter], model: nn.Module, node_round: NodeRound
    ) -> QuadraticPrior | None:
        """Return a penalty on parameters of ``model`` for this round. The penalties of all parts are added up.

        ``shared`` are the parameters with the received values (:meth:`shared_parameters`).
        """
        return None

    # -- the reply ---------------------------------------------------------------------------------------------

    def records(self, trained: Arrays, model: nn.Module, node_round: NodeRound) -> Mapping[str, ArrayRecord]:
        """Return records to send beside the ``trained`` arrays. Two parts must not use the same name."""
        return {}

    def trainable_parameters(self, model: nn.Module, stages: int) -> int | None:
        """Count the numbers that are trained over all stages; by default the size of ``model``."""
        return None

    def static_parameters(self, shared: Mapping[str, nn.Parameter], memory: Arrays) -> int:
        """Count the numbers that the part holds fixed during training. The counts of all parts are added up.

        ``memory`` is what all parts remember of the round.
        """
        return 0

    def answer(self, query: str, node_round: NodeRound) -> Mapping[str, ArrayRecord] | None:
        """Return the records that answer a QUERY message; ``None`` if the part does not know the query."""
        return None

    # -- evaluation --------------------------------------------------------------------------------------------

    def before_evaluation(self, model: nn.Module, node_round: NodeRound) -> Prepared:
        """Change ``model`` in place before it is evaluated, for example by training it."""
        return Prepared()

    def unprepared_prefix(self) -> str:
        """Return the prefix of the metrics of the model without :meth:`before_evaluation`; by default it is not
        evaluated.
        """
        return ""

    def also_evaluated(self) -> Mapping[str, Arrays]:
        """Return further received models to evaluate, by the prefix of their metrics."""
        return {}

    def bytes_on_disk(self, model_bytes: int, version_bytes: int, stages: int) -> int:
        """Return the most bytes that the part adds on disk, with any hyper-parameters.

        Parameters
        ----------
        model_bytes : int
            The size of the model.
        version_bytes : int
            The size of all versions of the private arrays after one stage.
        stages : int
            The number of stages, at least 1.
        """
        return 0


def composed(parts: Sequence[LocalPart]) -> tuple[LocalPart, ...]:
    """Check that parts can be combined, and return them as a tuple.

    Raises
    ------
    ValueError
        Two parts need the same thing for themselves, or are of the same class.
    """
    for one, other in combinations(parts, 2):
        if type(one) is type(other):
            raise ValueError(f"the local algorithm {type(one).__name__} is given twice: give it once")
        if needs := one.exclusive & other.exclusive:
            raise ValueError(
                f"the local algorithms {type(one).__name__} and {type(other).__name__} cannot be combined: both need "
                f"{' and '.join(sorted(needs))} for themselves"
            )
    return tuple(parts)
