"""Tables and figures for a paper, from a comparison written by hand."""

import json
from pathlib import Path

import pytest
from report_pages import estimate, paired_test

from fedapps.report import ReportError
from fedapps.report.paper import FORMATS, write_formats

TABLE = {
    "fed_avg": {"total_loss": estimate(0.25, 0.025, sd=0.02), "excess": estimate(0.5, 0.1)},
    "apfl": {"total_loss": estimate(0.125, 0.0125, sd=0.01), "excess": estimate(0.75, 0.1)},
}
COURSE = {"rounds": [1, 2], "mean": [0.5, 0.25], "half": [0.125, 0.0625]}


@pytest.fixture
def compared(tmp_path: Path) -> Path:
    test = paired_test("test.total_loss", "fed_avg", "apfl", mean=0.125, low=0.1, high=0.15, p=0.02, p_holm=0.04)
    rows = [{"method": m, "seed": seed, "metrics": {}} for m in TABLE for seed in range(5)]
    curves = {m: {"total_loss": COURSE} for m in TABLE}
    whole = {"recipe": "lqr", "rows": rows, "table": TABLE, "tests": [test], "curves": curves}
    (tmp_path / "compare.json").write_text(json.dumps(whole))
    return tmp_path


def test_the_latex_table_has_intervals_the_best_in_bold_and_a_mark_of_significance(compared: Path) -> None:
    (path,) = write_formats(compared, ["tex"])
    text = path.read_text()
    assert r"fed\_avg & $0.250 \pm 0.025^{*}$ \\" in text
    assert r"apfl & $\mathbf{0.125} \pm 0.013$ \\" in text
    assert text.count(r"\toprule") == text.count(r"\bottomrule") == 1
    assert "5 seeds: mean with the half width" in text


def test_the_markdown_table_has_the_same_cells(compared: Path) -> None:
    (path,) = write_formats(compared, ["md"])
    assert "| fed_avg | 0.250 ± 0.025 * |" in path.read_text()
    assert "| apfl | **0.125** ± 0.013 |" in path.read_text()


def test_without_tests_the_table_has_the_main_metrics_of_the_task(tmp_path: Path) -> None:
    row = {name: estimate(0.5) for name in ("local_accuracy", "local_accuracy.count", "steps")}
    whole = {"recipe": "quickstart", "task": "text", "rows": [], "table": {"fedavg": row}, "tests": [], "curves": {}}
    (tmp_path / "compare.json").write_text(json.dumps(whole))
    (path,) = write_formats(tmp_path, ["csv"])
    assert [line.split(",")[1] for line in path.read_text().splitlines()[1:]] == ["local_accuracy"]


def test_the_csv_has_a_line_per_method_and_metric(compared: Path) -> None:
    (path,) = write_formats(compared, ["csv"])
    assert path.read_text().splitlines() == [
        "method,metric,mean,std,low,high,seeds,p_holm_against_best",
        "fed_avg,total_loss,0.25,0.02,0.225,0.275,5,0.04",
        "apfl,total_loss,0.125,0.01,0.1125,0.1375,5,",
    ]


def test_each_figure_of_the_report_is_a_pdf(compared: Path) -> None:
    paths = write_formats(compared, ["pdf"])
    assert [path.name for path in paths] == ["curves-1.pdf"]
    assert all(path.read_bytes().startswith(b"%PDF") for path in paths)


def test_an_unknown_format_is_refused_before_anything_is_written(compared: Path) -> None:
    with pytest.raises(ReportError, match="format 'docx': must be one of html, tex, md, csv, pdf"):
        write_formats(compared, ["tex", "docx"])
    assert not (compared / "table.tex").exists()
    assert list(FORMATS) == ["html", "tex", "md", "csv", "pdf"]
