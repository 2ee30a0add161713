"""Local algorithms as parts that a node composes.

A part adds to a round what its algorithm needs: a term of the objective, a phase of training, memory between rounds,
records in the reply. :class:`~fedapps.clients.base.FederatedClient` calls the hooks of its parts in their order. No
part knows another one; a part that needs something for itself says so in ``exclusive``.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, is_dataclass, replace
from functools import reduce
from itertools import combinations
from operator import add
from types import UnionType
from typing import Any, ClassVar, Self, TypeVar, Union, get_args, get_origin, get_type_hints

import torch
from fedapps.strategies.wire import SHARED_METRICS_PREFIX
from fedapps.tasks.base import Batch, Metrics, NodeData, Task
from flwr.app import ArrayRecord, RecordDict
from torch import nn

from fedapps.base.seeding import torch_seed
from fedapps.base.text_files import shown

from .arrays import Arrays, array_views, get_arrays, load_arrays, load_rows, matches, private_names
from .guard import Guard
from .penalties import QuadraticPrior
from .settings import RoundSettings
from .training import Loss, Phase

Value = TypeVar("Value")

#: How the results of one hook of several parts become one: called with the parts' hooks and the hook's arguments.
Rule = Callable[..., Any]

#: What a part can need for itself (``LocalPart.exclusive``).
EARLIER_STAGES = "the memory of earlier stages"
EVALUATED_MODEL = "the evaluated model"
PARAMETER_NAMES = "the names of the parameters"
PHASES = "the phases of training"
TRAINING_STEP = "the step of training"


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
    guard : Guard
    measured : mapping
        What :meth:`LocalPart.begin` and :meth:`LocalPart.before_training` return for later hooks, by name.
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
    guard: Guard = field(default_factory=Guard)
    measured: Mapping[str, Any] = field(default_factory=dict)
    steps: int = 0

    def model_of(self, received: Arrays) -> nn.Module:
        """The task's model with received arrays and the private ones, on the CPU. Errors are those of a round."""
        self.guard.check_names(received)
        model = self.initial_model()
        self.guard.check_model(model, received)
        if self.kept:
            private = [name for name in private_names(model, received) if name in self.kept]
            load_rows(model, {name: self.kept[name] for name in private})
        load_arrays(model, received)
        return model

    def torch_seed(self, purpose: str, *labels: int | str) -> AbstractContextManager[None]:
        """Seed torch's generator for one purpose in this round of this node."""
        repeat = (f"repeat {self.settings.repeat}",) if self.settings.repeat else ()
        return torch_seed(self.seed, purpose, self.settings.server_round, self.data.key, *labels, *repeat)

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

    def __add__(self, other: Self) -> Self:
        """What two parts did, one after the other."""
        return replace(self, steps=self.steps + other.steps, kept=entries_of([self.kept, other.kept]))


