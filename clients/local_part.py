"""Local algorithms as parts that a node composes.

A part adds to a round what its algorithm needs: a term of the objective, a phase of training, memory between rounds,
records in the reply. :class:`~fedapps.clients.base.FederatedClient` calls the hooks of its parts in their order. No
part knows another one; a part that needs something for itself says so in ``exclusive``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import combinations
from typing import ClassVar, Self, TypeVar

import torch
from fedapps.sim.seeding import torch_seed
from fedapps.tasks.base import Batch, Metrics, NodeData, Task
from flwr.app import ArrayRecord, RecordDict
from torch import nn

from .arrays import Arrays, get_arrays, matches, private_names
from .penalties import QuadraticPrior, sum_of
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
        The private arrays and the memory from earlier rounds (:mod:`fedapps.clients.arrays`).
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


@dataclass(frozen=True)
class RoundResult:
    """What a node replies to the server after a round.

    Parameters
    ----------
    arrays : dict of arrays
        The received names after training; empty after an evaluation.
    num_examples : int
        The weight of the node in averages.
    metrics : dict
    records : mapping of names to ArrayRecords
        The records of the local parts.
    """

    arrays: Arrays
    num_examples: int
    metrics: Metrics
    records: Mapping[str, ArrayRecord] = field(default_factory=dict)


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


Value = TypeVar("Value")


@dataclass(frozen=True)
class ComposedParts(LocalPart):
    """Calls every hook of the parts in their order.

    Parameters
    ----------
    parts : tuple of LocalPart
        As :func:`~fedapps.clients.local_part.composed` returns them. Without parts a round is plain training.
    """

    parts: tuple[LocalPart, ...] = ()

    def read(self, config: Mapping[str, object], content: RecordDict) -> Self:
        return type(self)(tuple(part.read(config, content) for part in self.parts))

    def check(self, node_round: NodeRound) -> None:
        for part in self.parts:
            part.check(node_round)

    def kept(self, kept: Arrays) -> Arrays:
        for part in self.parts:
            kept = part.kept(kept)
        return kept

    def next_stage(self, carried: Arrays, kept: Arrays) -> Arrays:
        for part in self.parts:
            carried = part.next_stage(carried, kept)
        return carried

    def remember(self, model: nn.Module, node_round: NodeRound) -> Arrays:
        return _merged(part.remember(model, node_round) for part in self.parts)

    def wrap(self, model: nn.Module, node_round: NodeRound) -> nn.Module:
        for part in self.parts:
            model = part.wrap(model, node_round)
        return model

    def stage_model(self, model: nn.Module, stage: int) -> nn.Module:
        for part in self.parts:
            model = part.stage_model(model, stage)
        return model

    def shared_parameters(self, model: nn.Module, node_round: NodeRound) -> Mapping[str, nn.Parameter]:
        for part in self.parts:
            if (shared := part.shared_parameters(model, node_round)) is not None:
                return shared
        return {name: p for name, p in model.named_parameters() if name in node_round.received}

    def private(self, model: nn.Module, node_round: NodeRound) -> Arrays:
        for part in self.parts:
            if (private := part.private(model, node_round)) is not None:
                return private
        names = private_names(model, node_round.received)
        return get_arrays(model, [name for name in names if not matches(name, node_round.task.fixed)])

    def outgoing(self, model: nn.Module, node_round: NodeRound) -> Arrays:
        for part in self.parts:
            if (outgoing := part.outgoing(model, node_round)) is not None:
                return outgoing
        return get_arrays(model, node_round.received)

    def seed_labels(self) -> tuple[int | str, ...]:
        return tuple(label for part in self.parts for label in part.seed_labels())

    def draw(self, data: NodeData, node_round: NodeRound) -> NodeData:
        for part in self.parts:
            data = part.draw(data, node_round)
        return data

    def plan(self, plan: Sequence[Phase], model: nn.Module, data: NodeData, node_round: NodeRound) -> Sequence[Phase]:
        for part in self.parts:
            plan = part.plan(plan, model, data, node_round)
        return plan

    def loss(self, loss: Loss) -> Loss:
        for part in self.parts:
            loss = part.loss(loss)
        return loss

    def with_own_objective(self) -> str:
        """The name of the first part that wraps the model or changes the loss, so that nodes differ; empty if none."""
        for part in self.parts:
            if type(part).wrap is not LocalPart.wrap or type(part).loss is not LocalPart.loss:
                return type(part).__name__
        return ""

    def prior(
        self, shared: Mapping[str, nn.Parameter], model: nn.Module, node_round: NodeRound
    ) -> QuadraticPrior | None:
        return sum_of(part.prior(shared, model, node_round) for part in self.parts)

    def records(self, trained: Arrays, model: nn.Module, node_round: NodeRound) -> Mapping[str, ArrayRecord]:
        return _merged(part.records(trained, model, node_round) for part in self.parts)

    def trainable_parameters(self, model: nn.Module, stages: int) -> int:
        for part in self.parts:
            if (count := part.trainable_parameters(model, stages)) is not None:
                return count
        return sum(parameter.numel() for parameter in model.parameters())

    def static_parameters(self, shared: Mapping[str, nn.Parameter], memory: Arrays) -> int:
        return sum(part.static_parameters(shared, memory) for part in self.parts)

    def answer(self, query: str, node_round: NodeRound) -> Mapping[str, ArrayRecord]:
        """Return the answer of the first part that knows the query.

        Raises
        ------
        ValueError
            No part knows the query, or the part that does cannot answer it.
        """
        for part in self.parts:
            if (records := part.answer(query, node_round)) is not None:
                return records
        known = ", ".join(type(part).__name__ for part in self.parts) or "none"
        raise ValueError(f"query {query!r}: no local algorithm of this node answers it; it has: {known}")

    def before_evaluation(self, model: nn.Module, node_round: NodeRound) -> Prepared:
        prepared = [part.before_evaluation(model, node_round) for part in self.parts]
        return Prepared(sum(one.steps for one in prepared), _merged(one.kept for one in prepared))

    def unprepared_prefix(self) -> str:
        return next((prefix for part in self.parts if (prefix := part.unprepared_prefix())), "")

    def also_evaluated(self) -> Mapping[str, Arrays]:
        return _merged(part.also_evaluated() for part in self.parts)

    def bytes_on_disk(self, model_bytes: int, version_bytes: int, stages: int) -> int:
        return sum(part.bytes_on_disk(model_bytes, version_bytes, stages) for part in self.parts)


def _merged(mappings: Iterable[Mapping[str, Value]]) -> dict[str, Value]:
    """All entries in one dictionary. Raises ``ValueError`` for a name that occurs twice."""
    merged: dict[str, Value] = {}
    for mapping in mappings:
        if twice := merged.keys() & mapping.keys():
            raise ValueError(f"two local algorithms of this node use the name {', '.join(sorted(twice))}: rename one")
        merged |= mapping
    return merged
