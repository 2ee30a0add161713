"""Zero padding of batches."""

import torch
from fedapps.tasks.profiles import zero_padded


def test_tensors_are_padded_at_their_ends():
    narrow, wide = {"x": torch.ones(1, 1, 2)}, {"x": torch.full((1, 2, 1), 2.0)}
    first, second = zero_padded([narrow, wide])
    assert first["x"].tolist() == [[[1, 1], [0, 0]]]
    assert second["x"].tolist() == [[[2, 0], [2, 0]]]


def test_batches_of_equal_shapes_stay_as_they_are():
    batches = [{"x": torch.rand(2, 3), "y": torch.rand(2)} for _ in range(2)]
    for one, other in zip(zero_padded(batches), batches, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in other)
