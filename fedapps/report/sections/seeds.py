"""What a comparison found in each of its seeds: the leading metric, and how far parameters end from the true ones."""

from __future__ import annotations

from collections.abc import Mapping

from fedapps.report.figures import drawing
from fedapps.report.markup import legend, panels
from fedapps.report.markup import section as block
from fedapps.report.metrics import describe, main_metric
from fedapps.report.palette import Look, looks
from fedapps.report.records import Metrics
from fedapps.report.run_data import RunData

Runs = Mapping[str, Mapping[int, Metrics]]
_DYNAMICS, _GAIN = "dynamics_distance", "gain_distance"

ORDER = 50


def section(run: RunData) -> str | None:
    """A figure of the leading metric by seed, and one of the divergence where runs report it; None without runs."""
    if run.comparison is None or not run.comparison.runs:
        return None
    runs, look = run.comparison.runs, looks(run.methods)
    names = [name for of_method in runs.values() for metrics in of_method.values() for name in metrics]
    metric = "excess" if "excess" in names else main_metric(names)
    if metric is None:
        return None
    figures = [_by_seed(runs, look, metric)]
    if {_DYNAMICS, _GAIN} <= set(names):
        figures.append(_divergence(runs, look))
    lead = "A line is a method, a place along it a seed: the methods of one seed saw the same data and the same draws."
    return block("seeds", "Seed by seed", legend(look), panels(figures), lead=lead)


def _by_seed(runs: Runs, look: Mapping[str, Look], name: str) -> str:
    metric = describe(name)
    with drawing(f"{metric.label} of each method by seed") as figure:
        axes = figure.axes[0]
        for method, of_method in runs.items():
            points = [(seed, metrics[name]) for seed, metrics in sorted(of_method.items()) if name in metrics]
            style = look[method]
            axes.plot(*zip(*points, strict=True), style.dash, color=style.colour, marker=style.marker, linewidth=1)
        values = [metrics[name] for of_method in runs.values() for metrics in of_method.values() if name in metrics]
        if min(values) > 0 and max(values) > 20 * min(values):
            axes.set_yscale("log")
        axes.set_xticks(sorted({seed for of_method in runs.values() for seed in of_method}))
        axes.set_xlabel("seed")
        axes.set_title(metric.axis + (f"  ({metric.direction})" if metric.better else ""))
    return figure.markup


def _divergence(runs: Runs, look: Mapping[str, Look]) -> str:
    with drawing("Distance of the learned gain from the true one against that of the dynamics") as figure:
        axes = figure.axes[0]
        for method, of_method in runs.items():
            rows = [metrics for metrics in of_method.values() if {_DYNAMICS, _GAIN} <= metrics.keys()]
            axes.scatter(
                [row[_DYNAMICS] for row in rows],
                [row[_GAIN] for row in rows],
                s=30,
                color=look[method].colour,
                marker=look[method].marker,
                edgecolors="white",
                linewidths=0.5,
            )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("distance of the dynamics (A, B)")
        axes.set_ylabel("distance of the gain K")
        axes.set_title("learned from true parameters  (lower left is better)")
    return figure.markup
