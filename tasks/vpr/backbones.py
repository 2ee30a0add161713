"""Classifiers of torchvision and EfficientNet-Lite0, cut after a layer and divided into frozen and trained layers.

The choice of trained layers follows Berton et al., *Deep Visual Geo-localization Benchmark*, CVPR 2022, and FedVPR,
Section 5.2. torchvision is imported when a network is built, because its import takes as long as that of torch.

A division gives the computation before the first trained layer, and the one up to the cut. Like torchvision's feature
extraction, it traces the network with ``torch.fx``. It enters only modules that contain a named layer, so the others
keep their own code, for example what they do in training mode.

Poolings map ``[b, channels, height, width]`` to ``[b, channels]``:

- SPOC, the mean: Babenko and Lempitsky, *Aggregating Deep Convolutional Features for Image Retrieval*, ICCV 2015.
- MAC, the maximum: Tolias et al., *Particular Object Retrieval with Integral Max-Pooling*, ICLR 2016.
- GeM, the generalised mean: Radenovic et al., *Fine-Tuning CNN Image Retrieval with No Human Annotation*, PAMI 2018.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import torch
from fedapps.tasks.base import DataError
from fedapps.tasks.vision import PUBLISHED_NAMES, classifiers, without_counters
from torch import Tensor, fx, nn

#: The value of ``vpr.trained-from`` that freezes the whole backbone.
HEAD = "head"


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
    cut = tracer.output_of(last)
    middle = tracer.input_of(first) if first else start
    if middle is cut or middle not in _needed(cut, start):
        raise ValueError(f"the layer {first!r} comes after the layer {last!r}; exchange them")
    if middle is not start and start in _needed(cut, middle):
        raise ValueError(f"data pass beside the layer {first!r}, as in a block with a shortcut; name the whole block")
    return Parts(_computation(graph, start, middle), _computation(graph, middle, cut))


class _Tracer(fx.Tracer):
    """Notes what each call of a module takes and gives. Modules that contain none of the layers ``named`` are not
    entered.
    """

    def __init__(self, named: list[str]) -> None:
        super().__init__()
        self.named = named
        self.calls: dict[str, list[tuple[tuple[Any, ...], Any]]] = {}

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not any(name.startswith(f"{module_qualified_name}.") for name in self.named)

    def call_module(self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = super().call_module(m, forward, args, kwargs)
        self.calls.setdefault(self.path_of_module(m), []).append(((*args, *kwargs.values()), result))
        return result

    def input_of(self, name: str) -> fx.Node:
        arguments, _ = self._call(name)
        return _node_of(arguments[0] if len(arguments) == 1 else None, f"the layer {name!r} does not take")

    def output_of(self, name: str) -> fx.Node:
        return _node_of(self._call(name)[1], f"the layer {name!r} does not give")

    def _call(self, name: str) -> tuple[tuple[Any, ...], Any]:
        calls = self.calls.get(name, [])
        if len(calls) != 1:
            raise ValueError(f"the network calls the layer {name!r} {len(calls)} times; name one that it calls once")
        return calls[0]


def _node_of(value: Any, what: str) -> fx.Node:
    if not isinstance(value, fx.Proxy):
        raise ValueError(f"{what} exactly one tensor; name the block that contains it")
    return value.node


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
#: Parts of names in published files, and torchvision's names for them, by the beginning of the classifier's name.
_RENAMED: Mapping[str, Mapping[str, str]] = {
    "squeezenet": {".squeeze1x1.": ".squeeze."},
    "densenet": {f".{layer}.{number}.": f".{layer}{number}." for layer in ("norm", "conv") for number in (1, 2)},
    "efficientnet_lite0": PUBLISHED_NAMES,
}
#: Arguments with which torchvision builds the networks of its published weights.
_ARGUMENTS = {name: {"transform_input": True, "init_weights": True} for name in ("googlenet", "inception_v3")}
#: Sizes of images on which a division is tried.
_TRIED = ((224, 224), (256, 320))


@dataclass(frozen=True)
class Backbone:
    """A classifier of :func:`fedapps.tasks.vision.classifiers` and its division.

    Attributes
    ----------
    network : str
        The name of the classifier.
    last : str
        The layer after which it is cut.
    first : str
        The first layer that is trained; '' if all are, ``HEAD`` if none is.
    omitted : str
        A layer that is left out.
    """

    network: str
    last: str
    first: str
    omitted: str = ""

    @property
    def width(self) -> int:
        """The number of output channels."""
        return _division(self).width

    @property
    def names(self) -> frozenset[str]:
        """The names in the state of the whole classifier."""
        return _division(self).names

    def parts(self) -> tuple[nn.Module, nn.Module]:
        """Return the frozen layers and the trained layers, newly initialised from torch's global generator.

        Every parameter has the same name in its part as in the whole network.
        """
        return _division(self).parts.of(_built(self))

    def renamed(self, name: str) -> str:
        """Return torchvision's name for a ``name`` in a file of weights."""
        for prefix, names in _RENAMED.items():
            if self.network.startswith(prefix):
                for published, by_torchvision in names.items():
                    name = name.replace(published, by_torchvision)
        return name


