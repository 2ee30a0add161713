"""Numbers as text: one format for a column, whole numbers in full, and the line of a reason that says most."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapps.base.errors import headline_of
from fedapps.base.report.numbers import ColumnFormat, format_number


@pytest.mark.parametrize(
    ("values", "halves", "texts"),
    [
        ([6_241_000.4, 240_657.2], [], ["6,241,000", "240,657"]),
        ([6_241_000, 45, 0], [], ["6,241,000", "45", "0"]),
        ([0.9062, 0.0012], [], ["0.9062", "0.0012"]),
        ([0.90621, 0.5], [0.0213, 0.0187], ["0.906", "0.500"]),
        ([12.3456, 0.00031], [], ["12.34560", "0.00031"]),
        ([2.5e6, 3.1e-5], [], ["2.500e+06", "3.100e−05"]),
        ([1e12, 5], [], ["1.000e+12", "5.000e+00"]),
        ([-0.5, math.nan, math.inf], [math.nan], ["−0.5000", "NaN", "∞"]),
        ([0, 0], [], ["0", "0"]),
        ([], [], []),
    ],
)
def test_a_column_has_one_format(values: list[float], halves: list[float], texts: list[str]) -> None:
    column = ColumnFormat.of(values, halves)
    assert [column(value) for value in values] == texts


@given(st.lists(st.floats(-1e15, 1e15), min_size=1, max_size=6), st.lists(st.floats(0, 1e3), max_size=3))
def test_all_values_have_as_many_decimals_and_none_but_zero_reads_as_zero(values: list[float], halves: list[float]):
    column = ColumnFormat.of(values, halves)
    texts = [column(value) for value in values]
    assert len({len(text.partition("e")[0].partition(".")[2]) for text in texts}) == 1
    assert len({"e" in text for text in texts}) == 1
    for value, text in zip(values, texts, strict=True):
        assert (float(text.replace(",", "").replace("−", "-")) == 0) == (value == 0)


def test_two_small_values_differ_beside_values_with_wide_intervals():
    column = ColumnFormat.of([0.2883, 0.0206, 0.0216, 2.21], [0.24, 0.0018, 0.0008, 1.71])
    assert [column(value) for value in (0.0206, 0.0216)] == ["0.021", "0.022"]


def test_whole_numbers_are_written_in_full():
    assert [format_number(value) for value in (6_241_000, -240_657, 1e12)] == ["6,241,000", "−240,657", "1.000e+12"]


@pytest.mark.parametrize(
    ("reason", "line"),
    [
        ("no reply within 60 s", "no reply within 60 s"),
        ("shape of w\n  | found (2,)", "shape of w"),
        ("Traceback (most recent call last):\n  |   File x\n  | \n  | OSError: full\n  | ", "OSError: full"),
        ("\n", ""),
    ],
)
def test_the_line_of_a_reason_that_says_most(reason: str, line: str) -> None:
    assert headline_of(reason) == line
