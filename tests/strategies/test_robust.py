"""Median, trimmed mean, Krum and multi-Krum: numbers by hand, invariants, and known aggregations that they equal."""

from dataclasses import replace

import numpy as np
import pytest
from fedapps.strategies.aggregation import StreamingMean
from fedapps.strategies.records import TooFewRepliesError
from fedapps.strategies.robust import BLOCK, Krum, Median, MultiKrum, TrimmedMean, krum_scores
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from toys import same_bits

ALL = [Median(), TrimmedMean(1), TrimmedMean(0.3), Krum(1), Krum(0.2), MultiKrum(1), MultiKrum(1, 2)]
DTYPES = ["float16", "float32", "float64", "int8", "int64", "uint64", "bool"]


def aggregated(aggregation, replies, integers="newest"):
    aggregate = aggregation.start(integers)
    for reply in replies:
        aggregate.add(reply, 3.0)
    return aggregate.result()


def mean_of(replies, integers="newest"):
    mean = StreamingMean(integers)
    for reply in replies:
        mean.add(reply, 1.0)
    return mean.result()


def column(*values, dtype=np.float32):
    return [{"w": np.array(value, dtype)} for value in values]


def stacks(dtype=np.float64, least=1, width=3):
    """Replies of one array each."""
    elements = st.floats(-100, 100, width=np.dtype(dtype).itemsize * 8, allow_subnormal=False)
    row = hnp.arrays(dtype, width, elements=elements)
    return st.lists(row.map(lambda value: {"w": value}), min_size=least, max_size=9)


# -- numbers -------------------------------------------------------------------------------------------------


def test_median_by_hand():
    replies = column([1, 8], [100, -3], [2, 5])
    assert aggregated(Median(), replies)["w"].tolist() == [2, 5]
    replies += column([4, 6])  # an even number: (2 + 4) / 2, (5 + 6) / 2
    result = aggregated(Median(), replies)["w"]
    assert result.tolist() == [3, 5.5]
    assert result.dtype == np.float32


def test_trimmed_mean_by_hand():
    replies = column([1, 0], [100, 2], [2, -50], [6, 4], [4, 3])
    assert aggregated(TrimmedMean(1), replies)["w"].tolist() == [4, np.float32(5 / 3)]  # (2 + 4 + 6)/3, (0 + 2 + 3)/3
    assert aggregated(TrimmedMean(2), replies)["w"].tolist() == [4, 2]
    assert aggregated(TrimmedMean(0.4), replies)["w"].tolist() == [4, 2]  # 0.4 of 5


def test_krum_by_hand():
    # n = 6, f = 1: the 3 nearest others. Squared distances of the points 0, 1, 3, 4, 6 and 50:
    # 0: 1 + 9 + 16; 1: 1 + 4 + 9; 3: 1 + 4 + 9; 4: 1 + 4 + 9; 6: 4 + 9 + 25; 50: 44² + 46² + 47²
    replies = column([0.0], [1.0], [3.0], [4.0], [6.0], [50.0])
    assert krum_scores(replies, 1).tolist() == [26, 14, 14, 14, 38, 44**2 + 46**2 + 47**2]
    assert aggregated(Krum(1), replies)["w"].tolist() == [1]  # the first of the equal ones
    assert aggregated(Krum(1), replies[::-1])["w"].tolist() == [4]
    assert aggregated(MultiKrum(1, 2), replies)["w"].tolist() == [2]  # 1 and 3
    assert aggregated(MultiKrum(1), replies)["w"].tolist() == [np.float32(14 / 5)]  # all but the last


def test_multi_krum_selects_the_first_of_equal_scores():
    # n = 10, f = 0: the 8 nearest others. Five zeros: 4 times 0 and 4 times 1; the unit vectors between them: 5 times 1
    # and 3 times 2. Seven are selected: the zeros, and the first two unit vectors.
    replies = column(*(row for unit in np.eye(5) for row in (unit, np.zeros(5))), dtype=np.float64)
    assert krum_scores(replies, 0).tolist() == [11, 4] * 5
    np.testing.assert_allclose(aggregated(MultiKrum(0, 7), replies)["w"], [1 / 7, 1 / 7, 0, 0, 0])


def test_distances_are_over_all_floating_point_arrays():
    replies = [
        {"w": np.array([w]), "b": np.array([[b]]), "steps": np.array(s)}
        for w, b, s in [(0.0, 9.0, 1), (0.0, 1.0, 2), (1.0, 0.0, 900), (1.0, 1.0, 3)]
    ]
    # n = 4, f = 0: the 2 nearest others. 64 + 82; 1 + 2; 1 + 2 (whatever its steps); 1 + 1
    assert krum_scores(replies, 0).tolist() == [64 + 65, 1 + 2, 1 + 2, 1 + 1]
    assert aggregated(Krum(0), replies)["steps"] == 3


