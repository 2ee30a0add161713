"""One table in its five renderings, by hand."""

from dataclasses import replace

import pytest

from fedapps.base.report.metrics import describe, plot_styles
from fedapps.base.report.numbers import Estimate
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
