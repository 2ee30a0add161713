"""Division of networks at named layers."""

import pytest
import torch
from fedapps.tasks.vpr.backbones import Gem, Mac, Spoc, divide
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn


class Block(nn.Module):
    """Two layers with a shortcut."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.act = nn.Conv2d(2, 2, 1), nn.Conv2d(2, 2, 1), nn.ReLU()

    def forward(self, x):
        return self.act(x + self.two(self.act(self.one(x))))


class Network(nn.Module):
    """Layers, and a computation between them that is no layer."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 2, 3)
        self.body = nn.Sequential(Block(), Block())
        self.join = Join()
        self.top = nn.Conv2d(2, 4, 1)
        self.unused = nn.Linear(2, 2)

    def forward(self, x):
        x = self.body(self.stem(x).sin())
        return self.top(self.join(x, 2 * x)).mean(dim=(-2, -1))


class Join(nn.Module):
    def forward(self, one, other):
        return one + other


@pytest.fixture
def network():
    torch.manual_seed(0)
    return Network().eval()


@pytest.mark.parametrize(
    ("last", "first", "frozen", "trained"),
    [
        ("body", "body", {"stem"}, {"body"}),
        ("top", "body.1", {"stem", "body.0"}, {"body.1", "top"}),
        ("top", None, set(), {"stem", "body", "top"}),
        ("top", "stem", set(), {"stem", "body", "top"}),
        ("body.0.one", "body.0", {"stem"}, {"body.0.one"}),
    ],
)
def test_the_second_part_continues_where_the_first_ends(network, last, first, frozen, trained):
    parts = divide(network, last, first).of(network)
    expected = {}
    network.get_submodule(last).register_forward_hook(lambda module, given, result: expected.update(maps=result))
    images = torch.rand(2, 3, 5, 6)
    network(images)
    assert torch.equal(parts[1](parts[0](images)), expected["maps"])
    for part, layers in zip(parts, (frozen, trained), strict=True):
        names = {name for name in network.state_dict() if name.startswith(tuple(f"{layer}." for layer in layers))}
        assert set(part.state_dict()) == names


@pytest.mark.parametrize(
    ("last", "first", "said"),
    [
        ("tip", None, "there is no layer 'tip'; the network has stem, body, join, top, unused"),
        ("body.7", None, "there is no layer 'body.7'; body has body.0, body.1"),
        ("stem.a.b", None, "there is no layer 'stem.a.b'$"),
        ("stem", "top", "the layer 'top' comes after the layer 'stem'; exchange them"),
        ("stem", "body", "the layer 'body' comes after the layer 'stem'; exchange them"),
        ("top", "body.0.two", "data pass beside the layer 'body.0.two', as in a block with a shortcut"),
        ("top", "body.0.act", "the network calls the layer 'body.0.act' 2 times; name one that it calls once"),
        ("unused", None, "the network calls the layer 'unused' 0 times"),
        ("top", "join", "the layer 'join' does not take exactly one tensor; name the block"),
    ],
)
def test_layers_that_do_not_divide_a_network(network, last, first, said):
    with pytest.raises(ValueError, match=said):
        divide(network, last, first)


def test_a_network_that_looks_at_its_images():
    class Looking(Network):
        def forward(self, x):
            return super().forward(x if x.sum() > 0 else -x)

    with pytest.raises(ValueError, match="its computation depends on the values of the images"):
        divide(Looking(), "top", None)


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
