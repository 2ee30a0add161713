"""What the head of a model is given, recorded while the model runs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from fedapps.base.options import matches


@contextmanager
def head_inputs(model: nn.Module, head: Sequence[str]) -> Iterator[Callable[[], Tensor]]:
    """Record what the head of a model is given within this context.

    The head are the outermost modules whose parameters all match the patterns ``head``. The value is a function that
    returns the input of the first call of one of them, float ``[n, d]``, with the mean over further dimensions.

    Raises
    ------
    ValueError
        No module matches; the function raises it if none was called.
    """
    heads = list(_outermost(model, "", head))
    if not heads:
        raise ValueError(f"head = {list(head)}: no module of the model has only such parameters")
    tensors: list[Tensor] = []

    def record(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if not tensors:
            tensors.append(inputs[0])

    def recorded() -> Tensor:
        if not tensors:
            raise ValueError(f"head = {list(head)}: the model does not call it as a module")
        (tensor,) = tensors
        return tensor if tensor.dim() < 3 else tensor.flatten(1, -2).mean(dim=1)

    handles = [module.register_forward_pre_hook(record) for module in heads]
    try:
        yield recorded
    finally:
        for handle in handles:
            handle.remove()


def _outermost(module: nn.Module, name: str, patterns: Sequence[str]) -> Iterator[nn.Module]:
    parameters = [f"{name}.{own}" if name else own for own, _ in module.named_parameters()]
    if parameters and all(matches(own, patterns) for own in parameters):
        yield module
        return
    for child, inner in module.named_children():
        yield from _outermost(inner, f"{name}.{child}" if name else child, patterns)
