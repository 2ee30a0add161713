"""Descriptors of places: sizes, published weights, pooling, and what frozen layers keep."""

import os
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from clients.training import Phase, run_plan
from tasks.base import DataError
from tasks.vpr.backbones import BACKBONES
from tasks.vpr.features import describe, describe_maps, frozen_maps, map_bytes, map_shape
from tasks.vpr.networks import FROZEN, Normalise, place_network
from tasks.vpr.pooling import Gem, Mac, Spoc
from tasks.vpr.triplets import triplet_loss, triplet_terms
from tasks.vpr.weights import read_weights

REAL = pytest.mark.skipif("FEDAPPS_DATA" not in os.environ, reason="FEDAPPS_DATA names no folder of real data")


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


def one_step(model, inputs):
    model.train()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)
    queries, positives, negatives = model(inputs).split((1, 1, len(inputs) - 2))
    triplet_loss(triplet_terms(queries, positives, negatives[None], margin=2.0)).backward()
    optimizer.step()


# sizes


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


# architecture and weights


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


def test_weights_that_were_drawn():
    model = network(seed=1)
    again, other = network(seed=1), network(seed=2)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert not torch.equal(model.frozen.features[0].weight, other.frozen.features[0].weight)


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
    with pytest.raises(DataError, match="is not a dictionary of tensors"):
        read_weights(tmp_path / "list.pth")


def test_names_that_do_not_exist():
    with pytest.raises(DataError, match="backbone = 'alexnet': must be one of resnet18-layer3, resnet18, vgg16"):
        place_network("alexnet")
    with pytest.raises(DataError, match="pooling = 'max': must be one of gem, spoc, mac"):
        place_network("vgg16", "max")


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


# normalisation


def test_normalisation_by_hand():
    pixel = torch.tensor([10, 20, 30], dtype=torch.uint8).view(1, 3, 1, 1)
    found = Normalise("imagenet")(pixel).flatten()
    expected = [(10 / 255 - 0.485) / 0.229, (20 / 255 - 0.456) / 0.224, (30 / 255 - 0.406) / 0.225]
    torch.testing.assert_close(found, torch.tensor(expected))
    caffe = torch.tensor([30 - 103.939, 20 - 116.779, 10 - 123.68])
    torch.testing.assert_close(Normalise("caffe")(pixel).flatten(), caffe)
    for kind in ("imagenet", "caffe"):
        torch.testing.assert_close(Normalise(kind)(pixel / 255), Normalise(kind)(pixel))


def test_images_of_another_form():
    with pytest.raises(ValueError, match=r"shape \(1, 1, 4, 4\): must be \[images, 3, height, width\]"):
        Normalise("imagenet")(torch.zeros(1, 1, 4, 4))
    with pytest.raises(ValueError, match=r"type torch\.int64: must be torch\.uint8"):
        Normalise("imagenet")(torch.zeros(1, 3, 4, 4, dtype=torch.int64))


# pooling


def test_pooling_by_hand():
    maps = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]], [[0.0, 0.0], [0.0, 2.0]]]])
    torch.testing.assert_close(Spoc()(maps), torch.tensor([[2.5, 0.5]]))
    torch.testing.assert_close(Mac()(maps), torch.tensor([[4.0, 2.0]]))
    # ((1 + 8 + 27 + 64) / 4)^(1/3) and (8 / 4)^(1/3)
    torch.testing.assert_close(Gem()(maps), torch.tensor([[25.0, 2.0]]) ** (1 / 3))


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 3), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.floats(0.5, 6), st.integers(0, 9))
def test_gem_is_the_generalised_mean(count, channels, height, width, p, seed):
    maps = torch.rand(count, channels, height, width, generator=torch.Generator().manual_seed(seed)) + 1e-3
    expected = maps.double().pow(p).mean(dim=(-2, -1)).pow(1 / p).float()
    torch.testing.assert_close(Gem(p)(maps), expected)
    torch.testing.assert_close(Gem(1.0)(maps), Spoc()(maps))
    torch.testing.assert_close(Gem(1e4)(maps), Mac()(maps), rtol=1e-3, atol=0)
    assert (Gem(p)(maps) <= Mac()(maps) * 1.0001).all()


