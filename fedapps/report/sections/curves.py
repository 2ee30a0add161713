"""Learning curves: evaluation metrics (the main one first) and training metrics over the rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from fedapps.report.figures import drawing
from fedapps.report.markup import details, legend, panels, render_section
from fedapps.report.metrics import describe, measures
from fedapps.report.palette import PlotStyle, plot_styles
from fedapps.report.records import RoundRecord
from fedapps.report.results import curve, leading_in_rounds
from fedapps.report.run_data import RunData

_OPEN = 2
_MOST = 12
_WIDE_RANGE = 30

ORDER = 60


def section(run: RunData) -> str | None:
    """Up to 12 panels, two of them open; None if no round has metrics."""
    leading = leading_in_rounds(run)
    wanted = [("evaluate", name) for name in _names(run, "evaluate")]
    if leading and ("evaluate", leading.name) in wanted:
        wanted.insert(0, wanted.pop(wanted.index(("evaluate", leading.name))))
    trained = [("train", name) for name in _names(run, "train") if not name.endswith("_parameters")]
    trained.sort(key=lambda item: not describe(item[1]).better)  # losses before numbers of steps
    # Show the first training metric beside the main metric.
    wanted = [*wanted[:1], *trained[:1], *wanted[1:], *trained[1:]][:_MOST]
    drawn = [panel for phase, name in wanted if (panel := _panel(run, phase, name))]
    if not drawn:
        return None
    more = [details("More curves", panels(drawn[_OPEN:]))] if drawn[_OPEN:] else []
    return render_section("curves", "Learning curves", legend(plot_styles(run.methods)), panels(drawn[:_OPEN]), *more)


def _names(run: RunData, phase: str) -> list[str]:
    return measures(name for record in run.rounds for name in _values(record, phase))


def _values(record: RoundRecord, phase: str) -> dict[str, float]:
    return dict(record.evaluate if phase == "evaluate" else record.train)


def _panel(run: RunData, phase: str, name: str) -> str | None:
    metric = describe(name)
    curves = {method: curve(run, method, lambda r: _values(r, phase).get(name)) for method in run.methods}
    curves = {method: points for method, points in curves.items() if any(map(math.isfinite, points[1]))}
    if not curves:
        return None
    title = metric.axis if phase == "evaluate" else f"training: {metric.axis}"
    ends = ", ".join(f"{method} {points[1][-1]:.4g}" for method, points in curves.items())
    with drawing(f"Line chart of {title} over rounds; final values: {ends}") as figure:
        axes = figure.axes[0]
        for method, (x, y) in curves.items():
            draw_line(axes, x, y, plot_styles(run.methods)[method])
        finite = [y for _, points in curves.values() for y in points if math.isfinite(y)]
        if min(finite) > 0 and max(finite) / min(finite) > _WIDE_RANGE:
            axes.set_yscale("log")
        axes.set_title(metric.title if phase == "evaluate" else title)
        axes.set_xlabel("round")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    return figure.markup


def draw_line(axes: Axes, x: Sequence[float], y: Sequence[float], style: PlotStyle) -> None:
    """Draw a line, with markers if it has few points."""
    few = len(x) <= 30
    axes.plot(x, y, style.dash, color=style.colour, marker=style.marker if few else None, markersize=4)
