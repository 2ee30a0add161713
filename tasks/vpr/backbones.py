"""Convolutional networks pretrained on ImageNet, divided into frozen layers and trained layers.

Their parameters have torchvision's names, so torchvision's weight files can be loaded. The networks are defined here
because a torchvision wheel works with a single build of torch only, and little of it is needed.

- ResNet18: He et al., *Deep Residual Learning for Image Recognition*, CVPR 2016.
- VGG16: Simonyan and Zisserman, *Very Deep Convolutional Networks for Large-Scale Image Recognition*, ICLR 2015.
- SqueezeNet 1.1: Iandola et al., https://arxiv.org/abs/1602.07360, and the authors' release 1.1.

The choice of trained layers follows Berton et al., *Deep Visual Geo-localization Benchmark*, CVPR 2022, and FedVPR,
Section 5.2.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import torch
from torch import Tensor, nn

Layers = list[tuple[str, nn.Module]]


@dataclass(frozen=True)
class Backbone:
    """A network and its division into frozen and trained layers.

    Attributes
    ----------
    layers : callable
        Returns the layers, initialised from torch's global generator.
    frozen : int
        The number of layers, from the first on, that are not trained.
    width : int
        The number of output channels.
    unused : tuple of str
        Prefixes of names in published weight files that the network does not need.
    renamed : mapping of str to str
        Parts of names in some weight files, and torchvision's names for them.
    """

    layers: Callable[[], Layers]
    frozen: int
    width: int
    unused: tuple[str, ...]
    renamed: Mapping[str, str] = field(default_factory=dict)

    def parts(self, *, train_all: bool = False) -> tuple[nn.Sequential, nn.Sequential]:
        """Return the frozen layers (none with ``train_all``) and the trained layers, newly initialised.

        Every parameter has the same name in its part as in the whole network.
        """
        layers, frozen = self.layers(), 0 if train_all else self.frozen
        return _nested(layers[:frozen]), _nested(layers[frozen:])


class BatchNorm(nn.BatchNorm2d):
    """Batch normalisation without the integer counter of batches, which federated averaging would average."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.num_batches_tracked = None

    def _load_from_state_dict(self, *args: object) -> None:
        # The method of the parent class would add a counter.
        nn.Module._load_from_state_dict(self, *args)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False)
        self.bn1 = BatchNorm(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = BatchNorm(width)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != width:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, width, 1, stride, bias=False), BatchNorm(width))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        inner: Tensor = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (inner + shortcut).relu()


class Fire(nn.Module):
    """A 1x1 convolution that reduces channels, then parallel 1x1 and 3x3 convolutions of ``width`` channels each."""

    def __init__(self, inputs: int, squeezed: int, width: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(inputs, squeezed, 1)
        self.expand1x1 = nn.Conv2d(squeezed, width, 1)
        self.expand3x3 = nn.Conv2d(squeezed, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.squeeze(x).relu()
        return torch.cat((self.expand1x1(x).relu(), self.expand3x3(x).relu()), dim=1)


def _resnet18(stages: int) -> Layers:
    layers: Layers = [
        ("conv1", nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)),
        ("bn1", BatchNorm(64)),
        ("relu", nn.ReLU()),
        ("maxpool", nn.MaxPool2d(3, stride=2, padding=1)),
    ]
    inputs = 64
    for stage in range(stages):
        width, stride = 64 * 2**stage, 1 if stage == 0 else 2
        blocks = nn.Sequential(BasicBlock(inputs, width, stride), BasicBlock(width, width, 1))
        layers.append((f"layer{stage + 1}", blocks))
        inputs = width
    for convolution in _convolutions(layers):
        nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return layers


def _vgg16() -> Layers:
    """VGG16 up to the last convolution, without its ReLU and the last pooling, as in the benchmark."""
    layers: Layers = []
    inputs = 3
    for repeats, width in ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)):
        for _ in range(repeats):
            layers += [("", nn.Conv2d(inputs, width, 3, padding=1)), ("", nn.ReLU())]
            inputs = width
        layers.append(("", nn.MaxPool2d(2)))
    del layers[-2:]
    for convolution in _convolutions(layers):
        nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
        _zero_bias(convolution)
    return [(f"features.{index}", layer) for index, (_, layer) in enumerate(layers)]


def _squeezenet() -> Layers:
    modules: list[nn.Module] = [nn.Conv2d(3, 64, 3, stride=2), nn.ReLU(), nn.MaxPool2d(3, stride=2)]
    modules += [Fire(64, 16, 64), Fire(128, 16, 64), nn.MaxPool2d(3, stride=2)]
    modules += [Fire(128, 32, 128), Fire(256, 32, 128), nn.MaxPool2d(3, stride=2)]
    modules += [Fire(256, 48, 192), Fire(384, 48, 192), Fire(384, 64, 256), Fire(512, 64, 256)]
    layers: Layers = [(f"features.{index}", module) for index, module in enumerate(modules)]
    for convolution in _convolutions(layers):
        nn.init.kaiming_uniform_(convolution.weight)
        _zero_bias(convolution)
    return layers


def _fine_squeezenet() -> Layers:
    layers = _squeezenet()
    del layers[8]
    return layers


#: The backbones by name. ``resnet18-layer3``, the paper's choice, ends after the third stage, the only one that is
#: trained. The trained layers of the others are the last stage of ``resnet18``, the last three convolutions of
#: ``vgg16``, and the four modules after the last pooling of ``squeezenet1_1``, where feature maps are smallest: 5x7 for
#: an image of 96x128, but 1x3 for one of 32x64. For such small images ``squeezenet1_1-stride8`` omits that pooling.
BACKBONES: Mapping[str, Backbone] = MappingProxyType(
    {
        "resnet18-layer3": Backbone(lambda: _resnet18(3), frozen=6, width=256, unused=("layer4.", "fc.")),
        "resnet18": Backbone(lambda: _resnet18(4), frozen=7, width=512, unused=("fc.",)),
        "vgg16": Backbone(_vgg16, frozen=24, width=512, unused=("classifier.",)),
        "squeezenet1_1": Backbone(
            _squeezenet, frozen=9, width=512, unused=("classifier.",), renamed={".squeeze1x1.": ".squeeze."}
        ),
        "squeezenet1_1-stride8": Backbone(
            _fine_squeezenet, frozen=8, width=512, unused=("classifier.",), renamed={".squeeze1x1.": ".squeeze."}
        ),
    }
)


def _convolutions(layers: Layers) -> list[nn.Conv2d]:
    return [module for _, layer in layers for module in layer.modules() if isinstance(module, nn.Conv2d)]


def _zero_bias(convolution: nn.Conv2d) -> None:
    if convolution.bias is not None:
        nn.init.zeros_(convolution.bias)


def _nested(layers: Layers) -> nn.Sequential:
    """Layers in sequence; a layer ``features.3`` becomes the layer ``3`` of a part ``features``."""
    inner = [(name.removeprefix("features."), layer) for name, layer in layers]
    if all(name.startswith("features.") for name, _ in layers):
        return nn.Sequential(OrderedDict({"features": nn.Sequential(OrderedDict(inner))}))
    return nn.Sequential(OrderedDict(inner))
