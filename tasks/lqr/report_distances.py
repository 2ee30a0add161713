"""Results by seed: the excess cost, and the distance of the learned parameters from the true ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from markupsafe import Markup

from fedapps.base.report.figures import dots_by_seed, drawing, mark
from fedapps.base.report.metrics import PlotStyle, plot_styles
from fedapps.base.report.sections import ReportedRun, section_markup

_EXCESS, _DYNAMICS, _GAIN = "excess", "dynamics_distance", "gain_distance"

ORDER = 51


def section(run: ReportedRun) -> Markup | None:
    """A figure of each; None unless the runs of a comparison report them."""
    runs, styles = run.seed_metrics, plot_styles(run.methods)
    names = {name for of_method in runs.values() for metrics in of_method.values() for name in metrics}
    figures = [dots_by_seed(runs, styles, _EXCESS)] if _EXCESS in names else []
    if {_DYNAMICS, _GAIN} <= names:
        figures.append(_divergence(runs, styles))
    return section_markup(Path(__file__).parent, "distances", styles=styles, figures=figures) if figures else None


def _divergence(runs: Mapping[str, Mapping[int, Mapping[str, float]]], styles: Mapping[str, PlotStyle]) -> Markup:
    with drawing("Scatter plot: distance of the gain and of the dynamics from the true ones, by method") as figure:
        axes = figure.axes[0]
        for method, of_method in runs.items():
            rows = [metrics for metrics in of_method.values() if {_DYNAMICS, _GAIN} <= metrics.keys()]
            dots = axes.scatter(
                [row[_DYNAMICS] for row in rows],
                [row[_GAIN] for row in rows],
                s=30,
                color=styles[method].colour,
                marker=styles[method].marker,
                edgecolors="white",
                linewidths=0.5,
            )
            mark(dots, method)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.margins(0.08)
        axes.set_xlabel("distance of the dynamics (A, B)")
        axes.set_ylabel("distance of the gain K")
        axes.set_title("distance from the truth  (lower left is better)")
    return figure.markup
