import numpy as np
import pytest
from fedapps.strategies.aggregation import GROUP, StreamingMean, fold
from fedapps.strategies.algorithms.apfl import StreamingDeviation
from fedapps.strategies.arrays import in_blocks
from fedapps.strategies.checks import check_values
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

WEIGHTS = st.floats(1e-3, 1e6)
DTYPES = st.sampled_from([np.float16, np.float32, np.float64])


def mean_of(replies, weights, **options):
    mean = StreamingMean(**options)
    for reply, weight in zip(replies, weights, strict=True):
        mean.add(reply, weight)
    return mean.result()


def floats(dtype, shape=None):
    width = np.dtype(dtype).itemsize * 8
    return hnp.arrays(
        dtype,
        hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3) if shape is None else shape,
        elements=st.floats(-100, 100, width=width, allow_subnormal=False),
    )


def test_weighted_mean_by_hand():
    replies = [{"w": np.array([1.0, -2.0], np.float32)}, {"w": np.array([5.0, 6.0], np.float32)}]
    result = mean_of(replies, [1, 3])["w"]  # (1 + 15)/4, (-2 + 18)/4
    np.testing.assert_array_equal(result, np.array([4.0, 4.0], np.float32))
    assert result.dtype == np.float32


@pytest.mark.parametrize("integers", ["newest", "round"])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_equal_replies_come_back_bit_for_bit(integers, data):
    dtype = data.draw(st.sampled_from(["float16", "float32", "float64", "int8", "int64", "uint64", "bool"]))
    shape = hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3)
    reply = {"w": data.draw(hnp.arrays(dtype, shape))}
    if reply["w"].dtype.kind == "f":
        reply["w"][~np.isfinite(reply["w"])] = -0.0
    weights = data.draw(st.lists(WEIGHTS, min_size=1, max_size=5))
    result = mean_of([reply] * len(weights), weights, integers=integers)["w"]
    assert (result.dtype, result.shape) == (reply["w"].dtype, reply["w"].shape)
    assert result.tobytes() == reply["w"].tobytes()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_mean_is_that_of_numpy(data):
    dtype = data.draw(DTYPES)
    values = data.draw(st.lists(floats(dtype, (3,)), min_size=1, max_size=6))
    weights = data.draw(st.lists(WEIGHTS, min_size=len(values), max_size=len(values)))
    result = mean_of([{"w": value} for value in values], weights)["w"]
    oracle = np.average(np.array(values, np.float64), axis=0, weights=weights)
    error = 1e-9 if dtype is np.float64 else (GROUP + 6) * 2.0**-24 * np.abs(values).max(axis=0)
    rounding = np.finfo(dtype).eps * np.abs(oracle) + np.finfo(dtype).tiny
    assert np.all(np.abs(result - oracle) <= error + rounding)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), count=st.integers(GROUP, 4 * GROUP), spread=st.floats(0, 8))
def test_the_error_of_many_replies_is_bounded_and_asking_early_changes_no_bit(seed, count, spread):
    rng = np.random.default_rng(seed)
    replies = [{"w": rng.normal(1, 1, 20).astype(np.float32)} for _ in range(count)]
    weights = 10 ** rng.uniform(-spread, spread, count)
    mean = StreamingMean()
    for reply, weight in zip(replies, weights, strict=True):
        mean.add(reply, weight)
        mean.result()
    values = np.array([reply["w"] for reply in replies], np.float64)
    bound = (GROUP + 7) * 2.0**-24 * np.abs(values).max(axis=0)  # and the rounding of the result
    assert np.all(np.abs(mean.result()["w"] - np.average(values, axis=0, weights=weights)) <= bound)
    assert mean.result()["w"].tobytes() == mean_of(replies, weights)["w"].tobytes()


def test_groups_are_exact_where_float32_is():
    values = [float(k << 16) for k in range(2 * GROUP)]
    weights = [1.0, *(2.0**k for k in range(GROUP - 1))] * 2  # every share is a half
    result = mean_of([{"w": np.array([value], np.float32)} for value in values], weights)["w"]
    assert result.tolist() == [np.average(values, weights=weights)]


def test_steps_of_less_than_half_a_unit_of_float32_add_up_over_groups():
    """After 100 groups of 1, each of 100 others moves the mean by 0.25 to 0.5 units in the last place."""
    values = [1.0] * (100 * GROUP) + [1 + 50 * 2.0**-23] * (100 * GROUP)
    result = mean_of([{"w": np.array([value], np.float32)} for value in values], [1.0] * len(values))["w"]
    assert result.tolist() == [1 + 25 * 2.0**-23]


