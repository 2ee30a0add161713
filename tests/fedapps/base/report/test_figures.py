"""Figures: layout of small axes, size of the markup, and styles of methods."""

import json
import math
import re
from html import unescape

import numpy as np
import pytest
from browser_pages import dom_of, in_a_browser
from report_pages import page, section, write_finished_run

from fedapps.base.report.figures import drawing, in_lines, limit_bands, mark, panels_per_row, scale_bar, small_multiples
from fedapps.base.report.metrics import plot_styles


@pytest.mark.slow
@pytest.mark.parametrize(("count", "columns"), [(1, 1), (2, 2), (3, 3), (4, 4), (5, 3), (8, 4), (9, 3), (28, 4)])
def test_small_axes_are_laid_out_in_rows(count: int, columns: int) -> None:
    assert panels_per_row(count) == columns
    with small_multiples("what is shown", count, height=1.0) as figure:
        assert len(figure.axes) == count
        assert len({axes.get_position().y0 for axes in figure.axes}) == math.ceil(count / columns)


def test_a_name_ends_its_lines_before_arguments() -> None:
    assert in_lines("scaffold(run.steps=10,run.clip-norm=1)", 28) == ["scaffold(run.steps=10,", "run.clip-norm=1)"]
    assert in_lines("fedavg(run.epochs=2)", 13) == ["fedavg(", "run.epochs=2)"]
    assert in_lines("fedavg(mu=1)", 12) == ["fedavg(mu=1)"]


@pytest.mark.slow
def test_a_large_figure_is_stored_as_png() -> None:
    with drawing("forty thousand points") as figure:
        figure.axes[0].scatter(*np.random.default_rng(0).random((2, 40_000)), s=1)
    assert figure.markup.startswith('<figure><img alt="forty thousand points" src="data:image/png;base64,')


def test_methods_with_the_same_colour_have_different_swatches_and_markers() -> None:
    found = plot_styles([f"method-{place}" for place in range(28)])
    assert len({style.background for style in found.values()}) == 28
    assert len({(style.colour, style.marker) for style in found.values()}) == 28


@pytest.mark.parametrize(("metres", "bar"), [(1.0, 1), (4.9, 2), (5.0, 5), (99.0, 50), (1000.0, 1000), (0.3, 0.2)])
def test_the_length_of_a_scale_bar_is_round(metres: float, bar: float) -> None:
    """It is the largest of 1, 2 or 5 times a power of ten that is at most 0.4 of the map."""
    with drawing("a map") as figure:
        scale_bar(figure.axes[0], 3.0, 7.0, metres / 0.4)
        (line,) = figure.axes[0].lines
        assert line.get_xdata() == pytest.approx([3.0, 3.0 + bar])


def test_bands_reach_as_far_beyond_the_lines_as_these_range() -> None:
    with drawing("two lines in wide bands") as figure:
        axes = figure.axes[0]
        axes.set_ylim(-1.5, 0.35)
        limit_bands(axes, [0.1, 0.2, 0.3])
        assert axes.get_ylim() == pytest.approx((-0.1, 0.35))


# Series of figures: where their points are, what they say, and how the script of the report shows and hides them.


METHODS = ["local", "sfl", "apfl"]


def points_of(markup: str) -> dict[str, list[tuple[float, float, str]]]:
    """The points of each series of a figure, by its name."""
    found = re.findall(r'<g data-series="([^"]*)" data-points="([^"]*)"', markup)
    return {unescape(name): json.loads(unescape(points)) for name, points in found}


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_points_are_where_the_line_is_drawn_and_say_its_values(scale):
    with drawing("a line") as figure:
        axes = figure.axes[0]
        (line,) = axes.plot([1, 2, 4], [0.5, 20.0, 0.001])
        mark(line, "fedavg")
        axes.set_yscale(scale)
        axes.set_xlabel("round")
    found = points_of(figure.markup)["fedavg"]
    assert [text for _, _, text in found] == ["round 1: 0.5000", "round 2: 20", "round 4: 0.001000"]
    path = re.search(r'<g data-series="fedavg".*?<path d="(.*?)"', figure.markup, re.DOTALL)
    assert path
    drawn = [tuple(map(float, pair.split())) for pair in re.findall(r"[ML] (\S+ \S+)", path[1])]
    assert [(x, y) for x, y, _ in found] == [pytest.approx(pair, abs=0.06) for pair in drawn]


