"""Backbones: their sizes, names and parts, against published numbers and the whole classifiers of torchvision."""

import os
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import torch
from fedapps.tasks.base import DataError
from fedapps.tasks.vpr.backbones import BACKBONES, backbone
from fedapps.tasks.vpr.networks import FROZEN, read_weights
from fedapps.tasks.vpr.training_set import computed, map_shape
from network_formulas import images, network, published, trained_names
from safetensors.torch import save_file
from torchvision.models import ResNet18_Weights, resnet18


def numbers(tensors):
    return sum(tensor.numel() for tensor in tensors)


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
        model = network(backbone, batch_norms="trained")
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert (numbers(model.parameters()), numbers(learned)) == (whole + 1, trainable + 1)


def test_what_travels_of_the_papers_network():
    with torch.device("meta"):
        model = network("resnet18-layer3")
    state = model.state_dict()
    assert all(tensor.dtype == torch.float32 for tensor in state.values())
    assert round(4e-6 * numbers(state.values()), 1) == 11.1
    assert round(4e-6 * numbers(v for k, v in state.items() if not k.startswith(FROZEN.rstrip("*"))), 1) == 8.4
    assert round(4e-6 * numbers(state[name] for name in trained_names(model)), 1) == 8.4


@pytest.mark.slow
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
    with torch.no_grad():
        assert model.trained(torch.zeros(1, *frozen)).shape[1:] == trained
    assert model.width == trained[0]


def test_names_are_those_of_torchvisions_files():
    fires = [f"{i}.{part}" for i in (3, 4, 6, 7, 9, 10, 11, 12) for part in ("squeeze", "expand1x1", "expand3x3")]
    blocks = [0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28]
    for name, layers in (("squeezenet1_1", ["0", *fires]), ("squeezenet1_1-stride8", ["0", *fires]), ("vgg16", blocks)):
        with torch.device("meta"):
            names = published(network(name))
        assert set(names) == {f"features.{layer}.{kind}" for layer in layers for kind in ("weight", "bias")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "trained_from", "width", "trained"),
    [
        *((name, "", 512 if name != "resnet18-layer3" else 256, "") for name in BACKBONES),
        ("resnet50@layer3", "", 1024, "layer3."),
        ("resnet18@layer3.1", "", 256, "layer3.1."),
        ("resnet18-layer3", "layer2", 256, ("layer2.", "layer3.")),
        ("alexnet@features.11", "features.10", 256, "features.10."),
        ("densenet121@features.denseblock2", "", 512, "features.denseblock2."),
        ("googlenet@inception4b", "", 512, "inception4b."),
        ("inception_v3@Mixed_5d", "", 288, "Mixed_5d."),
        ("mobilenet_v3_small@features.8", "", 48, "features.8."),
        ("efficientnet_b0@features.4", "", 80, "features.4."),
        ("convnext_tiny@features.3", "", 192, "features.3."),
        ("shufflenet_v2_x0_5@stage2", "", 48, "stage2."),
        ("mnasnet0_5@layers.9", "", 24, "layers.9."),
        ("regnet_y_400mf@trunk_output.block2", "", 104, "trunk_output.block2."),
        ("swin_t@permute", "features.7", 768, ("features.7.", "norm.")),
    ],
)
def test_the_parts_of_classifiers_of_torchvision(name, trained_from, width, trained):
    """The maps of the two parts are those inside the whole classifier; no counters of batches are averaged. The second
    part leaves the maps of the first, which are cached, as they are.
    """
    from torchvision import models

    chosen = backbone(name, trained_from)
    assert chosen.width == width
    torch.manual_seed(0)
    frozen, made = chosen.parts()
    assert made.state_dict()
    assert all(part.startswith(trained) for part in made.state_dict())
    assert not any("num_batches" in part for part in (frozen.state_dict() | made.state_dict()))
    for module in (*frozen.modules(), *made.modules()):
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.running_mean, -0.1, 0.1)
            torch.nn.init.uniform_(module.running_var, 0.5, 2)
    arguments = {}
    if chosen.network in ("googlenet", "inception_v3"):
        arguments = {"transform_input": True, "init_weights": False}
    whole = models.get_model(chosen.network, weights=None, **arguments).eval()
    if chosen.omitted:
        whole.set_submodule(chosen.omitted, torch.nn.Identity())
    state = whole.state_dict()
    for part, tensor in (frozen.state_dict() | made.state_dict()).items():
        state[part].copy_(tensor)
    expected = {}
    whole.get_submodule(chosen.last).register_forward_hook(
        lambda module, given, result: expected.update(maps=result.clone())
    )
    shown = torch.rand(1, 3, 96, 96)
    with torch.no_grad():
        whole(shown)
        maps = frozen.eval()(shown)
        before = maps.clone()
        torch.testing.assert_close(made.eval()(maps), expected["maps"])
    assert torch.equal(maps, before)


