"""How the clients fared: one dot for each client, the same client joined from method to method."""

from __future__ import annotations

import math

import numpy as np

from fedapps.report.figures import drawing
from fedapps.report.markup import panels
from fedapps.report.markup import section as block
from fedapps.report.palette import NEUTRAL, looks
from fedapps.report.results import last_evaluations, leading_in_rounds
from fedapps.report.run_data import RunData

_ROOM = 55  # letters of method names that stand beside one another

ORDER = 70


def section(run: RunData) -> str | None:
    """The leading metric of each client at the last evaluation; None where no client reported it."""
    metric = leading_in_rounds(run)
    if metric is None:
        return None
    values: dict[str, dict[str, float]] = {}
    for method, nodes in last_evaluations(run).items():
        found = {key: node.metrics[metric.name] for key, node in nodes.items() if metric.name in node.metrics}
        finite = {key: value for key, value in found.items() if math.isfinite(value)}
        if finite:
            values[method] = finite
    if not values:
        return None
    look = looks(run.methods)
    methods = list(values)
    clients = sorted({client for row in values.values() for client in row})
    said = ", ".join(
        f"{method} from {min(row.values()):.4g} to {max(row.values()):.4g}" for method, row in values.items()
    )
    width = min(7.6, max(5.2, 1.2 + 0.8 * len(methods)))
    with drawing(f"Dots of {metric.axis} for each client and method: {said}", width=width, height=3.3) as figure:
        axes = figure.axes[0]
        for client in clients:
            line = [values[method].get(client, math.nan) for method in methods]
            axes.plot(range(len(methods)), line, color="#9ca3af", linewidth=0.7, alpha=0.7, zorder=1)
        for place, method in enumerate(methods):
            row = np.array(list(values[method].values()))
            axes.plot([place - 0.28, place + 0.28], [np.median(row)] * 2, color=NEUTRAL, linewidth=2.4, zorder=2)
            axes.scatter(
                np.full(row.size, place),
                row,
                s=34,
                color=look[method].colour,
                marker=look[method].marker,
                edgecolors="white",
                linewidths=0.6,
                zorder=3,
            )
        crowded = sum(map(len, methods)) > _ROOM
        axes.set_xticks(range(len(methods)), methods, rotation=35 * crowded, ha="right" if crowded else "center")
        axes.set_xlim(-0.5, len(methods) - 0.5)
        axes.set_title(metric.axis + (f"  ({metric.direction})" if metric.better else ""))
    lead = (
        f"{len(clients)} client{'' if len(clients) == 1 else 's'} at the last evaluation. A dot is a client, "
        "a thin line joins the same client, a bar is the median."
    )
    return block("clients", "Client by client", panels([figure.markup]), lead=lead)
