"""Layers of a network: its division at named layers, and the pooling of local features into one descriptor.

A division gives the computation before the first trained layer, and the one up to the cut. Like torchvision's feature
extraction, it traces the network with ``torch.fx``. It enters only modules that contain a named layer, so the others
keep their own code, for example what they do in training mode.

Poolings map ``[b, channels, height, width]`` to ``[b, channels]``:

- SPOC, the mean: Babenko and Lempitsky, *Aggregating Deep Convolutional Features for Image Retrieval*, ICCV 2015.
- MAC, the maximum: Tolias et al., *Particular Object Retrieval with Integral Max-Pooling*, ICLR 2016.
- GeM, the generalised mean: Radenovic et al., *Fine-Tuning CNN Image Retrieval with No Human Annotation*, PAMI 2018.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, fx, nn


@dataclass(frozen=True)
class Parts:
    """Two graphs of calls of a network's layers: the second continues where the first ends."""

    frozen: fx.Graph
    trained: fx.Graph

    def of(self, network: nn.Module) -> tuple[nn.Module, nn.Module]:
        """Return the two parts of ``network``. They contain only what they use, under the names of the network."""
        return fx.GraphModule(network, self.frozen), fx.GraphModule(network, self.trained)


def divide(network: nn.Module, last: str, first: str | None) -> Parts:
    """Divide ``network``, a module that maps one tensor.

    Parameters
    ----------
    network : Module
        The network in evaluation mode.
    last : str
        The layer after which the network is cut, by its name in ``network.named_modules()``.
    first : str, optional
        The first layer of the second part. Without it the first part leaves its input as it is.

    Raises
    ------
    ValueError
        A layer does not exist, or does not divide the network; the message says why.
    """
    tracer = _Tracer([last, *([first] if first else [])])
    for name in tracer.named:
        _check_exists(network, name)
    try:
        graph = tracer.trace(network)
    except (fx.proxy.TraceError, TypeError) as error:
        raise ValueError(
            f"its computation depends on the values of the images, so it cannot be divided ({error})"
        ) from error
    start = next(node for node in graph.nodes if node.op == "placeholder")
    cut = tracer.call(last).output_node(last)
    middle = tracer.call(first).input_node(first) if first else start
    if middle is cut or middle not in _needed(cut, start):
        raise ValueError(f"the layer {first!r} comes after the layer {last!r}; exchange them")
    if middle is not start and start in _needed(cut, middle):
        raise ValueError(f"data pass beside the layer {first!r}, as in a block with a shortcut; name the whole block")
    return Parts(_computation(graph, start, middle), _computation(graph, middle, cut))


@dataclass(frozen=True)
class _Call:
    """The arguments and the result of one call of a layer."""

    arguments: tuple[Any, ...]
    result: Any

    def input_node(self, name: str) -> fx.Node:
        return _node_of(self.arguments[0] if len(self.arguments) == 1 else None, f"the layer {name!r} does not take")

    def output_node(self, name: str) -> fx.Node:
        return _node_of(self.result, f"the layer {name!r} does not give")


def _node_of(value: Any, what: str) -> fx.Node:
    if not isinstance(value, fx.Proxy):
        raise ValueError(f"{what} exactly one tensor; name the block that contains it")
    return value.node


class _Tracer(fx.Tracer):
    """Notes each call of a module. Modules that contain none of the layers ``named`` are not entered."""

    def __init__(self, named: list[str]) -> None:
        super().__init__()
        self.named = named
        self.calls: dict[str, list[_Call]] = {}

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not any(name.startswith(f"{module_qualified_name}.") for name in self.named)

    def call_module(self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = super().call_module(m, forward, args, kwargs)
        self.calls.setdefault(self.path_of_module(m), []).append(_Call((*args, *kwargs.values()), result))
        return result

    def call(self, name: str) -> _Call:
        calls = self.calls.get(name, [])
        if len(calls) != 1:
            raise ValueError(f"the network calls the layer {name!r} {len(calls)} times; name one that it calls once")
        return calls[0]


def _check_exists(network: nn.Module, name: str) -> None:
    """Raise ``ValueError`` with the layers beside the missing one."""
    modules = dict(network.named_modules())
    if name in modules and name:
        return
    inside = name
    while inside not in modules:
        inside = inside.rpartition(".")[0]
    beside = [f"{inside}.{child}" if inside else child for child, _ in modules[inside].named_children()]
    raise ValueError(
        f"there is no layer {name!r}" + (f"; {inside or 'the network'} has {', '.join(beside)}" if beside else "")
    )


def _needed(end: fx.Node, start: fx.Node) -> set[fx.Node]:
    """The nodes on which ``end`` depends, looking back no further than ``start``; both are included."""
    nodes, ahead = set(), [end]
    while ahead:
        node = ahead.pop()
        if node not in nodes:
            nodes.add(node)
            ahead += [] if node is start else node.all_input_nodes
    return nodes


def _computation(graph: fx.Graph, start: fx.Node, end: fx.Node) -> fx.Graph:
    """The graph that computes ``end`` from ``start``."""
    part, needed = fx.Graph(), _needed(end, start)
    copies = {start: part.placeholder("x")}
    for node in graph.nodes:
        if node in needed and node is not start:
            copies[node] = part.node_copy(node, copies.__getitem__)
    part.output(copies[end])
    return part


class Spoc(nn.Module):
    """The mean over positions."""

    def forward(self, maps: Tensor) -> Tensor:
        return maps.mean(dim=(-2, -1))


class Mac(nn.Module):
    """The maximum over positions."""

    def forward(self, maps: Tensor) -> Tensor:
        return maps.amax(dim=(-2, -1))


class Gem(nn.Module):
    """The generalised mean (mean of x^p)^(1/p) of features clipped below at ``eps``, with a learned exponent p > 0.

    p = 1 is SPOC, and p -> infinity approaches MAC, for features of at least ``eps``.
    """

    def __init__(self, p: float = 3.0, eps: float = 1e-6) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.tensor([p]))
        self.eps = eps

    def forward(self, maps: Tensor) -> Tensor:
        kept = maps.clamp(min=self.eps)
        # The mean is homogeneous in the features. Dividing by their maximum keeps powers within the range of floats;
        # by homogeneity, the gradient may treat the maximum as a constant.
        top = kept.detach().amax(dim=(-2, -1), keepdim=True)
        mean = (kept / top).pow(self.p).mean(dim=(-2, -1)).pow(1 / self.p)
        return top.flatten(1) * mean


POOLINGS: Mapping[str, Callable[[], nn.Module]] = MappingProxyType({"gem": Gem, "spoc": Spoc, "mac": Mac})
