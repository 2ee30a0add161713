"""The node: a task, the node's data, its private state, and the local parts that it composes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from flwr.app import ArrayRecord, RecordDict
from torch import nn

from sim.seeding import derive_seed
from tasks.base import Evaluation, Metrics, NodeData, Task
from tasks.seeding import torch_seed

from .example_selection import collection, of_stage
from .local_part import LocalPart, Loss, NodeRound, composed
from .measurements import parameter_counts, validation_loss
from .named_arrays import Arrays, get_arrays, load_arrays, matches, private_names
from .node_memory import STAGE, from_other_stage, kept_arrays, memory_of, private_of
from .numpy_client import NumPyClientAdapter
from .penalties import QuadraticPrior, sum_of
from .plateau import Plateau
from .round_settings import RoundSettings
from .state import PrivateState
from .training import run_plan


@dataclass(frozen=True)
class RoundResult:
    """What goes back to the server: the received names after training, metrics, and the records of local parts."""

    arrays: Arrays
    num_examples: int
    metrics: Metrics
    records: Mapping[str, ArrayRecord] = field(default_factory=dict)


class FederatedClient(NumPyClientAdapter):
    """One node of a federation. What it received is shared; every other parameter is private and stays here.

    The core works on named arrays (:meth:`train_round`, :meth:`evaluate_round`). ``fit``, ``evaluate`` and
    ``get_parameters`` adapt it to Flower's ``NumPyClient`` (:class:`~clients.numpy_client.NumPyClientAdapter`).

    Parameters
    ----------
    task, data
        The learning problem and this node's data.
    state : PrivateState
        Where private arrays live between rounds.
    settings : RoundSettings
        The defaults that a message's config overrides.
    parts : sequence of LocalPart
        The local algorithms, called in this order; none is plain local training.
    seed : int
        The run's seed. The initial model and every random draw depend on (seed, purpose, round, node).
    device : torch.device
    collectors : sequence of PrivateState, optional
        Whose collected data later stages train on: this node's (the default), or that of all nodes where ``data`` is
        pooled.
    shared : sequence of str
        Glob patterns of the shared parameters, for the ``NumPyClient`` methods only.
    memory : RecordDict, optional
        ``Context.state``, where the ``NumPyClient`` methods count rounds that the strategy does not name.

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
        settings: RoundSettings,
        *,
        seed: int,
        device: torch.device,
        parts: Sequence[LocalPart] = (),
        collectors: Sequence[PrivateState] | None = None,
        shared: Sequence[str] = ("*",),
        memory: RecordDict | None = None,
    ) -> None:
        super().__init__(settings, composed(parts), shared, memory)
        self.task = task
        self.data = data
        self.private = state
        self.seed = seed
        self.device = device
        self.collectors = [state] if collectors is None else collectors

    def train_round(self, received: Arrays, settings: RoundSettings) -> RoundResult:
        """Train the whole model from what was received and the private state; give back the received names.

        Raises
        ------
        ValueError
            The node has no training examples, what was received does not fit the model, or a part cannot train.
        """
        node_round = self._round(received, settings, before=settings.server_round)
        data = node_round.data
        if data.count("train") == 0:
            raise ValueError(f"node {self.data.key} has no training examples: leave it out of training")
        for part in self.parts:
            part.check(node_round)
        model = node_round.build(received, node_round.kept)
        shared = self._shared_parameters(model, node_round)
        plateau = self._plateau(node_round)
        joint = replace(
            settings.phase(settings.epochs),
            steps=settings.steps,
            prior=self._prior(shared, model, node_round),
            plateau=plateau,
            validation_loss=lambda: self._validation_loss(model, node_round),
        )
        with node_round.torch_seed("train", *(label for part in self.parts for label in part.seed_labels())):
            drawn, plan = data, [joint]
            for part in self.parts:
                drawn = part.draw(drawn, node_round)
            for part in self.parts:
                plan = list(part.plan(plan, model, drawn, node_round))
            trained = run_plan(model, plan, node_round.epochs(model, drawn), self._loss())
        memory = self._remember(model, plateau, node_round)
        if keep := kept_arrays(self._private(model, node_round), memory):
            self.private.save(settings.server_round, keep, settings.durable_round)
        metrics: Metrics = {"steps": float(trained.steps)}
        if trained.steps:
            metrics["loss"] = trained.loss
        if self.data.stages:
            metrics |= self._parameter_counts(shared, memory, model)
        arrays = self._outgoing(model, node_round)
        records = {name: r for part in self.parts for name, r in part.records(arrays, model, node_round).items()}
        return RoundResult(arrays, drawn.count("train"), metrics, records)

    def evaluate_round(self, received: Arrays, settings: RoundSettings) -> RoundResult:
        """Evaluate the received model with the private state, after what the parts train before an evaluation.

        Data with stages is evaluated on all of them: the metrics of stage j, counted from 1, have the prefix
        ``stage-<j>.``; those of the present stage also stand without it.
        """
        node_round = self._round(received, settings, before=settings.server_round + 1)
        model = self._whole(node_round)
        evaluation = self._evaluate(model, node_round.data, settings.stage, final=settings.final)
        metrics = dict(evaluation.metrics)
        for stage in range(len(self.data.stages)):
            of_that_stage = self._evaluate(model, self._staged(stage), stage, final=False)
            metrics |= {f"stage-{stage + 1}.{name}": value for name, value in of_that_stage.metrics.items()}
        for prefix, arrays in ((p, a) for part in self.parts for p, a in part.also_evaluated().items()):
            other = self._whole(replace(node_round, received=arrays))
            other_metrics = self._evaluate(other, node_round.data, settings.stage, final=False).metrics
            metrics |= {f"{prefix}.{name}": value for name, value in other_metrics.items()}
        if evaluation.traces:
            self.private.save_extra("traces", {name: np.asarray(a) for name, a in evaluation.traces.items()})
        if settings.collect:
            self._collect(model, settings.stage)
        return RoundResult({}, max(node_round.data.count("test"), 1), metrics)

    def answer(self, query: str, settings: RoundSettings) -> Mapping[str, ArrayRecord]:
        """The answer of a local part to a QUERY message.

        Raises
        ------
        ValueError
            No part knows the query, or the part that does cannot answer it.
        """
        node_round = self._round({}, settings, before=settings.server_round)
        for part in self.parts:
            if (records := part.answer(query, node_round)) is not None:
                return records
        known = ", ".join(type(part).__name__ for part in self.parts) or "none"
        raise ValueError(f"query {query!r}: no local algorithm of this node answers it; it has: {known}")

    def initial_shared(self) -> Arrays:
        """The parameters of the initial model that match ``shared``, in ``state_dict`` order."""
        model = self._initial_model()
        return get_arrays(model, [name for name in model.state_dict() if matches(name, self.shared)])

    # -- models --------------------------------------------------------------------------------------------------

    def _round(self, received: Arrays, settings: RoundSettings, *, before: int) -> NodeRound:
        node_round = NodeRound(
            task=self.task,
            data=self._staged(settings.stage),
            settings=settings,
            received=received,
            kept=self._kept(before, settings.stage),
            seed=self.seed,
            device=self.device,
            state=self.private,
            num_stages=max(len(self.data.stages), 1),
            initial_model=self._initial_model,
            build=lambda received, kept: self._model(replace(node_round, received=received, kept=kept)),
        )
        return node_round

    def _initial_model(self) -> nn.Module:
        with torch_seed(self.seed, "model"):
            return self.task.build_model_for(self.data)

    def _model(self, node_round: NodeRound) -> nn.Module:
        """The initial model with the private arrays, then with what was received, as the parts wrap it."""
        model, kept = self._initial_model(), node_round.kept
        names = private_names(model, node_round.received)
        load_arrays(model, {name: kept[name] for name in names if name in kept})
        load_arrays(model, node_round.received)
        for part in self.parts:
            model = part.wrap(model, node_round)
        return model.to(self.device)

    def _whole(self, node_round: NodeRound) -> nn.Module:
        """The model to evaluate, with the private arrays as the round left them."""
        model = node_round.build(node_round.received, node_round.kept)
        for part in self.parts:
            part.before_evaluation(model, node_round)
        return model

    def _shared_parameters(self, model: nn.Module, node_round: NodeRound) -> Mapping[str, nn.Parameter]:
        for part in self.parts:
            if (shared := part.shared_parameters(model, node_round)) is not None:
                return shared
        return {name: p for name, p in model.named_parameters() if name in node_round.received}

    def _stage_model(self, model: nn.Module, stage: int) -> nn.Module:
        for part in self.parts:
            model = part.stage_model(model, stage)
        return model

    # -- training ------------------------------------------------------------------------------------------------

    def _loss(self) -> Loss:
        loss: Loss = self.task.loss
        for part in self.parts:
            loss = part.loss(loss)
        return loss

    def _prior(
        self, shared: Mapping[str, nn.Parameter], model: nn.Module, node_round: NodeRound
    ) -> QuadraticPrior | None:
        return sum_of(part.prior(shared, model, node_round) for part in self.parts)

    def _plateau(self, node_round: NodeRound) -> Plateau | None:
        settings = node_round.settings
        if settings.plateau_patience == 0:
            return None
        if node_round.data.count("validation") == 0:
            raise ValueError(
                f"plateau-patience = {settings.plateau_patience}: node {node_round.data.key} has no validation "
                "examples to measure the loss on; set it to 0 for a constant learning rate"
            )
        plateau = Plateau(
            settings.plateau_patience, settings.plateau_factor, settings.min_learning_rate, settings.learning_rate
        )
        plateau.resume(memory_of(node_round.kept))
        return plateau

    def _validation_loss(self, model: nn.Module, node_round: NodeRound) -> float:
        at_stage = self._stage_model(model, node_round.settings.stage)
        return validation_loss(self.task, at_stage, node_round.data, self.device)

    # -- memory and reply ------------------------------------------------------------------------------------------

    def _kept(self, before: int, stage: int) -> Arrays:
        """What the newest round before one left, as ``stage`` finds it."""
        kept = self.private.load(before) or {}
        for part in self.parts:
            kept = part.kept(kept)
        if not from_other_stage(kept, stage):
            return kept
        carried = private_of(kept)
        for part in self.parts:
            carried = part.next_stage(carried, kept)
        return carried

    def _remember(self, model: nn.Module, plateau: Plateau | None, node_round: NodeRound) -> Arrays:
        memory: Arrays = {}
        for part in self.parts:
            memory |= part.remember(model, node_round)
        if plateau:
            memory |= plateau.arrays()
        if self.data.stages:
            memory[STAGE] = np.array(node_round.settings.stage)
        return memory

    def _private(self, model: nn.Module, node_round: NodeRound) -> Arrays:
        for part in self.parts:
            if (private := part.private(model, node_round)) is not None:
                return private
        names = private_names(model, node_round.received)
        return get_arrays(model, [name for name in names if not matches(name, self.task.fixed)])

    def _outgoing(self, model: nn.Module, node_round: NodeRound) -> Arrays:
        for part in self.parts:
            if (outgoing := part.outgoing(model, node_round)) is not None:
                return outgoing
        return get_arrays(model, node_round.received)

    def _parameter_counts(self, shared: Mapping[str, nn.Parameter], memory: Arrays, model: nn.Module) -> Metrics:
        counted = parameter_counts(model)
        for part in self.parts:
            counted = part.count_parameters(counted, shared, memory, model, max(len(self.data.stages), 1))
        return counted

    # -- data and evaluation -----------------------------------------------------------------------------------------

    def _staged(self, stage: int) -> NodeData:
        return of_stage(self.task, self.data, self.collectors, stage)

    def _evaluate(self, model: nn.Module, data: NodeData, stage: int, *, final: bool) -> Evaluation:
        evaluated = self._stage_model(model, stage)
        evaluated.eval()
        # The same draws in every round and for every method: differences between them are not noise.
        seed = derive_seed(self.seed, "evaluate", data.key)
        with torch_seed(self.seed, "evaluate", data.key):
            return self.task.evaluate(evaluated, data, seed=seed, final=final)

    def _collect(self, model: nn.Module, stage: int) -> None:
        """Collect experience with the evaluated model, and keep it for the next stage."""
        seed = derive_seed(self.seed, "collect", stage, self.data.key)
        with torch_seed(self.seed, "collect", stage, self.data.key):
            collected = self.task.collect(self._stage_model(model, stage), self.data, seed=seed)
        self.private.save_extra(collection(stage + 1), collected)