@pytest.mark.parametrize(
    ("name", "trained_from", "said"),
    [
        ("vit_b_16@encoder", "", "does not take images of 256x320, but must take images of any size"),
        ("maxvit_t@blocks.3", "", "does not take images of 256x320, but must take images of any size"),
        ("swin_t@features.5", "", r"gives \[1, 14, 14, 384\], with channels last; name a later layer \(permute\)"),
        ("resnet18@fc", "", r"gives \[1, 1000\], not a map \[images, channels, height, width\]"),
        (
            "resnet18@relu",
            "",
            "no trained layer has weights .*; set vpr.trained-from to an earlier layer, or to 'head'",
        ),
        ("resnet18@bn1", "", "no trained layer has weights other than those of batch normalisation"),
        ("resnet18@layer9", "", "there is no layer 'layer9'; the network has conv1, bn1, relu, maxpool, layer1,"),
        ("resnet18-layer3", "layer4", "'layer4' comes after the layer 'layer3'"),
        ("densenet121@features.denseblock3.denselayer4", "", "does not take exactly one tensor"),
        ("resnt18@layer3", "", "there is no classifier 'resnt18'; close names: resnet18,"),
        ("resnet18@", "", "must be one of resnet18-layer3, .*, or NETWORK@LAYER"),
    ],
)
def test_backbones_that_are_refused(name, trained_from, said):
    with pytest.raises(DataError, match=said) as error:
        backbone(name, trained_from)
    assert str(error.value).startswith(f"vpr.backbone = {name!r}")
    assert (f"vpr.trained-from = {trained_from!r}" in str(error.value)) == bool(trained_from)


@pytest.mark.parametrize("backbone", ["resnet18-layer3", "squeezenet1_1"])
def test_all_layers_may_be_trained(backbone):
    """The same draws give the same network; only what training may change differs."""
    usual = network(backbone)
    whole = network(backbone, train_all=True)
    assert not any(name.startswith("frozen.") for name in whole.state_dict())
    usual.eval(), whole.eval()
    assert torch.equal(usual(images(2)), whole(images(2)))
    whole(images(2)).sum().backward()
    moved = {name for name, parameter in whole.named_parameters() if parameter.grad is not None}
    assert {name.replace("frozen.", "trained.") for name, _ in usual.named_parameters() if "frozen." in name} & moved
    maps = computed(whole, whole.frozen_part, images(2))
    assert torch.equal(computed(whole, whole.trained_part, maps), computed(whole, whole, images(2)))


# Weights from files, random weights, and files that do not fit.


REAL = pytest.mark.skipif("FEDAPPS_DATA" not in os.environ, reason="FEDAPPS_DATA names no folder of real data")


@pytest.mark.parametrize("suffix", [".pth", ".safetensors", ".npz"])
def test_weights_from_files(tmp_path, suffix):
    """A whole published file: also what the network is cut off from, and counters of batches."""
    backbone = "squeezenet1_1" if suffix == ".npz" else "resnet18-layer3"
    model = network(backbone, seed=1)
    state = published(model)
    path = tmp_path / f"weights{suffix}"
    if suffix == ".npz":
        ported = {name.replace(".squeeze.", ".squeeze1x1."): tensor.numpy() for name, tensor in state.items()}
        np.savez(path, **ported)
    else:
        whole = state | {"fc.weight": torch.ones(2, 2), "layer4.0.conv1.weight": torch.ones(1)}
        whole["bn1.num_batches_tracked"] = torch.tensor(7)
        torch.save(whole, path) if suffix == ".pth" else save_file(whole, path)
    read = network(backbone, seed=2, weights=path)
    assert all(torch.equal(tensor, state[name]) for name, tensor in published(read).items())
    assert read.normalise.kind == ("caffe" if suffix == ".npz" else "imagenet")


def test_names_of_a_model_trained_in_data_parallel(tmp_path):
    state = {"conv.weight": torch.ones(1), "module.bias": torch.ones(2)}
    torch.save({f"module.{name}": tensor for name, tensor in state.items()}, tmp_path / "wrapped.pth")
    torch.save(state, tmp_path / "plain.pth")
    for name in ("wrapped", "plain"):
        assert list(read_weights(tmp_path / f"{name}.pth")) == list(state)


def test_weights_that_do_not_fit(tmp_path):
    state = published(network())
    state["features.0.weight"] = torch.zeros(64, 3, 5, 5)
    state["features.99.bias"] = torch.zeros(2)
    del state["features.12.squeeze.bias"]
    torch.save(state, tmp_path / "bad.pth")
    with pytest.raises(DataError) as error:
        network("squeezenet1_1", weights=tmp_path / "bad.pth")
    assert str(error.value).splitlines() == [
        f"vpr.weights = '{tmp_path / 'bad.pth'}': does not fit vpr.backbone = 'squeezenet1_1'",
        "  missing: features.12.squeeze.bias (64,)",
        "  unexpected: features.99.bias (2,)",
        "  of another shape: features.0.weight (64, 3, 5, 5), not (64, 3, 3, 3)",
        "  the file fits none of resnet18-layer3, resnet18, vgg16, squeezenet1_1, squeezenet1_1-stride8: use the "
        "weights of the backbone that torchvision publishes, or leave vpr.weights empty for random weights",
    ]


