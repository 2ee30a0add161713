"""The network of a trained model as a program that runs without its Python code, compared with the network itself.

``torch.export`` captures a program with dynamic sizes. An LSTM layer stays one operation of the program, which runs
sequences of any length, and becomes the operator ``LSTM`` of ONNX.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram

from fedapps.base.seeding import torch_seed
from fedapps.tasks.answers import Network

#: The largest accepted difference, relative to the largest absolute value of an output.
TOLERANCE = 1e-5

Run = Callable[[Sequence[Tensor]], Sequence[np.ndarray]]


@dataclass(frozen=True)
class Difference:
    """How far the outputs of a program are from those of the network.

    Parameters
    ----------
    absolute : float
        The largest absolute difference.
    relative : float
        The largest ratio of an output's largest absolute difference and its largest absolute value.
    """

    absolute: float
    relative: float

    def check(self, tolerance: float, what: str) -> None:
        """Raise ``ValueError`` if the relative difference is above the tolerance or no number."""
        if not self.relative <= tolerance:
            raise ValueError(
                f"{what} differs from the model: by {self.absolute:.3g}, which is {self.relative:.3g} of the largest "
                f"output and more than the tolerance of {tolerance:g}; nothing is kept (raise the tolerance only if "
                "this difference is harmless where the model is used)"
            )


def captured(network: Network) -> ExportedProgram:
    """Capture a network with its dynamic sizes.

    The program holds no numbers of the example, which may be private, and no paths of this machine.

    Raises
    ------
    ValueError
        Its computation cannot be captured; the message has the reason.
    """
    module = deepcopy(network.module).cpu().eval().requires_grad_(False)
    shapes = tuple(dict.fromkeys(network.dynamic.get(name, {}), Dim.DYNAMIC) or None for name in network.input_names)
    inputs = tuple(torch.zeros_like(example) for example in network.inputs)
    try:
        with _quiet(), _whole_lstms(), torch.no_grad():
            program = torch.export.export(_Positional(module), inputs, dynamic_shapes=(shapes,))
    except RuntimeError as error:
        raise ValueError(f"the network cannot be captured as a program: {_reason(error)}") from error
    for part in program.graph_module.modules():
        if isinstance(part, fx.GraphModule):
            for node in part.graph.nodes:
                node.meta.pop("stack_trace", None)
    return program


class _Positional(nn.Module):
    """A network whose inputs have no names of Python arguments."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        outputs = self.network(*inputs)
        return outputs if isinstance(outputs, tuple) else (outputs,)


def write_torch(network: Network, path: Path) -> Difference:
    """Write a program of ``torch.export`` and run it back. Raise ``ValueError`` as :func:`captured`."""
    program = captured(network)
    with _quiet():
        if any("wrap_with_autocast" in str(node.target) for node in program.graph.nodes):
            program = program.run_decompositions({})  # else a program with torch.autocast cannot be written
        torch.export.save(program, path)
        back = torch.export.load(path).module()
    try:
        return difference(network, lambda inputs: [output.numpy() for output in back(*inputs)])
    except (AssertionError, RuntimeError) as error:  # a size that the program does not take
        raise ValueError(f"the program of torch.export does not run with other sizes: {_reason(error)}") from error


def write_onnx(network: Network, path: Path) -> Difference:
    """Write an ONNX model and run it back in onnxruntime. Raise ``ValueError`` as :func:`captured`."""
    import onnxruntime

    try:
        with _quiet():
            program = torch.onnx.export(
                captured(network),
                input_names=network.input_names,
                output_names=network.output_names,
                dynamo=True,
                verbose=False,
            )
    except RuntimeError as error:
        raise ValueError(f"the network cannot be written as ONNX: {_reason(error)}") from error
    assert program is not None
    _name_sizes(program.model.graph, network)
    for node in program.model.graph.all_nodes():
        node.metadata_props.clear()  # where in the Python code it comes from
    program.save(path)
    failures = onnxruntime.capi.onnxruntime_pybind11_state

    def run(inputs: Sequence[Tensor]) -> Sequence[np.ndarray]:
        named = dict(zip(network.input_names, (value.numpy() for value in inputs), strict=True))
        outputs: list[np.ndarray] = session.run(list(network.output_names), named)
        return outputs

    try:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        return difference(network, run)
    except (failures.Fail, failures.InvalidArgument, failures.NotImplemented, failures.RuntimeException) as error:
        raise ValueError(f"onnxruntime cannot run the network: {_reason(error)}") from error


