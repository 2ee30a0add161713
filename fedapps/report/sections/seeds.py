"""Results of a comparison by seed: the main metric, and the distance of the learned parameters from the true ones."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from markupsafe import Markup

from fedapps.report.figures import drawing
from fedapps.report.metrics import describe, main_metric
from fedapps.report.palette import PlotStyle, plot_styles
from fedapps.report.records import Metrics
from fedapps.report.rendering import render_section
from fedapps.report.run_data import RunData
from fedapps.report.series import mark

Runs = Mapping[str, Mapping[int, Metrics]]
#: Between the dots of two methods with the same seed.
_STEP = 0.08
_DYNAMICS, _GAIN = "dynamics_distance", "gain_distance"

ORDER = 50


def section(run: RunData) -> Markup | None:
    """A figure of the main metric by seed, and one of the distances if runs report them; None without runs."""
    if run.comparison is None or not run.comparison.runs:
        return None
    runs, styles = run.comparison.runs, plot_styles(run.methods)
    names = [name for of_method in runs.values() for metrics in of_method.values() for name in metrics]
    metric = "excess" if "excess" in names else main_metric(names)
    if metric is None:
        return None
    figures = [_by_seed(runs, styles, metric)]
    if {_DYNAMICS, _GAIN} <= set(names):
        figures.append(_divergence(runs, styles))
    return render_section("seeds", styles=styles, figures=figures)


def _by_seed(runs: Runs, styles: Mapping[str, PlotStyle], name: str) -> Markup:
    metric = describe(name)
    with drawing(f"{metric.label} of each method by seed") as figure:
        axes = figure.axes[0]
        for place, (method, of_method) in enumerate(runs.items()):
            points = [(seed, metrics[name]) for seed, metrics in sorted(of_method.items()) if name in metrics]
            if not points:
                continue  # only some methods report it
            style = styles[method]
            x, y = zip(*points, strict=True)
            aside = (place - (len(runs) - 1) / 2) * _STEP
            (dots,) = axes.plot(np.add(x, aside), y, color=style.colour, marker=style.marker, linestyle="none")
            mark(dots, method, at=[str(seed) for seed in x])
        values = [metrics[name] for of_method in runs.values() for metrics in of_method.values() if name in metrics]
        if min(values) > 0 and max(values) > 20 * min(values):
            axes.set_yscale("log")
        axes.set_xticks(sorted({seed for of_method in runs.values() for seed in of_method}))
        axes.set_xlabel("seed")
        axes.set_title(metric.title)
    return figure.markup


def _divergence(runs: Runs, styles: Mapping[str, PlotStyle]) -> Markup:
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
