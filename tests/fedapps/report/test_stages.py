"""The report of continual learning: matrices by stage, scenes from above, a key that varies."""

import json
import math
import re
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from safetensors.numpy import save_file

from fedapps.report import ReportError, write_report
from fedapps.report.figures import panels_per_row, small_multiples
from fedapps.report.markup import swatch
from fedapps.report.metrics import columns, main_metric, measures
from fedapps.report.palette import plot_styles
from fedapps.report.social_drawing import gaze, read_scene

#: By method, P[i][j]: the error on stage j after stage i.
MATRICES = {"fedavg": [[0.25, 0.5], [0.75, 0.125]], "stl": [[0.5, 1.5], [0.25, 0.5]]}


def page(folder: Path) -> str:
    return unescape(write_report(folder).read_text(encoding="utf-8"))


def section(text: str, name: str) -> str:
    found = re.search(rf'<section id="{name}">.*?</section>', text, re.DOTALL)
    assert found, name
    return found[0]


def labels(figure: str) -> list[str]:
    """The words that are drawn, in their order."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", figure)


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def staged_rows(method: str, upto: int = 4) -> list[dict[str, Any]]:
    """Rounds of a run of two stages, two rounds each, which is evaluated in the middle of a stage too."""
    rows = []
    for number in range(1, upto + 1):
        p = MATRICES[method][(number - 1) // 2]
        shown = {f"stage-{j}.test.mse": value + (9 if number % 2 else 0) for j, value in enumerate(p, 1)}
        present = {"validation.mse": 1.0, "test.mse": shown[f"stage-{(number + 1) // 2}.test.mse"]}
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


# -- matrices ------------------------------------------------------------------------------------------------


def test_a_run_shows_its_matrices(staged: Path) -> None:
    """AMSE, BWT and FWT by hand: (.25 + .125) / 2, .75 - .25 and .5; (.5 + .5) / 2, .25 - .5 and 1.5."""
    shown = section(page(staged), "stages")
    assert "stl 0.5000, −0.2500, 1.500; fedavg 0.1875, 0.5000, 0.5000" in shown
    numbers = [text for text in labels(shown) if "." in text]
    assert numbers == ["0.50", "1.5", "0.25", "0.50", "0.25", "0.50", "0.75", "0.12"]
    assert {"stl", "fedavg", "tested on stage", "after stage"} <= set(labels(shown))


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


def test_what_has_not_come_yet_is_left_blank(staged: Path) -> None:
    write_lines(staged / "metrics.jsonl", staged_rows("stl", upto=3))
    (staged / "summary.json").unlink()
    shown = section(page(staged), "stages")
    assert [text for text in labels(shown) if "." in text] == ["0.50", "1.5"]
    assert "stl NaN, NaN, 1.500" in shown


def test_single_stages_are_in_no_table_and_no_curve(staged: Path) -> None:
    text = page(staged)
    assert "stage 1" not in text.replace("after stage", "")
    curves = section(text, "curves")
    assert curves.count("<figure>") == 3
    assert curves.index("Line chart of test MSE") < curves.index("while training: loss")
    assert "parameters" not in curves


def test_a_run_leads_with_the_error_right_after_each_stage(staged: Path) -> None:
    result = section(page(staged), "result")
    assert "<b>fedavg</b> has the lowest test AMSE: <b>0.1875</b>" in result
    heads = re.findall(r"<th(?: [^>]*)?>([^<]*)", result)
    assert heads[:5] == ["method", "test AMSE", "test BWT", "test FWT", "test MSE"]


def compared(rows: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for row in rows:
        table.setdefault(row["method"], {name: {"mean": v, "std": 0.0} for name, v in row["metrics"].items()})
    return {"recipe": "social-methods", "rows": rows, "table": table, "paper": {}, "tests": [], **more}


def test_a_comparison_shows_the_mean_of_its_seeds(tmp_path: Path) -> None:
    """The means of a and b are [[2, 4], [3, 3]]: AMSE 2.5, BWT 1, FWT 4; what one seed lacks has no mean."""
    rows = [
        {"method": "stl", "seed": 0, "metrics": {"amse": 1.5}, "matrices": {"mse": [[1, 3], [3, 2]], "b.mse": [[7]]}},
        {"method": "stl", "seed": 1, "metrics": {"amse": 3.5}, "matrices": {"mse": [[3, 5], [3, 4]]}},
        {"method": "apd", "seed": 0, "metrics": {"amse": 3.5}, "matrices": {"mse": [[1, None], [1, 1]]}},
        {"method": "apd", "seed": 1, "metrics": {"amse": 3.5}, "matrices": {"mse": [[1, 1], [2, 1]]}},
    ]
    (tmp_path / "compare.json").write_text(json.dumps(compared(rows)))
    shown = section(page(tmp_path), "stages")
    assert "stl 2.500, 1, 4; apd 1, 0.5000, NaN" in shown
    assert "mean over seeds" in shown
    assert "7" not in labels(shown)


def test_a_malformed_matrix_is_named(tmp_path: Path) -> None:
    rows = [{"method": "stl", "seed": 0, "metrics": {"amse": 1.5}, "matrices": {"mse": [[1, 3], [3]]}}]
    (tmp_path / "compare.json").write_text(json.dumps(compared(rows)))
    with pytest.raises(ReportError, match=r"compare\.json: 'mse' is \[\[1, 3\], \[3\]\]; it must be a list of equally"):
        write_report(tmp_path)


@pytest.mark.parametrize(("count", "columns"), [(1, 1), (2, 2), (3, 3), (4, 4), (5, 3), (8, 4), (9, 3), (28, 4)])
def test_small_axes_stand_in_rows(count: int, columns: int) -> None:
    assert panels_per_row(count) == columns
    with small_multiples("what is shown", count, height=1.0) as figure:
        assert len(figure.axes) == count
        assert len({axes.get_position().y0 for axes in figure.axes}) == math.ceil(count / columns)


# -- scenes --------------------------------------------------------------------------------------------------


def scene(**other: Any) -> dict[str, Any]:
    """A room of 2 by 1 metres with its corner at (-0.5, -0.5), and a grid that reaches one metre beyond it."""
    return {
        "scene.room": [[-0.5, -0.5], [1.5, -0.5], [1.5, 0.5], [-0.5, 0.5]],
        "scene.humans": [[1.0, 0.25, 0.5]],
        "scene.objects": [[1.25, -0.25, 0.0]],
        "scene.links": [[0, 1]],
        "scene.x": [-1.0, 0.0, 1.0],
        "scene.y": [0.0, 1.0],
        "scene.score": [[0.95, 0.625, 0.31], [0.0, 1.0, math.nan]],
        "scene.inside": np.array([[False, True, True], [False, False, False]]),
        "scene.truth": np.array(0.75),
        **{f"scene.{name}": value for name, value in other.items()},
    }


def save_scene(folder: Path, method: str, arrays: dict[str, Any], node: str = "client-1") -> Path:
    place = folder / "nodes" / "run-1a2b" / method / node
    place.mkdir(parents=True)
    save_file({name: np.asarray(value) for name, value in arrays.items()}, place / "traces.safetensors")
    return place / "traces.safetensors"


def test_a_scene_is_read_as_it_was_written(tmp_path: Path) -> None:
    found = read_scene(save_scene(tmp_path, "stl", scene()))
    assert found is not None
    assert (found.here, found.truth) == (0.625, 0.75)
    np.testing.assert_array_equal(found.shown, [[np.nan, 0.625, 0.31], [np.nan] * 3])
    assert found.links.tolist() == [[0, 1]]


def test_people_look_along_their_orientation() -> None:
    """In half turns from straight down, over +x at a half, to straight up at a whole one."""
    people = np.array([[5, 5, 0.0], [5, 5, 0.5], [5, 5, 1.0], [5, 5, -0.5]])
    np.testing.assert_allclose(gaze(people), [[0, -1], [1, 0], [0, 1], [-1, 0]], atol=1e-12)


def test_scenes_stand_beside_one_another(staged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One colour scale: what is drawn lies between .31 and .82, rounded outwards to tenths."""
    scales, draw = [], Axes.pcolormesh

    def watched(axes: Axes, *grid: Any, **how: Any) -> Any:
        if "vmin" in how:  # not that of the colour bar itself
            scales.append((how["vmin"], how["vmax"]))
        return draw(axes, *grid, **how)

    monkeypatch.setattr(Axes, "pcolormesh", watched)
    save_scene(staged, "fedavg", scene())
    save_scene(staged, "stl", scene(score=[[0.0, 0.5, 0.82], [0.0, 0.0, 0.0]]))
    save_scene(staged, "stl", scene(truth=np.array(0.25)), "client-2")
    shown = section(page(staged), "scenes")
    assert "stl 0.50, fedavg 0.62, rated 0.75" in shown
    assert "A scene of client-2, rated 0.25" in shown
    assert scales == [(0.3, 0.9), (0.3, 0.9), (0.3, 0.7)]
    assert {"stl: 0.50", "fedavg: 0.62", "predicted score", "x [m]", "y [m]"} <= set(labels(shown))


