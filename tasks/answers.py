"""What users give to a trained model and what it answers, checked by name and position; and its network, the part that
computes with tensors alone, as other programs run it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from copy import deepcopy
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedapps.base.errors import DataError
from fedapps.base.seeding import torch_seed
from fedapps.base.text_files import shown

from .base import NodeData, Task


@dataclass(frozen=True)
class Predictions:
    """The predictions for ``n`` examples.

    Parameters
    ----------
    labels : ndarray int64 [n]
        The class with the highest probability, counted from 0.
    names : tuple of str
        The label of each example, as in the training files.
    probabilities : ndarray float32 [n, classes]
        Their sum is 1 for each example.
    """

    labels: NDArray[np.int64]
    names: tuple[str, ...]
    probabilities: NDArray[np.float32]

    @classmethod
    def of(cls, probabilities: NDArray[np.float32], classes: Sequence[str]) -> Self:
        """Return the predictions with these probabilities ``[n, classes]``; ``classes`` are the names of the labels."""
        labels = probabilities.argmax(axis=1)
        return cls(labels, tuple(classes[label] for label in labels), probabilities)

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self, classes: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield ``label``, ``probability`` and ``probability.<label>`` of every class, for each example."""
        for label, name, shares in zip(self.labels, self.names, self.probabilities.tolist(), strict=True):
            row = {"label": name, "probability": shares[label]}
            yield row | {f"probability.{name}": share for name, share in zip(classes, shares, strict=True)}


def several(examples: Any, name: str, one: type | tuple[type, ...] | None = None) -> Sequence[Any]:
    """Return a sequence of examples.

    Parameters
    ----------
    examples : object
    name : str
        What the examples are, for messages.
    one : type or tuple of types, optional
        What each of them must be.

    Raises
    ------
    DataError
        It is a single text, path or mapping, a set, a table, or no sequence, or an example is something else than
        ``one``.
    """
    single = isinstance(examples, str | bytes | PathLike | Mapping | Set) or not hasattr(examples, "__len__")
    if single or (one is not None and getattr(examples, "ndim", 1) != 1):  # a table gives the names of its columns
        raise DataError(f"{name} = {shown(examples)}: must be a list; give a single example as a list with it alone")
    if one is not None:
        for index, example in enumerate(examples):
            if not isinstance(example, one):
                kinds = one if isinstance(one, tuple) else (one,)
                expected = " or ".join(kind.__name__ for kind in kinds)
                raise DataError(f"{name}[{index}] = {shown(example)}: must be of type {expected}")
    return examples  # type: ignore[no-any-return]


def finite_numbers(numbers: Any, name: str, *, missing: bool = False) -> np.ndarray:
    """Return numbers as an array of the type that they have.

    Parameters
    ----------
    numbers : array-like or Tensor
    name : str
        Its name in messages.
    missing : bool
        Whether a number may be NaN.

    Raises
    ------
    DataError
        Rows have different lengths, or a number is none or not finite. The message has its place.
    """
    values = numbers.detach().cpu().numpy() if isinstance(numbers, Tensor) else numbers
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise DataError(f"{name}: rows of different lengths; expected an array of numbers") from error
    if array.dtype.kind not in "iuf":
        for index, value in np.ndenumerate(np.asarray(values, dtype=object)):
            if not isinstance(value, int | float | np.number) or isinstance(value, bool):
                raise DataError(f"{name}{_at(index)} = {shown(value)}: must be a finite number")
        raise DataError(f"{name}: numbers of the type {array.dtype}; expected whole numbers or floats")
    wrong = np.isinf(array) if missing else ~np.isfinite(array)
    if wrong.any():
        index = tuple(np.argwhere(wrong)[0].tolist())
        raise DataError(f"{name}{_at(index)} = {array[index]}: must be a finite number")
    return array


def finite_answer(answer: np.ndarray, name: str, limit: float = np.inf) -> np.ndarray:
    """Return what a model computed.

    Raises
    ------
    DataError
        A number of it is not finite, or its absolute value is not at most ``limit``.
    """
    if not np.isfinite(answer).all():
        index = tuple(np.argwhere(~np.isfinite(answer))[0].tolist())
        raise DataError(f"{name}{_at(index)} = {answer[index]}: the model has no finite answer to this input")
    beyond = ~(np.abs(answer) <= limit)
    if beyond.any():
        index = tuple(np.argwhere(beyond)[0].tolist())
        raise DataError(f"{name}{_at(index)} = {answer[index]:g}: beyond the limit of {limit:g}")
    return answer


def _at(index: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, index))}]" if index else ""


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
