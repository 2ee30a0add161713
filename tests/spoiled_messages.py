"""Messages whose records were changed by malice: other values, types, shapes and names, missing and further records."""

import linecache
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from fedapps.strategies.arrays import from_record
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import strategies as st
from rogue import MEGABYTE, header, npy, saved, serialised

from fedapps.app.disclosure import reported

INTEGERS = [0, 1, -1, 2, 3, 1000, 2**31, 2**53, 2**62, 2**63 - 1, -(2**63)]
FLOATS = [0.0, -0.0, 0.5, -1.0, 1.0, 1e-320, 1e38, 3e38, 1e300, -1e300, math.nan, math.inf, -math.inf]
#: What takes the place of a metric.
METRICS: list[Any] = [*INTEGERS, *FLOATS, [], [0], [-1, 2], [0.5], [math.nan], [1e38] * 40]
#: What takes the place of a value of a config.
VALUES: list[Any] = [
    *METRICS, True, False, "", "x", "0", "../x", "\0", "a" * 300, "\ud800", b"", b"\xff", [True], ["x"], ["*"], [""],
    ["head.weight"], [b"x"],
]  # fmt: skip
_SHAPES = st.sampled_from([(), (0,), (1,), (2,), (3,), (4, 2), (2, 4), (1, 1, 1, 1)])
_DTYPES = st.sampled_from(["f2", "f4", "f8", ">f4", "i1", "i8", "u8", "?", "c8", "U3", "M8[s]"])
_BYTES = [
    b"", b"\x93NUMPY", npy("{("), npy(header(shape=f"({2**40},)")), npy(header(shape="(-1,)")),
    npy(header(), b"\0" * 5000), npy(header("'|O'"), b"\0" * 8), saved(np.array([{}], dtype=object)),
]  # fmt: skip


def spoil(content: RecordDict, draw: Any, names: list[str]) -> None:
    """Change the records of a message once or several times.

    Parameters
    ----------
    content : RecordDict
    draw : function
        Draws from a strategy.
    names : list of str
        Names of records and of entries that the receiver may know.
    """
    for _ in range(draw(st.integers(1, 3))):
        _spoil_once(content, draw, names)


def _spoil_once(content: RecordDict, draw: Any, names: list[str]) -> None:
    kind = draw(st.sampled_from(("entry",) * 6 + ("drop", "add", "replace", "rename", "swap")))
    known = sorted(content)
    if not known or kind == "add":
        content[draw(st.sampled_from(names))] = draw(_records(names))
        return
    name = draw(st.sampled_from(known))
    if kind == "entry":
        content[name] = _changed(content[name], draw, names)
    elif kind == "replace":
        content[name] = draw(_records(names))
    elif kind == "swap":
        other = draw(st.sampled_from(known))
        content[name], content[other] = content[other], content[name]
    else:
        record = content.pop(name)
        if kind == "rename":
            content[draw(st.sampled_from(names))] = record


def _changed(record: Any, draw: Any, names: list[str]) -> Any:
    entries = dict(record)
    kind = draw(st.sampled_from(("change", "change", "change", "drop", "add", "rename", "empty")))
    if kind == "empty":
        entries = {}
    elif not entries or kind == "add":
        entries[draw(st.sampled_from(names))] = draw(_values(record))
    else:
        name = draw(st.sampled_from(sorted(entries)))
        value = entries.pop(name)
        if kind == "rename":
            entries[draw(st.sampled_from(names))] = value
        elif kind == "change":
            entries[name] = _other_array(value, draw) if isinstance(record, ArrayRecord) else draw(_values(record))
    return type(record)(entries)


def _values(record: Any) -> Any:
    if isinstance(record, ArrayRecord):
        return _ARRAYS
    return st.sampled_from(METRICS if isinstance(record, MetricRecord) else VALUES)


def _other_array(array: Array, draw: Any) -> Array:
    """Another array, or one of the same form with other values."""
    if draw(st.booleans()):
        return draw(_ARRAYS)
    try:
        values = from_record(ArrayRecord({"spoiled": array}))["spoiled"].copy()
    except ValueError:  # it is spoiled already
        return draw(_ARRAYS)
    kind = draw(st.sampled_from(("all", "one", "negative", "longer", "flat")))
    number = draw(st.sampled_from(FLOATS + INTEGERS))
    with np.errstate(all="ignore"):
        if kind == "negative" and values.dtype.kind in "fi":
            values = np.asarray(-values)  # of an array without dimensions it is a scalar
        elif kind == "longer":
            values = np.concatenate([values.reshape(-1), values.reshape(-1)])
        elif kind == "flat":
            values = values.reshape(-1)
        elif values.dtype.kind in "fiu" and values.size:
            values.flat[: 1 if kind == "one" else None] = np.array(number).astype(values.dtype)
    return Array(values)


_ARRAYS = st.one_of(
    st.builds(
        lambda shape, dtype, number: Array(np.full(shape, number).astype(dtype)),
        _SHAPES,
        _DTYPES,
        st.sampled_from([0, 1, -1, 0.5]),
    ),
    st.sampled_from(_BYTES).map(serialised),
    st.just(0).map(lambda _: Array(np.zeros(MEGABYTE // 8, np.float32))),
)


def _records(names: list[str]) -> Any:
    named = st.sampled_from(names)
    return st.one_of(
        st.dictionaries(named, _ARRAYS, max_size=3).map(ArrayRecord),
        st.dictionaries(named, st.sampled_from(METRICS), max_size=3).map(MetricRecord),
        st.dictionaries(named, st.sampled_from(VALUES), max_size=3).map(ConfigRecord),
    )


class UntypedError(AssertionError):
    """An exception of Python or of a library, which does not say what is wrong with the message."""


def ours(error: BaseException) -> bool:
    """Whether an error is of a class of this package, or a ``ValueError`` that a statement of ours raises."""
    if type(error).__module__.startswith("fedapps."):
        return True
    at = error.__traceback__
    while at and at.tb_next:
        at = at.tb_next
    if at is None or type(error) is not ValueError:
        return False
    line = linecache.getline(at.tb_frame.f_code.co_filename, at.tb_lineno)
    return str(at.tb_frame.f_globals["__name__"]).startswith("fedapps.") and line.lstrip().startswith("raise")


@contextmanager
def typed_errors() -> Iterator[None]:
    """Raise :class:`UntypedError` in place of an error of a node that is not ours."""

    def checked(error: Exception, what: str, node_config: Any) -> str:
        if not ours(error):
            raise UntypedError(f"{what}: {type(error).__name__}: {error}") from error
        return reported(error, what, node_config)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedapps.app.client_app.reported", checked)
        yield
