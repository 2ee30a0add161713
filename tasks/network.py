"""The part of a trained model that computes with tensors alone, as other programs run it."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedapps.base.seeding import torch_seed

from .base import NodeData, Task


@dataclass(frozen=True)
class Network:
    """The part of a trained model that computes with tensors alone, as other programs run it.

    Parameters
    ----------
    module : Module
        Takes ``inputs`` and returns a tensor or a tuple of tensors. It is in evaluation mode, on the CPU.
    inputs : tuple of tensors
        An example.
    input_names, output_names : tuple of str
    dynamic : mapping of str to mapping of int to str
        The dimensions of inputs that may have other sizes, by name and dimension, such as ``{"ids": {0: "batch"}}``.
        Equal labels have equal sizes.
    outside : str
        What of the task stays outside, in one sentence; empty if nothing does.
    """

    module: nn.Module
    inputs: tuple[Tensor, ...]
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    dynamic: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    outside: str = ""


@dataclass(frozen=True)
class Pretrained:
    """A trained model as one of the library transformers.

    Parameters
    ----------
    model : PreTrainedModel
        On the CPU.
    tokenizer : PreTrainedTokenizer
    run : function of a model and inputs
        Returns the outputs of :class:`Network` as arrays for its inputs.
    """

    model: Any
    tokenizer: Any
    run: Callable[[Any, Sequence[Tensor]], Sequence[np.ndarray]]


class _CallSeenError(Exception):
    """The first call of a module was seen."""


def network_of(task: Task, module: nn.Module, data: NodeData) -> Network:
    """The module with the inputs that the loss of a batch gives it; all first dimensions of the batch are dynamic."""
    seen: list[tuple[Any, ...]] = []

    def see(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        seen.append(inputs)
        raise _CallSeenError

    split = next(iter(data.splits))
    with torch_seed(0, "network"):
        batch = next(task.examples(data, split, 2))
    module = deepcopy(module).cpu()
    handle = module.register_forward_pre_hook(see)
    try:
        task.loss(module, batch)
    except _CallSeenError:
        pass
    finally:
        handle.remove()
    if not seen or not all(isinstance(value, Tensor) for value in seen[0]):
        raise ValueError(f"task {task.name!r}: its model is not called with tensors alone and cannot be exported")
    inputs = tuple(value.detach().cpu() for value in seen[0])
    names = tuple(f"input_{index}" for index in range(len(inputs))) if len(inputs) > 1 else ("input",)
    size = len(next(iter(batch.values())))
    dynamic = {
        name: {0: "batch"} for name, value in zip(names, inputs, strict=True) if value.ndim and len(value) == size
    }
    with torch.no_grad():
        result = module(*inputs)
    count = len(result) if isinstance(result, tuple) else 1
    outputs = tuple(f"output_{index}" for index in range(count)) if count > 1 else ("output",)
    return Network(module, inputs, names, outputs, dynamic)
