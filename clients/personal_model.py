"""A second, personal model on a node, beside the one that it shares.

:class:`PersonalModel` is the base of the parts that train both: Ditto, pFedMe, and the mixture of local and global
models. The personal model is memory of the node. It never travels, it is resumed with the rest of the private state,
and it is what the node evaluates, keeps, loads and adapts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from fedapps.tasks.base import NodeData
from torch import Tensor, nn

from fedapps.base.seeding import TorchState

from .arrays import (
    PREFIX,
    Arrays,
    array_views,
    can_be_copied,
    copied,
    get_arrays,
    load_arrays,
    matches,
    memory_of,
    private_names,
)
from .local_part import EVALUATED_MODEL, PARAMETER_NAMES, LocalPart, NodeRound
from .rules import spend_step
from .training import Phase, Update

_SHARED = "shared."
_PERSONAL = "personal."


class TwoModels(nn.Module):
    """The ``shared`` model of the task, and a ``personal`` model of the same architecture; calls go to the former."""

    def __init__(self, shared: nn.Module, personal: nn.Module) -> None:
        super().__init__()
        self.shared = shared
        self.personal = personal

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Call the shared model."""
        return self.shared(*inputs, **named)


@dataclass(frozen=True)
class PersonalModel(LocalPart):
    """Keep a personal model, which starts as the shared one is received in the node's first round.

    The model of the round is a :class:`TwoModels`. A subclass says how both are trained: by :meth:`loss`, or by a phase
    with a step (:attr:`~fedapps.clients.training.Phase.step`) in :meth:`plan`, such as :func:`step_both`; it calls
    ``super().plan(...)``. Without either, both would get the gradient of the task's loss of the shared model, which is
    none for the personal one. A new node adapts the personal model with the shared one frozen
    (:mod:`fedapps.clients.new_node`).
    """

    exclusive: ClassVar[frozenset[str]] = frozenset({EVALUATED_MODEL, PARAMETER_NAMES})

    def evaluated(self, model: TwoModels) -> nn.Module:
        """Return the task's model that the node evaluates; by default the personal one."""
        return model.personal

    # -- memory ----------------------------------------------------------------------------------------------------

    def remember(self, model: nn.Module, node_round: NodeRound) -> Arrays:
        personal = two_models(model).personal
        names = [name for name in personal.state_dict() if not matches(name, node_round.task.fixed)]
        return {_PERSONAL + name: array for name, array in get_arrays(personal, names).items()}

    def next_stage(self, carried: Arrays, kept: Arrays) -> Arrays:
        return carried | {name: array for name, array in kept.items() if name.startswith(PREFIX + _PERSONAL)}

    # -- the model -------------------------------------------------------------------------------------------------

    def wrap(self, model: nn.Module, node_round: NodeRound) -> nn.Module:
        personal = copy_of(model)
        load_arrays(personal, personal_arrays(node_round))
        return TwoModels(model, personal)

    def stage_model(self, model: nn.Module, stage: int) -> nn.Module:
        return self.evaluated(two_models(model))

    def shared_parameters(self, model: nn.Module, node_round: NodeRound) -> Mapping[str, nn.Parameter]:
        named = model.named_parameters()
        return {name: p for name, p in named if name.removeprefix(_SHARED) in node_round.received}

    def private(self, model: nn.Module, node_round: NodeRound) -> Arrays:
        shared = two_models(model).shared
        names = private_names(shared, node_round.received)
        return get_arrays(shared, [name for name in names if not matches(name, node_round.task.fixed)])

    def outgoing(self, model: nn.Module, node_round: NodeRound) -> Arrays:
        return array_views(two_models(model).shared, node_round.received)

    # -- training --------------------------------------------------------------------------------------------------

    def plan(self, plan: Sequence[Phase], model: nn.Module, data: NodeData, node_round: NodeRound) -> Sequence[Phase]:
        """The same phases on the batches that the shared model asks for."""
        epoch = node_round.epochs(two_models(model).shared, data)
        return [replace(phase, epoch=phase.epoch or epoch) for phase in plan]

    def adaptation(self, phase: Phase, model: nn.Module, node_round: NodeRound) -> Phase:
        return replace(phase, epoch=node_round.epochs(two_models(model).shared, node_round.data))

    # -- evaluation ------------------------------------------------------------------------------------------------

    def bytes_on_disk(self, model_bytes: int, version_bytes: int, stages: int) -> int:
        return model_bytes


def step_both(update: Update, shared: Callable[[], Tensor], personal: Callable[[], Tensor]) -> Tensor:
    """Take one optimizer step of both models and return the loss of the personal one.

    The shared model trains as it would without the other one, to the bit: the losses see the same random numbers, and
    each gradient is clipped for itself.

    Parameters
    ----------
    update : Update
    shared, personal : callable
        The loss of each model on the batch, a scalar tensor, with a gradient in this model alone.
    """
    spend_step()
    update.clear()
    again = TorchState()
    shared().backward()
    with again:
        loss = personal()
        loss.backward()
    if update.phase.prior is not None:
        update.phase.prior.add_gradient(update.named)
    if norm := update.phase.training.clip_norm:
        for prefix in (_SHARED, _PERSONAL):
            nn.utils.clip_grad_norm_([p for name, p in update.named.items() if name.startswith(prefix)], norm)
    update.take()
    return loss


def two_models(model: nn.Module) -> TwoModels:
    """The model of a round as the one that :class:`PersonalModel` made of it."""
    if not isinstance(model, TwoModels):
        raise TypeError(f"the model is a {type(model).__name__}: PersonalModel must come after the parts that wrap it")
    return model


def personal_arrays(node_round: NodeRound) -> Arrays:
    """The personal model as the last round left it; empty before the first."""
    memory = memory_of(node_round.kept)
    return {name.removeprefix(_PERSONAL): a for name, a in memory.items() if name.startswith(_PERSONAL)}


def copy_of(model: nn.Module) -> nn.Module:
    """A copy with parameters, buffers and hooks; other attributes, such as the data of a task, are the same objects."""
    if can_be_copied(model):
        return copied(model)
    plain = {
        id(value): value
        for module in model.modules()
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, (list, dict))
    }
    return deepcopy(model, dict(plain))
