"""Networks that classify images: the small ones of the literature, and those of torchvision.

Every network takes uint8 images and normalises them first. Its last linear layer maps the representation of an image
``[b, width]`` to logits ``[b, classes]``. torchvision is imported when a network of it is built.
"""

from collections.abc import Callable
from contextlib import nullcontext
from difflib import get_close_matches

import torch
from fedapps.tasks.base import DataError
from fedapps.tasks.vision import classifiers, take_head, without_counters
from torch import Tensor, nn

from .options import NETWORKS, Layout, Options, Statistics

#: Groups of channels in a group normalisation: Reddi et al., Adaptive Federated Optimization, ICLR 2021, Appendix C.
GROUPS = 2
#: The smallest standard deviation by which an image is divided, as in TensorFlow's per_image_standardization.
_FLAT = 1e-3
#: Arguments without which torchvision's network has further outputs in training.
_ONE_OUTPUT = {name: {"aux_logits": False, "init_weights": True} for name in ("googlenet", "inception_v3")}


class ImageClassifier(nn.Module):
    """A network with the normalisation of its input. Its parts are ``body`` and ``head``, the last linear layer.

    Parameters
    ----------
    network : Module
        Maps float images ``[b, C, H, W]`` to logits ``[b, classes]``.
    channels : int
        C of ``network``. Grey images are repeated.
    statistics : Statistics, optional
        Mean and standard deviation of each channel; ``None`` normalises each image by its own.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, network: nn.Module, channels: int, statistics: Statistics | None) -> None:
        super().__init__()
        self.head = take_head(network)
        self.body, self.channels = without_counters(network), channels
        self.by_image = statistics is None
        mean, deviation = statistics or ((0.0,), (1.0,))
        # These constants are the same on all nodes, or the node's own: they are not in the state.
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("deviation", torch.tensor(deviation).view(-1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits ``[b, classes]`` of uint8 images ``[b, C, H, W]``, or of floats in [0, 1]."""
        logits: Tensor = self.head(self.body(self.normalised(images)))
        return logits

    def normalised(self, images: Tensor) -> Tensor:
        """Return the input of the network, float ``[b, C, H, W]``."""
        pixels = images if images.is_floating_point() else images.to(self.mean.dtype).div_(255)
        if self.by_image:
            mean = pixels.mean(dim=(1, 2, 3), keepdim=True)
            pixels = (pixels - mean).div_(pixels.std(dim=(1, 2, 3), keepdim=True).clamp(min=_FLAT))
        else:
            pixels = (pixels - self.mean).div_(self.deviation)
        return pixels if pixels.shape[1] == self.channels else pixels.expand(-1, self.channels, -1, -1)


def image_classifier(options: Options, classes: int, statistics: Statistics | None) -> ImageClassifier:
    """Return the network of the key ``images.model``, newly initialised from torch's global generator.

    Raises
    ------
    DataError
        There is no such network, or it does not take images of this size.
    """
    height, width, channels = options.layout().size
    if options.model in NETWORKS:
        build: Callable[[], nn.Module] = {
            "cnn": lambda: cnn(height, width, channels, classes),
            "mlp": lambda: mlp(height * width * channels, classes),
            "lenet": lambda: lenet(height, width, channels, classes),
            "resnet8": lambda: resnet8(channels, classes, options.norm),
            "resnet18": lambda: resnet18(channels, classes, options.norm),
        }[options.model]
        network = build()
    else:
        channels = 3
        network = of_torchvision(options.model, classes)
    return ImageClassifier(network, channels, statistics)


def check_network(options: Options, layout: Layout) -> None:
    """Raise :class:`DataError` if there is no such network, or it does not take images of this size.

    No memory is allocated for the weights of a network of torchvision, and nothing is drawn.
    """
    height, width, channels = layout.size
    # To compute on the device meta, torch imports its compiler, which takes longer than to run a small network.
    with torch.device("cpu" if options.model in NETWORKS else "meta"), torch.random.fork_rng(devices=[]):
        network = image_classifier(options, layout.classes, ((0.0,) * channels, (1.0,) * channels)).eval()
        try:
            with torch.no_grad():
                logits = network(torch.zeros(2, channels, height, width))
        except (RuntimeError, AssertionError, ValueError) as error:
            raise DataError(
                f"images.model = {options.model!r} does not take images of {height}x{width} (images.height, "
                f"images.width): {error}"
            ) from error
    if not isinstance(logits, Tensor) or logits.shape != (2, layout.classes):
        raise DataError(f"images.model = {options.model!r}: gives no logits of {layout.classes} classes")


