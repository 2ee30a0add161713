"""FedALA: a node mixes the received model into its last one, with a learned weight for every parameter.

Zhang et al., FedALA: Adaptive Local Aggregation for Personalized Federated Learning, AAAI 2023, Section 3 and Algorithm
1, https://arxiv.org/abs/2212.01197; what the paper leaves open is as in the authors' code.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from fedapps.base.options import Range, option, under_prefix
from fedapps.clients.arrays import Arrays, get_arrays, load_arrays, matches, memory_of
from fedapps.clients.local_part import EVALUATED_MODEL, LocalPart, NodeRound, Prepared
from fedapps.clients.personal_model import copy_of
from fedapps.clients.rules import spend_step
from fedapps.tasks.base import Batch, Metrics

from .base import Method

_LAST = "fedala.last."
_WEIGHT = "fedala.weight."
_WEIGHTS = "fedala.weights"
_PASSES = "fedala.passes"
#: The weights are settled when the losses of the last ten passes have a standard deviation below the limit.
_SETTLED_PASSES = 10
_SETTLED_BELOW = 0.1


@dataclass(frozen=True)
class FedAlaOptions:
    """The options of FedALA."""

    weight_rate: float = option(
        1.0,
        "step size of the weights; 0 = FedAvg, of which nodes evaluate what they trained",
        minimum=0,
        search=Range(0.01, 10, log=True),
    )
    layers: int = option(1, "layers to mix, counted from the output; 0 = all", minimum=0)
    share: float = option(0.8, "share of a node's batches that train the weights", above=0, maximum=1)
    first_passes: int = option(
        50, "passes over these batches when a node trains its weights for the first time, unless they settle before",
        minimum=1,
    )  # fmt: skip


class FedAla(Method):
    """Nodes start from an element-wise mixture of the received and their last model, and evaluate what they trained.

    The defaults of step size, share and layers come from the paper's code, https://github.com/TsingZ0/FedALA.
    """

    name = "fedala"
    summary = (
        "FedALA: FedAvg, but nodes mix the received top layers into their last model, with weights that they learn"
    )
    citation = (
        "Zhang et al., FedALA: Adaptive Local Aggregation for Personalized Federated Learning, AAAI 2023, "
        "https://arxiv.org/abs/2212.01197"
    )
    keeps = "mixing weights, its last model"
    work = "+ fit of the weights"
    good_for = "uneven labels, personal evaluation"
    Options = FedAlaOptions

    def local_parts(self) -> Sequence[LocalPart]:
        return [FedAlaPart(self.options)]


@dataclass(frozen=True)
class FedAlaPart(LocalPart):
    """Begin the training of the top layers at l + (w − l) W, where l is the node's last model and w the received one.

    W starts at 1, stays on the node, and is trained before the model is: W ← clip(W − η g (w − l), 0, 1), with the
    gradient g of the loss at the mixture, in batches of a share of the training data. The lower layers and all buffers
    start as received. A node evaluates the model that it trained last; before its first round, the received one. As
    long as both models are equal, as in the first round, W is not trained. A new stage of the data is a first round.
    """

    exclusive: ClassVar[frozenset[str]] = frozenset({EVALUATED_MODEL})

    options: FedAlaOptions = FedAlaOptions()

    def before_training(self, model: nn.Module, node_round: NodeRound) -> Mapping[str, Any]:
        memory = memory_of(node_round.kept)
        last, weights = under_prefix(_LAST, memory), under_prefix(_WEIGHT, memory)
        names = self._mixed(model, node_round)
        received = {name: p.detach().clone() for name, p in model.named_parameters() if name in names}
        if (
            self.options.weight_rate == 0
            or not last
            or all(torch.equal(_like(w, last[n]), w) for n, w in received.items())
        ):
            return {_WEIGHTS: weights, _PASSES: 0}
        mixture = _Mixture(
            {name: _like(w, last[name]) for name, w in received.items()},
            received,
            {n: _like(w, weights[n]) if n in weights else torch.ones_like(w) for n, w in received.items()},
        )
        passes = 1 if weights else self.options.first_passes
        with node_round.torch_seed("fedala"):
            passes = self._train(mixture, copy_of(model).train(), node_round, passes)
        load_arrays(model, mixture.values())
        return {_WEIGHTS: {name: w.cpu().numpy() for name, w in mixture.weights.items()}, _PASSES: passes}

    def remember(self, model: nn.Module, node_round: NodeRound) -> Arrays:
        names = [name for name in model.state_dict() if not matches(name, node_round.task.fixed)]
        last = {_LAST + name: array for name, array in get_arrays(model, names).items()}
        return last | {_WEIGHT + name: array for name, array in node_round.measured[_WEIGHTS].items()}

    def before_evaluation(self, model: nn.Module, node_round: NodeRound) -> Prepared:
        load_arrays(model, under_prefix(_LAST, memory_of(node_round.kept)))
        return Prepared()

    def metrics(self, model: nn.Module, node_round: NodeRound) -> Metrics:
        """``fedala.weight``, the mean of W, which is 1 before its training, and ``fedala.passes`` of this round."""
        weights = node_round.measured[_WEIGHTS].values()
        mean = sum(float(w.sum()) for w in weights) / sum(w.size for w in weights) if weights else 1.0
        return {"fedala.weight": mean, _PASSES: float(node_round.measured[_PASSES])}

    def bytes_on_disk(self, model_bytes: int, version_bytes: int, stages: int) -> int:
        return 2 * model_bytes

    def _train(self, mixture: "_Mixture", model: nn.Module, node_round: NodeRound, passes: int) -> int:
        """Train the weights with a copy of the model. Returns the number of passes."""
        batches = list(self._batches(model, node_round))
        parameters = {name: p for name, p in model.named_parameters() if name in mixture.weights}
        losses: list[float] = []
        while len(losses) < passes:
            total = 0.0
            for batch in batches:
                spend_step()
                load_arrays(model, mixture.values())
                loss = node_round.task.loss(model, batch)
                gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
                mixture.step(dict(zip(parameters, gradients, strict=True)), self.options.weight_rate)
                total += float(loss.detach())
            losses.append(total / len(batches))
            if len(losses) > _SETTLED_PASSES and np.std(losses[-_SETTLED_PASSES:]) < _SETTLED_BELOW:
                break
        return len(losses)

    def _batches(self, model: nn.Module, node_round: NodeRound) -> Iterator[Batch]:
        epoch = list(node_round.epochs(model, node_round.data)(node_round.settings.training.batch_size))
        for batch in epoch[: ceil(self.options.share * len(epoch))]:
            yield {name: tensor.to(node_round.device) for name, tensor in batch.items()}

    def _mixed(self, model: nn.Module, node_round: NodeRound) -> set[str]:
        """The names of the trained parameters in the layers to mix."""
        layers = [
            [f"{prefix}.{name}" if prefix else name for name, p in module.named_parameters(recurse=False)]
            for prefix, module in model.named_modules()
        ]
        head = node_round.task.roles.head
        layers = sorted(filter(None, layers), key=lambda names: matches(names[0], head))
        trained = {name for name, p in model.named_parameters() if p.requires_grad}
        return trained & {name for names in layers[-self.options.layers :] for name in names}


@dataclass
class _Mixture:
    """``last`` + (``received`` − ``last``) · ``weights`` by parameter; the weight 1 gives exactly the received one."""

    last: dict[str, Tensor]
    received: dict[str, Tensor]
    weights: dict[str, Tensor]

    def values(self) -> dict[str, Tensor]:
        mixed = {}
        for name, weight in self.weights.items():
            last, received = self.last[name], self.received[name]
            # Section 3: θ̂ = l + (w − l) ⊙ W
            mixed[name] = torch.where(weight == 1, received, last + (received - last) * weight)
        return mixed

    def step(self, gradients: Mapping[str, Tensor | None], rate: float) -> None:
        for name, gradient in gradients.items():
            if gradient is not None:
                # Algorithm 1: W ← clip(W − η ∇f(θ̂) ⊙ (w − l), 0, 1)
                moved = self.weights[name] - rate * gradient * (self.received[name] - self.last[name])
                self.weights[name] = moved.clamp(0, 1)


def _like(tensor: Tensor, array: np.ndarray) -> Tensor:
    return torch.from_numpy(array).to(tensor)