def test_gradients_of_gem():
    maps = (torch.rand(2, 3, 2, 2, dtype=torch.double) + 0.1).requires_grad_()
    pooling = Gem().double()
    assert torch.autograd.gradcheck(lambda x, p: torch.func.functional_call(pooling, {"p": p}, (x,)), (maps, pooling.p))


def test_gem_of_nothing_at_all_has_a_gradient():
    maps = torch.full((1, 2, 2, 2), -1.0, requires_grad=True)
    pooling = Gem(9.0)
    pooled = pooling(maps)
    torch.testing.assert_close(pooled, torch.full((1, 2), 1e-6))
    pooled.sum().backward()
    assert torch.isfinite(maps.grad).all()
    assert torch.isfinite(pooling.p.grad).all()


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


@pytest.mark.parametrize("pooling", ["gem", "spoc", "mac"])
def test_descriptors_have_length_one(pooling):
    with torch.no_grad():
        found = network(pooling=pooling)(images(3))
    torch.testing.assert_close(found.norm(dim=1), torch.ones(3))
    assert network(pooling=pooling)(images(3)[:0]).shape == (0, 512)


# what is kept


@pytest.mark.parametrize("batch_norms", ["frozen", "trained"])
def test_training_moves_what_is_trained_and_nothing_else(batch_norms):
    model = network("resnet18-layer3", batch_norms=batch_norms)
    before = deepcopy(model.state_dict())
    one_step(model, images(4))
    after = model.state_dict()
    moved = {name for name in after if not torch.equal(after[name], before[name])}
    assert moved == trained_names(model)
    assert model.frozen_names() == set(after) - moved
    assert {name for name in after if name.startswith("frozen.")} <= model.frozen_names()
    normalised = {name for name in moved if ".bn" in name or "downsample.1" in name}
    # Five layers with a scale, a shift, a mean and a variance.
    assert len(normalised) == (0 if batch_norms == "frozen" else 20)
    assert "pooling.p" in moved


def test_a_plan_that_trains_everything_leaves_alone_what_is_frozen():
    """As a node trains: batches of kept maps, a query, its positive and negatives in a row."""
    model, maps = network("resnet18-layer3"), frozen_maps(network("resnet18-layer3"), images(4))
    before = deepcopy(model.state_dict())

    def loss(model, batch):
        found = model.trained_part(batch["maps"].flatten(0, 1)).view(*batch["maps"].shape[:2], -1)
        return triplet_loss(triplet_terms(found[:, 0], found[:, 1], found[:, 2:], margin=2.0))

    phase = Phase(epochs=1, learning_rate=1e-3, batch_size=1, weight_decay=0.1)
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


def test_a_state_goes_out_and_in_by_name():
    model, other = network("resnet18-layer3", seed=1), network("resnet18-layer3", seed=2)
    other.load_state_dict(dict(model.state_dict()))
    assert torch.equal(model(images(1)), other(images(1)))


# kept maps


@pytest.mark.parametrize("backbone", ["resnet18-layer3", "squeezenet1_1"])
def test_kept_maps_give_the_descriptors_of_the_whole_network(backbone):
    model, shown = network(backbone), images(7)
    maps = frozen_maps(model, shown, chunk=3)
    assert maps.dtype == torch.float32
    whole = describe(model, shown, chunk=3)
    assert torch.equal(describe_maps(model, maps, chunk=3), whole)
    torch.testing.assert_close(describe(model, shown, chunk=7), whole, atol=1e-6, rtol=1e-5)
    assert model.training


