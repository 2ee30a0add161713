"""Pooling of local features: numbers by hand, the generalised mean, gradients."""

import torch
from fedapps.tasks.vpr.layers import Gem, Mac, Spoc
from hypothesis import given, settings
from hypothesis import strategies as st


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