def _name_sizes(graph: Any, network: Network) -> None:
    """Give dynamic sizes of inputs, and the same sizes of outputs, the labels of the network."""
    labels = {}
    for value, name in zip(graph.inputs, network.input_names, strict=True):
        for dim, label in network.dynamic.get(name, {}).items():
            labels[str(value.shape[dim])] = label
            value.shape[dim] = label
    for output in graph.outputs:
        for dim, size in enumerate(output.shape):
            output.shape[dim] = labels.get(str(size), size)


def difference(network: Network, run: Run) -> Difference:
    """Compare a program with the network on :func:`checked_inputs`.

    Values that are not finite must be equal. A difference where the network gives only zeros is infinite relative to
    them.
    """
    differences = [Difference(0.0, 0.0)]
    for inputs in checked_inputs(network):
        with torch.no_grad():
            wanted = network.module(*inputs)
        outputs = wanted if isinstance(wanted, tuple) else (wanted,)
        differences += [_between(a.numpy(), b) for a, b in zip(outputs, run(inputs), strict=True)]
    return Difference(max(each.absolute for each in differences), max(each.relative for each in differences))


def _between(wanted: np.ndarray, actual: np.ndarray) -> Difference:
    if wanted.shape != actual.shape or wanted.dtype != actual.dtype:
        return Difference(math.inf, math.inf)
    a, b = wanted.astype(np.float64), actual.astype(np.float64)
    finite = np.isfinite(a)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(b[finite]).all():
        return Difference(math.inf, math.inf)
    absolute = float(np.abs(a[finite] - b[finite]).max(initial=0))
    scale = float(np.abs(a[finite]).max(initial=0))
    return Difference(absolute, absolute / scale if scale else (math.inf if absolute else 0.0))


def checked_inputs(network: Network) -> Iterator[tuple[Tensor, ...]]:
    """Yield the inputs on which a program is compared: the example; its first row alone; and random rows, more than in
    the example, whose other dynamic sizes are larger, too.

    A random number lies between the smallest and the largest of the example at its place, so that indices and lengths
    stay valid; a random truth value is one of the example there. Larger sizes are filled with zeros.
    """
    yield network.inputs
    yield tuple(_resized(network, 1))
    with torch_seed(0, "export"):
        yield tuple(_random(example) for example in _resized(network, None))


def _resized(network: Network, batch: int | None) -> Iterator[Tensor]:
    """The inputs with another first dynamic size: ``batch`` rows, or more rows and larger other dynamic sizes."""
    for name, example in zip(network.input_names, network.inputs, strict=True):
        for dim, label in network.dynamic.get(name, {}).items():
            size = example.shape[dim]
            if label == _batch_label(network):
                rows = torch.arange(batch if batch is not None else 2 * size + 1) % size
                example = example.index_select(dim, rows)
            elif batch is None:
                more = list(example.shape)
                more[dim] = 2
                example = torch.cat([example, example.new_zeros(more)], dim)
        yield example


def _batch_label(network: Network) -> str:
    return next((label for sizes in network.dynamic.values() for dim, label in sizes.items() if dim == 0), "")


def _random(example: Tensor) -> Tensor:
    """Random numbers within the range of each place over the first dimension."""
    if not example.ndim or not example.numel():
        return example
    if example.dtype == torch.bool:
        return example[torch.randperm(len(example))]
    low, high = example.double().amin(0), example.double().amax(0)
    if example.is_floating_point():
        return (low + torch.rand(example.shape, dtype=torch.float64) * (high - low)).to(example.dtype)
    return (low + torch.floor(torch.rand(example.shape, dtype=torch.float64) * (high - low + 1))).to(example.dtype)


@contextmanager
def _whole_lstms() -> Iterator[None]:
    """Let the capture see LSTM layers as one operation.

    torch derives the shapes of an operation by tracing its decomposition. That of an LSTM is a loop over the steps of
    the example, which would fix their number; here it is the shapes alone. This is how ``torch.export._patches``
    replaces the decomposition of an LSTM, too.
    """
    operation = torch.ops.aten.lstm.input
    kernels = operation.py_kernels
    before = dict(kernels)
    kernels.update(dict.fromkeys(before, _lstm_shapes))
    operation._dispatch_cache.clear()
    try:
        yield
    finally:
        kernels.update(before)
        operation._dispatch_cache.clear()


def _lstm_shapes(
    inputs: Tensor,
    start: Sequence[Tensor],
    weights: Sequence[Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    hidden, cell = start
    outputs = inputs.new_empty(*inputs.shape[:2], hidden.shape[2] * (1 + bidirectional))
    return outputs, hidden.clone(), cell.clone()


def _reason(error: Exception) -> str:
    """The first two lines of a message; torch explains on further ones."""
    return " ".join(line.strip() for line in str(error).strip().splitlines()[:2]) or type(error).__name__


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out the warnings that torch's exporter gives about its own code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
