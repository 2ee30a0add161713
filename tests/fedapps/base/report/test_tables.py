"""One table in its five renderings, by hand."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapps.base.errors import headline_of
from fedapps.base.report.metrics import describe, plot_styles
from fedapps.base.report.numbers import ColumnFormat, Estimate, format_number
from fedapps.base.report.sections import part
from fedapps.base.report.tables import Cell, Column, Strong, Table, metric_columns, text_columns

FIRST, SECOND = Estimate(0.5, 3, 0.1, 0.25, 0.75, planned=5), Estimate(0.125, 5, 0.1, 0.075, 0.175)


@pytest.fixture
def table() -> Table:
    columns = [*metric_columns([describe("test.mse")]), Column("verdict")]
    rows = [
        ["fed_avg|1", Cell(FIRST, differs=True, paper=0.25), Strong("50 %")],
        ["local", Cell(SECOND, best=True), "<ok>"],
        ["other", Cell(None), ""],
    ]
    return Table(columns, rows, plot_styles(["local"]))


def test_numbers_of_a_column_have_one_format_and_are_aligned_in_text(table: Table) -> None:
    assert table.text().splitlines() == [
        "method                        test MSE  verdict",
        "-" * 47,
        "fed_avg|1  0.50 ± 0.25 (3 of 5) [0.25]     50 %",
        "local      0.12 ± 0.05                     <ok>",
        "other         –",
    ]


def test_markdown_marks_the_best_and_what_differs_from_it(table: Table) -> None:
    assert table.markdown().splitlines() == [
        "| method | test MSE (lower is better) | verdict |",
        "|---|---|---|",
        r"| fed_avg\|1 | 0.50 ± 0.25 * (3 of 5) [0.25] | **50 %** |",
        "| local | **0.12** ± 0.05 | <ok> |",
        "| other | – |  |",
    ]


def test_latex_has_formulas_and_escapes_texts(table: Table) -> None:
    assert table.latex().splitlines() == [
        r"\begin{tabular}{lrr}", r"\toprule", r"method & test MSE (lower is better) & verdict \\", r"\midrule",
        r"fed\_avg|1 & $0.50 \pm 0.25^{*}$ (3 of 5) [$0.25$] & \textbf{50 \%} \\",
        r"local & $\mathbf{0.12} \pm 0.05$ & <ok> \\",
        r"other & -- &  \\", r"\bottomrule", r"\end{tabular}",
    ]  # fmt: skip


def test_csv_has_all_digits(table: Table) -> None:
    assert table.csv() == "method,test MSE,verdict\nfed_avg|1,0.5,50 %\nlocal,0.125,<ok>\nother,,\n"


def test_html_escapes_texts_and_shows_the_colour_of_a_method(table: Table) -> None:
    text = part("table", table, "a caption")
    assert '<caption class="unseen">a caption</caption>' in text
    assert '<th class="n">test MSE<small>lower is better</small></th>' in text
    number = '0.50 <small>± 0.25</small> <small>(3 of 5)</small><span class="paper">0.25</span>'
    assert f'<td class="n">{number}</td>' in text
    assert '<b class="best">★ 0.12</b> <small>± 0.05</small>' in text
    assert '<i class="swatch" style="background:#0072B2"></i>local' in text
    assert "&lt;ok&gt;" in text
    assert "<b>50 %</b>" in text


def test_a_difference_shows_the_limits_of_its_interval() -> None:
    cell = Cell(replace(SECOND, mean=-1234.5, low=-2000.0, high=0.0), limits=True)
    table = Table(text_columns(["", "difference"]), [["a - b", cell]])
    assert "−1,234 (−2,000 to 0)" in table.text()
    assert r"$-1{,}234 (-2{,}000,\ 0)$" in table.latex()


def test_cells_of_different_groups_have_different_formats() -> None:
    rows = [[name, Cell(Estimate(value), group=name)] for name, value in (("loss", 0.00125), ("steps", 1500.0))]
    assert [line.split() for line in Table(text_columns(["", "x"]), rows).text().splitlines()[2:]] == [
        ["loss", "0.001250"],
        ["steps", "1,500"],
    ]


def test_very_small_numbers_are_powers_of_ten() -> None:
    table = Table(text_columns(["", "x"]), [["a", Cell(Estimate(1e-9))], ["b", Cell(Estimate(-0.5))]])
    assert r"$1.000 \cdot 10^{-9}$" in table.latex()


# Numbers as text: one format for a column, whole numbers in full, and the line of a reason that says most.


@pytest.mark.parametrize(
    ("values", "halves", "texts"),
    [
        ([6_241_000.4, 240_657.2], [], ["6,241,000", "240,657"]),
        ([6_241_000, 45, 0], [], ["6,241,000", "45", "0"]),
        ([0.9062, 0.0012], [], ["0.9062", "0.0012"]),
        ([0.90621, 0.5], [0.0213, 0.0187], ["0.906", "0.500"]),
        ([12.3456, 0.00031], [], ["12.34560", "0.00031"]),
        ([0.0206, 0.0216, 0.2883, 2.21], [0.24, 0.0018, 0.0008, 1.71], ["0.021", "0.022", "0.288", "2.210"]),
        ([0.1, -0.1], [1e-17, 2e-17], ["0.1000", "−0.1000"]),
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
