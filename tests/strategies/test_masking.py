"""The primitives of secure aggregation: published vectors, all subsets of shares, sums of integers by hand."""

from itertools import combinations
from math import sqrt

import numpy as np
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from fedapps.strategies.arrays import Buffers
from fedapps.strategies.masking import (
    Cohort,
    Encoding,
    agree,
    combine,
    lagrange,
    mask,
    new_key,
    polynomial,
    public_key,
    seal,
    split_secret,
    unseal,
)
from hypothesis import given
from hypothesis import strategies as st


class Down:
    """Rounds every value down."""

    def random(self, shape):
        return np.zeros(shape)


# -- published vectors ------------------------------------------------------------------------------------------------


def test_x25519_is_that_of_rfc_7748():
    # Section 6.1, Bob's keys
    secret = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    assert public_key(secret).hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    # Section 5.2, the first vector; HKDF of RFC 5869 follows
    secret = bytes.fromhex("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4")
    public = bytes.fromhex("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c")
    shared = bytes.fromhex("c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552")
    assert agree(secret, public, b"mask") == HKDF(hashes.SHA256(), 32, None, b"mask").derive(shared)


def test_masks_are_the_key_stream_of_rfc_8439():
    # Appendix A.1, test vector 1: key, counter and nonce are 0
    stream = "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    assert mask(bytes(32), 8, np.dtype(np.uint32)).tobytes().hex() == stream
    assert mask(bytes(32), 32, np.dtype(np.uint8)).tobytes().hex() == stream


def test_shares_are_those_of_the_example_of_shamirs_scheme():
    # Wikipedia, Shamir's secret sharing: 1234 + 166 x + 94 x² modulo 1613
    values = {point: polynomial([1234, 166, 94], point, 1613) for point in range(1, 7)}
    assert list(values.values()) == [1494, 329, 965, 176, 1188, 775]
    for points in combinations(values, 3):
        weights = lagrange(points, 1613)
        assert sum(weight * values[point] for weight, point in zip(weights, points, strict=True)) % 1613 == 1234


# -- secret sharing ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threshold", [2, 3, 4, 5])
def test_every_subset_of_enough_shares_gives_the_secret_and_no_smaller_one(threshold):
    secret = b"\xff" * 32
    shares = dict(enumerate(split_secret(secret, threshold, range(1, 6)), start=1))
    for size in range(1, 6):
        for points in combinations(shares, size):
            some = {point: shares[point] for point in points}
            if size >= threshold:
                assert combine(some, threshold) == secret
            else:
                with pytest.raises(ValueError, match=f"{size} shares of a secret: {threshold} are needed"):
                    combine(some, threshold)
                with pytest.raises(ValueError, match="do not belong together"):  # the polynomial of too low a degree
                    combine(some, size)


@given(st.binary(min_size=32, max_size=32), st.integers(1, 12), st.data())
def test_any_secret_comes_back(secret, threshold, data):
    points = data.draw(st.lists(st.integers(1, 2000), min_size=threshold, max_size=15, unique=True))
    shares = dict(zip(points, split_secret(secret, threshold, points), strict=True))
    assert combine(shares, threshold) == secret


def test_a_wrong_share_is_noticed():
    shares = dict(enumerate(split_secret(new_key(), 3, [1, 2, 3]), start=1))
    shares[2] = bytes(65) + b"\x01"
    with pytest.raises(ValueError, match="a node sent a wrong one"):
        combine(shares, 3)


# -- sealed shares and masks ------------------------------------------------------------------------------------------


def cohort(nodes=5, neighbours=4, threshold=3):
    keys = [(new_key(), new_key()) for _ in range(nodes)]
    public = tuple(public_key(first) + public_key(second) for first, second in keys)
    return keys, Cohort(bytes(16), public, neighbours, threshold)


def test_shares_open_for_their_receiver_from_their_sender_in_their_round_alone():
    keys, group = cohort()
    key, context = group.sealing_key(keys[1][0], group.keys[2], 1, 2)
    sealed = seal(key, b"shares", context)
    assert opened(group, keys, 1, 2, sealed) == b"shares"
    later = Cohort(bytes(15) + b"\x01", group.keys, 4, 3)
    changed = sealed[:-1] + bytes([sealed[-1] ^ 1])
    for wrong in ((group, keys, 3, 2, sealed), (group, keys, 1, 4, sealed), (later, keys, 1, 2, sealed)):
        with pytest.raises(ValueError, match="not sealed by its node for this one in this round"):
            opened(*wrong)
    with pytest.raises(ValueError, match="not sealed"):
        opened(group, keys, 1, 2, changed)


def opened(group, keys, sender, receiver, sealed):
    key, context = group.sealing_key(keys[receiver][0], group.keys[sender], sender, receiver)
    return unseal(key, sealed, context)