def test_an_empty_room_can_be_drawn(staged: Path) -> None:
    nobody = {"humans": np.zeros((0, 3)), "objects": np.zeros((0, 3)), "links": np.zeros((0, 2), np.int64)}
    save_scene(staged, "stl", scene(**nobody))
    assert "stl 0.62, rated 0.75" in section(page(staged), "scenes")


def test_other_traces_are_no_scene(staged: Path) -> None:
    save_scene(staged, "stl", {"something": np.zeros(3)})
    assert '<section id="scenes"' not in page(staged)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"links": [[0, 2]]}, r"'scene\.links' names others than the 2 humans and objects"),
        ({"links": [[-1, 0]]}, r"'scene\.links' names others than the 2 humans and objects"),
        ({"score": [[0.0, 1.0]]}, r"'scene\.score' has the shape \(1, 2\); it must be \(2, 3\)"),
        ({"humans": [[0.0, 1.0]]}, r"'scene\.humans' has the shape \(1, 2\); it must be \(any, 3\)"),
    ],
)
def test_a_malformed_scene_is_named(tmp_path: Path, other: dict[str, Any], message: str) -> None:
    with pytest.raises(ReportError, match=rf"^run-1a2b/stl/client-1/traces\.safetensors: {message}"):
        read_scene(save_scene(tmp_path, "stl", scene(**other)))


