"""Weights from files, random weights, and files that do not fit."""

import os
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import torch
from fedapps.tasks.base import DataError
from fedapps.tasks.vpr.networks import place_network, read_weights
from fedapps.tasks.vpr.training_set import describe
from network_formulas import network, published
from safetensors.torch import save_file
from torchvision.models import ResNet18_Weights, resnet18

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
    assert network(backbone, weights=path, normalisation="imagenet").normalise.kind == "imagenet"


def test_names_of_a_model_trained_in_data_parallel(tmp_path):
    state = {"conv.weight": torch.ones(1), "module.bias": torch.ones(2)}
    torch.save({f"module.{name}": tensor for name, tensor in state.items()}, tmp_path / "wrapped.pth")
    torch.save(state, tmp_path / "plain.pth")
    for name in ("wrapped", "plain"):
        assert list(read_weights(tmp_path / f"{name}.pth")) == list(state)


def test_weights_that_were_drawn():
    model = network(seed=1)
    again, other = network(seed=1), network(seed=2)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert not torch.equal(*(one.state_dict()["frozen.features.0.weight"] for one in (model, other)))


def test_weights_that_do_not_fit(tmp_path):
    state = published(network())
    state["features.0.weight"] = torch.zeros(64, 3, 5, 5)
    state["features.99.bias"] = torch.zeros(2)
    del state["features.12.squeeze.bias"]
    torch.save(state, tmp_path / "bad.pth")
    with pytest.raises(DataError) as error:
        place_network("squeezenet1_1", weights=tmp_path / "bad.pth")
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
        place_network("resnet18", weights="ResNet18_Weights.IMAGENET1K_V1")
    url = ResNet18_Weights.IMAGENET1K_V1.url
    assert str(error.value) == (
        f"vpr.weights = 'ResNet18_Weights.IMAGENET1K_V1': cannot be read from {cache / url.rpartition('/')[2]}, nor "
        f"downloaded from {url} (<urlopen error connection refused>); copy the file there on every machine, or set "
        "vpr.weights to its path"
    )


@pytest.mark.slow
def test_published_weights_of_another_network_or_normalisation():
    with pytest.raises(DataError, match=r"publishes for resnet18 ResNet18_Weights\.IMAGENET1K_V1; name one of them"):
        place_network("resnet18-layer3", weights="VGG16_Weights.IMAGENET1K_V1")
    with pytest.raises(DataError, match=r"trained on images less \(0\.5, 0\.5, 0\.5\), not ImageNet's mean"):
        place_network("efficientnet_v2_l@features.6", weights="EfficientNet_V2_L_Weights.IMAGENET1K_V1")


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


def test_names_that_do_not_exist():
    with pytest.raises(DataError, match=r"vpr\.backbone = 'alexnet': must be one of resnet18-layer3, resnet18, vgg16"):
        place_network("alexnet")


@REAL
def test_published_squeezenet_tells_images_apart_where_a_drawn_one_does_not():
    """Each frame of a railway in summer, half as bright and from one column to the right, among 200 others."""
    data = Path(os.environ["FEDAPPS_DATA"])
    frames = np.load(data / "vpr/nordland/nordland_64x32.npz")["summer"][100:900:4]
    shown = torch.from_numpy(frames)[:, None].expand(-1, 3, -1, -1)
    changed = torch.roll(shown, 3, dims=-1) // 2
    found = {}
    for weights in (data / "weights/squeezenet1_1_imagenet_notop.npz", None):
        model = network("squeezenet1_1-stride8", weights=weights)
        database, queries = describe(model, shown), describe(model, changed)
        found[weights] = float((torch.cdist(queries, database).argmin(dim=1) == torch.arange(200)).float().mean())
    given, drawn = found.values()
    assert given > drawn


def test_weights_that_are_not_finite(tmp_path):
    state = published(network("resnet18-layer3"))
    state["conv1.weight"][0, 0, 0, 0] = torch.nan
    save_file(state, tmp_path / "weights.safetensors")
    with pytest.raises(DataError, match=r"not finite: conv1\.weight"):
        network("resnet18-layer3", weights=tmp_path / "weights.safetensors")
