"""Arrays that are restored block by block: the same bits as whole arrays, in means and where they are read."""

import numpy as np
import pytest
from fedapps.strategies.aggregation.mean import GROUP, StreamingMean
from fedapps.strategies.arrays import Buffers
from fedapps.strategies.blocks import BLOCK
from fedapps.strategies.changed import Changed, ChangedArrays, DenseChange, Origin, SparseChange, origins_of
from fedapps.strategies.checks import check_values
from fedapps.strategies.compression import BFloat16, Int8, TopK
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import same_bits

COMPRESSIONS = {"bf16": BFloat16(), "int8": Int8(), "top-k": TopK(0.3)}
SIZES = st.sampled_from([0, 1, 5, BLOCK, 2 * BLOCK + 17])
DTYPES = st.sampled_from(["float16", "float32", "float64"])


def origin(size, dtype, seed, columns_first=False):
    """Random numbers, of which some are 0 and some −0."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=size).astype(dtype)
    values[rng.random(size) < 0.2] = 0
    values[rng.random(size) < 0.1] = -0.0
    return np.asfortranarray(values[1:].reshape(-1, 16)) if columns_first and size == 2 * BLOCK + 17 else values


def changed(values, compression, seed, sent=None):
    """The array of a node whose change is random, 0 in some places."""
    rng = np.random.default_rng(seed)
    update = {"w": rng.normal(size=values.shape) * (rng.random(values.shape) < 0.7)}
    return Changed(sent or Origin(values), compression.changes(compression.encode(update), {"w": values})["w"])


def whole(found):
    """A formula on whole arrays: the sum with the bits of the origin where the change is 0."""
    before, change = found.origin.array, found.change
    values = np.zeros(before.size, np.float32)
    if isinstance(change, SparseChange):
        values[change.places] = change.values
    elif change.values.dtype == np.uint16:
        values = (change.values.astype(np.uint32) << 16).view(np.float32)
    else:
        values = change.values.astype(np.result_type(before.dtype, np.float32)) * change.step
    values = values.reshape(before.shape)
    return np.where(values == 0, before, before + values).astype(before.dtype)


@pytest.mark.parametrize("name", COMPRESSIONS)
@settings(max_examples=15)
@given(SIZES, DTYPES, st.integers(0, 99), st.booleans())
def test_what_is_restored_is_the_sum_bit_for_bit(name, size, dtype, seed, columns_first):
    values = origin(size, dtype, seed, columns_first)
    found = changed(values, COMPRESSIONS[name], seed)
    restored = found.restored()
    assert same_bits({"w": restored}, {"w": whole(found)})
    assert restored.flags.f_contiguous == values.flags.f_contiguous
    assert same_bits({"w": ChangedArrays({"w": found})["w"]}, {"w": restored})


@pytest.mark.parametrize("name", COMPRESSIONS)
@settings(max_examples=15)
@given(SIZES.filter(bool), DTYPES, st.integers(0, 99), st.sampled_from([1, 2, GROUP + 2]), st.booleans())
def test_the_mean_of_equal_changes_is_each_of_them_bit_for_bit(name, size, dtype, seed, replies, columns_first):
    found = changed(origin(size, dtype, seed, columns_first), COMPRESSIONS[name], seed)
    mean = StreamingMean()
    for number in range(replies):
        mean.add(ChangedArrays({"w": found}), number + 1.0)
    result = mean.result()
    assert same_bits(result, {"w": found.restored()})
    assert result["w"].flags.f_contiguous == found.origin.array.flags.f_contiguous


@pytest.mark.parametrize("name", COMPRESSIONS)
@settings(max_examples=15)
@given(SIZES.filter(bool), st.integers(0, 99), st.integers(2, 2 * GROUP), st.sets(st.integers(0, 2 * GROUP)))
def test_a_mean_of_changes_and_arrays_is_that_in_float64(name, size, seed, replies, whole_ones):
    """The error is that of the docstring: of the changes alone, unless a node sends the whole array."""
    values = origin(size, "float32", seed)
    sent = Origin(values)
    mean, exact, largest, total = StreamingMean(), np.zeros(size), 0.0, 0.0
    for number in range(replies):
        found, weight = changed(values, COMPRESSIONS[name], [seed, number], sent), number + 1.0
        restored = found.restored()
        mean.add({"w": restored} if number in whole_ones else ChangedArrays({"w": found}), weight)
        largest = max(largest, np.abs(restored).max(), np.abs(restored - values).max())
        exact, total = exact + weight * restored.astype(np.float64), total + weight
    error = np.abs(mean.result()["w"] - exact / total)
    assert error.max() <= 2.0**-24 * (GROUP + 8) * largest


def test_changes_are_averaged_more_exactly_than_arrays():
    """Changes of 1 and 2 ulp / 2 of an origin: in float32, the sum of each would be rounded."""
    sent = {"w": np.full(3, 2.0**24, np.float32)}
    origins, mean = origins_of(sent, Buffers()), StreamingMean()
    for change in (1.0, 2.0, 3.0):
        update = {"w": np.full(3, change)}
        mean.add(ChangedArrays({"w": Changed(origins["w"], TopK(1.0).changes(TopK(1.0).encode(update), sent)["w"])}), 1)
    assert mean.result()["w"].tolist() == [2**24 + 2] * 3


def test_a_mean_of_blocks_keeps_no_array_restored():
    arrays = ChangedArrays({"w": changed(origin(BLOCK + 1, "float32", 0), Int8(), 0)})
    mean = StreamingMean()
    mean.add(arrays, 1.0)
    mean.add(arrays, 2.0)
    assert isinstance(arrays.parts["w"], Changed)
    assert arrays["w"] is arrays["w"], "what is read is kept"


BITS = st.lists(st.integers(0, 2**16 - 1), max_size=4).map(lambda bits: DenseChange(np.array(bits, np.uint16)))
FLOATS = st.floats(width=32, allow_subnormal=False)
SCALED = st.tuples(st.lists(st.integers(-128, 127), max_size=4), FLOATS).map(
    lambda given: DenseChange(np.array(given[0], np.int8), given[1])
)
SPARSE = st.lists(FLOATS, max_size=4).map(
    lambda values: SparseChange(np.array(values, np.float32), np.arange(len(values), dtype=np.uint32))
)


@given(BITS | SCALED | SPARSE, st.sampled_from([0.0, 1.0, 2.0**47, 2.0**48, 3e38, np.inf, np.nan]))
def test_what_is_sound_passes_the_check_of_values(change, start):
    sent = np.full(change.values.shape, start, np.float32)
    found = Changed(Origin(sent), change)
    with np.errstate(over="ignore", invalid="ignore"):
        fault = check_values({"w": sent}, {"w": found.restored()})
    assert not (found.sound and fault)


def test_a_bound_is_that_of_the_change():
    assert DenseChange(np.array([0x3F80, 0xC000], np.uint16)).bound == 2  # 1 and -2
    assert DenseChange(np.array([0x4000, 0xBF80], np.uint16)).bound == 2
    assert DenseChange(np.array([], np.uint16)).bound == 0
    assert DenseChange(np.array([3], np.int8), -0.5).bound == 64
    assert SparseChange(np.array([1, -3], np.float32), np.array([0, 7], np.uint32)).bound == 3
    assert not DenseChange(np.array([0x7F80], np.uint16)).bound < np.inf
    assert np.isnan(DenseChange(np.array([0x7FC0], np.uint16)).bound)
