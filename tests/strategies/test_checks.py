"""Checks of what comes from outside: replies before aggregation, and text that nodes write."""

import numpy as np
import pytest
from fedapps.strategies.aggregation import StreamingMean
from fedapps.strategies.algorithms.apfl import StreamingDeviation
from fedapps.strategies.checks import LARGEST_COUNT, MAX_CHARACTERS, check_arrays, check_count, is_valid_name, truncate
from fedapps.strategies.optimizers import Adam
from hypothesis import example, given
from hypothesis import strategies as st


def arrays():
    return {"w": np.ones((2, 3), np.float32), "b": np.zeros(3, np.float32), "steps": np.array(4)}


def test_a_good_reply_is_accepted_in_any_order():
    received = dict(reversed(arrays().items()))
    assert check_arrays(arrays(), received) is None
    assert check_arrays({}, {}) is None


def test_missing_and_unexpected_names():
    received = arrays()
    received["bias"] = received.pop("b")
    assert check_arrays(arrays(), received) == "array names differ: missing b; unexpected bias"


def test_long_lists_are_cut():
    expected = {f"w{index}": np.zeros(1) for index in range(8)}
    assert check_arrays(expected, {}) == "array names differ: missing w0, w1, w2, w3, w4 and 3 more"


def test_shapes():
    received = arrays() | {"w": np.ones((3, 2), np.float32)}
    assert check_arrays(arrays(), received) == "array shapes differ: w is [3, 2] instead of [2, 3]"


def test_dtypes():
    received = arrays() | {"steps": np.array(4.0)}
    assert check_arrays(arrays(), received) == "array dtypes differ: steps is float64 instead of int64"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite(bad):
    received = arrays()
    received["w"][0, 1] = received["w"][1, 1] = bad
    assert check_arrays(arrays(), received) == "values are not finite: w (2 of 6)"


@pytest.mark.parametrize(
    ("num_examples", "reason"),
    [
        (None, "num-examples is missing"),
        ("12", "num-examples is '12', not a number"),
        (True, "num-examples is True, not a number"),
        ([3], "num-examples is [3], not a number"),
        (float("nan"), "num-examples is nan, not finite"),
        (float("inf"), "num-examples is inf, not finite"),
        (0, "num-examples is 0, not positive"),
        (-2.5, "num-examples is -2.5, not positive"),
    ],
)
def test_number_of_examples(num_examples, reason):
    assert check_count(num_examples, "num-examples") == reason


@given(st.floats(min_value=0, exclude_min=True, max_value=2**53) | st.integers(1, 2**53))
def test_every_positive_number_of_examples_is_accepted(num_examples):
    assert check_count(num_examples, "num-examples") is None


@pytest.mark.parametrize("shape", [(), (0,), (0, 3)])
def test_empty_arrays_and_scalars(shape):
    expected = {"w": np.zeros(shape, np.float16)}
    assert check_arrays(expected, {"w": np.zeros(shape, np.float16)}) is None


@pytest.mark.parametrize(
    ("dtype", "sent", "received", "refused"),
    [
        ("f4", 0, 2.0**48, False),
        ("f4", 0, -(2.0**49), True),
        ("f4", 0, 1e38, True),
        ("f4", np.finfo("f4").min, np.finfo("f4").min, False),  # a mask that nobody moves
        ("f4", np.finfo("f4").min, np.finfo("f4").max, True),  # a distance beyond float32
        ("f8", 0, 2.0**384, False),
        ("f8", 0, 1e300, True),
        ("g", 0, 2.0**384, False),
        ("g", 0, 1e300, True),
        ("f2", 0, 65504, False),
    ],
)
def test_values_that_would_overflow_sums(dtype, sent, received, refused):
    expected, reply = ({"w": np.array([value, 1], dtype)} for value in (sent, received))
    reason = check_arrays(expected, reply)
    assert reason is None if not refused else reason.startswith("values are too far from those sent: w (by ")


@given(st.integers(1, 40), st.sampled_from([np.float16, np.float32, np.float64]), st.integers(0, 2**32))
def test_accepted_values_keep_every_mean_deviation_and_moment_finite(count, dtype, seed):
    generator = np.random.default_rng(seed)
    exponent = np.log2(np.finfo(dtype).max)
    sent = {"w": np.zeros(4, dtype)}
    mean, deviation, adam = StreamingMean(), StreamingDeviation(), Adam(0.1)
    for _ in range(count):
        values = generator.choice([-1, 1], 4) * np.exp2(np.floor(generator.uniform(-exponent, exponent, 4)))
        if check_arrays(sent, {"w": values.astype(dtype)}) is None:
            mean.add({"w": values.astype(dtype)}, float(generator.integers(1, LARGEST_COUNT)))
            deviation.add({"w": values.astype(dtype)})
    if mean.count:
        stepped = adam.step(sent, mean.result())
        for arrays in (mean.result(), deviation.result(), stepped, adam.state()):
            assert all(np.isfinite(array).all() for array in arrays.values())


def test_names_of_a_megabyte_are_cut():
    reason = check_arrays({}, {"w" * 1_000_000: np.zeros(1), "\x1b[2J\n": np.zeros(1)})
    assert len(reason) < 400
    assert reason.isprintable() or "\x1b" not in reason


def test_the_end_of_a_traceback_stays():
    text = "Traceback (most recent call last):\n" + 'File "app.py"\n' * 1000 + "ValueError: the lens is dirty"
    cut = truncate(text)
    assert cut.startswith("Traceback")
    assert cut.endswith('File "app.py"\n  | ValueError: the lens is dirty')
    assert f"[... {len(text) - MAX_CHARACTERS} characters left out ...]" in cut


def test_control_characters_are_written_out():
    assert truncate("\x1b[2J\tred\r\n\u202eend") == "\\x1b[2J\tred\\r\n  | \\u202eend"


@given(st.text(max_size=300))
@example("fine\nWARNING : refused the train reply of node car-7: NaN")
@example("fine\r\nINFO : forged")
@example("fine\u2028INFO : forged\x0b\x85")
def test_no_text_begins_a_line_of_the_log(text):
    lines = truncate(text).splitlines()
    assert all(line.startswith("  | ") for line in lines[1:])
    assert truncate(truncate(text)) == truncate(text), "a text may pass several times"


@given(st.text(max_size=300), st.integers(4, 100))
def test_the_length_is_bounded_and_what_is_short_stays(text, most):
    cut = truncate(text, most)
    assert len(cut) <= 10 * (most + 50)
    assert all(sign.isprintable() or sign in "\n\t" for sign in cut)
    if len(text) <= most and text.isprintable():
        assert cut == text


def test_names():
    assert all(map(is_valid_name, ["a", "house 12/b", "żółw", "x" * 200]))
    assert not any(map(is_valid_name, ["", "x" * 201, "a\nb", "\x00", 3, None, ["a"]]))
