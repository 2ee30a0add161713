"""Classifiers of torchvision and EfficientNet-Lite0, cut after a layer and divided into frozen and trained layers.

The choice of trained layers follows Berton et al., *Deep Visual Geo-localization Benchmark*, CVPR 2022, and FedVPR,
Section 5.2. torchvision is imported when a network is built, because its import takes as long as that of torch.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from types import MappingProxyType

import torch
from fedapps.tasks.base import DataError
from fedapps.tasks.vision import PUBLISHED_NAMES, classifiers, without_counters
from torch import Tensor, nn

from .layers import Parts, divide
from .options import HEAD, require_backbone

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
                for published, own in names.items():
                    name = name.replace(published, own)
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
    chosen = BACKBONES.get(name, Backbone(network, layer, layer))
    if chosen.network not in (known := classifiers()):
        near = get_close_matches(network, known, 5) or sorted(known)
        raise DataError(f"vpr.backbone = {name!r}: there is no classifier {network!r}; close names: {', '.join(near)}")
    chosen = replace(chosen, first="" if train_all else trained_from or chosen.first)
    try:
        _division(chosen)
    except ValueError as error:
        asked = f", vpr.trained-from = {trained_from!r}" if trained_from else ""
        raise DataError(f"vpr.backbone = {name!r}{asked}: {error}") from error
    return chosen


@dataclass(frozen=True)
class _Division:
    parts: Parts
    width: int
    names: frozenset[str]


@lru_cache(maxsize=16)
def _division(chosen: Backbone) -> _Division:
    """Divide a network without allocating it. Raise ``ValueError`` with the reason if that is impossible."""
    with torch.device("meta"):
        network = _built(chosen)
        head_only = chosen.first == HEAD
        parts = divide(network, chosen.last, None if head_only else chosen.first or None)
        if head_only:
            parts = Parts(frozen=parts.trained, trained=parts.frozen)
        frozen, trained = parts.of(network)
        learned = [module for module in trained.modules() if not isinstance(module, nn.BatchNorm2d)]
        if not (head_only or any(list(module.parameters(recurse=False)) for module in learned)):
            raise ValueError(
                "no trained layer has weights other than those of batch normalisation; set vpr.trained-from to an "
                f"earlier layer, or to {HEAD!r} to freeze the backbone"
            )
        width = _width(nn.Sequential(frozen, trained).eval(), chosen.last)
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


def _built(chosen: Backbone) -> nn.Module:
    device = torch.get_default_device()
    # A RegNet computes its widths with tensors, which the device "meta" cannot do.
    with torch.device("cpu") if chosen.network.startswith("regnet") else nullcontext():
        network = classifiers()[chosen.network](weights=None, **_ARGUMENTS.get(chosen.network, {})).to(device)
    if chosen.omitted:
        network.set_submodule(chosen.omitted, nn.Identity())
    for module in without_counters(network).modules():
        if hasattr(module, "inplace"):  # a trained layer must not change the cached maps of the frozen ones
            module.inplace = False  # type: ignore[assignment]
    return network.eval()
