"""Parameters of a torch model as named NumPy arrays, the form of messages and of private state.

What a node keeps of a round are its private parameters, under their names, and its *memory*, under names with a prefix:
the state of a plateau, the terms of earlier stages, the stage that was trained.
"""

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

import numpy as np
import torch
from torch import Tensor, nn

Arrays = dict[str, np.ndarray]
STAGE = "stage"
PREFIX = "memory."


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether a parameter name matches one of the glob patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def get_arrays(model: nn.Module, names: Iterable[str]) -> Arrays:
    """Copies of the named tensors of ``model.state_dict()``, as arrays on the CPU."""
    state = model.state_dict()
    return {name: state[name].detach().cpu().numpy().copy() for name in names}


def load_arrays(model: nn.Module, arrays: Mapping[str, np.ndarray | Tensor]) -> None:
    """Put named arrays into a model, in place; tensors that are not named keep their values.

    Raises
    ------
    ValueError
        A name is unknown, a shape is wrong, or a complex array is for a real parameter. The message lists all of them.
    """
    state = model.state_dict()
    problems = [f"{name}: not a parameter of the model" for name in arrays if name not in state]
    problems += [
        f"{name}: shape {tuple(array.shape)}, the model has {tuple(state[name].shape)}"
        for name, array in arrays.items()
        if name in state and tuple(array.shape) != tuple(state[name].shape)
    ]
    problems += [
        f"{name}: complex numbers, and the model has {state[name].dtype}"
        for name, array in arrays.items()
        if name in state and torch.as_tensor(array).is_complex() and not state[name].is_complex()
    ]
    if problems:
        known = ", ".join(state)
        raise ValueError("received parameters that do not fit the model:\n  " + "\n  ".join(problems)
                         + f"\nthe model's parameters: {known}")  # fmt: skip
    with torch.no_grad():
        for name, array in arrays.items():
            state[name].copy_(torch.as_tensor(array))


def private_names(model: nn.Module, shared: Iterable[str]) -> list[str]:
    """Names of ``model.state_dict()`` that are not shared, in its order."""
    travelling = set(shared)
    return [name for name in model.state_dict() if name not in travelling]


def kept_arrays(private: Arrays, memory: Arrays) -> Arrays:
    """The arrays to keep of a round; :func:`memory_of` and :func:`private_of` take them apart again."""
    return private | {PREFIX + name: array for name, array in memory.items()}


def memory_of(kept: Arrays) -> Arrays:
    """The memory among the kept arrays, without the prefix."""
    return {name.removeprefix(PREFIX): array for name, array in kept.items() if name.startswith(PREFIX)}


def private_of(kept: Arrays) -> Arrays:
    """The private parameters among the kept arrays."""
    return {name: array for name, array in kept.items() if not name.startswith(PREFIX)}


def from_other_stage(kept: Arrays, stage: int) -> bool:
    """Whether a node whose data has stages kept the arrays in another stage than this one."""
    memory = memory_of(kept)
    return STAGE in memory and int(memory[STAGE]) != stage
