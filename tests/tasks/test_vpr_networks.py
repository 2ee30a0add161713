"""The network: normalisation, descriptors, frozen and trained parts, cached feature maps."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from fedapps.clients.settings import LocalTraining
from fedapps.clients.training import Phase, run_plan
from fedapps.tasks.base import DataError
from fedapps.tasks.vpr.networks import Normalise, check_network
from fedapps.tasks.vpr.options import Options
from fedapps.tasks.vpr.training_set import computed, triplet_loss, triplet_terms
from network_formulas import images, network, trained_names

from fedapps.config.parsing import parse
from fedapps.launch.inputs import check_data


def one_step(model, inputs):
    model.train()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)
    queries, positives, negatives = model(inputs).split((1, 1, len(inputs) - 2))
    triplet_loss(triplet_terms(queries, positives, negatives[None], margin=2.0)).backward()
    optimizer.step()


def test_normalisation_by_hand():
    pixel = torch.tensor([10, 20, 30], dtype=torch.uint8).view(1, 3, 1, 1)
    found = Normalise("imagenet")(pixel).flatten()
    expected = [(10 / 255 - 0.485) / 0.229, (20 / 255 - 0.456) / 0.224, (30 / 255 - 0.406) / 0.225]
    torch.testing.assert_close(found, torch.tensor(expected))
    caffe = torch.tensor([30 - 103.939, 20 - 116.779, 10 - 123.68])
    torch.testing.assert_close(Normalise("caffe")(pixel).flatten(), caffe)
    signed = torch.tensor([(10 - 127) / 128, (20 - 127) / 128, (30 - 127) / 128])
    torch.testing.assert_close(Normalise("tensorflow")(pixel).flatten(), signed)
    for kind in ("imagenet", "caffe", "tensorflow"):
        torch.testing.assert_close(Normalise(kind)(pixel / 255), Normalise(kind)(pixel))


def test_images_of_another_form():
    with pytest.raises(ValueError, match=r"shape \(1, 1, 4, 4\): must be \[images, 3, height, width\]"):
        Normalise("imagenet")(torch.zeros(1, 1, 4, 4))
    with pytest.raises(ValueError, match=r"type torch\.int64: must be torch\.uint8"):
        Normalise("imagenet")(torch.zeros(1, 3, 4, 4, dtype=torch.int64))


@pytest.mark.parametrize("pooling", ["gem", "spoc", "mac"])
def test_a_descriptor_by_hand(pooling):
    """Features of length 1 at two positions, (0.6, 0.8) and (1, 0), pooled, of length 1 again."""
    model = network(pooling=pooling)
    model.trained = torch.nn.Identity()
    maps = torch.tensor([[[[3.0, 7.0]], [[4.0, 0.0]]]])
    pooled = {
        "spoc": [0.8, 0.4],
        "mac": [1.0, 0.8],
        "gem": [((0.216 + 1) / 2) ** (1 / 3), ((0.512 + 1e-18) / 2) ** (1 / 3)],
    }[pooling]
    torch.testing.assert_close(model.trained_part(maps)[0], torch.tensor(pooled) / np.linalg.norm(pooled).item())


def test_a_square_projection_begins_as_a_rotation_and_a_narrow_one_gives_its_width():
    plain, turned = network(), network(projection=512)
    with torch.no_grad():
        before, after = plain(images(4)), turned(images(4))
    assert not torch.allclose(before, after)
    torch.testing.assert_close(before @ before.T, after @ after.T)
    narrow = network(projection=3)
    narrow.trained, narrow.pooling = torch.nn.Identity(), torch.nn.Flatten()
    narrow.projection = torch.nn.Linear(2, 1, bias=False)
    narrow.projection.weight.data = torch.tensor([[1.0, -2.0]])
    assert narrow.width == 3
    assert narrow.trained_part(torch.tensor([3.0, 4.0]).view(1, 2, 1, 1)).tolist() == [[-1.0]]  # 0.6 - 1.6 < 0


def test_a_frozen_backbone_trains_the_head_alone_on_its_cached_maps():
    usual, head = network(), network(trained_from="head", projection=512)
    assert trained_names(head) == {"pooling.p", "projection.weight"}
    assert all(name.startswith("frozen.") for name in head.state_dict() if name not in trained_names(head))
    maps = computed(head, head.frozen_part, images(4))
    with torch.no_grad():
        assert torch.equal(maps, usual.trained(usual.frozen_part(images(4))))
    assert torch.equal(computed(head, head.trained_part, maps), computed(head, head, images(4)))
    before = {name: tensor.clone() for name, tensor in head.state_dict().items()}
    one_step(head, images(4))
    assert {name for name, tensor in head.state_dict().items() if not torch.equal(tensor, before[name])} == {
        "pooling.p",
        "projection.weight",
    }


@pytest.mark.parametrize("batch_norms", ["frozen", "trained"])
def test_training_moves_what_is_trained_and_nothing_else(batch_norms):
    model = network("resnet18-layer3", batch_norms=batch_norms)
    before = deepcopy(model.state_dict())
    one_step(model, images(4))
    after = model.state_dict()
    moved = {name for name in after if not torch.equal(after[name], before[name])}
    assert moved == trained_names(model)
    assert not any(name.startswith("frozen.") for name in moved)
    normalised = {name for name in moved if ".bn" in name or "downsample.1" in name}
    # Five layers with a scale, a shift, a mean and a variance.
    assert len(normalised) == (0 if batch_norms == "frozen" else 20)
    assert "pooling.p" in moved


def test_a_plan_that_trains_everything_leaves_alone_what_is_frozen():
    """As a node trains: batches of kept maps, a query, its positive and negatives in a row."""
    model = network("resnet18-layer3")
    maps = computed(model, model.frozen_part, images(4))
    before = deepcopy(model.state_dict())

    def loss(model, batch):
        found = model.trained_part(batch["maps"].flatten(0, 1)).view(*batch["maps"].shape[:2], -1)
        return triplet_loss(triplet_terms(found[:, 0], found[:, 1], found[:, 2:], margin=2.0))

    phase = Phase(LocalTraining(epochs=1, learning_rate=1e-3, batch_size=1, weight_decay=0.1))
    assert run_plan(model, [phase], lambda size: iter([{"maps": maps[None]}] * 2), loss).steps == 2
    after = model.state_dict()
    assert {name for name in after if not torch.equal(after[name], before[name])} == trained_names(model)
    assert not any(parameter.requires_grad for parameter in model.frozen.parameters())


def test_frozen_batch_norms_do_not_see_the_batch():
    model = network("resnet18-layer3").train()
    assert model.training
    assert not any(module.training for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d))
    with torch.no_grad():
        together, alone = model(images(3)), model(images(3)[:1])
    torch.testing.assert_close(together[:1], alone)
    assert torch.equal(deepcopy(model).eval()(images(3)), together)


@pytest.mark.parametrize("backbone", ["resnet18-layer3", "squeezenet1_1"])
def test_kept_maps_give_the_descriptors_of_the_whole_network(backbone):
    model, shown = network(backbone), images(7)
    maps = computed(model, model.frozen_part, shown, chunk=3)
    assert maps.dtype == torch.float32
    whole = computed(model, model, shown, chunk=3)
    assert torch.equal(computed(model, model.trained_part, maps, chunk=3), whole)
    torch.testing.assert_close(computed(model, model, shown, chunk=7), whole, atol=1e-6, rtol=1e-5)
    assert model.training


def test_kept_maps_give_the_gradients_of_the_whole_network():
    shown = images(7)
    gradients = []
    for part in ("whole", "kept"):
        model = network("resnet18-layer3")
        maps = computed(model, model.frozen_part, shown)
        found = model(shown) if part == "whole" else model.trained_part(maps)
        triplet_loss(triplet_terms(found[:1], found[1:2], found[None, 2:], margin=2.0)).backward()
        gradients.append([p.grad for p in model.parameters() if p.requires_grad])
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


def test_no_images():
    model = network()
    maps = computed(model, model.frozen_part, images(0))
    assert maps.shape == (0, 256, 1, 3)
    assert computed(model, model.trained_part, maps).shape == computed(model, model, images(0)).shape == (0, 512)


def save_published(backbone, path):
    """A file of drawn weights with the names of the published ones."""
    state = network(backbone).state_dict()
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
        ({"vpr.backbone": "resne50@layer3"}, "there is no classifier 'resne50'; close names: resnet50,"),
        ({"vpr.backbone": "vit_b_16@encoder"}, "the network does not take images of 256x320, but must take images of"),
        ({"vpr.trained-from": "layer1.1.conv2"}, "vpr.trained-from = 'layer1.1.conv2': data pass beside the layer"),
        ({"vpr.height": 16, "vpr.width": 16, "vpr.backbone": "squeezenet1_1"}, "too small for vpr.backbone"),
    ],
)
def test_a_network_that_cannot_be_divided_is_refused_before_any_data_are_made(changes, said):
    given = {"task": "vpr", "collect-after": 0, "methods": "fedavg", "vpr.source": "simulated"}
    with pytest.raises(DataError, match=said):
        check_data(parse(given | changes))
