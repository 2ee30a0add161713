"""The node: a task, the node's data, its private state, and a plan for each round."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from flwr.app import ArrayRecord, RecordDict
from torch import Tensor, nn

from sim.seeding import derive_seed, torch_seed
from tasks.base import Batch, Evaluation, Metrics, NodeData, Task

from . import example_selection as examples
from . import measurements as measures
from .adaptive_updating import adaptive_updating
from .ewc_state import EwcState
from .fisher import Estimator
from .named_arrays import Arrays, get_arrays, load_arrays, matches, private_names
from .node_memory import STAGE, from_other_stage, kept_arrays, memory_of, next_stage
from .numpy_client import NumPyClientAdapter
from .penalties import QuadraticPrior, proximal, sum_of
from .plateau import Plateau
from .round_settings import RoundSettings
from .state import PrivateState
from .training import Phase, run_plan

Rates = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class RoundResult:
    """What goes back to the server: the received names (after training), and metrics with their example count."""

    arrays: Arrays
    num_examples: int
    metrics: Metrics


class FederatedClient(NumPyClientAdapter):
    """One node of a federation. What it received is shared; every other parameter is private and stays here.

    The core works on named arrays (:meth:`train_round`, :meth:`evaluate_round`); ``fit``, ``evaluate`` and
    ``get_parameters`` are Flower's older face of it (:class:`~clients.numpy_client.NumPyClientAdapter`).

    Parameters
    ----------
    task, data
        The learning problem and this node's part of it.
    state : PrivateState
        Where private arrays live between rounds.
    settings : RoundSettings
        The defaults that a message's config overrides.
    seed : int
        The run's seed: the initial model comes from it, and every random draw from (seed, purpose, round, node).
    device : torch.device
    collectors : sequence of PrivateState, optional
        Whose collected data later stages train on: this node's own (the default), or that of all nodes where
        ``data`` is pooled.
    shared : sequence of str
        Glob patterns of the shared parameters, for the older face only.
    memory : RecordDict, optional
        ``Context.state``, where the older face counts the rounds that its strategies do not name.
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
        collectors: Sequence[PrivateState] | None = None,
        shared: Sequence[str] = ("*",),
        memory: RecordDict | None = None,
    ) -> None:
        super().__init__(settings, shared, memory)
        self.task = task
        self.data = data
        self.private = state
        self.seed = seed
        self.device = device
        self.collectors = [state] if collectors is None else collectors

    def train_round(self, received: Arrays, settings: RoundSettings) -> RoundResult:
        """Train the whole model from what was received and the private state; give back the received names."""
        data = self._staged(settings.stage)
        if data.count("train") == 0:
            raise ValueError(f"node {self.data.key} has no training examples: leave it out of training")
        kept = self._kept(settings.server_round, settings)
        model = self._model(received, kept)
        plateau = self._plateau(kept, data, settings)
        phase = replace(
            settings.phase(1 if settings.virtual_examples else settings.epochs),
            steps=settings.steps,
            prior=self._prior(model, received, kept, settings),
            plateau=plateau,
            validation_loss=lambda: self._validation_loss(model, data),
        )
        draw = [settings.virtual_draw] if settings.virtual_draw else []
        with torch_seed(self.seed, "train", settings.server_round, data.key, *draw):
            drawn = self._drawn(data, settings)
            plan = self._plan(phase, model, received, drawn, settings)
            trained = run_plan(model, plan, self._epochs(model, drawn), self._loss)
        memory = self._remember(model, kept, data, settings) | (plateau.arrays() if plateau else {})
        if self.data.stages:
            memory[STAGE] = np.array(settings.stage)
        if keep := kept_arrays(self._private(model, received), memory):
            self.private.save(settings.server_round, keep, settings.durable_round)
        metrics: Metrics = {"steps": float(trained.steps)}
        if trained.steps:
            metrics["loss"] = trained.loss
        if self.data.stages:
            metrics |= self._parameters(model, received, memory, settings)
        return RoundResult(self._outgoing(model, received), drawn.count("train"), metrics)

    def evaluate_round(
        self,
        received: Arrays,
        settings: RoundSettings,
        rates: Rates | None = None,
        shared: Arrays | None = None,
    ) -> RoundResult:
        """Evaluate the received model with the private state, personalised first where the settings say so.

        Data that comes in stages is evaluated on all of them: the metrics of stage j, counted from 1, have the
        prefix ``stage-<j>.``, those of the present stage also stand without. Those of the model ``shared`` by all
        clusters, where the node received its cluster's, have the prefix ``shared.``.
        """
        data = self._staged(settings.stage)
        model = self._whole(received, data, settings)
        if settings.personalise:
            self._personalise(model, data, settings, rates)
        evaluation = self._evaluate(model, data, settings.stage, settings, final=settings.final)
        metrics = dict(evaluation.metrics)
        for stage in range(len(self.data.stages)):
            own = self._evaluate(model, self._staged(stage), stage, settings, final=False)
            metrics |= {f"stage-{stage + 1}.{name}": value for name, value in own.metrics.items()}
        if shared is not None:
            common = self._whole(shared, data, settings)
            other = self._evaluate(common, data, settings.stage, settings, final=False)
            metrics |= {f"shared.{name}": value for name, value in other.metrics.items()}
        if evaluation.traces:
            self.private.save_extra("traces", {name: np.asarray(a) for name, a in evaluation.traces.items()})
        if settings.collect:
            collection_seed = derive_seed(self.seed, "collect", settings.stage, data.key)
            with torch_seed(self.seed, "collect", settings.stage, data.key):
                present = self._for_stage(model, settings.stage, settings)
                collected = self.task.collect(present, self.data, seed=collection_seed)
            self.private.save_extra(examples.collection(settings.stage + 1), collected)
        return RoundResult({}, max(data.count("test"), 1), metrics)

    def publish(self, reply: RoundResult, settings: RoundSettings) -> dict[str, ArrayRecord]:
        """Records to send beside the reply of :meth:`train_round`, where the strategy knows them."""
        return {}

    def initial_shared(self) -> Arrays:
        """The parameters of the initial model that match ``shared``, in ``state_dict`` order."""
        model = self._model({}, {})
        return get_arrays(model, [name for name in model.state_dict() if matches(name, self.shared)])

    # -- what local algorithms override --------------------------------------------------------------------

    def _model(self, received: Arrays, kept: Arrays) -> nn.Module:
        """The module that is trained: the initial model, then the private arrays, then what was received."""
        model = self._initial_model()
        private = private_names(model, received)
        load_arrays(model, {name: kept[name] for name in private if name in kept})
        load_arrays(model, received)
        return model.to(self.device)

    def _whole(self, received: Arrays, data: NodeData, settings: RoundSettings) -> nn.Module:
        """The module that is evaluated on ``data``: with the private arrays as the round left them."""
        return self._model(received, self._kept(settings.server_round + 1, settings))

    def _drawn(self, data: NodeData, settings: RoundSettings) -> NodeData:
        """The examples of this round, from torch's generator: the split ``train`` is what counts as trained on."""
        return examples.of_virtual_client(data, settings.virtual_examples)

    def _plan(
        self, joint: Phase, model: nn.Module, received: Arrays, data: NodeData, settings: RoundSettings
    ) -> list[Phase]:
        """The phases of the round; ``joint`` trains all parameters of ``model`` on ``data``."""
        return adaptive_updating(joint, model, received, settings.adapt_epochs)

    def _loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """What training minimises beside the prior: the task's loss on a batch."""
        return self.task.loss(model, batch)

    def _prior(
        self, model: nn.Module, received: Arrays, kept: Arrays, settings: RoundSettings
    ) -> QuadraticPrior | None:
        """What holds the parameters while they are trained; ``None`` for nothing."""
        past = EwcState.read(memory_of(kept))
        priors = [proximal(model, received, settings.proximal), past.prior(settings.ewc + settings.l2_transfer)]
        return sum_of(priors)

    def _remember(self, model: nn.Module, kept: Arrays, data: NodeData, settings: RoundSettings) -> Arrays:
        """What the node takes along into its next round, beside the private parameters."""
        if settings.ewc == settings.l2_transfer == 0:
            return {}
        names = [name for name, _ in model.named_parameters()]
        anchor = get_arrays(model, names)
        if settings.ewc:
            precision = self._fisher(model, data, settings, settings.fisher_estimator)
        else:
            precision = {name: np.ones_like(array) for name, array in anchor.items()}
        return EwcState.read(memory_of(kept)).found(anchor, precision).arrays()

    def _private(self, model: nn.Module, received: Arrays) -> Arrays:
        """The trained arrays that stay on the node."""
        names = private_names(model, received)
        return get_arrays(model, [name for name in names if not matches(name, self.task.fixed)])

    def _outgoing(self, model: nn.Module, received: Arrays) -> Arrays:
        """What goes back: arrays of the received names."""
        return get_arrays(model, received)

    def _for_stage(self, model: nn.Module, stage: int, settings: RoundSettings) -> nn.Module:
        """The model to evaluate on a stage's data."""
        return model

    def _parameters(self, model: nn.Module, received: Arrays, memory: Arrays, settings: RoundSettings) -> Metrics:
        """Parameters trained over all stages, and numbers that are held fixed beside them while a stage is trained."""
        stages = len(self.data.stages) if settings.fresh_stages else 1
        return measures.parameter_counts(model, memory, stages, anchored=settings.proximal > 0)

    # -- the machinery -------------------------------------------------------------------------------------

    def _initial_model(self) -> nn.Module:
        with torch_seed(self.seed, "model"):
            return self.task.build_model_for(self.data)

    def _kept(self, before: int, settings: RoundSettings) -> Arrays:
        """The private arrays of the newest round before one, as the stage of ``settings`` finds them."""
        kept = self.private.load(before) or {}
        if not from_other_stage(kept, settings.stage):
            return kept
        return self._next_stage({} if settings.fresh_stages else kept, settings)

    def _next_stage(self, kept: Arrays, settings: RoundSettings) -> Arrays:
        """The private arrays when a stage begins: the learning rate starts again, the last stage joins the past."""
        return next_stage(kept, settings.ewc_anchors if settings.ewc else "newest")

    def _plateau(self, kept: Arrays, data: NodeData, settings: RoundSettings) -> Plateau | None:
        if settings.plateau_patience == 0:
            return None
        if data.count("validation") == 0:
            raise ValueError(
                f"plateau-patience = {settings.plateau_patience}: node {data.key} has no validation examples to "
                "decide by; set it to 0 for a constant learning rate"
            )
        plateau = Plateau(
            settings.plateau_patience, settings.plateau_factor, settings.min_learning_rate, settings.learning_rate
        )
        plateau.resume(memory_of(kept))
        return plateau

    def _validation_loss(self, model: nn.Module, data: NodeData) -> float:
        return measures.validation_loss(self.task, model, data, self.device)

    def _fisher(self, model: nn.Module, data: NodeData, settings: RoundSettings, estimator: Estimator) -> Arrays:
        """The diagonal of the Fisher information on the training data. Draws from a generator of its own."""
        with torch_seed(self.seed, "fisher", settings.server_round, data.key):
            return measures.fisher_information(self.task, model, data, settings.batch_size, estimator)

    def _evaluate(
        self, model: nn.Module, data: NodeData, stage: int, settings: RoundSettings, *, final: bool
    ) -> Evaluation:
        evaluated = self._for_stage(model, stage, settings)
        evaluated.eval()
        # The same draws in every round and for every method: differences between them are not noise.
        seed = derive_seed(self.seed, "evaluate", data.key)
        with torch_seed(self.seed, "evaluate", data.key):
            return self.task.evaluate(evaluated, data, seed=seed, final=final)

    def _personalise(self, model: nn.Module, data: NodeData, settings: RoundSettings, rates: Rates | None) -> None:
        phase = Phase(
            epochs=settings.personal_epochs,
            learning_rate=settings.personal_learning_rate,
            batch_size=settings.batch_size,
            optimizer=settings.optimizer,
            rates=None if rates is None else {n: torch.as_tensor(r) for n, r in rates.items()},
        )
        with torch_seed(self.seed, "personalise", settings.server_round, data.key):
            run_plan(model, [phase], self._epochs(model, data), self.task.loss)
        self.private.save_extra("personal", get_arrays(model, model.state_dict()))

    def _staged(self, stage: int) -> NodeData:
        return examples.of_stage(self.task, self.data, self.collectors, stage)

    def _epochs(self, model: nn.Module, data: NodeData) -> Callable[[int], Iterator[Batch]]:
        return lambda batch_size: self.task.training_batches(model, data, batch_size)
