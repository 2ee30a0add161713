"""The copy of a model, which models are copied, and kept arrays in a model that has grown."""

import numpy as np
import pytest
import torch
from fedapps.clients.arrays import can_be_copied, copied, load_rows
from torch import nn


def _model() -> nn.Module:
    first, last = nn.Linear(3, 3), nn.Linear(3, 2)
    first.bias.requires_grad_(False)
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding="same"), nn.BatchNorm2d(2), first, first, last)
    model.register_buffer("scale", torch.ones(2), persistent=False)
    return model


def test_a_copy_has_the_values_and_the_structure_of_the_model() -> None:
    model = _model().eval()
    copy = copied(model)
    assert [name for name, _ in copy.named_modules()] == [name for name, _ in model.named_modules()]
    for own, other in zip(model.named_parameters(), copy.named_parameters(), strict=True):
        assert own[0] == other[0]
        assert torch.equal(own[1], other[1])
        assert own[1].requires_grad is other[1].requires_grad
        assert own[1].data_ptr() != other[1].data_ptr()
    assert copy.state_dict().keys() == model.state_dict().keys()
    assert copy.get_submodule("2") is copy.get_submodule("3")
    assert not copy.training


def test_what_is_done_to_a_copy_does_not_change_the_model() -> None:
    model = _model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    copy = copied(model)
    copy.get_submodule("0").register_forward_hook(lambda *_: None)
    copy.register_buffer("other", torch.zeros(1))
    copy.append(nn.ReLU())  # type: ignore[operator]
    copy.eval()
    vars(copy.get_submodule("0"))["_reversed_padding_repeated_twice"].append(7)
    with torch.no_grad():
        for parameter in copy.parameters():
            parameter.requires_grad_(False).zero_()
        for buffer in copy.buffers():
            buffer.add_(1)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert before.keys() == model.state_dict().keys()
    assert len(model._modules) == 5
    assert model.training
    assert next(model.parameters()).requires_grad
    assert not model.get_submodule("0")._forward_hooks
    assert vars(model.get_submodule("0"))["_reversed_padding_repeated_twice"] == [1, 1, 1, 1]
    assert torch.equal(model.get_buffer("scale"), torch.ones(2))


def test_models_that_hold_more_than_tensors_and_plain_values_are_not_copied() -> None:
    assert can_be_copied(_model())
    assert not can_be_copied(nn.LSTM(2, 2)), "its list of weights would be that of the model"
    hooked, holder, shared = _model(), _model(), _model()
    hooked.register_forward_hook(lambda *_: None)
    holder.cache = {}  # type: ignore[assignment]
    shared.view = nn.Parameter(shared.get_parameter("4.weight").detach()[0])
    assert not any(map(can_be_copied, (hooked, holder, shared)))


def test_kept_rows_are_the_first_of_a_model_that_has_more() -> None:
    model = nn.Embedding(3, 2)
    before = model.weight.detach().numpy().copy()
    load_rows(model, {"weight": np.ones((2, 2), np.float32)})
    assert np.array_equal(model.weight.detach().numpy(), np.concatenate([np.ones((2, 2)), before[2:]]))


@pytest.mark.parametrize(
    ("name", "shape"), [("weight", (4, 2)), ("weight", (2, 3)), ("weight", (2,)), ("weight", ()), ("bias", ())]
)
def test_kept_arrays_of_another_shape_are_refused(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=rf"(?s)does not fit the model.*{name}: kept with shape"):
        load_rows(nn.Linear(2, 3), {name: np.ones(shape, np.float32)})
