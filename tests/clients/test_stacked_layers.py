"""Linear layers of several nodes as one product of stacked matrices, against those that vmap computes."""

import pytest
import torch
from fedapps.clients.stacked_layers import StackedLayers
from torch.func import vmap
from torch.nn.functional import linear

NODES = 3


def drawn(*shape):
    return torch.randn(NODES, *shape, generator=torch.Generator().manual_seed(len(shape))).requires_grad_()


@pytest.mark.parametrize("shape", [(4,), (5, 4), (5, 2, 4), (0, 4)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_outputs_and_gradients_are_those_of_vmap_and_gradients_lie_as_the_weights_do(shape, with_bias):
    tensors = [drawn(*shape), drawn(6, 4), *([drawn(6)] if with_bias else [])]
    expected = vmap(linear)(*tensors)
    with StackedLayers():
        outputs = vmap(linear)(*tensors)
    torch.testing.assert_close(outputs, expected)
    gradients, of_vmap = (torch.autograd.grad((one**2).sum(), tensors) for one in (outputs, expected))
    for one, other in zip(gradients, of_vmap, strict=True):
        torch.testing.assert_close(one, other)
    assert gradients[1].is_contiguous()


def test_nodes_can_share_inputs_and_have_their_weights_in_any_dimension():
    inputs, weight = torch.eye(4), drawn(6, 4)
    with StackedLayers():
        outputs = vmap(linear, in_dims=(None, 1))(inputs, weight.movedim(0, 1))
    torch.testing.assert_close(outputs, weight.mT)


def test_outside_of_vmap_and_under_other_transforms_it_is_refused():
    with StackedLayers(), pytest.raises(NotImplementedError, match="under vmap alone"):
        linear(torch.ones(2, 4), torch.ones(6, 4))