def test_replies_are_neither_kept_nor_changed():
    reply = {"w": np.array([1.0, 2.0]), "n": np.array(3)}
    mean = StreamingMean()
    mean.add(reply, 2)
    reply["w"][:], reply["n"][...] = 99, 99
    result = mean.result()
    assert result["w"].tolist() == [1.0, 2.0]
    assert result["n"] == 3
    result["w"][:], result["n"][...] = 50, 50
    assert mean.result()["w"].tolist() == [1.0, 2.0]
    assert mean.result()["n"] == 3
    assert (mean.count, mean.total_weight) == (1, 2.0)


def test_integers_and_booleans_are_those_of_the_newest_reply():
    replies = [
        {"steps": np.array(10), "mask": np.array([True, False])},
        {"steps": np.array(3), "mask": np.array([False, False])},
    ]
    result = mean_of(replies, [100, 1])
    assert (result["steps"], result["steps"].dtype) == (3, np.int64)
    assert result["mask"].tolist() == [False, False]
    assert result["mask"].dtype == np.bool_


def test_integers_are_rounded_to_nearest_and_halves_to_even():
    values = [[1, 0, 1, -4, 250], [2, 1, 2, -1, 255], [2, 2, 4, -1, 255]]
    result = mean_of([{"n": np.array(value, np.int16)} for value in values], [1, 1, 1], integers="round")["n"]
    # means 5/3, 1, 7/3, -2, 253.33
    assert result.tolist() == [2, 1, 2, -2, 253]
    assert result.dtype == np.int16
    halves = [{"n": np.array([0, 1, -1, 3], np.int8)}, {"n": np.array([1, 2, 0, 4], np.int8)}]
    assert mean_of(halves, [7, 7], integers="round")["n"].tolist() == [0, 2, 0, 4]
    assert mean_of(halves[::-1], [7, 7], integers="round")["n"].tolist() == [0, 2, 0, 4]


def test_booleans_follow_the_weighted_majority():
    replies = [{"m": np.array([True, True])}, {"m": np.array([False, True])}, {"m": np.array([False, False])}]
    assert mean_of(replies, [3, 1, 1], integers="round")["m"].tolist() == [True, True]
    assert mean_of(replies[:2], [1, 1], integers="round")["m"].tolist() == [False, True]


def test_integers_beyond_float64_are_averaged_exactly():
    replies = [{"n": np.array(2**60 + 1)}, {"n": np.array(2**60 + 3)}]
    assert mean_of(replies, [1, 1], integers="round")["n"] == 2**60 + 2


@pytest.mark.parametrize("weight", [0, -1, float("nan"), float("inf")])
def test_weights_must_be_positive(weight):
    with pytest.raises(ValueError, match="weight"):
        StreamingMean().add({"w": np.zeros(1)}, weight)


def test_misuse_is_named():
    with pytest.raises(ValueError, match="no replies"):
        StreamingMean().result()
    with pytest.raises(ValueError, match="no replies"):
        StreamingDeviation().result()
    with pytest.raises(ValueError, match="must be one of 'newest', 'round'"):
        StreamingMean("mean")
    with pytest.raises(TypeError, match="complex"):
        StreamingMean().add({"w": np.zeros(1, complex)}, 1)
    mean = StreamingMean()
    mean.add({"w": np.zeros(2)}, 1)
    with pytest.raises(ValueError, match="'w' must be"):
        mean.add({"w": np.zeros(1)}, 1)
    assert mean.count == 1


def test_deviation_by_hand():
    deviation = StreamingDeviation()
    for value in ([1.0, 4.0], [2.0, 4.0], [6.0, 4.0]):  # mean 3: 4 + 1 + 9 = 14
        deviation.add({"w": np.array(value, np.float16)})
    result = deviation.result()
    assert result["w"].tolist() == [14.0, 0.0]
    assert result["w"].dtype == np.float64


@settings(max_examples=60, deadline=None)
@given(st.lists(floats(np.float32, (2, 2)), min_size=1, max_size=6), st.floats(-1e6, 1e6))
def test_deviation_is_that_of_numpy_and_ignores_offsets(values, offset):
    stacked = np.array(values, np.float64)
    deviation, shifted = StreamingDeviation(), StreamingDeviation()
    for value in values:
        deviation.add({"w": value})
        shifted.add({"w": value.astype(np.float64) + offset})
    oracle = ((stacked - stacked.mean(axis=0)) ** 2).sum(axis=0)
    np.testing.assert_allclose(deviation.result()["w"], oracle, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(shifted.result()["w"], oracle, rtol=1e-6, atol=1e-6)
    assert np.all(deviation.result()["w"] >= 0)


@settings(max_examples=30, deadline=None)
@given(floats(np.float64), st.integers(1, 6))
def test_equal_replies_do_not_deviate(value, count):
    deviation = StreamingDeviation()
    for _ in range(count):
        deviation.add({"w": value})
    assert not deviation.result()["w"].any()
    assert deviation.result()["w"].shape == value.shape


# Work in blocks gives the bits of the expression over whole arrays.


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
