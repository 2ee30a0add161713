"""MOON: a contrast of representations holds the nodes near the shared model.

Li, He and Song, Model-Contrastive Federated Learning, CVPR 2021, Section 3.2 and Algorithm 1,
https://arxiv.org/abs/2103.16257.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, softplus

from fedapps.base.options import Choices, option, under_prefix
from fedapps.clients.arrays import Arrays, get_arrays, load_arrays, matches, memory_of
from fedapps.clients.local_part import LocalPart, NodeRound
from fedapps.clients.personal_model import copy_of
from fedapps.clients.training import Loss
from fedapps.tasks.base import Batch, with_features

from .base import Method

_LAST = "moon.last."


@dataclass(frozen=True)
class MoonOptions:
    """The options of MOON."""

    mu: float = option(
        0.1,
        "weight µ of the contrast between the representations of the received and of the node's last model; 0 = FedAvg",
        minimum=0,
        search=Choices((0.0, 0.1, 1.0, 5.0, 10.0)),
    )
    temperature: float = option(0.5, "temperature of the contrast", above=0)


class Moon(Method):
    """The nodes draw their representation to that of the shared model, away from that of their last one.

    The representation is the task's (:meth:`fedapps.tasks.base.Task.features`), the input of the head; the paper puts
    two further linear layers, its projection head, before it. µ is the smallest of the 0.1, 1, 5 and 10 among which the
    paper chooses (5 on CIFAR-10, 1 on CIFAR-100); the temperature is the paper's.
    """

    name = "moon"
    summary = (
        "MOON: FedAvg, with the nodes' representations drawn to that of the shared model, away from their last one"
    )
    citation = "Li et al., Model-Contrastive Federated Learning, CVPR 2021, https://arxiv.org/abs/2103.16257"
    keeps = "its last model"
    work = "+ 2 forward passes"
    good_for = "images; uneven labels"
    Options = MoonOptions
    needs = ("features",)

    def local_parts(self) -> Sequence[LocalPart]:
        return [MoonPart(self.options)]


@dataclass(frozen=True)
class MoonPart(LocalPart):
    """Add µ · mean −log(exp(s_g/T) / (exp(s_g/T) + exp(s_p/T))) over the examples of a batch to its loss.

    s_g is the cosine of an example's features under the model in training and under the received one; s_p that with the
    model that this node trained last. Both are frozen and in evaluation mode, as in the authors' code. The node keeps
    the last model. In its first round it has none, and trains plainly: the paper starts the last model at the initial
    one, where both terms cancel. A new stage of the data is a first round.
    """

    options: MoonOptions = MoonOptions()

    def loss(self, loss: Loss, model: nn.Module, node_round: NodeRound) -> Loss:
        last = under_prefix(_LAST, memory_of(node_round.kept))  # empty before the node's first round
        if self.options.mu == 0 or not last:
            return loss
        received_model, last_model = _frozen(model, {}), _frozen(model, last)
        task = node_round.task

        def contrasted(model: nn.Module, batch: Batch) -> Tensor:
            value, features = with_features(task, loss, model, batch)
            with torch.no_grad():
                near, far = task.features(received_model, batch), task.features(last_model, batch)
            # Algorithm 1: the contrast −log(e^a / (e^a + e^b)) of two cosines over T is softplus(b − a)
            gap = cosine_similarity(features, far) - cosine_similarity(features, near)
            return value + self.options.mu * softplus(gap / self.options.temperature).mean()

        return contrasted

    def remember(self, model: nn.Module, node_round: NodeRound) -> Arrays:
        if self.options.mu == 0:
            return {}
        names = [name for name in model.state_dict() if not matches(name, node_round.task.fixed)]
        return {_LAST + name: array for name, array in get_arrays(model, names).items()}

    def static_parameters(self, shared: Mapping[str, nn.Parameter], memory: Arrays) -> int:
        last = sum(array.size for name, array in memory.items() if name.startswith(_LAST))
        return 2 * last

    def bytes_on_disk(self, model_bytes: int, version_bytes: int, stages: int) -> int:
        return model_bytes


def _frozen(model: nn.Module, arrays: Arrays) -> nn.Module:
    copied = copy_of(model)
    load_arrays(copied, arrays)
    return copied.requires_grad_(False).eval()
