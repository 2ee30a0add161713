"""Measurements on a node's examples without an optimizer step: validation loss and Fisher information."""

from collections.abc import Iterator

import torch
from torch import nn

from tasks.base import Batch, NodeData, Task

from .fisher import Estimator, diagonal_fisher
from .local_part import NodeRound
from .named_arrays import Arrays

#: Examples at once where no gradient step depends on it.
_BATCH = 256
#: The most numbers, over all parameters, that the gradients of single examples take at once.
_GRADIENTS = 2**22


@torch.no_grad()
def validation_loss(task: Task, model: nn.Module, data: NodeData, device: torch.device) -> float:
    """The task's mean loss over the validation examples, at least one. The model is in training mode afterwards."""
    model.eval()
    total = 0.0
    for batch in task.examples(data, "validation", _BATCH):
        here = {name: tensor.to(device) for name, tensor in batch.items()}
        total += float(task.loss(model, here)) * len(next(iter(here.values())))
    model.train()
    return total / data.count("validation")


def fisher_of_node(model: nn.Module, node_round: NodeRound, estimator: Estimator) -> Arrays:
    """The diagonal of the Fisher information on a node's training examples: one array per parameter, of its dtype.

    The batches are drawn from a generator for this purpose alone; see :func:`~clients.fisher.diagonal_fisher`.
    """
    task, data = node_round.task, node_round.data
    with node_round.torch_seed("fisher"):
        batches = _fisher_batches(task, model, data, node_round.settings.batch_size, estimator)
        fisher = diagonal_fisher(model, batches, task.loss, estimator, vectorised=task.vectorises)
    parameters = dict(model.named_parameters())
    return {name: f.to(parameters[name].dtype).cpu().numpy() for name, f in fisher.items()}


def _fisher_batches(
    task: Task, model: nn.Module, data: NodeData, batch_size: int, estimator: Estimator
) -> Iterator[Batch]:
    if estimator != "per-sample":
        return task.training_batches(model, data, batch_size)
    size = sum(parameter.numel() for parameter in model.parameters())
    return task.examples(data, "train", max(1, min(_GRADIENTS // size, _BATCH)))
