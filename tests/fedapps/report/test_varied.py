"""Comparisons in which a key of the run config varies."""

import json
from pathlib import Path
from typing import Any

import pytest
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from report_pages import comparison, estimate, labels, page, section, section_names


def varied(tmp_path: Path, errors: dict[Any, dict[str, tuple[float, float]]], **more: float) -> Path:
    """A comparison whose share of the data varies; ``errors`` are mean and half width by value and method.

    ``more`` are further metrics and their means, which are the same for all.
    """
    parts = []
    for value, of_method in errors.items():
        also = {name: estimate(mean) for name, mean in more.items()}
        table = {method: {"amse": estimate(mean, half), **also} for method, (mean, half) in of_method.items()}
        rows = [{"method": method, "seed": 0, "metrics": {"amse": 1.0}} for method in of_method]
        parts.append({"point": {"share": value}, "rows": rows, "table": table})
    whole = comparison([], varied=parts)
    (tmp_path / "compare.json").write_text(json.dumps(whole))
    return tmp_path


def test_the_main_metric_is_drawn_against_the_varied_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bands = []

    def fill_between(axes, x, low, high, **how):
        bands.append((list(x), list(low), list(high)))
        return Artist()

    monkeypatch.setattr(Axes, "fill_between", fill_between)
    errors = {1.0: {"stl": (0.5, 0.125), "apd": (0.25, 0.0)}, 0.25: {"stl": (0.75, 0.25), "apd": (1.0, 0.5)}}
    text = page(varied(tmp_path, errors))
    assert section_names(text) == ["result", "varied", "comparison"]
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
    assert "★ 0.75</b> <small>± 0.25" in second


def test_the_headline_counts_values(tmp_path: Path) -> None:
    errors = {v: {"stl": (0.5, 0.0), "apd": (best, 0.0)} for v, best in ((0.1, 0.25), (0.5, 0.75), (1.0, 0.25))}
    result = section(page(varied(tmp_path, errors)), "result")
    assert "<b>apd</b> has the lowest AMSE at 2 of 3 values of share." in result


def test_values_that_are_not_numbers_are_equally_spaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bands = []
    monkeypatch.setattr(Axes, "fill_between", lambda axes, x, *limits, **how: bands.append(list(x)) or Artist())
    shown = section(page(varied(tmp_path, {"yogi": {"stl": (0.5, 0.0)}, "adam": {"stl": (0.25, 0.0)}})), "varied")
    assert bands == [[0.0, 1.0]]
    assert "stl 0.5, 0.25" in shown
    assert {"yogi", "adam"} <= set(labels(shown))


def test_rounds_and_steps_to_the_target_have_figures(tmp_path: Path) -> None:
    errors = {0.5: {"stl": (0.5, 0.0)}, 1.0: {"stl": (0.75, 0.25)}}
    shown = section(page(varied(tmp_path, errors, rounds_to_target=30.0, steps_to_target=1400.0)), "varied")
    assert shown.count("<figure") == 3
    assert "rounds to target against share: stl 30, 30" in shown
    assert "steps to target against share: stl 1400, 1400" in shown
    assert "means over the seeds that reach it" in shown


def test_a_grid_has_a_figure_for_each_value_of_the_second_key(tmp_path: Path) -> None:
    parts = [
        {
            "point": {"alpha": alpha, "epochs": epochs},
            "table": {"stl": {"amse": estimate(alpha * epochs)}, "apd": {"amse": estimate(9.0)}},
        }
        for alpha in (0.5, 1.0)
        for epochs in (1, 5)
    ]
    (tmp_path / "compare.json").write_text(json.dumps(comparison([], varied=parts)))
    text = page(tmp_path)
    shown = section(text, "varied")
    assert "AMSE against alpha, epochs = 1: stl 0.5, 1; apd 9, 9" in shown
    assert "AMSE against alpha, epochs = 5: stl 2.5, 5; apd 9, 9" in shown
    assert "at 4 of 4 combinations of alpha and epochs." in section(text, "result")
    assert "<summary>alpha = 0.5, epochs = 5</summary>" in section(text, "comparison")
