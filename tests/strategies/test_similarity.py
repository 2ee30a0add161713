"""Similarity of nodes: sketches of updates and numbers in profiles."""

import numpy as np
import pytest
from fedapps.strategies.algorithms.clustered import ProfileFeatures, UpdateSketch
from fedapps.strategies.nodes.profiles import Profile
from hypothesis import given, settings
from hypothesis import strategies as st

NODE = Profile(1, "part-0")


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), cosine=st.floats(-1, 1))
def test_sketches_keep_the_cosine_of_updates(seed, cosine):
    rng = np.random.default_rng(seed)
    one, other = rng.normal(size=(2, 3000))
    other -= one * (one @ other) / (one @ one)
    other = cosine * one / np.linalg.norm(one) + np.sqrt(1 - cosine**2) * other / np.linalg.norm(other)
    zero = {"a": np.zeros(1000), "b": np.zeros((20, 100)), "count": np.array(1)}
    sketch = UpdateSketch(dimension=1024, seed=seed % 7)
    vectors = [
        sketch.of_update(NODE, zero, {"a": update[:1000], "b": update[1000:].reshape(20, 100), "count": np.array(9)})
        for update in (one, other)
    ]
    assert [np.linalg.norm(vector) for vector in vectors] == pytest.approx([1, 1])
    assert abs(vectors[0] @ vectors[1] - cosine) < 6 / np.sqrt(1024)


def test_a_sketch_depends_on_seed_and_names_and_is_of_fixed_length():
    rng = np.random.default_rng(0)
    before = {"w": rng.normal(size=200_000).astype(np.float32), "v": np.zeros(3, np.float32)}
    after = {"w": before["w"] + rng.normal(size=200_000).astype(np.float32), "v": np.zeros(3, np.float32)}
    one = UpdateSketch(16, seed=1)
    vector = one.of_update(NODE, before, after)
    assert (vector.shape, vector.dtype) == ((16,), np.float64)
    assert np.array_equal(vector, one.of_update(NODE, before, after))
    assert np.array_equal(vector, one.of_update(NODE, dict(reversed(before.items())), after))
    assert not np.array_equal(vector, UpdateSketch(16, seed=2).of_update(NODE, before, after))
    assert np.array_equal(UpdateSketch(16, parameters=["v"]).of_update(NODE, before, after), np.zeros(16))
    assert one.of_profile(NODE) is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: UpdateSketch(0), "dimension = 0: must be an integer of at least 1"),
        (lambda: UpdateSketch(seed=-1), "seed = -1: must be an integer of at least 0"),
        (lambda: UpdateSketch(parameters="w"), "parameters = 'w': must be a list"),
        (lambda: ProfileFeatures("x"), "groups = 'x': must be a list"),
        (lambda: ProfileFeatures([]), r"groups = \[\]: must be a list"),
    ],
)
def test_a_bad_similarity_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
