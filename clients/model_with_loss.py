"""A model with its loss as one module, which torch can call with other parameters."""

from collections.abc import Mapping

import torch
from fedapps.tasks.base import Batch
from torch import Tensor, nn
from torch.func import functional_call

from .training import Loss


class ModelWithLoss(nn.Module):
    """Calls a loss with a model whose parameters are replaced.

    Parameters
    ----------
    model : nn.Module
        Parameters without a replacement are its own.
    loss_of : callable
        ``loss_of(model, batch)`` is a scalar tensor.
    """

    def __init__(self, model: nn.Module, loss_of: Loss) -> None:
        super().__init__()
        self.model = model
        self.loss_of = loss_of

    def forward(self, batch: Batch) -> Tensor:
        """Return the loss on a batch."""
        return self.loss_of(self.model, batch)

    def with_parameters(self, named: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """Return the loss on a batch with other parameters, given by their names in the model."""
        inner = {f"model.{name}": tensor for name, tensor in named.items()}
        return torch.as_tensor(functional_call(self, inner, (batch,)))
