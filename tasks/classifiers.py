"""The classifiers of torchvision and EfficientNet-Lite0, and batch normalisation whose state can be averaged.

torchvision is imported when a network is built, because its import takes as long as that of torch.
"""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import accumulate
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import batch_norm, pad

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


class BatchNorm(nn.BatchNorm2d):
    """Batch normalisation without the integer counter of batches, which federated averaging would average.

    A single value per channel, as in a batch of one example whose map is 1x1, has no variance: it is normalised by the
    running statistics, which it leaves unchanged. PyTorch's layer refuses such a batch.
    """

    @classmethod
    def of(cls, other: nn.BatchNorm2d) -> "BatchNorm":
        """Return one with the parameters and statistics of ``other``."""
        made = cls(other.num_features, other.eps, other.momentum)
        made.num_batches_tracked = None
        made.load_state_dict(other.state_dict(), strict=False, assign=True)
        return made

    def forward(self, input: Tensor) -> Tensor:
        """Return maps ``[b, C, H, W]``, normalised by the batch in training and otherwise by running statistics."""
        if self.training and input.numel() == input.shape[1]:
            return batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        return super().forward(input)

    def _load_from_state_dict(self, *args: object) -> None:
        # The method of the parent class would add a counter.
        nn.Module._load_from_state_dict(self, *args)


def classifiers() -> Mapping[str, Callable[..., nn.Module]]:
    """Return the functions that build torchvision's classifiers and EfficientNet-Lite0, by name."""
    from torchvision import models

    known = {name: models.get_model_builder(name) for name in models.list_models(module=models)}
    return known | {"efficientnet_lite0": efficientnet_lite0}


def without_counters(network: nn.Module) -> nn.Module:
    """Replace the layers of batch normalisation in a network by :class:`BatchNorm`, and return it."""
    for name, module in list(network.named_modules()):
        if isinstance(module, nn.BatchNorm2d):
            network.set_submodule(name, BatchNorm.of(module))
    return network


def take_head(network: nn.Module) -> nn.Linear:
    """Take the last linear layer out of a classifier, which then gives the representation ``[b, width]``.

    A classifier that ends with a convolution of 1x1 and an average over the image, such as SqueezeNet, gets a new
    linear layer on that average.

    Raises
    ------
    ValueError
        It has no such layer.
    """
    for kind in (nn.Linear, nn.Conv2d):
        if linears := [(name, module) for name, module in network.named_modules() if isinstance(module, kind)]:
            name, last = linears[-1]
            network.set_submodule(name, nn.Identity())
            return last if isinstance(last, nn.Linear) else nn.Linear(last.in_channels, last.out_channels)
    raise ValueError("the network has no linear layer")
