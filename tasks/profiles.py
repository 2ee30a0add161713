"""What a task says of its nodes and of its model: data, profiles and metrics of nodes; private parameters and roles."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from fedapps.base.errors import DataError
from fedapps.base.options import matches


class OtherFilesError(DataError):
    """The parameters that are never trained, which each node builds from its own files, are not those of the server."""


@dataclass(frozen=True)
class NodeProfile:
    """The profile of a node, which the server asks for.

    Attributes
    ----------
    key : str
        The node's key, the same in every run.
    num_examples : int
        The number of training examples, at least 0.
    groups : mapping of str to str
        Labels of the node for sampling and reports, for example its city.
    """

    key: str
    num_examples: int
    groups: Mapping[str, str] = field(default_factory=dict, hash=False)


def check_partition(partition: int, num_partitions: int) -> None:
    """Raise :class:`DataError` if there is no such node."""
    if not 0 <= partition < num_partitions:
        raise DataError(f"node {partition} of {num_partitions}: expected an index from 0 to {num_partitions - 1}")


@dataclass(frozen=True)
class PrivateParameters:
    """The parameters that never leave their node.

    Parameters
    ----------
    patterns : tuple of str
        Glob patterns of the names. All other parameters are shared. ``("*",)`` keeps everything private.
    own_start : bool
        Whether each node initialises its private parameters differently. Otherwise all nodes start from the same
        values.
    """

    patterns: tuple[str, ...] = ()
    own_start: bool = False

    @property
    def everything(self) -> bool:
        """Whether nothing is shared."""
        return "*" in self.patterns


@dataclass(frozen=True)
class LowRank:
    """Adapters of low rank: each adds ``scale * B @ A`` to a frozen weight.

    Parameters
    ----------
    a, b : str
        Names of A ``[rank, inputs]`` and B ``[outputs, rank]``, with a ``*`` that stands for the same text in all
        three, such as ``encoder.*.lora_A.default.weight``.
    weight : str
        The same of the frozen weights ``[outputs, inputs]``.
    scale : float
        Not 0.
    """

    a: str
    b: str
    weight: str
    scale: float = 1.0


@dataclass(frozen=True)
class ModelRoles:
    """Which parameters of a task's model play which role, for methods that treat them differently.

    Parameters
    ----------
    head : tuple of str
        Glob patterns of the parameters that turn a representation into the output; empty if the model has no head. Each
        pattern matches a parameter.
    body : tuple of str
        The same of all other parameters that are trained.
    features : bool
        Whether :meth:`fedapps.tasks.base.Task.features` gives the representation.
    examples : bool
        Whether :meth:`fedapps.tasks.base.Task.examples` gives the training examples, on which a loss can be measured
        without training.
    factors : LowRank, optional
        The adapters of low rank, if the model has any.
    factors_key : str
        The key and its value that give the model such adapters, for messages; empty if no key does.
    """

    head: tuple[str, ...] = ()
    body: tuple[str, ...] = ()
    features: bool = False
    examples: bool = True
    factors: LowRank | None = None
    factors_key: str = ""


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
    parameters = [f"{name}.{parameter}" if name else parameter for parameter, _ in module.named_parameters()]
    if parameters and all(matches(parameter, patterns) for parameter in parameters):
        yield module
        return
    for child, inner in module.named_children():
        yield from _outermost(inner, f"{name}.{child}" if name else child, patterns)


#: The tensors of a batch by name; they share their first dimension, the examples.
Batch = Mapping[str, Tensor]


@dataclass(frozen=True)
class Secret:
    """What of a batch an attack on an update reconstructs (``fedapps audit``); the attacker knows the rest of it.

    Parameters
    ----------
    tensor : str
        The name in a batch, ``[examples, ...]``; of pixels ``[examples, ..., height, width]``.
    what : str
        What it holds, for the table.
    near : float
        Root mean squared error up to which an example counts as read; of pixels 0.1 is 20 dB.
    fill : callable
        ``fill(batch, unknown)``: the batch with values in [0, 1], of the shape of the tensor, in place of the secret.
    view : callable
        ``view(batch)``: what is compared, ``[examples, ...]``; values that are not numbers do not count.
    unit : str
        That of the error; dB for pixels, of which the view is in [0, 1] and neighbours are alike.
    either_sign : bool
        Whether the model's gradient is the same for an example and its negative, so that the nearer one counts.
    unordered : bool
        Whether it is the same for any order of the second dimension of the view, so that the nearest order counts.
    """

    tensor: str
    what: str
    near: float
    fill: Callable[[Batch, Tensor], Batch]
    view: Callable[[Batch], Tensor]
    unit: str = "dB"
    either_sign: bool = False
    unordered: bool = False


def pixels(tensor: str, what: str) -> Secret:
    """The secret of a tensor with pixels, uint8 or in [0, 1]; it counts as read from 20 dB on."""

    def view(batch: Batch) -> Tensor:
        images = batch[tensor]
        return images.clamp(0, 1) if images.is_floating_point() else images.double() / 255

    return Secret(tensor, what, 0.1, lambda batch, unknown: {**batch, tensor: unknown}, view)


def zero_padded(batches: Sequence[Batch]) -> list[Batch]:
    """Pad the tensors of batches with zeros at their ends to the largest size of each dimension.

    Parameters
    ----------
    batches : sequence of mappings of names to tensors
        With the same names and numbers of dimensions.

    Returns
    -------
    list of dict of str to Tensor
        One for each batch, all of the same shapes by name.
    """
    padded: list[dict[str, Tensor]] = [{} for _ in batches]
    for name in batches[0]:
        tensors = [batch[name] for batch in batches]
        largest = [max(sizes) for sizes in zip(*(tensor.shape for tensor in tensors), strict=True)]
        for own, tensor in zip(padded, tensors, strict=True):
            missing = [most - size for most, size in zip(largest, tensor.shape, strict=True)]
            # `pad` expects the last dimension first, each with the padding before and after.
            own[name] = pad(tensor, [side for size in reversed(missing) for side in (0, size)])
    return list(padded)


def fingerprint(tensors: Iterable[Tensor]) -> bytes:
    """Return a hash of the bits, shapes, types and kinds of device of tensors, 16 bytes.

    It tells models with other weights apart, as the key of what was computed with them.

    Parameters
    ----------
    tensors : iterable of Tensor
        Such as the values of a ``state_dict``; their order counts, their names do not.
    """
    digest = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        digest.update(f"{tensor.device.type} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.digest()


@dataclass(frozen=True)
class NodeData:
    """The data of one node for a task. It never leaves the node.

    Attributes
    ----------
    key : str
        The node's key, the same in every run.
    splits : mapping of str to Batch
        ``"train"``, ``"validation"`` and ``"test"``, as far as they exist. The tensors of a split share their first
        dimension, the examples. In a task with several stages these are the splits of the first stage.
    groups : mapping of str to str
        Labels of the node for sampling and reports, for example its city.
    extra : mapping of str to object
        Whatever else the task needs, for example the initial states of simulated sessions.
    stages : sequence of mappings of str to Batch
        The splits of each stage in a task of continual learning, otherwise empty.
    """

    key: str
    splits: Mapping[str, Batch]
    groups: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, object] = field(default_factory=dict)
    stages: Sequence[Mapping[str, Batch]] = ()

    def on(self, device: torch.device) -> "NodeData":
        """Return the data with all tensors of splits, stages and extra on a device."""

        def moved(value: Any) -> Any:
            if isinstance(value, Tensor):
                return value.to(device)
            return {name: moved(part) for name, part in value.items()} if isinstance(value, Mapping) else value

        stages = [moved(stage) for stage in self.stages]
        return replace(self, splits=moved(self.splits), extra=moved(self.extra), stages=stages)

    def at(self, stage: int) -> "NodeData":
        """Return the data of one stage, counted from 0.

        Raises
        ------
        DataError
            The node does not have this stage.
        """
        if not 0 <= stage < len(self.stages):
            raise DataError(f"node {self.key} has {len(self.stages)} stages of data: there is no stage {stage + 1}")
        return replace(self, splits=self.stages[stage], stages=())

    def count(self, split: str) -> int:
        """Return the number of examples of a split, 0 if the split does not exist."""
        tensors = self.splits.get(split)
        return 0 if not tensors else len(next(iter(tensors.values())))

    @property
    def evaluated(self) -> int:
        """The weight of an evaluation of this node: the number of test examples, or of validation examples if there are
        no test examples; at least 1.
        """
        return self.count("test") or self.count("validation") or 1

    def profile(self) -> NodeProfile:
        """Return the profile of the node: its key, its number of training examples and its labels."""
        return NodeProfile(self.key, self.count("train"), self.groups)


#: What a node measures, by ``<split>.<metric>``; a list has the statistics of a :class:`PooledMetric`.
Metrics = dict[str, float | list[float]]


@dataclass(frozen=True)
class PooledMetric:
    """A metric of several nodes that is no mean over nodes, but a function of sums over all examples.

    A node that reports the metric ``x`` also reports its statistics as the list ``x.statistics``.

    Attributes
    ----------
    size : int
        The number of statistics.
    value : function of a float64 ndarray [size]
        Gives the metric, a finite number, for the sums of the nodes' statistics, which are not negative.
    """

    size: int
    value: Callable[[np.ndarray], float]


#: How a metric is averaged over nodes: weighted by examples, with equal weights, geometrically with equal weights, or
#: computed from sums over all nodes.
MetricRule = Literal["weighted", "uniform", "geometric"] | PooledMetric


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation.

    Attributes
    ----------
    metrics : dict of str to float or list of float
        The metrics that the node reports to the server.
    traces : mapping of str to ndarray
        Arrays to draw, such as trajectories. They stay in the node's folder.
    """

    metrics: Metrics
    traces: Mapping[str, np.ndarray] = field(default_factory=dict)
