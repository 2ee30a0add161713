"""Backbones: their sizes, names and parts, against published numbers and other implementations."""

import numpy as np
import pytest
import torch

from tasks.vpr.backbones import BACKBONES
from tasks.vpr.features import describe, describe_maps, frozen_maps, map_bytes, map_shape
from tasks.vpr.networks import FROZEN, place_network


def images(count, height=32, width=64, seed=0):
    drawn = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, height, width), dtype=torch.uint8, generator=drawn)


def network(backbone="squeezenet1_1", pooling="gem", seed=0, **options):
    torch.manual_seed(seed)
    return place_network(backbone, pooling, **options)


def trained_names(model):
    """The names in the state that training changes."""
    return set(model.state_dict()) - model.frozen_names()


def numbers(tensors):
    return sum(tensor.numel() for tensor in tensors)


def published(model):
    """The backbone's state under the names of the published file."""
    state = model.state_dict()
    return {name.partition(".")[2]: state[name].clone() for name in state if not name.startswith("pooling.")}


@pytest.mark.parametrize(
    ("backbone", "whole", "trainable"),
    [
        # torchvision's resnet18 has 11,689,512, of which layer4 8,393,728 and fc 513,000.
        ("resnet18-layer3", 11_689_512 - 8_393_728 - 513_000, 2_099_712),
        ("resnet18", 11_689_512 - 513_000, 8_393_728),
        # torchvision's vgg16 has 138,357,544, of which its classifier 123,642,856.
        ("vgg16", 138_357_544 - 123_642_856, 3 * (512 * 512 * 9 + 512)),
        # torchvision's squeezenet1_1 has 1,235,496, of which its classifier 513,000.
        ("squeezenet1_1", 1_235_496 - 513_000, 104_880 + 111_024 + 188_992 + 197_184),
        ("squeezenet1_1-stride8", 1_235_496 - 513_000, 104_880 + 111_024 + 188_992 + 197_184),
    ],
)
def test_sizes_of_the_papers_networks(backbone, whole, trainable):
    with torch.device("meta"):
        model = place_network(backbone, batch_norms="trained")
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert (numbers(model.parameters()), numbers(learned)) == (whole + 1, trainable + 1)


def test_what_travels_of_the_papers_network():
    with torch.device("meta"):
        model = place_network("resnet18-layer3")
    state = model.state_dict()
    assert all(tensor.dtype == torch.float32 for tensor in state.values())
    assert round(4e-6 * numbers(state.values()), 1) == 11.1
    assert round(4e-6 * numbers(v for k, v in state.items() if not k.startswith(FROZEN.rstrip("*"))), 1) == 8.4
    assert round(4e-6 * numbers(state[name] for name in trained_names(model)), 1) == 8.4


@pytest.mark.parametrize(
    ("backbone", "height", "width", "frozen", "trained"),
    [
        ("resnet18-layer3", 288, 384, (128, 36, 48), (256, 18, 24)),
        ("resnet18", 64, 96, (256, 4, 6), (512, 2, 3)),
        ("vgg16", 32, 64, (512, 2, 4), (512, 2, 4)),
        ("squeezenet1_1", 32, 64, (256, 1, 3), (512, 1, 3)),
        ("squeezenet1_1", 96, 128, (256, 5, 7), (512, 5, 7)),
        ("squeezenet1_1-stride8", 32, 64, (256, 3, 7), (512, 3, 7)),
    ],
)
def test_sizes_of_maps(backbone, height, width, frozen, trained):
    model = network(backbone)
    assert map_shape(model, height, width) == frozen
    assert map_bytes(model, height, width) == 4 * np.prod(frozen)
    with torch.no_grad():
        assert model.trained(torch.zeros(1, *frozen)).shape[1:] == trained
    assert model.width == trained[0]


def test_maps_of_the_papers_images_take_less_than_a_megabyte():
    with torch.device("meta"):
        assert map_bytes(place_network("resnet18-layer3"), 288, 384) == 884_736


