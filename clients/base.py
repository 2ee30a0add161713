"""A node: a task, its data, its private state, and the local parts that it composes."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
import torch
from fedapps.sim.joint_work import current_call, jointly
from fedapps.strategies.stopwatch import timed
from fedapps.strategies.wire import EVALUATION_STEPS, STEPS
from fedapps.tasks.base import Evaluation, Metrics, NodeData, Task, evaluated
from fedapps.tasks.partitioners import own_label_shares
from flwr.app import ArrayRecord
from torch import nn

from fedapps.base.seeding import derive_seed, torch_seed

from .arrays import (
    STAGE,
    Arrays,
    can_be_copied,
    copied,
    from_other_stage,
    get_arrays,
    kept_arrays,
    matches,
    memory_of,
    private_of,
)
from .data import collection, of_stage
from .guard import Guard
from .joint_training import Job, train_jobs
from .local_part import ComposedParts, LocalPart, NodeRound, Prepared, composed
from .settings import RoundSettings
from .state import Attempts, PrivateState, keep_words
from .training import Phase, Plateau, mean_loss, run_plan


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


@dataclass(frozen=True)
class PreparedModel:
    """The model that a node evaluates in a round.

    Parameters
    ----------
    model : Module
        As the parts wrap and prepare it; :meth:`at` gives the task's model.
    node_round : NodeRound
    prepared : Prepared
        What the parts did to it before the evaluation. Nothing of it is kept yet.
    parts : ComposedParts
    """

    model: nn.Module
    node_round: NodeRound
    prepared: Prepared
    parts: ComposedParts

    def at(self, stage: int) -> nn.Module:
        """The task's model to evaluate on the data of a stage, counted from 0."""
        return self.parts.stage_model(self.model, stage)


