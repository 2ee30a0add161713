"""What methods need to know of a task's model by role: its head, its normalisation layers, its representation.

A task names head and body once (:attr:`fedapps.tasks.base.Task.roles`); the rest is derived here.
"""

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor, nn

from fedapps.base.options import matches

from .base import Task
from .head_inputs import head_inputs
from .node_data import Batch

_NORMALISATION = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def missing(task: Task, role: str) -> str:
    """Why a task does not have what a method needs; empty if it has it.

    Parameters
    ----------
    task : Task
    role : "head", "body", "features", "examples", "classes", "factors" or "normalisation"
        The last one builds the task's model.
    """
    roles = task.roles
    reasons = {
        "head": "" if roles.head else "its model has no head",
        "body": "" if roles.body else "its model has no body under a head",
        "features": "" if roles.features else "its model has no representation of single examples",
        "examples": "" if roles.examples else "its examples are mined with the model in training",
        "factors": "" if roles.factors else _no_factors(roles.factors_key),
        "classes": "" if task.num_classes else "its examples have no classes",
    }
    if role in reasons:
        return reasons[role]
    return "" if normalisation_names(task) else "its model has no normalisation layers"


def _no_factors(key: str) -> str:
    return "its model has no adapters of low rank" + (f" (set {key})" if key else "")


@lru_cache(maxsize=32)
def normalisation_names(task: Task) -> tuple[str, ...]:
    """The parameters and buffers of the normalisation modules of a task's model, in the order of its ``state_dict``.

    They are batch, instance, group, layer and RMS normalisation of ``torch.nn``, and subclasses of these. What is never
    trained is left out.
    """
    with torch.random.fork_rng(devices=[]):  # only module types and names matter: leave the caller's draws alone
        model = task.build_model()
    modules = model.named_modules()
    prefixes = tuple(f"{name}." if name else "" for name, module in modules if isinstance(module, _NORMALISATION))
    return tuple(name for name in model.state_dict() if name.startswith(prefixes) and not matches(name, task.fixed))


def with_features(
    task: Task, loss: Callable[[nn.Module, Batch], Tensor], model: nn.Module, batch: Batch
) -> tuple[Tensor, Tensor]:
    """The loss of a batch and the features ``[n, d]`` of its examples, in one pass where the task derives them."""
    if type(task).features is not Task.features:
        return loss(model, batch), task.features(model, batch)
    with head_inputs(model, task.roles.head) as features:
        value = loss(model, batch)
    return value, features()
