"""The diagonal of the Fisher information of a model on a node's data.

The diagonal of E[∇ log p ∇ log pᵀ], which says how sharply the loss pins each parameter down (Kirkpatrick et al.,
Overcoming catastrophic forgetting in neural networks, 2017, Section 2, https://arxiv.org/abs/1612.00796). With the
labels of the data, it is the empirical Fisher information; with labels drawn from the model, the true one.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import get_args

import torch
from fedapps.strategies.wire import FisherEstimator
from fedapps.tasks.base import Batch, NodeData, Task
from torch import Tensor, nn
from torch.func import grad, vmap

from .arrays import Arrays
from .local_part import NodeRound
from .training import EXAMPLES_AT_ONCE, Loss, ModelWithLoss, mean_loss

#: How the Fisher information is estimated.
#:
#: - "per-sample": mean over examples of the squared gradient of the negative log-likelihood of one example;
#: - "per-batch": mean over batches of the squared gradient of a batch's mean, smaller by up to the batch size;
#:   "per-batch-scaled": the same times the batch size. With batches of one, these three are the same;
#: - "loss-per-sample": as "per-sample" for the loss as it is, such as a mean squared error (Shoham et al., Overcoming
#:   Forgetting in Federated Learning on Non-IID Data, 2019, https://arxiv.org/abs/1910.07796, Section 3.1);
#: - "loss-per-batch": as "per-batch" for the loss as it is (OpenFL, ``openfl/utilities/fedcurv/torch/fedcurv.py``);
#: - "true": as "per-sample" with labels from the model's likelihood (Kunstner et al., Limitations of the Empirical
#:   Fisher Approximation, NeurIPS 2019, https://arxiv.org/abs/1905.12558, Equation 2).
#:
#: Where the loss is a cross-entropy, "loss-" makes no difference.
Estimator = FisherEstimator
#: The most numbers, over all parameters, that the gradients of single examples take at once.
_GRADIENTS = 2**22


def diagonal_fisher(
    model: nn.Module,
    batches: Iterable[Batch],
    loss_of: Loss,
    estimator: Estimator = "per-sample",
    *,
    vectorised: bool = True,
) -> dict[str, Tensor]:
    """The diagonal of the empirical Fisher information at the model's parameters, with the labels of the batches.

    Parameters
    ----------
    model : nn.Module
        Taken in evaluation mode and left as it was.
    batches : iterable of mappings of names to tensors
        One pass over the data; the tensors of a batch have b ≥ 1 examples as their first dimension. Batches count
        by their size, so a smaller last one is no bias.
    loss_of : callable
        The *mean* negative log-likelihood over a batch, a scalar, up to a constant
        (:func:`negative_log_likelihood`). A squared error (y - f)² must be divided by
        2σ² for noise of the variance σ²: without that, the result is 4σ⁴ times the Fisher information, too small for
        σ² < ½.
    estimator : Estimator
        Whether single examples or batches are squared; see :data:`Estimator`.
    vectorised : bool
        Compute the gradients of a batch's examples at once, which takes b copies of the model; otherwise one after
        the other, as for losses with data-dependent control flow. The values agree to rounding.

    Returns
    -------
    dict of tensors
        For every parameter one of its shape, in float64, ≥ 0; zeros for frozen and unused parameters.

    Raises
    ------
    ValueError
        There are no examples, or the estimator is unknown.
    RuntimeError
        The loss cannot be vectorised.
    """
    if estimator not in get_args(Estimator):
        allowed = ", ".join(map(repr, get_args(Estimator)))
        raise ValueError(f"estimator = {estimator!r}: must be one of {allowed}")
    named = dict(model.named_parameters())
    totals = {name: torch.zeros_like(parameter, dtype=torch.float64) for name, parameter in named.items()}
    trained = {name: parameter for name, parameter in named.items() if parameter.requires_grad}
    device = next(iter(named.values())).device
    examples = 0
    with evaluating(model):
        for batch in batches:
            tensors = {name: tensor.to(device) for name, tensor in batch.items()}
            count = len(next(iter(tensors.values())))
            for name, squares in _squares(model, trained, tensors, count, loss_of, estimator, vectorised).items():
                totals[name] += squares
            examples += count
    if not examples:
        raise ValueError("the Fisher information of no examples: the data is empty")
    return {name: total / examples for name, total in totals.items()}


def _squares(
    model: nn.Module,
    trained: Mapping[str, nn.Parameter],
    batch: Batch,
    count: int,
    loss_of: Loss,
    estimator: str,
    vectorised: bool,
) -> dict[str, Tensor]:
    """What a batch adds to the sum over examples, per parameter."""
    if takes_batches(estimator):
        weight = count**2 if estimator == "per-batch-scaled" else count
        return {n: weight * g.double().square() for n, g in _gradient(model, trained, batch, loss_of).items()}
    if vectorised:
        return _vectorised(model, trained, batch, loss_of)
    squares = {name: torch.zeros_like(parameter, dtype=torch.float64) for name, parameter in trained.items()}
    for index in range(count):
        single = {name: tensor[index : index + 1] for name, tensor in batch.items()}
        for name, value in _gradient(model, trained, single, loss_of).items():
            squares[name] += value.double().square()
    return squares


def takes_batches(estimator: str) -> bool:
    """Whether an estimator squares the gradients of batches; the others need those of single examples."""
    return "per-batch" in estimator


def _vectorised(
    model: nn.Module, trained: Mapping[str, nn.Parameter], batch: Batch, loss_of: Loss
) -> dict[str, Tensor]:
    wrapped = ModelWithLoss(model, loss_of)
    parameters = {name: parameter.detach() for name, parameter in trained.items()}

    def loss(parameters: dict[str, Tensor], example: dict[str, Tensor]) -> Tensor:
        single = {name: tensor.unsqueeze(0) for name, tensor in example.items()}
        return wrapped.with_parameters(parameters, single)

    try:
        gradients = vmap(grad(loss), in_dims=(None, 0), randomness="different")(parameters, dict(batch))
    except RuntimeError as error:
        raise RuntimeError(
            f"the gradients of single examples cannot be computed at once ({error}): "
            "take them one by one with vectorised = False"
        ) from error
    return {name: gradients[name].double().square().sum(0) for name in trained}


def _gradient(model: nn.Module, trained: Mapping[str, nn.Parameter], batch: Batch, loss_of: Loss) -> dict[str, Tensor]:
    gradients = torch.autograd.grad(loss_of(model, batch), list(trained.values()), allow_unused=True)
    return {name: g for name, g in zip(trained, gradients, strict=True) if g is not None}


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Within the block the model is in evaluation mode; afterwards each module is in the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


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
    scale = _likelihood_scale(task, model, data, device)

    def scaled(model: nn.Module, batch: Batch) -> Tensor:
        return scale * task.loss(model, batch)

    return scaled


def _likelihood_scale(task: Task, model: nn.Module, data: NodeData, device: torch.device) -> float:
    """1 / T of :func:`negative_log_likelihood`."""
    mean = mean_loss(task, model, data, "train", device)
    if mean == 0:
        raise ValueError(
            f"node {data.key}: the model fits all training examples exactly, so the variance of their noise is 0 and "
            "the Fisher information infinite: use a method without Fisher information"
        )
    return task.squared_residuals / (2 * mean)


def fisher_of_node(model: nn.Module, node_round: NodeRound, estimator: Estimator) -> Arrays:
    """The diagonal of the Fisher information on a node's training examples: one array per parameter, of its dtype.

    It is that of the :func:`negative_log_likelihood`, or of the loss as it is if the estimator says so. Batches and
    labels are drawn from a generator for this purpose alone. See :func:`diagonal_fisher`.

    Raises
    ------
    NotImplementedError
        The estimator is "true", and the task cannot draw labels.
    """
    task, data, device = node_round.task, node_round.data, node_round.device
    with node_round.torch_seed("fisher"):
        as_it_is = estimator.startswith("loss-")
        loss_of = task.loss if as_it_is else negative_log_likelihood(task, model, data, device)
        batches = _fisher_batches(task, model, data, node_round.settings.training.batch_size, estimator)
        if estimator == "true":
            batches = _with_drawn_labels(task, model, data, device, batches)
        fisher = diagonal_fisher(model, batches, loss_of, estimator, vectorised=task.vectorises)
    parameters = dict(model.named_parameters())
    return {name: f.to(parameters[name].dtype).cpu().numpy() for name, f in fisher.items()}


def _with_drawn_labels(
    task: Task, model: nn.Module, data: NodeData, device: torch.device, batches: Iterator[Batch]
) -> Iterator[Batch]:
    """The batches with labels from the model's likelihood."""
    residuals = task.squared_residuals
    temperature = 1 / _likelihood_scale(task, model, data, device) if residuals else 1.0
    for batch in batches:
        tensors = {name: tensor.to(device) for name, tensor in batch.items()}
        with torch.no_grad():
            yield task.drawn_labels(model, tensors, temperature)


def _fisher_batches(
    task: Task, model: nn.Module, data: NodeData, batch_size: int, estimator: Estimator
) -> Iterator[Batch]:
    if takes_batches(estimator):
        return task.training_batches(model, data, batch_size)
    size = sum(parameter.numel() for parameter in model.parameters())
    return task.examples(data, "train", max(1, min(_GRADIENTS // size, EXAMPLES_AT_ONCE)))
