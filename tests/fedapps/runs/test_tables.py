"""Text tables of runs and comparisons."""

from textwrap import fill

import pytest

from fedapps.base.report.numbers import Estimate, number
from fedapps.base.report.tables import text_table
from fedapps.config.parsing import parse
from fedapps.report.comparison_tables import about_tests, comparison_text
from fedapps.runs.comparisons import Comparison, PairedTest
from fedapps.runs.run_folder import RunFolder
from fedapps.runs.tables import summary_table


def test_columns_are_as_wide_as_their_widest_cell():
    assert text_table(["name", "x"], [["a", "1.25"], ["longer", "2"]]).splitlines() == [
        "name       x",
        "------------",
        "a       1.25",
        "longer     2",
    ]


def test_a_table_without_rows_is_its_header():
    assert text_table(["method", "x"], []).splitlines() == ["method  x", "---------"]


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (0.0, "0"), (0.0123456, "0.01235"), (123456.0, "1.235e+05"), (2, "2")]
)
def test_numbers_have_four_digits(value, text):
    assert number(value) == text


def test_the_summary_table_of_a_run(tmp_path):
    """The columns are the main metrics of the task that a method reports, in the task's order."""
    config = parse({"task": "lqr", "collect-after": 0, "output-dir": str(tmp_path), "name": "one"})
    folder = RunFolder.open(config, 1)
    traffic = {"bytes_up": 1_500_000, "bytes_down": 20_000, "seconds": 12.6, "refused": 2}
    first = {"test.excess": 0.125, "num-examples": 4.0, "test.odd": 1.0, "test.state_loss": 0.5}
    folder.finish(config, "sfl", {"final": first, **traffic})
    folder.finish(config, "apfl", {"final": {"test.excess": 0.0625}, **traffic})
    head, _, *rows = summary_table(folder).splitlines()
    assert head.split() == ["method", "state_loss", "excess", "refused", "MB", "up", "MB", "down", "seconds"]
    assert [row.split() for row in rows] == [
        ["sfl", "0.5000", "0.1250", "2", "1.50", "0.02", "13"],
        ["apfl", "–", "0.0625", "2", "1.50", "0.02", "13"],
    ]


def spread(mean: float, half: float = 0.0) -> Estimate:
    return Estimate(mean, 5, half, mean - half, mean + half)


def test_a_comparison_shows_continual_measures_first_and_omits_single_stages():
    row = {"stage-1.test.mse": spread(1.0), "mse": spread(0.5, 0.25), "num-examples": spread(7.0)}
    row |= {"static_parameters": spread(30724.0), "amse": spread(0.0363, 0.002)}
    paper = {"stl": {"amse": 0.0615, "fwt": 0.4175, "static_parameters": 30724.0}}
    table = {"stl": row, "other": {"fwt": spread(0.125)}}
    lines = comparison_text(Comparison(recipe="r", table=table, paper=paper)).splitlines()
    assert lines == [
        "method                      AMSE                       FWT    static parameters          MSE",
        "--------------------------------------------------------------------------------------------",
        "stl     0.0363 ± 0.0020 [0.0615]       –          [0.4175]  30,724 ± 0 [30,724]  0.50 ± 0.25",
        "other        –                    0.1250 ± 0.0000                –                  –",
    ]


def test_a_wide_table_is_split():
    """The first column has 30 characters and every other one 33: two of those fit into 120."""
    row = {"x" * 30 + letter: spread(1.0) for letter in "abcde"}
    blocks = comparison_text(Comparison(recipe="r", table={"m" * 30: row})).split("\n\n")
    assert [len(block.splitlines()[0].split()) - 1 for block in blocks] == [2, 2, 1]
    assert max(len(line) for block in blocks for line in block.splitlines()) == 96


def test_the_text_says_which_pairs_were_tested_unless_all_were_and_what_p_rests_on():
    gap = Estimate(-0.5, 5, low=-0.75, high=-0.25, p=0.0625, p_holm=0.125)
    few = [PairedTest(metric="test.elbo", a="x", b="y", difference=gap, nodes_lower=2, nodes_higher=1)]
    many = [PairedTest(metric="amse", a="x", b=other, difference=gap) for other in "yz"]  # of three pairs
    text = comparison_text(Comparison(recipe="r", tests=few + many))
    assert text.splitlines()[3:] == [
        *fill(about_tests(seeds=5, tests=1), 120).splitlines(),
        "metric          methods                  difference       p  p, Holm-corrected  nodes lower : higher",
        "-" * 100,
        "test ELBO loss  x against y  −0.50 (−0.75 to −0.25)  0.0625             0.1250                 2 : 1",
        "",
        "every method against x (best mean), which is also the one named first; Holm's correction over all 3 pairs, "
        "because the results choose the best one",
        *fill(about_tests(seeds=5, tests=3), 120).splitlines(),
        "metric  methods                  difference       p  p, Holm-corrected  nodes lower : higher",
        "-" * 92,
        "AMSE    x against y  −0.50 (−0.75 to −0.25)  0.0625             0.1250                     –",
        "AMSE    x against z  −0.50 (−0.75 to −0.25)  0.0625             0.1250                     –",
    ]


def test_the_summary_of_a_run_with_stages_shows_continual_measures_first(tmp_path):
    config = parse({"task": "lqr", "methods": "sfl", "rounds": 2, "collect-after": 0, "evaluate-every": 1,
                    "name": "r", "output-dir": str(tmp_path)})  # fmt: skip
    folder = RunFolder.open(config, run_id=1)
    final = {"stage-1.test.excess": 9.0, "test.excess": 0.5, "test.fwt_excess": 0.75, "test.average_excess": 0.25}
    costs = {"rounds": 2, "seconds": 1.0, "bytes_up": 0, "bytes_down": 0, "refused": 0}
    folder.finish(config, "sfl", {"final": final, **costs})
    head, _, row = summary_table(folder).splitlines()
    assert head.split()[:4] == ["method", "average_excess", "fwt_excess", "excess"]
    assert row.split()[:4] == ["sfl", "0.2500", "0.7500", "0.5000"]


def test_methods_without_any_metric_of_a_table_are_omitted():
    cell = spread(0.5, 0.1)
    names = [f"a_measure_with_a_long_name_number_{n}" for n in range(4)]
    table = {"plain": {names[0]: cell}, "clustered": dict.fromkeys(names, cell)}
    first, *others = comparison_text(Comparison(recipe="r", table=table)).split("\n\n")
    assert "plain" in first
    assert others
    assert all("clustered" in block and "plain" not in block for block in others)
