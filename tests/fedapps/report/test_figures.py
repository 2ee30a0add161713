"""Figures: layout of small axes, size of the markup, and styles of methods."""

import math

import numpy as np
import pytest

from fedapps.report.figures import drawing, panels_per_row, small_multiples
from fedapps.report.palette import plot_styles


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