class LocalPart:
    """A local algorithm. By default no hook changes anything. Write a part as a frozen dataclass.

    The fields of a part are its hyper-parameters, with which :meth:`~fedapps.methods.base.Method.local_parts` builds
    it, and what the records of a message bring. The hooks of several parts of a node are called in the order of the
    parts; :data:`RULES` says how their results are combined.
    """

    #: What the part needs for itself, in words. Two parts that need the same thing cannot be combined.
    exclusive: ClassVar[frozenset[str]] = frozenset()

    def read(self, config: Mapping[str, object], content: RecordDict) -> Self:
        """Return the part with what a message brings, its config and all its records; by default the part as it is.

        :func:`~fedapps.clients.settings.with_config` reads values of the config within the limits of their fields.
        Raises ``ValueError`` for a value of the wrong type or out of range, and for a malformed record.
        """
        return self

    def check(self, node_round: NodeRound) -> None:
        """Raise ``ValueError`` if the part cannot train this round."""

    # -- memory between rounds -------------------------------------------------------------------------------

    def next_stage(self, carried: Arrays, kept: Arrays) -> Arrays:
        """Change what a new stage starts from.

        ``carried`` are the private arrays, without the memory; ``kept`` is everything that the last stage left.
        """
        return carried

    def remember(self, model: nn.Module, node_round: NodeRound) -> Arrays:
        """Return the part's memory for later rounds. Two parts must not use the same name."""
        return {}

    # -- the model ---------------------------------------------------------------------------------------------

    def begin(self, node_round: NodeRound) -> NodeRound:
        """Change the round before its model is made, in training, evaluation and adaptation.

        A part can replace ``received``, for example by the one of several received models that fits the node best
        (:meth:`NodeRound.model_of`), and add to ``measured``.
        """
        return node_round

    def wrap(self, model: nn.Module, node_round: NodeRound) -> nn.Module:
        """Return the module to train in place of the task's model. It is on the CPU at this point."""
        return model

    def stage_model(self, model: nn.Module, stage: int) -> nn.Module:
        """Return the task's model to evaluate on the data of a stage, counted from 0."""
        return model

    def shared_parameters(self, model: nn.Module, node_round: NodeRound) -> Mapping[str, nn.Parameter]:
        """Return the trainable parameters that hold received values; by default those whose names were received."""
        return {name: p for name, p in model.named_parameters() if name in node_round.received}

    def private(self, model: nn.Module, node_round: NodeRound) -> Arrays:
        """Return the trained arrays that stay on the node; by default all that were not received and can change."""
        names = private_names(model, node_round.received)
        return get_arrays(model, [name for name in names if not matches(name, node_round.task.fixed)])

    def outgoing(self, model: nn.Module, node_round: NodeRound) -> Arrays:
        """Return the arrays of the reply, which may share the model's memory: it is not changed afterwards.

        By default they are the model's values of the received names.
        """
        return array_views(model, node_round.received)

    # -- training ----------------------------------------------------------------------------------------------

    def seed_labels(self) -> tuple[int | str, ...]:
        """Return labels for the seed of training, beside the round and the node."""
        return ()

    def before_training(self, model: nn.Module, node_round: NodeRound) -> Mapping[str, Any]:
        """Change ``model`` in place before it is trained, or measure it; the priors are made before.

        Draws need :meth:`NodeRound.torch_seed`. Returns what later hooks of the round see in ``node_round.measured``.
        """
        return {}

    def draw(self, data: NodeData, node_round: NodeRound) -> NodeData:
        """Select the examples of the round, with torch's generator. The split ``train`` gives the example count."""
        return data

    def plan(self, plan: Sequence[Phase], model: nn.Module, data: NodeData, node_round: NodeRound) -> Sequence[Phase]:
        """Change the phases of training. The last phase of ``plan`` trains all parameters of ``model`` on ``data``.

        With :attr:`~fedapps.clients.training.Phase.step`, a phase takes its steps as the part says.
        """
        return plan

    def loss(self, loss: Loss, model: nn.Module, node_round: NodeRound) -> Loss:
        """Change the loss of a batch, with ``model`` as it is before the first step. The prior is added to it later."""
        return loss

    def prior(
        self, shared: Mapping[str, nn.Parameter], model: nn.Module, node_round: NodeRound
    ) -> QuadraticPrior | None:
        """Return a penalty on parameters of ``model`` for this round. The penalties of all parts are added up.

        ``shared`` are the parameters with the received values (:meth:`shared_parameters`).
        """
        return None

    # -- the reply ---------------------------------------------------------------------------------------------

    def metrics(self, model: nn.Module, node_round: NodeRound) -> Metrics:
        """Return numbers of the training to report; the strategy reads them in ``reply.metrics`` and averages them.

        Begin their names with that of the method and a dot, such as ``q-ffl.loss``.
        """
        return {}

    def records(self, trained: Arrays, model: nn.Module, node_round: NodeRound) -> Mapping[str, ArrayRecord]:
        """Return records to send beside the ``trained`` arrays. Two parts must not use the same name."""
        return {}

    def trainable_parameters(self, model: nn.Module, stages: int) -> int:
        """Count the numbers that are trained over all stages; by default the size of ``model``."""
        return sum(parameter.numel() for parameter in model.parameters())

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

    def adaptation(self, phase: Phase, model: nn.Module, node_round: NodeRound) -> Phase:
        """Change the phase in which a new node fits its personal part (:mod:`fedapps.clients.new_node`).

        It takes the place of :meth:`before_evaluation`, whose settings a part should use here, too.
        """
        return phase

    def unprepared_prefix(self) -> str | None:
        """Return the prefix of the metrics of the model without :meth:`before_evaluation`; by default it is not
        evaluated.
        """
        return None

    def also_evaluated(self) -> Mapping[str, Arrays]:
        """Return further received models to evaluate, by the prefix of their metrics."""
        return {}

    def bytes_on_disk(self, model_bytes: int, version_bytes: int, stages: int) -> int:
        """Return the most bytes that the part adds on disk, whatever its hyper-parameters.

        ``version_bytes`` is the size of all versions of the private arrays after one of the ``stages``.
        """
        return 0


