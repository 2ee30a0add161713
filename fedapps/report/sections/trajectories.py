"""One driving session under each method, for up to four nodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from markupsafe import Markup

from fedapps.report.driving_drawing import draw_session, gap
from fedapps.report.driving_traces import DrivingTrace, read_traces
from fedapps.report.palette import plot_styles
from fedapps.report.rendering import render_section
from fedapps.report.run_data import RunData

_MOST_NODES = 4
_MARGIN = 4.0

ORDER = 100


def section(run: RunData) -> Markup | None:
    """The first node's session under each method; the other nodes' sessions are collapsed; None without traces."""
    by_node: dict[str, dict[str, Path]] = {}
    for (method, node), path in run.traces.items():
        if method in run.methods:
            by_node.setdefault(node, {})[method] = path
    # Nodes that have traces of most methods come first, because they allow a comparison.
    nodes = sorted(by_node, key=lambda node: (-len(by_node[node]), node))[:_MOST_NODES]
    drawn = {node: figures for node in nodes if (figures := _pictures(run, node, by_node[node]))}
    return render_section("trajectories", nodes=drawn) if drawn else None


def _pictures(run: RunData, node: str, paths: dict[str, Path]) -> list[Markup]:
    traces = {method: _drawable(read_traces(paths[method])) for method in run.methods if method in paths}
    traces = {method: found for method, found in traces.items() if found}
    if not traces:
        return []
    shared = set.intersection(*(set(found) for found in traces.values()))
    numbers = sorted(shared) or sorted({number for found in traces.values() for number in found})
    # Show the session in which most methods change lanes.
    changes = [n for found in traces.values() for n, trace in found.items() if trace.start is not None]
    number = max(numbers, key=changes.count)
    shown = {method: found[number] for method, found in traces.items() if number in found}
    gaps = np.concatenate([gap(trace) for trace in shown.values()])
    limits = (min(float(gaps.min()), 0.0) - _MARGIN, max(float(gaps.max()), 0.0) + _MARGIN)
    styles = plot_styles(run.methods)
    return [draw_session(method, node, trace, styles[method].colour, limits) for method, trace in shown.items()]


def _drawable(traces: dict[int, DrivingTrace]) -> dict[int, DrivingTrace]:
    """The sessions with at least one step and finite positions only."""
    return {
        number: trace
        for number, trace in traces.items()
        if trace.robot.size and np.isfinite(trace.robot).all() and np.isfinite(trace.human).all()
    }
