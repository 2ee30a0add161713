"""Zero padding of batches."""

import pytest
import torch
from fedapps.tasks.base import Evaluation, NodeData, evaluated, zero_padded
from toys import ToyTask


def test_tensors_are_padded_at_their_ends():
    narrow, wide = {"x": torch.ones(1, 1, 2)}, {"x": torch.full((1, 2, 1), 2.0)}
    first, second = zero_padded([narrow, wide])
    assert first["x"].tolist() == [[[1, 1], [0, 0]]]
    assert second["x"].tolist() == [[[2, 0], [2, 0]]]


def test_batches_of_equal_shapes_stay_as_they_are():
    batches = [{"x": torch.rand(2, 3), "y": torch.rand(2)} for _ in range(2)]
    for one, other in zip(zero_padded(batches), batches, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in other)


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, "evaluate of the task 'toy' returned NoneType: it must return an Evaluation"),
        (Evaluation({"test.x": torch.tensor(1.0)}), "gives test.x as Tensor: a metric must be a float"),
    ],
)
def test_an_evaluation_of_the_wrong_type_is_an_error_with_its_name(monkeypatch, returned, said):
    monkeypatch.setattr(ToyTask, "evaluate", lambda *_, **__: returned)
    with pytest.raises(TypeError, match=said):
        evaluated(ToyTask(), torch.nn.Linear(1, 1), NodeData("a", {}), run_seed=0, final=True)