def test_files_that_are_no_weights(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read_weights(tmp_path / "none.pth")
    for name in ("weights.h5", "torn.pth", "torn.npz", "torn.safetensors"):
        (tmp_path / name).write_bytes(b"\x00\x01")
        with pytest.raises(DataError, match=r"cannot be read as a|unknown format '\.h5'; expected \.pth"):
            read_weights(tmp_path / name)
    torch.save([1, 2], tmp_path / "list.pth")
    torch.save(torch.nn.Linear(1, 1), tmp_path / "whole.pth")
    with pytest.raises(DataError, match=r"has a whole model, .* save the model's state_dict\(\)$"):
        read_weights(tmp_path / "whole.pth")
    with pytest.raises(DataError, match="is not a dictionary of tensors"):
        read_weights(tmp_path / "list.pth")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of torch, on a machine without a network."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr("torch.hub.urlopen", refused)
    (tmp_path / "hub/checkpoints").mkdir(parents=True)
    return tmp_path / "hub/checkpoints"


def refused(*args, **kwargs):
    raise URLError("connection refused")


def test_weights_by_their_name_in_torchvision(cache):
    torch.manual_seed(0)
    state = resnet18().state_dict()
    torch.save(state, cache / ResNet18_Weights.IMAGENET1K_V1.url.rpartition("/")[2])
    model = network("resnet18-layer3", weights="ResNet18_Weights.IMAGENET1K_V1")
    assert all(torch.equal(tensor, state[name]) for name, tensor in published(model).items())
    assert model.normalise.kind == "imagenet"


def test_weights_that_cannot_be_downloaded(cache):
    with pytest.raises(DataError) as error:
        network("resnet18", weights="ResNet18_Weights.IMAGENET1K_V1")
    url = ResNet18_Weights.IMAGENET1K_V1.url
    assert str(error.value) == (
        f"vpr.weights = 'ResNet18_Weights.IMAGENET1K_V1': cannot be read from {cache / url.rpartition('/')[2]}, nor "
        f"downloaded from {url} (<urlopen error connection refused>); copy the file there on every machine, or set "
        "vpr.weights to its path"
    )


@pytest.mark.slow
def test_published_weights_of_another_network_or_normalisation():
    with pytest.raises(DataError, match=r"publishes for resnet18 ResNet18_Weights\.IMAGENET1K_V1; name one of them"):
        network("resnet18-layer3", weights="VGG16_Weights.IMAGENET1K_V1")
    with pytest.raises(DataError, match=r"trained on images less \(0\.5, 0\.5, 0\.5\), not ImageNet's mean"):
        network("efficientnet_v2_l@features.6", weights="EfficientNet_V2_L_Weights.IMAGENET1K_V1")


@pytest.mark.slow
def test_published_names_of_densenets(tmp_path):
    """Their files are older than the names in torchvision."""
    model = network("densenet121@features.denseblock2", seed=1)
    state = published(model)
    old = {name.replace("norm1.", "norm.1.").replace("conv2.", "conv.2."): state[name] for name in state}
    assert set(old) != set(state)
    torch.save(old, tmp_path / "densenet.pth")
    read = network("densenet121@features.denseblock2", seed=2, weights=tmp_path / "densenet.pth")
    assert all(torch.equal(tensor, state[name]) for name, tensor in published(read).items())


@REAL
def test_published_squeezenet_tells_images_apart_where_a_drawn_one_does_not():
    """Each frame of a railway in summer, half as bright and from one column to the right, among 200 others."""
    data = Path(os.environ["FEDAPPS_DATA"])
    frames = np.load(data / "vpr/nordland/nordland_64x32.npz")["summer"][100:900:4]
    shown = torch.from_numpy(frames)[:, None].expand(-1, 3, -1, -1)
    changed = torch.roll(shown, 3, dims=-1) // 2
    found = {}
    for weights in (data / "weights/squeezenet1_1_imagenet_notop.npz", ""):
        model = network("squeezenet1_1-stride8", weights=weights)
        database, queries = computed(model, model, shown), computed(model, model, changed)
        found[weights] = float((torch.cdist(queries, database).argmin(dim=1) == torch.arange(200)).float().mean())
    given, drawn = found.values()
    assert given > drawn


def test_weights_that_are_not_finite(tmp_path):
    state = published(network("resnet18-layer3"))
    state["conv1.weight"][0, 0, 0, 0] = torch.nan
    save_file(state, tmp_path / "weights.safetensors")
    with pytest.raises(DataError, match=r"not finite: conv1\.weight"):
        network("resnet18-layer3", weights=tmp_path / "weights.safetensors")
