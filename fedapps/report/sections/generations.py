"""The generations of a fleet: the champion's line by group, the decisions, and the nodes that drift or are silent."""

from __future__ import annotations

from markupsafe import Markup
from matplotlib.ticker import MaxNLocator

from fedapps.base.report.figures import drawing, mark
from fedapps.base.report.metrics import NEUTRAL, plot_styles
from fedapps.report.generations import Fleet

from . import section_of

_WIDE = 7.6
_FEW = 30


def generations(fleet: Fleet) -> Markup:
    """The sections of a registry's report; without the figure before the second comparison."""
    lines = fleet.lines
    groups = {name for one in fleet.comparisons for name in one.decision.line()}
    return section_of(
        "generations",
        metric=fleet.metric,
        styles=plot_styles(list(lines)),
        figures=[_figure(fleet)] if len(fleet.comparisons) > 1 else [],
        hidden=len(groups) - len(lines),
        decisions=fleet.table(),
        gains=fleet.gains(),
        flagged=fleet.node_table(flagged=True),
        nodes=fleet.node_table(flagged=False),
    )


def _figure(fleet: Fleet) -> Markup:
    lines, days = fleet.lines, {one.number: one.day for one in fleet.generations}
    with drawing(f"Line chart of {fleet.metric} of the model in use by decision and group", width=_WIDE) as figure:
        axes = figure.axes[0]
        for one in fleet.generations:
            if one.decision.promote or one.decision.rollback:
                dash = "-" if one.decision.promote else ":"
                axes.axvline(one.number, color=NEUTRAL, linewidth=0.8, linestyle=dash, alpha=0.3, zorder=0)
        for name, (numbers, values) in lines.items():
            style = plot_styles(list(lines))[name]
            marker = style.marker if len(numbers) <= _FEW else None
            (line,) = axes.plot(numbers, values, style.dash, color=style.colour, marker=marker, markersize=4)
            mark(line, name, at=[f"{number}, {days[number]}" for number in numbers])
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_title(fleet.metric)
        axes.set_xlabel("decision")
    return figure.markup
