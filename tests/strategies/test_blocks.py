"""Work in blocks gives the bits of the expression over whole arrays."""

import numpy as np
import pytest
from fedapps.strategies.aggregation import StreamingMean, fold
from fedapps.strategies.algorithms.apfl import StreamingDeviation
from fedapps.strategies.algorithms.fedweit import MaskedMean
from fedapps.strategies.arrays import in_blocks
from fedapps.strategies.checks import check_values
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6)
FLOATS = st.sampled_from([np.float16, np.float32, np.float64])
#: Ways to lay out the same values in memory.
LAYOUTS = {
    "C": np.ascontiguousarray,
    "Fortran": np.asfortranarray,
    "strided": lambda array: np.repeat(array, 2, axis=0)[::2],
    "swapped axes": lambda array: np.ascontiguousarray(np.swapaxes(array, 0, 1)).swapaxes(0, 1),
    "reversed": lambda array: np.ascontiguousarray(array[::-1])[::-1],
}


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 8 elements, so that small arrays are cut."""
    monkeypatch.setattr("fedapps.strategies.arrays.BLOCK", 8)


def whole_fold(mean, value, share):
    """The fold as one expression."""
    mean -= share * (mean - value.astype(mean.dtype))


def drawn(shape, dtype, seed):
    """Values with many zeros of both signs."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=shape).astype(dtype)
    return np.where(rng.random(shape) < 0.5, np.copysign(dtype(0), values), values)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("layout_of_mean", ["C", "Fortran", "swapped axes"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.longdouble])
@pytest.mark.parametrize("dtype_of_mean", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(5, 7, 3), (64, 2), (1, 9), (9, 1), (0, 4)])
def test_a_fold_has_the_bits_of_the_expression(shape, dtype, layout, layout_of_mean, dtype_of_mean):
    mean = np.array(LAYOUTS[layout_of_mean](drawn(shape, dtype_of_mean, 1)))
    value = LAYOUTS[layout](drawn(shape, dtype, 2))
    expected, before = mean.copy(order="K"), value.copy()
    whole_fold(expected, value, 0.3)
    fold(mean, value, 0.3)
    assert mean.tobytes() == expected.tobytes()
    assert value.tobytes() == before.tobytes()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_mean_has_the_bits_of_the_expression(data):
    dtype = data.draw(FLOATS)
    shape = data.draw(SHAPES)
    replies = [drawn(shape, dtype, seed) for seed in range(data.draw(st.integers(1, 4)))]
    mean, total, expected = StreamingMean(), 0.0, None
    for weight, reply in enumerate(replies, start=1):
        mean.add({"w": reply}, weight)
        total += weight
        expected = np.array(reply, np.float64 if dtype is np.float64 else np.float32) if expected is None else expected
        whole_fold(expected, reply, weight / total)
    result = mean.result()["w"]
    assert (result.dtype, result.shape) == (dtype, shape)
    assert result.tobytes() == expected.astype(dtype).tobytes()


@pytest.mark.usefixtures("small_blocks")
def test_a_mean_keeps_the_order_of_the_first_reply():
    first = np.asfortranarray(drawn((7, 9), np.float32, 1))
    mean = StreamingMean()
    mean.add({"w": first}, 1)
    mean.add({"w": np.ascontiguousarray(first)}, 2)
    result = mean.result()["w"]
    assert result.flags.f_contiguous
    assert result.tobytes() == first.tobytes()


@pytest.mark.usefixtures("small_blocks")
def test_a_deviation_has_the_bits_of_the_expression():
    replies = [drawn((13, 5), np.float32, seed) for seed in range(4)]
    deviation, means, squares = StreamingDeviation(), np.zeros((13, 5)), np.zeros((13, 5))
    for count, reply in enumerate(replies, start=1):
        deviation.add({"w": np.asfortranarray(reply)})
        wide = reply.astype(np.float64)
        before = wide - means
        means += before / count
        squares += before * (wide - means)
    assert deviation.result()["w"].tobytes() == squares.tobytes()


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("mask_shape", [(13, 5), (13, 1), (1, 5)])
def test_a_masked_mean_is_that_of_the_replies_that_sent_the_unit(mask_shape):
    rng = np.random.default_rng(0)
    replies = [drawn((13, 5), np.float32, seed) for seed in range(5)]
    masks = [rng.random(mask_shape) < 0.6 for _ in replies]
    mean = MaskedMean()
    for weight, (reply, mask) in enumerate(zip(replies, masks, strict=True), start=1):
        mean.add({"w": reply}, weight, {"w": mask})
    weights = np.arange(1.0, 6.0)[:, None, None] * np.array([np.broadcast_to(mask, (13, 5)) for mask in masks])
    total = weights.sum(axis=0)
    oracle = np.divide((weights * np.array(replies)).sum(axis=0), total, out=np.zeros((13, 5)), where=total > 0)
    np.testing.assert_allclose(mean.result()["w"], oracle, rtol=1e-5, atol=1e-7)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("index", [0, 7, 8, 50, 98])
def test_a_bad_value_in_any_block_is_refused(bad, index):
    array = np.ones(99, np.float32)
    assert check_values({"w": array}, {"w": array}) is None
    array[index] = bad
    assert check_values({"w": array}, {"w": array}) == "values are not finite: w (1 of 99)"


@given(st.integers(0, 200))
def test_blocks_are_views_that_partition_an_array(size):
    values = np.zeros(size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedapps.strategies.arrays.BLOCK", 8)
        sizes = []
        for part, same in in_blocks(values, np.arange(size)):
            sizes.append(part.size)
            part[...] = same
    assert values.tolist() == list(range(size))
    assert (max(sizes) <= 8, len(sizes)) == (True, max(1, -(-size // 8)))
