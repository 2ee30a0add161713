import numpy as np
import pytest
from fedapps.strategies.arrays import (
    check_alike,
    from_record,
    is_discrete,
    is_float,
    nbytes,
    select,
    shortened,
    to_record,
    views,
)
from flwr.app import Array, ArrayRecord
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from rogue import header, npy, saved, serialised

NAMES = ["encoder.weight", "encoder.bias", "encoder.norm.steps", "head.weight"]
DTYPES = st.sampled_from(["bool", "int8", "uint8", "int32", "int64", "uint64", "float16", "float32", "float64"])


def _headers():
    """Files whose headers may be false, in whole or in part."""
    descr = st.sampled_from(
        ["'<f4'", "'>i8'", "'|O'", "'|V0'", "[]", "5", "None", "'((('", "'<U9999999'", "[('a', '<f4')]"]
    )
    shape = st.lists(st.integers(-2, 2**70) | st.integers(0, 3), max_size=40).map(lambda dims: str(tuple(dims)))
    return st.builds(lambda d, s, f, b: npy(header(d, s, f), b), descr, shape, st.booleans(), st.binary(max_size=24))


def test_scalars_become_arrays_without_dimensions():
    assert from_record(to_record({"x": np.float32(2.5)}))["x"].shape == ()


#: Elements of no bytes, of which NumPy makes longer ones in a copy.
EMPTY = [npy(header(descr, "(10000000,)", False), b"") for descr in ("'<U0'", "'|V0'", "[('a', '<U0')]")]
ARCHIVE = saved(np.zeros(1), a=np.zeros(2))


@pytest.mark.parametrize(
    "array",
    [
        *map(serialised, [b"", b"nonsense", b"\x93NUMPY\x01\x00", ARCHIVE, *EMPTY]),
        serialised(saved(np.zeros(2)), "somebody.else"),
    ],
)
def test_undecodable_arrays_are_named(array):
    record = ArrayRecord({"head.weight": array})
    with pytest.raises(ValueError, match=r"'head\.weight' cannot be decoded"):
        from_record(record)


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["*"], NAMES),
        ([], []),
        (["head.*"], ["head.weight"]),
        (["head.*", "encoder.*"], NAMES),
        (["*.weight"], ["encoder.weight", "head.weight"]),
        (["encoder.[bw]*", "encoder.weight"], ["encoder.weight", "encoder.bias"]),
        (["encoder.????"], ["encoder.bias"]),
    ],
)
def test_patterns_select_names_in_model_order(patterns, expected):
    assert select(NAMES, patterns) == expected


@pytest.mark.parametrize("pattern", ["encodr.*", "Encoder.*", "weight", ""])
def test_a_pattern_without_a_match_is_named_with_what_there_is(pattern):
    with pytest.raises(ValueError, match=r"head\.weight") as error:
        select(NAMES, ["*", pattern])
    assert repr(pattern) in str(error.value)


def test_one_string_is_not_a_list_of_patterns():
    with pytest.raises(TypeError, match=r"\['encoder\.\*'\]"):
        select(NAMES, "encoder.*")


def test_size_and_kinds():
    arrays = {"a": np.zeros((2, 3), np.float32), "b": np.zeros((), np.int64), "c": np.zeros(0, np.bool_)}
    assert nbytes(arrays) == 24 + 8 + 0
    assert [is_float(array) for array in arrays.values()] == [True, False, False]
    assert [is_discrete(array) for array in arrays.values()] == [False, True, True]


def test_differences_are_named():
    one = {"a": np.zeros(2, np.float32)}
    check_alike(one, {"a": np.ones(2, np.float32)})
    with pytest.raises(ValueError, match=r"missing \['a'\], unexpected \['b'\]"):
        check_alike(one, {"b": np.zeros(2, np.float32)})
    with pytest.raises(ValueError, match=r"'a' must be float32\[2\], not float64\[2\]"):
        check_alike(one, {"a": np.zeros(2)})


@settings(max_examples=60, deadline=None)
@given(DTYPES.flatmap(lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, min_side=0, max_side=4))))
def test_the_bytes_are_those_of_flower_and_views_of_them_are_the_arrays(array):
    forms = {
        "c": array,
        "f": np.asfortranarray(array),
        "strided": np.repeat(array, 2, axis=0)[::2] if array.ndim else array,
        "swapped": array.astype(array.dtype.newbyteorder()),
    }
    record = to_record(forms)
    assert list(from_record(record)) == list(forms)
    for name, view in views(record).items():
        other = Array(np.asarray(forms[name]))
        sent = record[name]
        assert (sent.dtype, sent.shape, sent.stype, sent.data) == (other.dtype, other.shape, other.stype, other.data)
        assert not view.flags.writeable
        assert np.shares_memory(view, np.frombuffer(sent.data, np.uint8)) or not view.size
        copy = from_record(record)[name]
        assert copy.flags.writeable
        for decoded in (view, copy):
            assert (decoded.dtype, decoded.shape) == (other.numpy().dtype, other.numpy().shape)
            assert decoded.tobytes() == other.numpy().tobytes()
            assert decoded.flags.f_contiguous == other.numpy().flags.f_contiguous


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda b: npy(b.decode("latin1"))) | _headers())
def test_whatever_the_bytes_are_the_sender_is_told(data):
    """Any bytes give an array of as many bytes, or a ``ValueError`` with the name."""
    reason, arrays = "", {}
    try:
        arrays = from_record(ArrayRecord({"w": serialised(data)}))
    except ValueError as error:
        reason = str(error)
    assert bool(arrays) != ("array 'w' cannot be decoded" in reason)
    assert nbytes(arrays) <= len(data)


def test_names_that_differ_in_numbers_are_listed_once():
    names = ["layer.0.a", "layer.0.b", "layer.1.a", "layer.12.a", "layer2.1", "2.layer2.1.a", "*"]
    assert shortened(names) == "layer.*.a (3), layer.0.b, layer2.1, 2.layer2.1.a, *"
    assert shortened([]) == ""
