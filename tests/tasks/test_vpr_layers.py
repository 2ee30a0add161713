"""Division of networks at named layers."""

import pytest
import torch
from fedapps.tasks.vpr.layers import divide
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
