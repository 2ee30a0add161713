"""Batch normalisation whose state is averaged, and EfficientNet-Lite0: size, padding, names of its published file."""

import numpy as np
import pytest
import torch
from fedapps.clients.base import FederatedClient
from fedapps.clients.settings import LocalTraining, RoundSettings
from fedapps.clients.state import DiskState
from fedapps.tasks.base import DataError, NodeData
from fedapps.tasks.images.options import Options
from fedapps.tasks.images.task import ImagesTask
from fedapps.tasks.vision import PUBLISHED_NAMES, BatchNorm, _Strided, efficientnet_lite0, picture_of
from fedapps.tasks.vpr.networks import normalisation_for
from network_formulas import efficientnet_lite0 as formula
from network_formulas import network
from PIL import Image
from torch import nn

from benchmarks.pretrained import LITE0


def test_a_single_value_per_channel_is_normalised_by_running_statistics():
    layer = BatchNorm.of(nn.BatchNorm2d(1))
    layer.running_mean.fill_(2.0)
    layer.running_var.fill_(4.0 - layer.eps)
    variance = layer.running_var.clone()
    out = layer(torch.full((1, 1, 1, 1), 6.0))
    assert out.item() == 2.0  # (6 - 2) / sqrt(4)
    assert (layer.running_mean.item(), layer.running_var.item()) == (2.0, variance.item())
    plain = nn.BatchNorm2d(1)
    two = torch.tensor([1.0, 3.0]).view(2, 1, 1, 1)
    torch.testing.assert_close(BatchNorm.of(nn.BatchNorm2d(1))(two), plain(two), rtol=0, atol=0)


def test_a_node_with_one_example_in_its_last_batch_trains(tmp_path):
    options = Options(dataset="own", labels="a,b", height=4, channels=1, model="resnet8", norm="batch")
    task = ImagesTask(options)
    images = torch.arange(48, dtype=torch.uint8).view(3, 1, 4, 4)
    data = NodeData(
        "n", {"train": {"image": images, "label": torch.tensor([0, 1, 0])}}, {}, {"statistics": options.statistics}
    )
    client = FederatedClient(task, data, DiskState.of(tmp_path, "r", "m", "n"), seed=0, device=torch.device("cpu"))
    for count, batch_size in ((3, 2), (1, 2), (3, 1)):
        client.data = NodeData("n", {"train": {k: v[:count] for k, v in data.splits["train"].items()}}, {}, data.extra)
        settings = RoundSettings(run="r", training=LocalTraining(epochs=1, batch_size=batch_size))
        assert client.train_round(client.initial_shared(["*"]), settings).num_examples == count


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((0, 4, 3), np.uint8),
        np.zeros((4, 0), np.uint8),
        torch.zeros(3, 0, 4, dtype=torch.uint8),
        Image.new("RGB", (0, 4)),
    ],
)
def test_images_without_pixels_are_refused(image):
    with pytest.raises(DataError, match=r"image 1 .*: at least one( pixel)? is expected"):
        picture_of(image, "image 1")


PALACE, DAISY = 698, 985  # classes of ImageNet


def published(state):
    """A network's state under the names of the published file."""
    old = {own: name for name, own in PUBLISHED_NAMES.items()}
    beginnings = {name: max((own for own in old if name.startswith(own)), key=len) for name in state}
    return {old[own] + name.removeprefix(own): state[name] for name, own in beginnings.items()}


def test_size_of_the_published_network():
    """4.652 million parameters (release notes of EfficientNet-Lite)."""
    with torch.device("meta"):
        network = efficientnet_lite0()
    assert sum(parameter.numel() for parameter in network.parameters()) == 4_652_008
    assert len(published(network.state_dict())) == len(network.state_dict())


@pytest.mark.parametrize(("size", "sums"), [(4, [9, 6, 6, 4]), (5, [4, 6, 4, 6, 9, 6, 4, 6, 4])])
def test_padding_by_hand(size, sums):
    """Sums over 3x3 with stride 2: zeros stand beyond the last row and column of 4, and on both sides of 5."""
    layer = _Strided(1, 1, 3, 2, bias=False)
    torch.nn.init.ones_(layer.weight)
    assert layer(torch.ones(1, 1, size, size)).flatten().tolist() == sums


@pytest.mark.parametrize("size", [(64, 96), (33, 47)])
def test_a_published_file_gives_the_network_of_the_formula(tmp_path, size):
    torch.manual_seed(0)
    whole = efficientnet_lite0().eval()
    for module in whole.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.running_mean, -0.1, 0.1)
            torch.nn.init.uniform_(module.running_var, 0.5, 2)
    state = published(whole.state_dict())
    torch.save(state, tmp_path / "lite0.pth")
    model = network("efficientnet_lite0@features.8", weights=tmp_path / "lite0.pth").eval()
    shown = torch.randint(256, (2, 3, *size), dtype=torch.uint8)
    with torch.no_grad():
        found = model.trained(model.frozen_part(shown))
        torch.testing.assert_close(found, formula(state, (shown.float() - 127) / 128), atol=1e-4, rtol=1e-4)
    assert normalisation_for("efficientnet_lite0@features.8", None) == "tensorflow"


@pytest.mark.skipif(bool(LITE0.faults(LITE0.folder())), reason=f"no published weights; get them: {LITE0.command}")
def test_published_weights_recognise_photographs():
    from sklearn.datasets import load_sample_images
    from torchvision.transforms.functional import center_crop, resize

    network, renamed = efficientnet_lite0().eval(), {}
    for name, tensor in torch.load(LITE0.folder() / next(iter(LITE0.files)), weights_only=True).items():
        beginning = max((part for part in PUBLISHED_NAMES if name.startswith(part)), key=len)
        renamed[PUBLISHED_NAMES[beginning] + name.removeprefix(beginning)] = tensor
    network.load_state_dict(renamed)
    photographs = torch.stack([torch.tensor(image).permute(2, 0, 1) for image in load_sample_images().images])
    shown = center_crop(resize(photographs, 256, antialias=True), 224)
    with torch.no_grad():
        assert network((shown.float() - 127) / 128).argmax(dim=1).tolist() == [PALACE, DAISY]