def entries_of(mappings: Iterable[Mapping[str, Value]]) -> dict[str, Value]:
    """All entries in one dictionary. Raises ``ValueError`` for a name that occurs twice."""
    entries: dict[str, Value] = {}
    for mapping in mappings:
        if twice := entries.keys() & mapping.keys():
            raise ValueError(f"two local algorithms of this node use the name {', '.join(sorted(twice))}: rename one")
        entries |= mapping
    return entries


def composed(parts: Sequence[LocalPart]) -> tuple[LocalPart, ...]:
    """Check that parts can be combined, and return them as a tuple.

    Raises
    ------
    ValueError
        Two parts need the same thing for themselves, or are of the same class; or one is no part.
    """
    if not isinstance(parts, Sequence):
        raise ValueError(f"local_parts() returned {shown(parts)}: it must return a list of parts, which can be empty")
    for part in parts:
        if not isinstance(part, LocalPart):
            raise ValueError(f"local_parts() returned {shown(part)}: each must be an object of a subclass of LocalPart")
        if not is_dataclass(part):
            raise ValueError(
                f"the local algorithm {type(part).__name__} must have the decorator @dataclass(frozen=True)"
            )
    for one, other in combinations(parts, 2):
        if type(one) is type(other):
            raise ValueError(f"the local algorithm {type(one).__name__} is given twice: give it once")
        if needs := one.exclusive & other.exclusive:
            raise ValueError(
                f"the local algorithms {type(one).__name__} and {type(other).__name__} cannot be combined: both need "
                f"{' and '.join(sorted(needs))} for themselves"
            )
    return tuple(parts)


def every(hooks: Sequence[Callable[..., Any]], *arguments: Any) -> None:
    """Call all hooks in their order."""
    for hook in hooks:
        hook(*arguments)


def chain(hooks: Sequence[Callable[..., Any]], value: Any, *arguments: Any) -> Any:
    """Give each hook, as its first argument, the value that the last one returned."""
    for hook in hooks:
        value = hook(value, *arguments)
    return value


def override(hooks: Sequence[Callable[..., Any]], *arguments: Any) -> Any:
    """Call the hook of the first part that overrides it; without one, the default."""
    return hooks[0](*arguments)


def first(hooks: Sequence[Callable[..., Any]], *arguments: Any) -> Any:
    """Return the first result that is not ``None``."""
    results = (hook(*arguments) for hook in hooks)
    return next((result for result in results if result is not None), None)


def total(hooks: Sequence[Callable[..., Any]], *arguments: Any) -> Any:
    """Add up the results that are not ``None``; ``None`` if all are."""
    results = [result for hook in hooks if (result := hook(*arguments)) is not None]
    return reduce(add, results) if results else None


