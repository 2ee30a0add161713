"""A node that took no part in the training of a model, and fits its personal part to its data.

What is personal follows from what the method declares. Where it keeps parameters private, or its local parts add
parameters that are not shared, such as adapters, the node trains these with the shared ones frozen: the personal part
has to fit a model that everybody uses, and few parameters need few examples. Where everything is shared, the node
fine-tunes all of it. The settings are those of local training; a part that trains before evaluations changes them as it
does there (:meth:`~fedapps.clients.local_part.LocalPart.adaptation`). There is no prior: it holds nodes together in
training, and nobody waits for this model.

Zero epochs give the received parameters with the initial private ones. Where all parameters are shared and no part
changes the settings, the result is a round of local training, to the bit; where none is, it is training alone.
"""

from dataclasses import dataclass, replace

from fedapps.strategies.stopwatch import timed
from fedapps.strategies.wire import EVALUATION_STEPS
from fedapps.tasks.base import evaluated
from torch import nn

from .arrays import Arrays, matches
from .base import FederatedClient, RoundResult
from .local_part import NodeRound
from .settings import RoundSettings
from .training import Phase, run_plan


@dataclass(frozen=True)
class Adapted:
    """A model after its personal part was fitted, in evaluation mode, and the number of optimizer steps."""

    model: nn.Module
    steps: int


class NewNode(FederatedClient):
    """A node without private state that fits the personal part of a model; its parameters are those of its base.

    It reads and writes no state; what it trains is a personal model like that of a round.
    """

    def adapt(self, received: Arrays, settings: RoundSettings, learning_rate: float = 0.0) -> Adapted:
        """Fit the personal part.

        Parameters
        ----------
        received : dict of arrays
            The shared parameters, by name.
        settings : RoundSettings
            ``settings.training.epochs`` ≥ 0 is the number of epochs. A number of steps is ignored.
        learning_rate : float
            Above 0, in place of that of the settings and the parts; 0 = theirs.

        Returns
        -------
        Adapted
            The task's model in the stage of the settings.

        Raises
        ------
        PrivateParametersError
            A received parameter stays on this node.
        ValueError
            The node has no training examples, or a received parameter does not fit the model.
        DivergedError
            The loss is not finite.
        """
        node_round = self.parts.begin(self._round(received, settings, before=settings.server_round))
        if settings.training.epochs and node_round.data.count("train") == 0:
            raise ValueError(f"node {self.data.key} has no training examples, and cannot adapt a model to them")
        model = self._model(node_round)
        plan, loss = self._plan(model, node_round, learning_rate), self.parts.loss(self.task.loss, model, node_round)
        with timed("train"), node_round.torch_seed("train", *self.parts.seed_labels()):
            trained = run_plan(model, plan, node_round.epochs(model, node_round.data), loss)
        return Adapted(self.parts.stage_model(model, settings.stage).eval(), trained.steps)

    def adapt_round(self, received: Arrays, settings: RoundSettings) -> RoundResult:
        """Fit the personal part and evaluate the model.

        Parameters and errors are those of :meth:`adapt`.

        Returns
        -------
        RoundResult
            As :meth:`evaluate_round` of a federated client returns it, without metrics of other stages.
        """
        adapted = self.adapt(received, settings)
        data = self._staged(settings.stage)
        with timed("evaluate"):
            metrics = evaluated(self.task, adapted.model, data, run_seed=self.seed, final=settings.final).metrics
        metrics = dict(metrics)
        if adapted.steps:
            metrics[EVALUATION_STEPS] = float(adapted.steps)
        result = RoundResult({}, data.evaluated, metrics)
        if adapted.steps and self._keep:
            self._keep("adapt", adapted.model, settings, result)
        return result

    def _plan(self, model: nn.Module, node_round: NodeRound, learning_rate: float) -> list[Phase]:
        training = node_round.settings.training
        if training.epochs == 0:
            return []
        phase = Phase(training.for_epochs(training.epochs), trainable=self._personal(model, node_round) or ("*",))
        phase = self.parts.adaptation(phase, model, node_round)
        if learning_rate:
            phase = replace(phase, training=replace(phase.training, learning_rate=learning_rate))
        return [phase]

    def _personal(self, model: nn.Module, node_round: NodeRound) -> list[str]:
        """The names of the parameters that can be trained and hold no received values."""
        shared = set(map(id, self.parts.shared_parameters(model, node_round).values()))
        return [
            name
            for name, parameter in model.named_parameters()
            if id(parameter) not in shared and parameter.requires_grad and not matches(name, self.task.fixed)
        ]

    def _kept(self, before: int, settings: RoundSettings) -> Arrays:
        return {}
