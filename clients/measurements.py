"""Measurements on a node's examples without an optimizer step: mean loss, likelihood and Fisher information."""

from collections.abc import Iterator

import torch
from fedapps.tasks.base import Batch, NodeData, Task
from torch import Tensor, nn

from .fisher import Estimator, diagonal_fisher
from .local_part import NodeRound
from .named_arrays import Arrays
from .training import Loss

#: Examples at once where no gradient step depends on it.
_BATCH = 256
#: The most numbers, over all parameters, that the gradients of single examples take at once.
_GRADIENTS = 2**22


@torch.no_grad()
def mean_loss(task: Task, model: nn.Module, data: NodeData, split: str, device: torch.device) -> float:
    """The task's mean loss over the examples of a split, at least one. The model is in training mode afterwards."""
    model.eval()
    total = 0.0
    for batch in task.examples(data, split, _BATCH):
        here = {name: tensor.to(device) for name, tensor in batch.items()}
        total += float(task.loss(model, here)) * len(next(iter(here.values())))
    model.train()
    return total / data.count(split)


def negative_log_likelihood(task: Task, model: nn.Module, data: NodeData, device: torch.device) -> Loss:
    """Return the mean negative log-likelihood of a batch, up to a constant.

    Losses without squared residuals are one as they are. A squared error is that of Gaussian noise only up to the
    variance σ² of the noise: -log p(y | x) = (y - f(x))² / (2σ²) + constant. Training does not depend on σ², but the
    Fisher information does. σ² is estimated by maximum likelihood as the mean squared residual of the node's training
    examples, so a node with less noise has a larger Fisher information. The estimate is too small if the model overfits
    these examples.

    In general, the loss ℓ of an example with d squared residuals stands for -log p = ℓ / T with T = 2 L / d, where L is
    the mean of ℓ over the training examples. For the squared error of one output, T = 2σ². Multiples of ℓ stand for the
    same likelihood.

    Parameters
    ----------
    task : Task
        ``task.squared_residuals`` is d; 0 if there are none.
    model : nn.Module
        With the parameters at which L is measured. If d > 0, it is in training mode afterwards.
    data : NodeData
        With at least one training example.
    device : torch.device
        That of ``model``.

    Raises
    ------
    ValueError
        The loss has squared residuals, and all of them are 0: there is no noise.
    """
    if not task.squared_residuals:
        return task.loss
    mean = mean_loss(task, model, data, "train", device)
    if mean == 0:
        raise ValueError(
            f"node {data.key}: the model fits all training examples exactly, so the variance of their noise is 0 and "
            "the Fisher information infinite: use a method without Fisher information"
        )
    scale = task.squared_residuals / (2 * mean)

    def scaled(model: nn.Module, batch: Batch) -> Tensor:
        return scale * task.loss(model, batch)

    return scaled


def fisher_of_node(model: nn.Module, node_round: NodeRound, estimator: Estimator) -> Arrays:
    """The diagonal of the Fisher information on a node's training examples: one array per parameter, of its dtype.

    It is that of the :func:`negative_log_likelihood`. The batches are drawn from a generator for this purpose alone.
    See :func:`~fedapps.clients.fisher.diagonal_fisher`.
    """
    task, data = node_round.task, node_round.data
    with node_round.torch_seed("fisher"):
        loss_of = negative_log_likelihood(task, model, data, node_round.device)
        batches = _fisher_batches(task, model, data, node_round.settings.training.batch_size, estimator)
        fisher = diagonal_fisher(model, batches, loss_of, estimator, vectorised=task.vectorises)
    parameters = dict(model.named_parameters())
    return {name: f.to(parameters[name].dtype).cpu().numpy() for name, f in fisher.items()}


def _fisher_batches(
    task: Task, model: nn.Module, data: NodeData, batch_size: int, estimator: Estimator
) -> Iterator[Batch]:
    if estimator != "per-sample":
        return task.training_batches(model, data, batch_size)
    size = sum(parameter.numel() for parameter in model.parameters())
    return task.examples(data, "train", max(1, min(_GRADIENTS // size, _BATCH)))