def merged(hooks: Sequence[Callable[..., Any]], *arguments: Any) -> dict[str, Any]:
    """Return the entries of all results. Raise ``ValueError`` for a name that occurs twice."""
    return entries_of(hook(*arguments) for hook in hooks)


#: The rule of each hook.
RULES: Mapping[str, Rule] = {
    "check": every,
    "next_stage": chain,
    "remember": merged,
    "begin": chain,
    "wrap": chain,
    "stage_model": chain,
    "shared_parameters": override,
    "private": override,
    "outgoing": override,
    "seed_labels": total,
    "before_training": merged,
    "draw": chain,
    "plan": chain,
    "loss": chain,
    "prior": total,
    "metrics": merged,
    "records": merged,
    "trainable_parameters": override,
    "static_parameters": total,
    "answer": first,
    "before_evaluation": total,
    "adaptation": chain,
    "unprepared_prefix": first,
    "also_evaluated": merged,
    "bytes_on_disk": total,
}


@dataclass(frozen=True)
class ComposedParts(LocalPart):
    """Several parts as one: each hook is combined by its rule in :data:`RULES`.

    Parameters
    ----------
    parts : tuple of LocalPart
        As :func:`composed` returns them. Without parts a round is plain training.
    """

    parts: tuple[LocalPart, ...] = ()

    def read(self, config: Mapping[str, object], content: RecordDict) -> Self:
        return type(self)(tuple(part.read(config, content) for part in self.parts))

    def with_own_objective(self) -> str:
        """The name of the first part that wraps the model or changes the loss, so that nodes differ; empty if none."""
        return next((type(part).__name__ for part in self.parts if _has(part, "wrap") or _has(part, "loss")), "")

    def shared_prefix(self) -> str | None:
        """The prefix of the metrics of the model that all nodes share; ``None`` if nodes do not evaluate it.

        It is empty if nodes evaluate this model alone. Others evaluate the model of a cluster, or a personal or adapted
        one; some of them also evaluate the shared model, and report it with a prefix.
        """
        hooks = ("begin", "stage_model", "before_evaluation", "also_evaluated")
        overridden = [name for name in hooks if any(_has(part, name) for part in self.parts)]
        if overridden == ["also_evaluated"]:
            return SHARED_METRICS_PREFIX
        if overridden == ["before_evaluation"]:
            return self.unprepared_prefix()
        return None if overridden else ""


def _has(part: LocalPart, name: str) -> bool:
    """Whether a part overrides a hook."""
    return getattr(type(part), name) is not getattr(LocalPart, name)


def _combined(name: str, rule: Rule) -> Callable[..., Any]:
    default = getattr(LocalPart(), name)

    def hook(self: ComposedParts, *arguments: Any) -> Any:
        hooks = [_checked(part, name) for part in self.parts if _has(part, name)]
        return rule(hooks or [default], *arguments)

    return hook


def _checked(part: LocalPart, name: str) -> Callable[..., Any]:
    """The hook of a part, with a check of what it returns: another package may define it."""

    def checked(*arguments: Any) -> Any:
        result = getattr(part, name)(*arguments)
        if not isinstance(result, _RETURNED[name]):
            allowed = " or ".join("None" if kind is type(None) else kind.__name__ for kind in _RETURNED[name])
            returned = "None" if result is None else type(result).__name__  # its values may be private
            raise TypeError(f"{type(part).__name__}.{name} returned {returned}: it must return {allowed}")
        return result

    return checked


def _kinds(hint: Any) -> tuple[type, ...]:
    """The classes of the values that a type hint stands for."""
    if get_origin(hint) in (Union, UnionType):
        return tuple(kind for part in get_args(hint) for kind in _kinds(part))
    kind = get_origin(hint) or hint
    return (Mapping if kind is dict else kind,)


_RETURNED = {name: _kinds(get_type_hints(getattr(LocalPart, name))["return"]) for name in RULES}
for _name, _rule in RULES.items():
    setattr(ComposedParts, _name, _combined(_name, _rule))