def test_the_masks_of_a_pair_cancel():
    keys, group = cohort()
    for dtype in map(np.dtype, (np.uint8, np.uint16, np.uint32)):
        one = group.pair_mask(keys[1][1], 1, 3, 1000, dtype, b"asked")
        other = group.pair_mask(keys[3][1], 3, 1, 1000, dtype, b"asked")
        assert one.dtype == dtype
        assert one.any()
        assert not (one + other).any()


@pytest.mark.parametrize(("nodes", "neighbours"), [(3, 2), (6, 5), (7, 4), (100, 12)])
def test_neighbours_are_mutual(nodes, neighbours):
    _, group = cohort(nodes, neighbours, neighbours)
    lists = [group.neighbours_of(node) for node in range(nodes)]
    for node, others in enumerate(lists):
        assert others == sorted(set(others))
        assert len(others) == neighbours
        assert node not in others
        assert all(node in lists[other] for other in others)


def test_a_cohort_with_a_repeated_key_or_impossible_numbers_is_refused():
    _, group = cohort()
    first, second = group.keys[0][:32], group.keys[0][32:]
    for keys in ((*group.keys, group.keys[0]), (*group.keys, first + first), (*group.keys[1:], second + first + b"x")):
        with pytest.raises(ValueError, match="must be distinct"):
            Cohort(bytes(16), keys, 4, 3)
    for neighbours, threshold in ((1, 2), (3, 3), (5, 4), (4, 2), (4, 6), (0, 1)):
        with pytest.raises(ValueError, match=r"(neighbours|threshold) = "):
            Cohort(bytes(16), group.keys, neighbours, threshold)


# -- sums of integers -------------------------------------------------------------------------------------------------

SENT = {"w": np.array([1.0, 2.0], np.float32), "b.running_mean": np.array([3.0], np.float32)}


def test_integers_by_hand():
    # Steps of 4 · 2^(1-3) = 1 for parameters and of 8 / 4 = 2 for buffers; −4..3 of each.
    encoding = Encoding(clip=4.0, bits=3, buffer_clip=8.0, max_weight=2, metrics={"loss": 2.0})
    trained = {"w": np.array([2.5, 0.0], np.float32), "b.running_mean": np.array([100.0], np.float32)}
    integers = encoding.encode(SENT, trained, Buffers(), 5, {"loss": 1.5}, Down(), Down())
    # 2 · 1.5 = 3; 2 · −2 = −4; 2 · 8 / 2 = 8, and one less; 2 · 1.5 / .5 = 6; the weight of the loss; the weight
    assert integers.tolist() == [3, -4, 7, 6, 2, 2]
    for unknown in ({}, {"loss": np.nan}):
        assert encoding.encode(SENT, trained, Buffers(), 5, unknown, Down(), Down()).tolist() == [3, -4, 7, 0, 0, 2]
    total = integers.astype(np.uint32)
    mean, metrics, weight = encoding.decode(total, SENT, Buffers())
    assert mean["w"].tolist() == [2.5, 0.0]
    assert mean["b.running_mean"].tolist() == [10.0]
    assert metrics == {"loss": 1.5}
    assert weight == 2
    total[2:4] = 100
    mean, metrics, _ = encoding.decode(total, SENT, Buffers())
    assert (mean["b.running_mean"].tolist(), metrics) == ([3.0 + 8.0], {"loss": 2.0})


def test_an_update_is_clipped_to_its_norm():
    trained = {"w": np.array([31.0, 42.0], np.float32), "b.running_mean": SENT["b.running_mean"]}
    encoding = Encoding(clip=5.0, bits=20)
    total = encoding.encode(SENT, trained, Buffers(), 1, {}, Down(), Down()).astype(np.uint32)
    np.testing.assert_allclose(encoding.decode(total, SENT, Buffers())[0]["w"], [4.0, 6.0], atol=5 * 2.0**-19)


