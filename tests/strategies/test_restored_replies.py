"""Replies that the server restores from a compressed change: the bits of the sum, in every block and layout."""

import numpy as np
import pytest
from fedapps.strategies.aggregation import GROUP, StreamingMean
from fedapps.strategies.arrays import BLOCK
from fedapps.strategies.compression import BFloat16, Int8, TopK
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import same_bits

COMPRESSIONS = {"bf16": BFloat16(), "int8": Int8(), "top-k": TopK(0.3)}
SIZES = st.sampled_from([0, 1, 5, BLOCK, 2 * BLOCK + 17])
DTYPES = st.sampled_from(["float16", "float32", "float64"])


def sent_values(size, dtype, seed, columns_first=False):
    """Random numbers, of which some are 0 and some −0."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=size).astype(dtype)
    values[rng.random(size) < 0.2] = 0
    values[rng.random(size) < 0.1] = -0.0
    return np.asfortranarray(values[1:].reshape(-1, 16)) if columns_first and size == 2 * BLOCK + 17 else values


def records_of(values, compression, seed):
    """What a node sends whose change is random, 0 in some positions."""
    rng = np.random.default_rng(seed)
    return compression.encode({"w": rng.normal(size=values.shape) * (rng.random(values.shape) < 0.7)})


def whole_sum(values, records):
    """A formula on whole arrays: the sum with the bits of what was sent where the change is 0."""
    dtype = np.result_type(values.dtype, np.float32)
    compressed = records["compressed.values"]["w"].ravel()
    change = np.zeros(values.size, dtype)
    if "compressed.places" in records:
        change[records["compressed.places"]["w"]] = compressed
    elif compressed.dtype == np.uint16:
        change[:] = (compressed.astype(np.uint32) << 16).view(np.float32)
    else:
        change[:] = compressed.astype(dtype) * float(records["compressed.steps"]["w"])
    change = change.reshape(values.shape)
    return np.where(change == 0, values, values + change).astype(values.dtype)


@pytest.mark.parametrize("name", COMPRESSIONS)
@settings(max_examples=15)
@given(SIZES, DTYPES, st.integers(0, 99), st.booleans())
def test_what_is_restored_is_the_sum_bit_for_bit(name, size, dtype, seed, columns_first):
    values = sent_values(size, dtype, seed, columns_first)
    records = records_of(values, COMPRESSIONS[name], seed)
    restored = COMPRESSIONS[name].restore(records, {"w": values})
    assert same_bits(restored, {"w": whole_sum(values, records)})
    change, middle = COMPRESSIONS[name].read(records, {"w": values})["w"], size // 2
    whole, half = (change(slice(begin, size), np.dtype(np.float64)) for begin in (0, middle))
    assert half.tobytes() == whole[middle:].tobytes()
    assert restored["w"].flags.f_contiguous == values.flags.f_contiguous


@pytest.mark.parametrize("name", COMPRESSIONS)
@settings(max_examples=15)
@given(SIZES.filter(bool), DTYPES, st.integers(0, 99), st.sampled_from([1, 2, GROUP + 2]), st.booleans())
def test_the_mean_of_equal_replies_is_each_of_them_bit_for_bit(name, size, dtype, seed, replies, columns_first):
    values = sent_values(size, dtype, seed, columns_first)
    restored = COMPRESSIONS[name].restore(records_of(values, COMPRESSIONS[name], seed), {"w": values})
    mean = StreamingMean()
    for number in range(replies):
        mean.add(restored, number + 1.0)
    assert same_bits(mean.result(), restored)
    assert mean.result()["w"].flags.f_contiguous == values.flags.f_contiguous


@pytest.mark.parametrize("name", ["bf16", "int8"])
def test_a_change_that_is_not_finite_is_restored_for_the_check_of_values(name):
    sent = {"w": np.full(2, 3e38, np.float32)}
    records = COMPRESSIONS[name].encode({"w": np.full(2, 3e38)})
    assert not np.isfinite(COMPRESSIONS[name].restore(records, sent)["w"]).any()
