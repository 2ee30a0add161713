"""EfficientNet-Lite0 of torchvision's blocks, and the names in the file of its published weights.

EfficientNet-Lite (Tan and Le, *EfficientNet*, ICML 2019, and the release "EfficientNet-Lite", 2020) leaves
squeeze-and-excitation out of EfficientNet and uses ReLU6, for devices that compute with integers. Its weights come from
TensorFlow, which pads a strided convolution more on the right and at the bottom, and normalises images to
(level - 127) / 128. torchvision is imported when a network is built.
"""

from collections.abc import Mapping
from functools import partial
from itertools import accumulate
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import pad

#: Of each stage: expansion, kernel size, stride, channels in and out, blocks.
_STAGES = (
    (1, 3, 1, 32, 16, 1),
    (6, 3, 2, 16, 24, 2),
    (6, 5, 2, 24, 40, 2),
    (6, 3, 2, 40, 80, 3),
    (6, 5, 1, 80, 112, 3),
    (6, 5, 2, 112, 192, 4),
    (6, 3, 1, 192, 320, 1),
)


class _Strided(nn.Conv2d):
    """A strided convolution with TensorFlow's padding "SAME": the output has ceil(size / stride) rows and columns."""

    @classmethod
    def of(cls, other: nn.Conv2d) -> "_Strided":
        kernel, stride = other.kernel_size, other.stride
        made = cls(other.in_channels, other.out_channels, kernel, stride, groups=other.groups, bias=False)  # type: ignore[arg-type]
        made.weight = other.weight
        return made

    def forward(self, images: Tensor) -> Tensor:
        sides: list[int] = []
        for size, kernel, stride in zip(images.shape[-2:], self.kernel_size, self.stride, strict=True):
            more = max((-(-size // stride) - 1) * stride + kernel - size, 0)
            sides = [more // 2, more - more // 2, *sides]  # torch begins with the last dimension
        return super().forward(pad(images, sides))


def efficientnet_lite0(weights: None = None, num_classes: int = 1000) -> nn.Module:
    """Return EfficientNet-Lite0 with drawn weights, under the names of torchvision's EfficientNets.

    ``features.0`` to ``features.8`` are the stem, the seven stages of 16, 24, 40, 80, 112, 192 and 320 channels, and
    the last convolution to 1,280.
    """
    from torchvision.models.efficientnet import EfficientNet, MBConv, MBConvConfig

    block: Any = partial(MBConv, se_layer=lambda *channels, **more: nn.Identity())
    network: nn.Module = EfficientNet(
        [MBConvConfig(*stage, block=block) for stage in _STAGES],
        dropout=0.2,
        num_classes=num_classes,
        norm_layer=partial(nn.BatchNorm2d, eps=1e-3, momentum=0.01),
    )
    for name, module in list(network.named_modules()):
        if isinstance(module, nn.SiLU):
            network.set_submodule(name, nn.ReLU6())
        elif isinstance(module, nn.Conv2d) and module.stride != (1, 1):
            network.set_submodule(name, _Strided.of(module))
    return network


def _published_names() -> Mapping[str, str]:
    names: dict[str, str] = {}
    firsts = accumulate((stage[-1] for stage in _STAGES), initial=0)
    for number, (stage, first) in enumerate(zip(_STAGES, firsts, strict=False), start=1):
        layers = [("_expand_conv", "_bn0"), ("_depthwise_conv", "_bn1"), None, ("_project_conv", "_bn2")]
        for block in range(stage[-1]):
            for index, pair in enumerate(layers[stage[0] == 1 :]):
                for part, layer in enumerate(pair or ()):
                    names[f"_blocks.{first + block}.{layer}."] = f"features.{number}.{block}.block.{index}.{part}."
    for layer, own in (("_conv_stem", "0.0"), ("_bn0", "0.1"), ("_conv_head", "8.0"), ("_bn1", "8.1")):
        names[f"{layer}."] = f"features.{own}."
    return names | {"_fc.": "classifier.1."}


#: Beginnings of names in the published file, and the network's names for them, blocks first.
PUBLISHED_NAMES: Mapping[str, str] = MappingProxyType(_published_names())
