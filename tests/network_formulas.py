"""Networks of place recognition, and EfficientNet-Lite0 as a formula."""

import torch
from fedapps.tasks.vpr.networks import network_of
from fedapps.tasks.vpr.options import Options
from torch.nn import functional


def images(count, height=32, width=64, seed=0):
    """Noise, uint8 ``[count, 3, height, width]``."""
    drawn = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, height, width), dtype=torch.uint8, generator=drawn)


def network(backbone="squeezenet1_1", seed=0, weights="", **options):
    """A network with the weights of a file, or drawn ones."""
    torch.manual_seed(seed)
    return network_of(Options(backbone=backbone, weights=str(weights), **options))


def trained_names(model):
    """The names in the state that training changes."""
    kept = {id(tensor) for module in model._kept for tensor in module.state_dict(keep_vars=True).values()}
    return {name for name, tensor in model.state_dict(keep_vars=True).items() if id(tensor) not in kept}


def published(model):
    """The backbone's state under the names of the published file."""
    state = model.state_dict()
    return {name.partition(".")[2]: state[name].clone() for name in state if not name.startswith("pooling.")}


def efficientnet_lite0(state, x):
    """EfficientNet-Lite0 up to its last convolution, from a state with the names of its published file."""

    def layer(name, norm, x, stride=1, active=True):
        weight = state[f"{name}.weight"]
        # As in TensorFlow: ceil(size / stride) outputs, and the larger half of the padding on the right and below.
        more = [max((-(-size // stride) - 1) * stride + weight.shape[-1] - size, 0) for size in x.shape[-2:]]
        sides = [part for sum_ in reversed(more) for part in (sum_ // 2, sum_ - sum_ // 2)]
        groups = x.shape[1] // weight.shape[1]
        x = functional.conv2d(functional.pad(x, sides), weight, stride=stride, groups=groups)
        kinds = ("running_mean", "running_var", "weight", "bias")
        x = functional.batch_norm(x, *(state[f"{norm}.{kind}"] for kind in kinds), eps=1e-3)
        return functional.relu6(x) if active else x

    x = layer("_conv_stem", "_bn0", x, stride=2)
    for block in range(16):
        at, given = f"_blocks.{block}", x
        if block > 0:
            x = layer(f"{at}._expand_conv", f"{at}._bn0", x)
        x = layer(f"{at}._depthwise_conv", f"{at}._bn1", x, stride=2 if block in (1, 3, 5, 11) else 1)
        x = layer(f"{at}._project_conv", f"{at}._bn2", x, active=False)
        x = x + given if x.shape == given.shape else x
    return layer("_conv_head", "_bn1", x)