def test_a_name_is_text_whatever_it_contains():
    name = """a"b' onload="x()" <script>&%$"""
    with drawing("a line") as figure:
        mark(figure.axes[0].plot([1], [1.0])[0], name, at=["<b>"])
    assert points_of(figure.markup)[name][0][2] == "<b>: 1"
    assert "<script>" not in figure.markup
    assert "<b>" not in figure.markup


def test_a_line_keeps_its_points_beside_the_band_and_the_marks_of_its_series():
    with drawing("a line") as figure:
        axes = figure.axes[0]
        mark(axes.plot([1, 2], [1.0, 2.0])[0], "fedavg")
        mark(axes.fill_between([1, 2], [0.5, 1.5], [1.5, 2.5]), "fedavg")
        mark(axes.scatter([2], [2.0]), "fedavg")
    assert figure.markup.count('data-series="fedavg"') == 3
    assert [text for _, _, text in points_of(figure.markup)["fedavg"]] == ["1: 1", "2: 2"]


def test_points_that_are_not_finite_and_very_long_lines_have_no_values():
    with drawing("lines") as figure:
        mark(figure.axes[0].plot([1, 2], [1.0, float("nan")])[0], "some")
        mark(figure.axes[0].plot(range(501), range(501))[0], "long")
    assert {name: len(points) for name, points in points_of(figure.markup).items()} == {"some": 1}
    assert 'data-series="long"' in figure.markup


def test_every_curve_of_a_report_has_the_points_of_its_method(tmp_path):
    curves = section(page(write_finished_run(tmp_path)), "curves")
    figure = curves[curves.index("<figure>") : curves.index("</figure>")]
    assert {name: len(points) for name, points in points_of(figure).items()} == dict.fromkeys(METHODS, 3)


@in_a_browser
def test_a_legend_switches_its_series_on_and_off(tmp_path):
    click = 'document.querySelectorAll("#curves .legend button")[1].click();'
    text = page(write_finished_run(tmp_path))
    for clicks, hidden in ((1, ["sfl"]), (2, [])):
        section_after = section(dom_of(text.replace("</script>", click * clicks + "</script>"), tmp_path), "curves")
        pressed = re.findall(r'aria-pressed="(\w+)"', section_after)
        assert pressed == [str(method not in hidden).lower() for method in METHODS]
        gone = re.findall(r'data-series="(\w+)"[^>]*style="display: none;"', section_after)
        assert sorted(set(gone)) == hidden


@in_a_browser
def test_the_pointer_shows_the_nearest_point(tmp_path):
    point = """
        const group = document.querySelector('#curves [data-series="apfl"]'), svg = group.closest("svg");
        const [x, y] = JSON.parse(group.dataset.points)[2];
        const place = new DOMPoint(x, y).matrixTransform(group.getScreenCTM());
        const move = (dx, kind) => svg.dispatchEvent(
            new PointerEvent(kind, {clientX: place.x + dx, clientY: place.y, bubbles: true}));
    """
    text = page(write_finished_run(tmp_path))
    for moves, tips in (
        ('move(3, "pointermove");', ["apfl, round 3: 0.02667"]),
        ('move(3, "pointermove"); move(0, "pointerleave");', []),
        ('move(3, "pointermove"); move(-5000, "pointermove");', []),
    ):
        after = section(dom_of(text.replace("</script>", f"{point}{moves}</script>"), tmp_path), "curves")
        assert re.findall(r'<output class="tip"(?! hidden)[^>]*>(.*?)</output>', after) == tips