@pytest.mark.parametrize("aggregation", [Median(), TrimmedMean(1)], ids=str)
def test_integers_and_booleans_have_the_lower_median(aggregation):
    replies = [
        {"steps": np.array(steps, np.int64), "mask": np.array([mask, not mask])}
        for steps, mask in [(2**62 + 1, True), (3, False), (-(2**62), True), (2**62, False)]
    ]
    result = aggregated(aggregation, replies, "round")
    assert (result["steps"], result["steps"].dtype) == (3, np.int64)  # -2^62, 3, 2^62, 2^62 + 1
    assert result["mask"].tolist() == [False, False]  # ties
    assert aggregated(aggregation, replies[:3])["mask"].tolist() == [True, False]


@pytest.mark.parametrize("aggregation", [Krum(1), MultiKrum(1)])
def test_krum_trims_integers_and_buffers_which_its_distance_does_not_see(aggregation):
    replies = [
        {"w": np.array([w]), "steps": np.array(steps), "running_var": np.array([variance])}
        for w, steps, variance in [(0.0, 2**62, 1.0), (0.0, 4, 0.0), (0.0, 5, 2.0), (1.0, 7, 99.0), (90.0, 99, 6.0)]
    ]
    result = aggregated(aggregation, replies, "newest")
    assert result["steps"] == 7  # the lower median
    assert result["running_var"].tolist() == [3.0]  # (1 + 2 + 6) / 3


@pytest.mark.parametrize(
    ("byzantine", "replies", "f"),
    [
        (0, 9, 0),
        (2, 50, 2),
        (0.1, 30, 3),
        (0.29, 100, 29),
        (0.2, 6, 1),
        (0.2, 9, 1),
        (0.1, 5, 1),
        (0.0, 5, 0),
        (0.45, 20, 9),
    ],
)
def test_a_fraction_is_rounded_down_to_at_least_one(byzantine, replies, f):
    assert TrimmedMean(byzantine).count_byzantine(replies) == f


# -- equal to known aggregations -----------------------------------------------------------------------------


@pytest.mark.parametrize("aggregation", ALL, ids=str)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_equal_replies_come_back_bit_for_bit(aggregation, data):
    shape = hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3)
    reply = {"w": data.draw(hnp.arrays(data.draw(st.sampled_from(DTYPES)), shape))}
    if reply["w"].dtype.kind == "f":
        reply["w"][~(np.abs(reply["w"]) < 1e4)] = -0.0
    count = data.draw(st.integers(aggregation.required(5), 7))
    result = aggregated(aggregation, [reply] * count, data.draw(st.sampled_from(["newest", "round"])))
    assert same_bits(result, reply)
    assert not np.shares_memory(result["w"], reply["w"])


@settings(max_examples=40, deadline=None)
@given(stacks(), st.sampled_from(["newest", "round"]))
def test_multi_krum_that_selects_all_is_the_mean_bit_for_bit(replies, integers):
    replies = [{**reply, "steps": np.array(place)} for place, reply in enumerate(replies)]
    if len(replies) >= 3:
        result = aggregated(MultiKrum(0, len(replies)), replies, integers)
        assert same_bits(result, mean_of(replies, integers))
        assert same_bits(result, aggregated(MultiKrum(0), replies, integers))


@settings(max_examples=40, deadline=None)
@given(stacks(np.float32))
def test_trimming_nothing_is_the_mean_of_the_ascending_values_bit_for_bit(replies):
    ascending = [{"w": row.astype(np.float64)} for row in np.sort([reply["w"] for reply in replies], axis=0)]
    result = aggregated(TrimmedMean(0), replies)
    assert np.array_equal(result["w"], mean_of(ascending)["w"].astype(np.float32))
    np.testing.assert_allclose(result["w"], mean_of(replies)["w"], rtol=1e-6, atol=1e-5)


@settings(max_examples=40, deadline=None)
@given(stacks(least=3))
def test_krum_is_multi_krum_that_selects_one_and_returns_a_reply_bit_for_bit(replies):
    f = (len(replies) - 3) // 2
    result = aggregated(Krum(f), replies)
    assert any(same_bits(result, reply) for reply in replies)
    assert same_bits(result, aggregated(MultiKrum(f, 1), replies))


