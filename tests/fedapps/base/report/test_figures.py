"""Figures: layout of small axes, size of the markup, and styles of methods."""

import math

import numpy as np
import pytest

from fedapps.base.report.figures import drawing, limit_bands, panels_per_row, scale_bar, small_multiples
from fedapps.base.report.metrics import plot_styles


@pytest.mark.slow
@pytest.mark.parametrize(("count", "columns"), [(1, 1), (2, 2), (3, 3), (4, 4), (5, 3), (8, 4), (9, 3), (28, 4)])
def test_small_axes_are_laid_out_in_rows(count: int, columns: int) -> None:
    assert panels_per_row(count) == columns
    with small_multiples("what is shown", count, height=1.0) as figure:
        assert len(figure.axes) == count
        assert len({axes.get_position().y0 for axes in figure.axes}) == math.ceil(count / columns)


@pytest.mark.slow
def test_a_large_figure_is_stored_as_png() -> None:
    with drawing("forty thousand points") as figure:
        figure.axes[0].scatter(*np.random.default_rng(0).random((2, 40_000)), s=1)
    assert figure.markup.startswith('<figure><img alt="forty thousand points" src="data:image/png;base64,')


def test_methods_with_the_same_colour_have_different_swatches() -> None:
    found = plot_styles([f"method-{place}" for place in range(28)])
    assert len({style.background for style in found.values()}) == 28


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