#: The backbones that have names of their own. ``resnet18-layer3``, the paper's choice, ends after the third stage, the
#: only one that is trained. The trained layers of the others are the last stage of ``resnet18``, the last three
#: convolutions of ``vgg16``, which ends before their last ReLU as in the benchmark, and the four modules after the last
#: pooling of ``squeezenet1_1``, where feature maps are smallest: 5x7 for an image of 96x128, but 1x3 for one of 32x64.
#: For such small images ``squeezenet1_1-stride8`` omits that pooling.
BACKBONES: Mapping[str, Backbone] = MappingProxyType(
    {
        "resnet18-layer3": Backbone("resnet18", last="layer3", first="layer3"),
        "resnet18": Backbone("resnet18", last="layer4", first="layer4"),
        "vgg16": Backbone("vgg16", last="features.28", first="features.24"),
        "squeezenet1_1": Backbone("squeezenet1_1", last="features.12", first="features.9"),
        "squeezenet1_1-stride8": Backbone("squeezenet1_1", "features.12", "features.9", omitted="features.8"),
    }
)


def require_backbone(name: str) -> None:
    """Raise :class:`DataError` unless ``name`` is one of ``BACKBONES`` or has the form ``NETWORK@LAYER``."""
    if name not in BACKBONES and not all(name.partition("@")):
        raise DataError(
            f"vpr.backbone = {name!r}: must be one of {', '.join(BACKBONES)}, or NETWORK@LAYER, a classifier of "
            "torchvision cut after one of its layers (resnet50@layer3)"
        )


def backbone(name: str, trained_from: str = "", *, train_all: bool = False) -> Backbone:
    """Return the backbone of the keys ``vpr.backbone``, ``vpr.trained-from`` and ``vpr.train-all``.

    Parameters
    ----------
    name : str
        A name in ``BACKBONES``, or ``NETWORK@LAYER``: a classifier, cut after one of its layers.
    trained_from : str
        The first layer that is trained; ``HEAD`` if none is. By default it is that of ``BACKBONES``, or the layer of
        the cut.
    train_all : bool
        Whether to train all layers.

    Raises
    ------
    DataError
        There is no such network or layer, or the layers do not divide the network.
    """
    require_backbone(name)
    network, _, layer = name.partition("@")
    cut = BACKBONES.get(name, Backbone(network, layer, layer))
    if cut.network not in (known := classifiers()):
        near = get_close_matches(network, known, 5) or sorted(known)
        raise DataError(f"vpr.backbone = {name!r}: there is no classifier {network!r}; close names: {', '.join(near)}")
    cut = replace(cut, first="" if train_all else trained_from or cut.first)
    try:
        _division(cut)
    except ValueError as error:
        asked = f", vpr.trained-from = {trained_from!r}" if trained_from else ""
        raise DataError(f"vpr.backbone = {name!r}{asked}: {error}") from error
    return cut


@dataclass(frozen=True)
class _Division:
    parts: Parts
    width: int
    names: frozenset[str]


@lru_cache(maxsize=16)
def _division(cut: Backbone) -> _Division:
    """Divide a network without allocating it. Raise ``ValueError`` with the reason if that is impossible."""
    with torch.device("meta"):
        network = _built(cut)
        head_only = cut.first == HEAD
        parts = divide(network, cut.last, None if head_only else cut.first or None)
        if head_only:
            parts = Parts(frozen=parts.trained, trained=parts.frozen)
        frozen, trained = parts.of(network)
        learned = [module for module in trained.modules() if not isinstance(module, nn.BatchNorm2d)]
        if not (head_only or any(list(module.parameters(recurse=False)) for module in learned)):
            raise ValueError(
                "no trained layer has weights other than those of batch normalisation; set vpr.trained-from to an "
                f"earlier layer, or to {HEAD!r} to freeze the backbone"
            )
        width = _width(nn.Sequential(frozen, trained).eval(), cut.last)
    return _Division(parts, width, frozenset(network.state_dict()))


def _width(whole: nn.Module, last: str) -> int:
    """The number of channels of the maps. Raise ``ValueError`` if the network does not give maps."""
    shapes = []
    for height, width in _TRIED:
        try:
            with torch.no_grad():
                maps = whole(torch.empty(1, 3, height, width))
        except (RuntimeError, AssertionError) as error:
            raise ValueError(
                f"the network does not take images of {height}x{width}, but must take images of any size ({error})"
            ) from error
        if not isinstance(maps, Tensor):
            raise ValueError(f"the layer {last!r} does not give exactly one tensor; name the block that contains it")
        shapes.append(tuple(maps.shape))
    if any(len(shape) != 4 for shape in shapes):
        raise ValueError(f"the layer {last!r} gives {list(shapes[0])}, not a map [images, channels, height, width]")
    if shapes[0][1] != shapes[1][1]:
        raise ValueError(
            f"the layer {last!r} gives {list(shapes[0])}, with channels last; name a later layer (permute)"
        )
    return int(shapes[0][1])


def _built(cut: Backbone) -> nn.Module:
    device = torch.get_default_device()
    # A RegNet computes its widths with tensors, which the device "meta" cannot do.
    with torch.device("cpu") if cut.network.startswith("regnet") else nullcontext():
        network = classifiers()[cut.network](weights=None, **_ARGUMENTS.get(cut.network, {})).to(device)
    if cut.omitted:
        network.set_submodule(cut.omitted, nn.Identity())
    for module in without_counters(network).modules():
        if hasattr(module, "inplace"):  # a trained layer must not change the cached maps of the frozen ones
            module.inplace = False  # type: ignore[assignment]
    return network.eval()