@pytest.mark.parametrize("spoilt", ["w", "b.running_mean"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_update_that_is_not_finite_counts_as_none(spoilt, value):
    trained = {**SENT, spoilt: np.full_like(SENT[spoilt], value)}
    integers = Encoding(metrics={"loss": 1.0}).encode(SENT, trained, Buffers(), 1, {"loss": 0.5}, Down(), Down())
    assert not integers.any()


def test_rounding_is_exact_on_average():
    sent = {"w": np.zeros(100_000)}
    trained = {"w": np.full(100_000, 0.3)}
    integers = Encoding(clip=1000.0, bits=11).encode(sent, trained, Buffers(), 1, {}, np.random.default_rng(0), Down())
    assert set(integers[:-1]) == {0, 1}
    assert abs(integers[:-1].mean() - 0.3 * 1024 / 1000) < 0.005


def test_the_largest_values_of_all_nodes_do_not_overflow():
    sent, trained = {"w": np.zeros(1)}, {"w": np.full(1, 10.0)}
    encoding = Encoding(clip=10.0, bits=22)
    assert encoding.dtype(1024) == np.uint32
    one = encoding.encode(sent, trained, Buffers(), 1, {}, Down(), Down()).astype(np.uint32)
    mean, _, weight = encoding.decode(np.asarray(one * np.uint32(1024)), sent, Buffers())
    assert weight == 1024
    assert abs(mean["w"][0] - 10.0) <= 10 * 2.0**-21


@pytest.mark.parametrize(
    ("bits", "weight", "nodes", "dtype"),
    [
        (22, 1, 1024, np.uint32),
        (12, 1, 16, np.uint16),
        (12, 1, 17, np.uint32),
        (4, 4, 4, np.uint8),
        (5, 4, 4, np.uint16),
    ],
)
def test_the_smallest_integers_in_which_the_sum_fits(bits, weight, nodes, dtype):
    assert Encoding(bits=bits, max_weight=weight).dtype(nodes) == dtype


def test_a_sum_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"a sum over 1025 nodes of weight up to 1 needs 33 bits.*so take bits = 21"):
        Encoding(bits=22).dtype(1025)
    with pytest.raises(ValueError, match="needs 33 bits"):
        Encoding(bits=22, max_weight=100).dtype(11)
    with pytest.raises(ValueError, match="needs 33 bits"):  # the noise needs room, too
        Encoding(bits=22, noise=10.0).dtype(200)


def test_the_noise_of_the_fewest_nodes_is_that_of_the_sum():
    # 9 nodes, 7 of which must stay: z clip / √7 each
    sent = {"w": np.zeros(20_000), "b.running_mean": np.zeros(1)}
    encoding = Encoding(clip=2.0, bits=20, noise=1.5 / sqrt(7))
    rng = np.random.default_rng(0)
    total = sum(encoding.encode(sent, sent, Buffers(), 1, {}, rng, rng) for _ in range(7)).astype(np.uint32)
    mean, _, weight = encoding.decode(total, sent, Buffers())
    assert weight == 7
    assert abs(mean["w"].std() * 7 / (1.5 * 2.0) - 1) < 0.02
    assert mean["b.running_mean"] is sent["b.running_mean"]  # the noise does not cover it


def test_with_noise_the_rounded_update_is_within_the_norm():
    rng = np.random.default_rng(0)
    sent, trained = {"w": np.zeros(10_000)}, {"w": rng.normal(size=10_000)}
    noiseless = Encoding(clip=1.0, bits=12, noise=1e-12)
    integers = noiseless.encode(sent, trained, Buffers(), 1, {}, rng, rng)[:-1]
    assert 0.9 < np.linalg.norm(integers * 2.0**-11) <= 1.0
    Encoding(bits=6, noise=1.0).check_arrays({"w": np.zeros(256)}, Buffers())  # 2^-5 · √256 is half of the norm
    with pytest.raises(ValueError, match="bits = 6: too few for 257 values with noise"):
        Encoding(bits=6, noise=1.0).check_arrays({"w": np.zeros(257)}, Buffers())


def test_under_noise_an_update_that_is_not_finite_leaves_as_noise():
    sent, trained = {"w": np.zeros(100)}, {"w": np.full(100, np.nan)}
    rng = np.random.default_rng(0)
    integers = Encoding(noise=1.0).encode(sent, trained, Buffers(), 1, {}, rng, rng)
    assert integers[:-1].any()
    assert integers[-1] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bits": 1}, "bits = 1: must be from 2 to 31"),
        ({"clip": 0.0}, "clip = 0.0"),
        ({"max_weight": 0}, "max_weight = 0"),
        ({"noise": -1.0}, "noise = -1.0"),
        ({"metrics": {"loss": 0.0}}, "loss = 0.0"),
        ({"noise": 1.0, "max_weight": 2}, "noise: covers neither weights nor metrics"),
        ({"noise": 1.0, "metrics": {"loss": 1.0}}, "noise: covers neither weights nor metrics"),
    ],
)
def test_parameters_out_of_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Encoding(**arguments)


def test_arrays_of_integers_are_refused_but_the_counter_of_a_normalisation():
    Encoding().check_arrays({"bn.num_batches_tracked": np.zeros((), np.int64)}, Buffers())
    with pytest.raises(ValueError, match="array 'passes' is int64: secure aggregation sums floating-point numbers"):
        Encoding().check_arrays({"passes": np.zeros((), np.int64)}, Buffers())


def test_a_variance_does_not_become_negative():
    sent = {"bn.running_var": np.array([1e-9], np.float32)}
    encoding = Encoding(bits=8)
    total = np.array([-1, 1]).astype(np.uint32)
    assert encoding.decode(total, sent, Buffers())[0]["bn.running_var"].tolist() == [0.0]
