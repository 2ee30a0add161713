"""Whether weights and images fit a network, before training."""

from dataclasses import replace

import pytest
import torch
from fedapps.tasks.base import DataError
from fedapps.tasks.vpr.networks import check_network, place_network
from fedapps.tasks.vpr.options import Options

from fedapps.config.parsing import parse
from fedapps.launch.launch import check_data


def save_published(backbone, path):
    """A file of drawn weights with the names of the published ones."""
    state = place_network(backbone).state_dict()
    torch.save({n.partition(".")[2]: tensor for n, tensor in state.items() if not n.startswith("pooling.")}, path)


def test_weights_of_another_backbone_say_of_which(tmp_path):
    save_published("resnet18", path := tmp_path / "resnet.pth")
    with pytest.raises(DataError) as error:
        check_network(Options(backbone="vgg16", weights=str(path), height=32))
    first, missing, unexpected, advice = str(error.value).splitlines()
    assert first == f"vpr.weights = '{path}': does not fit vpr.backbone = 'vgg16'"
    assert missing.startswith("  missing: features.0.weight (64, 3, 3, 3); features.0.bias (64,); features.2.weight")
    assert missing.endswith("; and 23 more")
    assert unexpected.startswith("  unexpected: conv1.weight (64, 3, 7, 7); bn1.weight (64,); bn1.bias (64,); and ")
    assert advice == "  set vpr.backbone = 'resnet18-layer3' or 'resnet18', which the file fits"
    check_network(Options(backbone="resnet18-layer3", weights=str(path), height=32))


def test_a_network_is_checked_without_a_draw(tmp_path):
    save_published("squeezenet1_1", path := tmp_path / "squeezenet.pth")
    before = torch.random.get_rng_state()
    options = Options(backbone="squeezenet1_1", weights=str(path), height=96)
    check_network(options)
    assert torch.equal(torch.random.get_rng_state(), before)
    with pytest.raises(DataError, match=r"vpr\.height = 16, vpr\.width = 20: too small"):
        check_network(replace(options, height=16, width=20))


def test_made_up_data_do_not_hide_weights_that_do_not_fit(tmp_path):
    save_published("resnet18", path := tmp_path / "resnet.pth")
    given = {"task": "vpr", "collect-after": 0, "methods": "fedavg", "vpr.source": "simulated"}
    with pytest.raises(DataError, match=r"resnet\.pth': does not fit vpr\.backbone = 'vgg16'"):
        check_data(parse(given | {"vpr.weights": str(path), "vpr.backbone": "vgg16"}))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"vpr.backbone": "resne50@layer3"}, "torchvision has no classifier 'resne50'; close names: resnet50,"),
        ({"vpr.backbone": "vit_b_16@encoder"}, "the network does not take images of 256x320, but must take images of"),
        ({"vpr.trained-from": "layer1.1.conv2"}, "vpr.trained-from = 'layer1.1.conv2': data pass beside the layer"),
        ({"vpr.height": 16, "vpr.width": 16, "vpr.backbone": "squeezenet1_1"}, "too small for vpr.backbone"),
    ],
)
def test_a_network_that_cannot_be_divided_is_refused_before_any_data_are_made(changes, said):
    given = {"task": "vpr", "collect-after": 0, "methods": "fedavg", "vpr.source": "simulated"}
    with pytest.raises(DataError, match=said):
        check_data(parse(given | changes))
