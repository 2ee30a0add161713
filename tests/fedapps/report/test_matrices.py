"""Train-test matrices of runs and comparisons with stages."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from report_pages import comparison, labels, page, section, write_lines

from fedapps.report import ReportError, write_report

#: By method, P[i][j]: the error on stage j after stage i.
MATRICES = {"fedavg": [[0.25, 0.5], [0.75, 0.125]], "stl": [[0.5, 1.5], [0.25, 0.5]]}


def staged_rows(method: str, upto: int = 4) -> list[dict[str, Any]]:
    """Rounds of a run of two stages, two rounds each, which is evaluated in the middle of a stage too."""
    rows = []
    for number in range(1, upto + 1):
        p = MATRICES[method][(number - 1) // 2]
        shown = {f"stage-{j}.test.mse": value + (9 if number % 2 else 0) for j, value in enumerate(p, 1)}
        present = {"validation.mse": 1.0 / number, "test.mse": shown[f"stage-{(number + 1) // 2}.test.mse"]}
        train = {"trainable_parameters": 7.0, "loss": 1.0 / number}
        rows.append({"method": method, "round": number, "train": train, "evaluate": present | shown})
    return rows


@pytest.fixture
def staged(tmp_path: Path) -> Path:
    """A finished run of two methods on data of two stages."""
    (tmp_path / "config.toml").write_text('name = "s"\ntask = "social"\nmethods = "stl,fedavg"\nrounds = 4\n')
    write_lines(tmp_path / "metrics.jsonl", [row for method in MATRICES for row in staged_rows(method)])
    final = {"stl": {"test.mse": 0.5, "test.amse": 0.5, "test.bwt": -0.25, "test.fwt": 1.5, "stage-1.test.mse": 0.25}}
    final["fedavg"] = {"test.mse": 0.125, "test.amse": 0.1875, "test.bwt": 0.5, "test.fwt": 0.5}
    methods = {method: {"rounds": 4, "final": values} for method, values in final.items()}
    (tmp_path / "summary.json").write_text(json.dumps({"methods": methods}))
    return tmp_path


def test_a_run_shows_its_matrices(staged: Path) -> None:
    """AMSE, BWT and FWT by hand: (.25 + .125) / 2, .75 - .25 and .5; (.5 + .5) / 2, .25 - .5 and 1.5."""
    shown = section(page(staged), "stages")
    assert "stl 0.5000, −0.2500, 1.500; fedavg 0.1875, 0.5000, 0.5000" in shown
    numbers = [text for text in labels(shown) if "." in text]
    assert numbers == ["0.50", "1.5", "0.25", "0.50", "0.25", "0.50", "0.75", "0.12"]
    assert {"stl", "fedavg", "tested on stage", "trained up to stage"} <= set(labels(shown))


def test_stages_of_training_are_rows_and_stages_of_testing_columns(
    staged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, write = {}, Axes.text

    def watched(axes: Axes, x: float, y: float, text: str, **how: Any) -> Any:
        found[x, y] = (text, how["weight"])
        return write(axes, x, y, text, **how)

    monkeypatch.setattr(Axes, "text", watched)
    write_lines(staged / "metrics.jsonl", staged_rows("stl"))
    page(staged)
    assert found == {
        (0, 0): ("0.50", "bold"), (1, 0): ("1.5", "normal"), (0, 1): ("0.25", "normal"), (1, 1): ("0.50", "bold"),
    }  # fmt: skip


def test_stages_that_have_not_finished_are_blank(staged: Path) -> None:
    write_lines(staged / "metrics.jsonl", staged_rows("stl", upto=3))
    (staged / "summary.json").unlink()
    shown = section(page(staged), "stages")
    assert [text for text in labels(shown) if "." in text] == ["0.50", "1.5"]
    assert "stl NaN, NaN, 1.500" in shown


def test_metrics_of_single_stages_are_in_no_table_and_no_curve(staged: Path) -> None:
    text = page(staged)
    assert "stage 1" not in text.replace("trained up to stage", "")
    curves = section(text, "curves")
    assert curves.count("<figure>") == 3
    assert curves.index("Line chart of test MSE") < curves.index("training: loss")
    assert "parameters" not in curves


def test_the_headline_of_a_run_with_stages_is_its_average_error(staged: Path) -> None:
    result = section(page(staged), "result")
    assert "<b>fedavg</b>: test AMSE <b>0.1875</b>, 62\N{NO-BREAK SPACE}% below training alone (stl: 0.5000)." in result
    heads = re.findall(r"<th(?: [^>]*)?>([^<]*)", result)
    assert heads[:5] == ["method", "test AMSE", "test BWT", "test FWT", "test MSE"]


def test_a_comparison_shows_the_mean_matrix_over_seeds(tmp_path: Path) -> None:
    """The means of a and b are [[2, 4], [3, 3]]: AMSE 2.5, BWT 1, FWT 4; what one seed lacks has no mean."""
    rows = [
        {"method": "stl", "seed": 0, "metrics": {"amse": 1.5}, "matrices": {"mse": [[1, 3], [3, 2]], "b.mse": [[7]]}},
        {"method": "stl", "seed": 1, "metrics": {"amse": 3.5}, "matrices": {"mse": [[3, 5], [3, 4]]}},
        {"method": "apd", "seed": 0, "metrics": {"amse": 3.5}, "matrices": {"mse": [[1, None], [1, 1]]}},
        {"method": "apd", "seed": 1, "metrics": {"amse": 3.5}, "matrices": {"mse": [[1, 1], [2, 1]]}},
    ]
    (tmp_path / "compare.json").write_text(json.dumps(comparison(rows)))
    shown = section(page(tmp_path), "stages")
    assert "stl 2.500, 1, 4; apd 1, 0.5000, NaN" in shown
    assert "mean over seeds" in shown
    assert "7" not in labels(shown)


def test_a_malformed_matrix_is_reported(tmp_path: Path) -> None:
    rows = [{"method": "stl", "seed": 0, "metrics": {"amse": 1.5}, "matrices": {"mse": [[1, 3], [3]]}}]
    (tmp_path / "compare.json").write_text(json.dumps(comparison(rows)))
    with pytest.raises(ReportError, match=r"compare\.json: 'mse' is \[\[1.0, 3.0\], \[3.0\]\]; it must be a list"):
        write_report(tmp_path)