def test_images_too_small():
    with pytest.raises(ValueError, match="images of 16x16 are too small for the network"):
        map_shape(network(), 16, 16)


def test_resnet_is_that_of_the_library_transformers():
    """Its layers come in the same order but for shortcuts, which it lists first."""
    from transformers import ResNetConfig, ResNetModel

    torch.manual_seed(0)
    other = ResNetModel(
        ResNetConfig(layer_type="basic", depths=[2, 2, 2], hidden_sizes=[64, 128, 256], embedding_size=64)
    ).eval()
    for module in other.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.running_mean, -0.1, 0.1)
            torch.nn.init.uniform_(module.running_var, 0.5, 2)
    names = {
        "embedder.embedder.convolution": "conv1",
        "embedder.embedder.normalization": "bn1",
        "layer.0.convolution": "conv1",
        "layer.0.normalization": "bn1",
        "layer.1.convolution": "conv2",
        "layer.1.normalization": "bn2",
        "shortcut.convolution": "downsample.0",
        "shortcut.normalization": "downsample.1",
    }
    state = {}
    for name, tensor in other.state_dict().items():
        parts = name.split(".")
        module, kind = ".".join(parts[:-1]), parts[-1]
        if name.startswith("encoder."):
            _, _, stage, _, block, *rest = parts[:-1]
            state[f"layer{int(stage) + 1}.{block}.{names['.'.join(rest)]}.{kind}"] = tensor
        else:
            state[f"{names[module]}.{kind}"] = tensor
    model = network("resnet18-layer3").eval()
    own = {name.partition(".")[2]: tensor for name, tensor in model.state_dict().items() if "pooling" not in name}
    assert set(own) == {name for name in state if "num_batches" not in name}
    for name, tensor in own.items():
        tensor.copy_(state[name])
    shown = images(2, 64, 64)
    with torch.no_grad():
        found = model.trained(model.frozen_part(shown))
        torch.testing.assert_close(found, other(model.normalise(shown)).last_hidden_state)


def test_names_are_those_of_torchvisions_files():
    fires = [f"{i}.{part}" for i in (3, 4, 6, 7, 9, 10, 11, 12) for part in ("squeeze", "expand1x1", "expand3x3")]
    blocks = [0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28]
    for backbone, layers in (
        ("squeezenet1_1", ["0", *fires]),
        ("squeezenet1_1-stride8", ["0", *fires]),
        ("vgg16", blocks),
    ):
        with torch.device("meta"):
            names = published(place_network(backbone))
        assert set(names) == {f"features.{layer}.{kind}" for layer in layers for kind in ("weight", "bias")}


def test_networks_are_those_of_torchvision():
    try:
        from torchvision import models
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"torchvision does not load here ({error})")
    for backbone, build in (("resnet18-layer3", models.resnet18), ("squeezenet1_1", models.squeezenet1_1)):
        state = build().state_dict()
        own = published(network(backbone))
        known = BACKBONES[backbone].unused
        assert {n for n in state if not n.startswith(known) and "num_batches" not in n} == set(own)
        assert all(own[name].shape == state[name].shape for name in own)


@pytest.mark.parametrize("backbone", ["resnet18-layer3", "squeezenet1_1"])
def test_all_layers_may_be_trained(backbone):
    """The same draws give the same network; only what training may change differs."""
    torch.manual_seed(0)
    usual = place_network(backbone)
    torch.manual_seed(0)
    whole = place_network(backbone, train_all=True)
    assert not any(name.startswith("frozen.") for name in whole.state_dict())
    usual.eval(), whole.eval()
    assert torch.equal(usual(images(2)), whole(images(2)))
    whole(images(2)).sum().backward()
    moved = {name for name, parameter in whole.named_parameters() if parameter.grad is not None}
    assert {name.replace("frozen.", "trained.") for name, _ in usual.named_parameters() if "frozen." in name} & moved
    maps = frozen_maps(whole, images(2))
    assert torch.equal(describe_maps(whole, maps), describe(whole, images(2)))
