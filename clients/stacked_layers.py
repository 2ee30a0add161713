"""Linear layers of several nodes at once, as one product of stacked matrices.

``torch.func.vmap`` also computes them. Where inputs have more than two dimensions, it multiplies the weights with one
example at a time, and it copies the gradients of the weights. It is still faster with small layers, because a function
with a rule for vmap takes longer to call.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode


class StackedLayers(TorchFunctionMode):
    """Within ``with StackedLayers():``, linear layers under ``torch.func.vmap`` are products of stacked matrices."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch, or what stands for it."""
        return (_linear if func is linear else func)(*args, **(kwargs or {}))


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    output: Tensor = _Linear.apply(input, weight, bias)
    return output


class _Linear(Function):
    """``linear`` of one node, for vmap."""

    @staticmethod
    def forward(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        raise NotImplementedError("linear layers are stacked under vmap alone")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Needed by torch; there is nothing to keep."""

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], inputs: Tensor, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, int]:
        """Outputs of all nodes, which lie in dimension 0."""
        size = info.batch_size
        inputs, weight = _first(inputs, in_dims[0], size), _first(weight, in_dims[1], size)
        bias = bias if bias is None else _first(bias, in_dims[2], size)
        rows = inputs[:, None].flatten(1, -2)
        return _StackedLinear.apply(rows, weight, bias).view(*inputs.shape[:-1], weight.shape[1]), 0


def _first(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    """The tensor with the nodes in dimension 0; ``dim`` is ``None`` for what they share."""
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


class _StackedLinear(Function):
    """``inputs [n, rows, in] @ weight [n, out, in]ᵀ + bias [n, out]``, ``[n, rows, out]``.

    Its gradients lie in memory as the weights do.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        if bias is None:
            return torch.bmm(inputs, weight.mT)
        return torch.baddbmm(bias[:, None], inputs, weight.mT)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        of_inputs, of_weight, of_bias = ctx.needs_input_grad
        return (
            torch.bmm(gradient, weight) if of_inputs else None,
            torch.bmm(gradient.mT, inputs) if of_weight else None,
            gradient.sum(1) if of_bias else None,
        )