# -- oracles and invariants ----------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(stacks())
def test_the_median_and_the_trimmed_mean_are_those_of_numpy(replies):
    values = np.array([reply["w"] for reply in replies])
    np.testing.assert_allclose(aggregated(Median(), replies)["w"], np.median(values, axis=0), rtol=1e-15, atol=1e-300)
    cut = (len(replies) - 1) // 3
    kept = np.sort(values, axis=0)[cut : len(replies) - cut]
    np.testing.assert_allclose(aggregated(TrimmedMean(cut), replies)["w"], kept.mean(axis=0), rtol=1e-12, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(stacks(least=3))
def test_the_scores_are_those_of_the_definition(replies):
    f = (len(replies) - 3) // 2
    rows = [reply["w"] for reply in replies]
    for index, score in enumerate(krum_scores(replies, f)):
        others = sorted(float(((rows[index] - row) ** 2).sum()) for k, row in enumerate(rows) if k != index)
        assert score == pytest.approx(sum(others[: len(rows) - f - 2]), rel=1e-12)


@pytest.mark.parametrize("aggregation", [Median(), TrimmedMean(1), TrimmedMean(0.2)], ids=str)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_the_order_of_the_replies_does_not_matter(aggregation, data):
    replies = data.draw(stacks(least=3))
    shuffled = data.draw(st.permutations(replies))
    assert np.array_equal(aggregated(aggregation, shuffled)["w"], aggregated(aggregation, replies)["w"])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_with_fewer_than_half_attackers_every_value_is_between_honest_ones(dtype, data):
    honest = data.draw(stacks(dtype, least=2))
    f = data.draw(st.integers(0, len(honest) - 1))
    wild = st.sampled_from([-6e4, -1.0, 0.0, 6e4])
    attacks = data.draw(st.lists(hnp.arrays(dtype, 3, elements=wild), min_size=f, max_size=f))
    replies = data.draw(st.permutations([*honest, *({"w": value} for value in attacks)]))
    low, high = (limit([reply["w"] for reply in honest], axis=0) for limit in (np.min, np.max))
    for aggregation in (Median(), TrimmedMean(f)):
        result = aggregated(aggregation, replies)["w"]
        assert (low <= result).all()
        assert (result <= high).all()


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_krum_never_selects_one_of_f_distant_replies(data):
    honest = data.draw(stacks(least=3))
    f = data.draw(st.integers(0, (len(honest) - 3)))  # n = honest + f ≥ 2f + 3
    places = [{"w": np.array([1e4, 1e6 * (-1) ** k, 1e3 * k])} for k in range(f)]
    replies = data.draw(st.permutations([*honest, *places]))
    result = aggregated(Krum(f), replies)["w"]
    assert any((result == reply["w"]).all() for reply in honest)
    assert np.abs(aggregated(MultiKrum(f), replies)["w"]).max() <= 100


def test_arrays_longer_than_a_block_are_complete():
    generator = np.random.default_rng(1)
    values = generator.normal(size=(5, 2 * BLOCK + 7, 2)).astype(np.float32)
    replies = [{"w": np.asfortranarray(value)} for value in values]
    np.testing.assert_array_equal(aggregated(Median(), replies)["w"], np.median(values, axis=0))
    flat = values.reshape(5, -1).astype(np.float64)
    distances = np.square(flat[:, None] - flat[None]).sum(axis=2)
    np.testing.assert_allclose(krum_scores(replies, 0), np.sort(distances)[:, 1:4].sum(axis=1), rtol=1e-12)


# -- use -----------------------------------------------------------------------------------------------------


def test_replies_are_neither_changed_nor_referred_to():
    reply = {"w": np.array([1.0, 2.0]), "n": np.array(3)}
    for aggregation in (Median(), Krum(0), MultiKrum(0)):
        aggregate = aggregation.start()
        for _ in range(3):
            aggregate.add(reply, 2.0)
        reply["w"][:] = 99
        result, again = aggregate.result(), aggregate.result()
        assert again["w"].tolist() == [1.0, 2.0]
        assert not any(np.shares_memory(result[name], again[name]) for name in result)
        assert (aggregate.count, aggregate.total_weight) == (3, 6.0)
        reply["w"][:] = [1.0, 2.0]


@pytest.mark.parametrize(
    ("aggregation", "replies", "needed"),
    [
        (TrimmedMean(2), 4, 5),
        (Krum(1), 4, 5),
        (Krum(0.4), 10, 11),
        (TrimmedMean(0.1), 2, 3),
        (MultiKrum(0), 2, 3),
        (MultiKrum(0, 9), 8, 9),
    ],
    ids=str,
)
def test_too_few_replies_are_an_error_with_the_numbers(aggregation, replies, needed):
    aggregate = aggregation.start(prefix="round 3, oslo")
    for reply in column(*([1.0] for _ in range(replies))):
        aggregate.add(reply, 1.0)
    with pytest.raises(TooFewRepliesError) as error:
        aggregate.result()
    assert str(error.value).startswith(
        f"round 3, oslo: {replies} usable replies, but {aggregation} needs at least {needed};"
    )
    with pytest.raises(TooFewRepliesError, match="0 usable replies"):
        aggregation.start().result()


@pytest.mark.parametrize("byzantine", [-1, 0.5, 1.0, -0.1, True, float("nan")])
@pytest.mark.parametrize("kind", [TrimmedMean, Krum, MultiKrum])
def test_the_number_of_byzantine_replies_is_checked(kind, byzantine):
    with pytest.raises(ValueError, match=rf"byzantine = {byzantine!r}: must be a whole number"):
        kind(byzantine)


def test_misuse_is_named():
    with pytest.raises(ValueError, match="selected = 0"):
        replace(MultiKrum(1), selected=0)
    with pytest.raises(TypeError, match="complex"):
        Median().start().add({"w": np.zeros(1, complex)}, 1)
    aggregate = Median().start()
    aggregate.add({"w": np.zeros(2)}, 1)
    with pytest.raises(ValueError, match="'w' must be"):
        aggregate.add({"w": np.zeros(1)}, 1)