# -- a key that varies ---------------------------------------------------------------------------------------


def varied(tmp_path: Path, errors: dict[Any, dict[str, tuple[float, float]]]) -> Path:
    """A comparison whose share of the data varies; ``errors`` are mean and deviation by value and method."""
    parts, rows = [], []
    for value, of_method in errors.items():
        table = {method: {"amse": {"mean": mean, "std": std}} for method, (mean, std) in of_method.items()}
        parts.append({"value": value, "table": table, "paper": {}, "tests": []})
        facts = {"seed": 0, "metrics": {"amse": 1.0}, "varied": {"key": "share", "value": value}}
        rows += [{"method": method, **facts} for method in of_method]
    whole = compared([], varied={"key": "share", "values": parts}) | {"rows": rows}
    (tmp_path / "compare.json").write_text(json.dumps(whole))
    return tmp_path


def test_the_main_metric_is_drawn_against_the_varied_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bands = []
    monkeypatch.setattr(
        Axes, "fill_between", lambda axes, x, low, high, **how: bands.append((list(x), list(low), list(high)))
    )
    errors = {1.0: {"stl": (0.5, 0.125), "apd": (0.25, 0.0)}, 0.25: {"stl": (0.75, 0.25), "apd": (1.0, 0.5)}}
    text = page(varied(tmp_path, errors))
    assert re.findall(r'<section id="(\w+)"', text) == ["result", "varied", "comparison"]
    assert bands == [([0.25, 1.0], [0.5, 0.375], [1.0, 0.625]), ([0.25, 1.0], [0.5, 0.25], [1.5, 0.25])]
    shown = section(text, "varied")
    assert "AMSE against share: stl 0.75, 0.5; apd 1, 0.25" in shown
    assert {"share", "0.25", "1.0", "AMSE  (lower is better)"} <= set(labels(shown))


def test_each_value_has_its_own_table(tmp_path: Path) -> None:
    errors = {0.5: {"stl": (0.5, 0.0), "apd": (0.25, 0.0)}, 1.0: {"stl": (0.75, 0.25), "apd": (1.0, 0.5)}}
    shown = section(page(varied(tmp_path, errors)), "comparison")
    first, second = shown.split("<summary>share = 1.0</summary>")
    assert "<summary>share = 0.5</summary>" in first
    assert "★ 0.2500" in first
    assert "★ 0.7500" in second


def test_the_headline_counts_values(tmp_path: Path) -> None:
    errors = {v: {"stl": (0.5, 0.0), "apd": (best, 0.0)} for v, best in ((0.1, 0.25), (0.5, 0.75), (1.0, 0.25))}
    result = section(page(varied(tmp_path, errors)), "result")
    assert "<b>apd</b> has the lowest AMSE at 2 of 3 values of share." in result


def test_values_that_are_no_numbers_stand_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bands = []
    monkeypatch.setattr(Axes, "fill_between", lambda axes, x, *limits, **how: bands.append(list(x)))
    shown = section(page(varied(tmp_path, {"yogi": {"stl": (0.5, 0.0)}, "adam": {"stl": (0.25, 0.0)}})), "varied")
    assert bands == [[0.0, 1.0]]
    assert "stl 0.5, 0.25" in shown
    assert {"yogi", "adam"} <= set(labels(shown))


# -- names and looks -----------------------------------------------------------------------------------------


def test_columns_lead_with_continual_learning() -> None:
    names = ["test.mse", "stage-2.test.mse", "num-examples", "test.fwt", "trainable_parameters", "test.amse"]
    assert measures(names) == ["test.mse", "test.fwt", "trainable_parameters", "test.amse"]
    assert columns(["validation.bwt", "other", "bwt"]) == ["bwt", "other", "validation.bwt"]
    assert columns(names) == ["test.amse", "test.fwt", "trainable_parameters", "test.mse"]
    assert main_metric(names) == "test.amse"
    assert main_metric(["validation.mse", "test.mse"]) == "test.mse"
    assert main_metric(["validation.mse"]) == "validation.mse"


def test_methods_of_one_colour_have_different_swatches() -> None:
    found = plot_styles([f"method-{place}" for place in range(28)])
    assert len({swatch(style) for style in found.values()}) == 28