def test_kept_maps_give_the_gradients_of_the_whole_network():
    shown = images(7)
    gradients = []
    for part in ("whole", "kept"):
        model = network("resnet18-layer3")
        maps = frozen_maps(model, shown)
        found = model(shown) if part == "whole" else model.trained_part(maps)
        triplet_loss(triplet_terms(found[:1], found[1:2], found[None, 2:], margin=2.0)).backward()
        gradients.append([p.grad for p in model.parameters() if p.requires_grad])
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


def test_maps_kept_in_a_file(tmp_path):
    model, shown = network(), images(5)
    shape = (5, *map_shape(model, 32, 64))
    kept = torch.from_file(str(tmp_path / "maps"), shared=True, size=int(np.prod(shape))).view(shape)
    assert frozen_maps(model, shown, out=kept) is kept
    assert torch.equal(kept, frozen_maps(model, shown))
    assert (tmp_path / "maps").stat().st_size == 5 * map_bytes(model, 32, 64)


def test_no_images():
    model = network()
    maps = frozen_maps(model, images(0))
    assert maps.shape == (0, 256, 1, 3)
    assert describe_maps(model, maps).shape == describe(model, images(0)).shape == (0, 512)


# triplets


def test_the_loss_by_hand():
    """|q - p| = 3; |q - n| = 5, 3.05 and 1: terms 0, 0.05 and 2.1."""
    queries, positives = torch.zeros(1, 2), torch.tensor([[0.0, 3.0]])
    negatives = torch.tensor([[[3.0, 4.0], [3.05, 0.0], [-1.0, 0.0]]])
    terms = triplet_terms(queries, positives, negatives, margin=0.1)
    torch.testing.assert_close(terms, torch.tensor([[0.0, 0.05, 2.1]]))
    torch.testing.assert_close(triplet_loss(terms), torch.tensor(2.15 / 3))
    torch.testing.assert_close(triplet_loss(terms, torch.tensor([[True, False, True]])), torch.tensor(1.05))


def test_masked_negatives_and_queries_without_any():
    terms = torch.tensor([[1.0, 3.0], [5.0, torch.inf], [7.0, 9.0]], requires_grad=True)
    mask = torch.tensor([[True, True], [True, False], [False, False]])
    loss = triplet_loss(terms, mask)
    torch.testing.assert_close(loss, torch.tensor((2.0 + 5.0) / 2))
    loss.backward()
    torch.testing.assert_close(terms.grad, torch.tensor([[0.25, 0.25], [0.5, 0.0], [0.0, 0.0]]))
    assert triplet_loss(terms, torch.zeros(3, 2, dtype=torch.bool)) == 0
    assert triplet_loss(terms[:0]) == 0


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 4), st.integers(1, 5), st.integers(1, 6), st.floats(0.01, 1), st.integers(0, 99))
def test_the_loss_is_that_of_torch(count, negatives, width, margin, seed):
    """``TripletMarginLoss``, one negative at a time; it adds 1e-6 to every difference."""
    drawn = torch.Generator().manual_seed(seed)
    q, p = torch.randn(2, count, width, generator=drawn)
    n = torch.randn(count, negatives, width, generator=drawn)
    terms = triplet_terms(q, p, n, margin=margin)
    assert terms.shape == (count, negatives)
    for k in range(negatives):
        expected = torch.nn.functional.triplet_margin_loss(q, p, n[:, k], margin=margin, reduction="none")
        torch.testing.assert_close(terms[:, k], expected, atol=1e-4, rtol=1e-4)
    if count:
        torch.testing.assert_close(triplet_loss(terms), terms.mean())


def test_a_gradient_at_no_distance():
    same = torch.ones(2, 3, requires_grad=True)
    triplet_loss(triplet_terms(same, same.clone(), same[:, None].expand(-1, 4, -1))).backward()
    assert torch.equal(same.grad, torch.zeros(2, 3))


def test_gradients_of_the_loss():
    q, p = torch.randn(2, 3, 4, dtype=torch.double).requires_grad_()
    n = torch.randn(3, 5, 4, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda *of: triplet_loss(triplet_terms(*of, margin=0.7)), (q.detach().requires_grad_(), p.detach(), n)
    )


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
