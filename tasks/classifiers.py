"""The classifiers of torchvision and EfficientNet-Lite0, and batch normalisation whose state can be averaged.

torchvision is imported when a network is built, because its import takes as long as that of torch.
"""

from collections.abc import Callable, Mapping

from torch import Tensor, nn
from torch.nn.functional import batch_norm

from .efficientnet_lite import efficientnet_lite0


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
        if found := [(name, module) for name, module in network.named_modules() if isinstance(module, kind)]:
            name, last = found[-1]
            network.set_submodule(name, nn.Identity())
            return last if isinstance(last, nn.Linear) else nn.Linear(last.in_channels, last.out_channels)
    raise ValueError("the network has no linear layer")