class FederatedClient:
    """A node of a federation. The parameters that it receives are shared; all others are private and stay on the node.

    It works on named arrays. :class:`~fedapps.clients.numpy_client.NumPyClientAdapter` makes a ``NumPyClient`` of it.

    Parameters
    ----------
    task, data
        The learning problem and this node's data.
    state : PrivateState
        Where private arrays live between rounds.
    parts : sequence of LocalPart
        The local algorithms, called in this order. Without parts the node does plain local training.
    seed : int
        The run's seed. The initial model and every random draw depend on (seed, purpose, round, node).
    device : torch.device
    collectors : sequence of PrivateState, optional
        Whose collected data later stages train on: this node's (the default), or that of all nodes where ``data`` is
        pooled.
    guard : Guard
        The parameters that stay on the node whatever a message asks for; by default those that it does not ask for.
    keep : function, optional
        Called at the end of each round with ``"train"`` or ``"evaluate"``, the node's personal model, the settings and
        the result. After an evaluation the model is the evaluated one. After training it is the trained one: what the
        node would evaluate if the server sent back what this node trained, and no part trained before the evaluation.

    Raises
    ------
    ValueError
        Two of the parts cannot be combined.
    """

    def __init__(
        self,
        task: Task,
        data: NodeData,
        state: PrivateState,
        *,
        seed: int,
        device: torch.device,
        parts: Sequence[LocalPart] = (),
        collectors: Sequence[PrivateState] | None = None,
        guard: Guard = Guard(),  # noqa: B008 - immutable
        keep: Callable[[str, nn.Module, RoundSettings, RoundResult], None] | None = None,
    ) -> None:
        self.parts = ComposedParts(composed(parts))
        self.task = task
        self.data = data
        self.private = state
        self.seed = seed
        self.device = device
        self.collectors = [state] if collectors is None else collectors
        self.guard = guard
        self._keep = keep

    def train_round(self, received: Arrays, settings: RoundSettings) -> RoundResult:
        """Train the whole model, from the received parameters and the private state.

        Parameters
        ----------
        received : dict of arrays
            The shared parameters, by name.
        settings : RoundSettings

        Returns
        -------
        RoundResult
            The received names with their trained values. Metrics: ``steps``, the number of optimizer steps; ``loss``,
            the mean over the last epoch, if there was a step; ``trainable_parameters`` and ``static_parameters`` if the
            data has stages.

        Raises
        ------
        PrivateParametersError
            A received parameter stays on this node, or one that stays would leave it.
        ValueError
            The node has no training examples, a received parameter does not fit the model, or a part cannot train.
        DivergedError
            The loss is not finite.
        """
        node_round = self._round(received, settings, before=settings.server_round + bool(settings.repeat))
        data = node_round.data
        if data.count("train") == 0:
            raise ValueError(f"node {self.data.key} has no training examples: leave it out of training")
        self.parts.check(node_round)
        node_round = self.parts.begin(node_round)
        model = self._model(node_round)
        _freeze(model, settings.untrained)
        shared = self.parts.shared_parameters(model, node_round)
        plateau = self._plateau(node_round)
        joint = Phase(
            settings.training,
            prior=self.parts.prior(shared, model, node_round),
            plateau=plateau,
            validation_loss=lambda: self._validation_loss(model, node_round),
        )
        with timed("train"):
            measured = self.parts.before_training(model, node_round)
        node_round = replace(node_round, measured={**node_round.measured, **measured})
        with timed("train"), node_round.torch_seed("train", *self.parts.seed_labels()):
            drawn = self.parts.draw(data, node_round)
            plan = self.parts.plan([joint], model, drawn, node_round)
            epoch = node_round.epochs(model, drawn)
            if current_call.get():
                trained = jointly(train_jobs, Job.of(node_round, self.parts, model, plan, epoch))
            else:
                trained = run_plan(model, plan, epoch, self.parts.loss(self.task.loss, model, node_round))
        node_round = replace(node_round, steps=trained.steps)
        memory = self._remember(model, plateau, node_round)
        if keep := kept_arrays(self.parts.private(model, node_round), memory):
            with timed("state"):
                rounds = Attempts.read(settings.attempts)
                keep_words(self.private, self.task.words(self.data))
                self.private.save(
                    settings.server_round, keep, settings.durable_round, rounds, best_round=settings.best_round
                )
        metrics: Metrics = {STEPS: float(trained.steps)}
        if trained.steps:
            metrics["loss"] = trained.loss
        if stages := len(self.data.stages):
            metrics["trainable_parameters"] = float(self.parts.trainable_parameters(model, stages))
            metrics["static_parameters"] = float(self.parts.static_parameters(shared, memory))
        metrics |= self.parts.metrics(model, node_round)
        outgoing = self.parts.outgoing(model, node_round)
        arrays = {name: array for name, array in outgoing.items() if name not in settings.untrained}
        records = self.parts.records(arrays, model, node_round)
        self.guard.check_names(arrays)
        self.guard.check_records(records, self._initial_model)
        return self._kept_by_node("train", model, settings, RoundResult(arrays, drawn.count("train"), metrics, records))

    def evaluate_round(self, received: Arrays, settings: RoundSettings) -> RoundResult:
        """Evaluate the model with the received parameters and the private state.

        Parameters
        ----------
        received : dict of arrays
            The shared parameters, by name.
        settings : RoundSettings

        Returns
        -------
        RoundResult
            The task's metrics and the number of test examples, or of validation examples if there is no test; no
            arrays. ``steps.count`` is the number of optimizer steps before the evaluation, if there were any. If the
            data has stages, the model is evaluated on each of them. The prefix ``stage-<j>.`` marks the metrics of
            stage j, counted from 1; metrics of the current stage have no prefix.

        Raises
        ------
        PrivateParametersError
            A received parameter stays on this node.
        ValueError
            A received parameter does not fit the model, or the settings ask a task to collect that only learns from
            given data.
        """
        if settings.collect and not self.task.can_collect:
            raise ValueError(f"config collect = True: task {self.task.name!r} only learns from given data")
        return self.evaluate_prepared(self.prepared_model(received, settings))

    def evaluate_prepared(self, prepared_model: PreparedModel) -> RoundResult:
        """Evaluate a model of :meth:`prepared_model`, as :meth:`evaluate_round` does."""
        model, node_round, prepared = prepared_model.model, prepared_model.node_round, prepared_model.prepared
        settings = node_round.settings
        for name, arrays in prepared.kept.items():
            self.private.save_extra(name, arrays)
        evaluation = self._evaluate(model, node_round.data, settings.stage, final=settings.final)
        metrics = dict(evaluation.metrics)
        if prepared.steps:
            metrics[EVALUATION_STEPS] = float(prepared.steps)
        for stage in range(len(self.data.stages)):
            known = stage == settings.stage and not settings.final  # the final evaluation has further metrics
            of_that_stage = evaluation if known else self._evaluate(model, self._staged(stage), stage, final=False)
            metrics |= {f"stage-{stage + 1}.{name}": value for name, value in of_that_stage.metrics.items()}
        for prefix, arrays in self.parts.also_evaluated().items():
            other_metrics = self._evaluate_other(replace(node_round, received=arrays))
            metrics |= {f"{prefix}.{name}": value for name, value in other_metrics.items()}
        if (unprepared_prefix := self.parts.unprepared_prefix()) is not None:
            unprepared = self._evaluate(self._model(node_round), node_round.data, settings.stage, final=False)
            metrics |= {unprepared_prefix + name: value for name, value in unprepared.metrics.items()}
        if evaluation.traces:
            self.private.save_extra("traces", {name: np.asarray(a) for name, a in evaluation.traces.items()})
        if settings.collect:
            self._collect(model, settings.stage)
        result = RoundResult({}, node_round.data.evaluated, metrics)
        return self._kept_by_node("evaluate", model, settings, result)

    def prepared_model(self, received: Arrays, settings: RoundSettings) -> PreparedModel:
        """Return the model that :meth:`evaluate_round` evaluates, with the same arguments and errors; keep nothing.

        It has the received parameters, the newest private state up to this round, and what the parts do to it before an
        evaluation.
        """
        node_round = self.parts.begin(self._round(received, settings, before=settings.server_round + 1))
        model = self._model(node_round)
        with timed("train"):
            prepared = self.parts.before_evaluation(model, node_round)
        return PreparedModel(model, node_round, prepared, self.parts)

    def answer(self, query: str, settings: RoundSettings) -> Mapping[str, ArrayRecord]:
        """Return the records that answer a QUERY message, such as ``adaptive``.

        Raises
        ------
        PrivateParametersError
            The answer has parameters that stay on this node.
        ValueError
            No part knows the query, or the part that does cannot answer it.
        """
        records = self.parts.answer(query, self._round({}, settings, before=settings.server_round))
        if records is None:
            known = ", ".join(type(part).__name__ for part in self.parts.parts) or "none"
            raise ValueError(f"query {query!r}: no local algorithm of this node answers it; it has: {known}")
        self.guard.check_records(records, self._initial_model)
        return records

    def initial_shared(self, shared: Sequence[str]) -> Arrays:
        """The initial parameters that match the patterns and may leave the node, in ``state_dict`` order."""
        model = self._initial_model()
        names = [name for name in model.state_dict() if matches(name, shared) and not self.guard.stays(name)]
        return get_arrays(model, names)

    # -- models --------------------------------------------------------------------------------------------------

    def _round(self, received: Arrays, settings: RoundSettings, *, before: int) -> NodeRound:
        return NodeRound(
            task=self.task,
            data=self._staged(settings.stage),
            settings=settings,
            received=received,
            kept=self._kept(before, settings),
            seed=self.seed,
            device=self.device,
            initial_model=self._initial_model,
            guard=self.guard,
        )

    @cached_property
    def _initial_model(self) -> Callable[[], nn.Module]:
        """Makes the initial model, each time a new one."""

        def build() -> nn.Module:
            with torch_seed(self.seed, "model"):
                return self.task.build_model_for(self.data)

        key = self.task.model_key(self.data)
        return build if key is None else partial(initial_models.copy, (self.task, self.seed, key), build)

    def _model(self, node_round: NodeRound) -> nn.Module:
        """The initial model with the private arrays and the received ones, as the parts wrap it."""
        with timed("model"):
            model = self.parts.wrap(node_round.model_of(node_round.received), node_round)
            return model if self.device.type == "cpu" else model.to(self.device)

    # -- training ------------------------------------------------------------------------------------------------

    def _plateau(self, node_round: NodeRound) -> Plateau | None:
        plateau = Plateau.of(node_round.settings.training, memory_of(node_round.kept))
        if plateau and node_round.data.count("validation") == 0:
            raise ValueError(
                f"plateau-patience = {plateau.patience}: node {node_round.data.key} has no validation "
                "examples to measure the loss on; set it to 0 for a constant learning rate"
            )
        return plateau

    def _validation_loss(self, model: nn.Module, node_round: NodeRound) -> float:
        at_stage = self.parts.stage_model(model, node_round.settings.stage)
        with own_label_shares(at_stage):  # those with which it trains
            return mean_loss(self.task, at_stage, node_round.data, "validation", self.device)

    # -- memory and reply ------------------------------------------------------------------------------------------

    def _kept(self, before: int, settings: RoundSettings) -> Arrays:
        """The private arrays and the memory of the newest round before one, changed where a stage begins."""
        with timed("state"):
            kept = self.private.load(before, Attempts.read(settings.attempts)) or {}
        return self.parts.next_stage(private_of(kept), kept) if from_other_stage(kept, settings.stage) else kept

    def _remember(self, model: nn.Module, plateau: Plateau | None, node_round: NodeRound) -> Arrays:
        memory = self.parts.remember(model, node_round)
        if plateau:
            memory |= plateau.arrays()
        if self.data.stages:
            memory[STAGE] = np.array(node_round.settings.stage)
        return memory

    def _kept_by_node(self, phase: str, model: nn.Module, settings: RoundSettings, result: RoundResult) -> RoundResult:
        """Hand the personal model of a round to the node, and return the result."""
        if self._keep:
            with timed("state"):
                self._keep(phase, self.parts.stage_model(model, settings.stage), settings, result)
        return result

    # -- data and evaluation -----------------------------------------------------------------------------------------

    def _staged(self, stage: int) -> NodeData:
        if stage == 0 and not self.data.stages:
            return self.data
        return of_stage(self.task, self.data, self.collectors, stage)

    def _evaluate(self, model: nn.Module, data: NodeData, stage: int, *, final: bool) -> Evaluation:
        at_stage = self.parts.stage_model(model, stage)
        with timed("evaluate"):
            return evaluated(self.task, at_stage, data, run_seed=self.seed, final=final)

    def _evaluate_other(self, node_round: NodeRound) -> Metrics:
        model = self._model(node_round)
        self.parts.before_evaluation(model, node_round)
        return self._evaluate(model, node_round.data, node_round.settings.stage, final=False).metrics

    def _collect(self, model: nn.Module, stage: int) -> None:
        """Collect experience with the evaluated model, and keep it for the next stage."""
        seed = derive_seed(self.seed, "collect", stage, self.data.key)
        with torch_seed(self.seed, "collect", stage, self.data.key):
            collected = self.task.collect(self.parts.stage_model(model, stage), self.data, seed=seed)
        self.private.save_extra(collection(stage + 1), collected)


_CACHED_BYTES = 1 << 26


class InitialModels:
    """A cache of initial models of up to 64 MiB together. It returns copies, so a node cannot change a cached model.

    It does not store a larger model, nor one that :func:`~fedapps.clients.arrays.can_be_copied` rejects, and builds
    such a model at each call.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, tuple[nn.Module, int]] = OrderedDict()

    def copy(self, key: Hashable, build: Callable[[], nn.Module]) -> nn.Module:
        """The model under a key."""
        if key in self._kept:
            self._kept.move_to_end(key)
            return copied(self._kept[key][0])
        model = build()
        size = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
        if size > _CACHED_BYTES or not can_be_copied(model):
            return model
        self._kept[key] = model, size
        while sum(size for _, size in self._kept.values()) > _CACHED_BYTES:
            self._kept.popitem(last=False)
        return copied(model)

    def clear(self) -> None:
        """Forget all models, so that they are built again."""
        self._kept.clear()


#: The initial models of the nodes of this process.
initial_models = InitialModels()


def _freeze(model: nn.Module, names: Sequence[str]) -> None:
    for name, parameter in model.named_parameters() if names else ():
        if name in names:
            parameter.requires_grad_(False)