def cnn(height: int, width: int, channels: int, classes: int) -> nn.Module:
    """Return the CNN of McMahan et al., 2017.

    Two convolutions of 5x5 with 32 and 64 channels, each followed by ReLU and a max pooling of 2x2, a linear layer of
    512 with ReLU, and the output layer. With 28x28 grey pixels and 10 classes it has 1,663,370 parameters
    (Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017, Section 3,
    https://arxiv.org/abs/1602.05629).
    """
    # Pooling first gives the same values and gradients, and ReLU has a quarter of the work.
    return nn.Sequential(
        *(nn.Conv2d(channels, 32, 5, padding=2), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(32, 64, 5, padding=2), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(64 * (height // 4) * (width // 4), 512), nn.ReLU()),
        nn.Linear(512, classes),
    )


def mlp(inputs: int, classes: int) -> nn.Module:
    """Return the multilayer perceptron of McMahan et al., 2017, Section 3: two layers of 200 with ReLU.

    With 28x28 grey pixels and 10 classes it has 199,210 parameters.
    """
    layers = nn.Linear(inputs, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU()
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(200, classes))


def lenet(height: int, width: int, channels: int, classes: int) -> nn.Module:
    """Return LeNet-5 with ReLU and max pooling, the CNN of NIID-Bench.

    Two convolutions of 5x5 with 6 and 16 channels without padding, each followed by ReLU and a max pooling of 2x2, and
    linear layers of 120 and 84. With 32x32 colour pixels and 10 classes it has 62,006 parameters (Li et al., Federated
    Learning on Non-IID Data Silos: An Experimental Study, ICDE 2022, https://arxiv.org/abs/2102.02079).
    """
    maps = [max(1, ((side - 4) // 2 - 4) // 2) for side in (height, width)]
    return nn.Sequential(  # pooling first, as in cnn
        *(nn.Conv2d(channels, 6, 5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(6, 16, 5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(16 * maps[0] * maps[1], 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()),
        nn.Linear(84, classes),
    )


def resnet18(channels: int, classes: int, norm: str) -> nn.Module:
    """Return torchvision's ResNet-18 with a first convolution of 3x3 and without the first pooling, for small images.

    With batch normalisation, colour and 10 classes it has 11,173,962 parameters.
    """
    from torchvision.models import resnet

    network: nn.Module = resnet.resnet18(num_classes=classes, norm_layer=_norm(norm))
    network.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")
    network.maxpool = nn.Identity()
    return network


def resnet8(channels: int, classes: int, norm: str) -> nn.Module:
    """Return the ResNet for CIFAR of He et al., 2016, Section 4.2, with n = 1.

    A convolution of 3x3 with 16 channels and three residual blocks of 16, 32 and 64, of which the last two halve the
    maps and have a convolution of 1x1 as their shortcut. With batch normalisation, colour and 10 classes it has 78,042
    parameters (Deep Residual Learning for Image Recognition, CVPR 2016, https://arxiv.org/abs/1512.03385).
    """
    from torchvision.models.resnet import BasicBlock

    made = _norm(norm)

    def block(inputs: int, outputs: int) -> nn.Module:
        if inputs == outputs:
            shortcut = None
        else:
            shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=2, bias=False), made(outputs))
        stride = outputs // inputs
        built: nn.Module = BasicBlock(inputs, outputs, stride, shortcut, norm_layer=made)
        return built

    network = nn.Sequential(
        *(nn.Conv2d(channels, 16, 3, padding=1, bias=False), made(16), nn.ReLU()),
        *(block(16, 16), block(16, 32), block(32, 64)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes)),
    )
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return network


def _norm(name: str) -> Callable[[int], nn.Module]:
    return nn.BatchNorm2d if name == "batch" else lambda channels: nn.GroupNorm(GROUPS, channels)


def of_torchvision(name: str, classes: int) -> nn.Module:
    """Return a classifier of ``torchvision.models`` for this number of classes.

    Raises
    ------
    DataError
        There is no such classifier.
    """
    known = classifiers()
    if name not in known:
        near = get_close_matches(name, [*NETWORKS, *known], 5) or NETWORKS
        raise DataError(
            f"images.model = {name!r}: must be one of {', '.join(NETWORKS)} or a classifier of torchvision.models; "
            f"close names: {', '.join(near)}"
        )
    device = torch.get_default_device()
    # A RegNet computes its widths with tensors, which the device "meta" cannot do.
    with torch.device("cpu") if name.startswith("regnet") else nullcontext():
        return known[name](weights=None, num_classes=classes, **_ONE_OUTPUT.get(name, {})).to(device)
