"""The same encounter under each method, and behind a click the same with further nodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedapps.report.encounter import gap, picture
from fedapps.report.markup import details, panels
from fedapps.report.markup import section as block
from fedapps.report.palette import looks
from fedapps.report.run_data import RunData
from fedapps.report.traces import Trace, read_traces

_MOST_NODES = 4
_MARGIN = 4.0

ORDER = 100


def section(run: RunData) -> str | None:
    """One session of each method and node, for up to four nodes; None without traces."""
    by_node: dict[str, dict[str, Path]] = {}
    for (method, node), path in run.traces.items():
        if method in run.methods:
            by_node.setdefault(node, {})[method] = path
    # Nodes that most methods drove come first: they can be compared.
    nodes = sorted(by_node, key=lambda node: (-len(by_node[node]), node))[:_MOST_NODES]
    drawn = {node: figures for node in nodes if (figures := _pictures(run, node, by_node[node]))}
    if not drawn:
        return None
    first, *others = drawn
    more = [details(f"With {node}", panels(drawn[node])) for node in others]
    lead = (
        f"One session with {first}: from above (the width of the road is exaggerated), and the gap between "
        "the cars. Dark: the robot. Colour: the human. Grey, where there is one: a third car. Thin "
        "lines: where the human was expected to go, sampled at a few moments. Diamonds: the start of the "
        "lane change."
    )
    return block("paths", "Paths on the road", panels(drawn[first]), *more, lead=lead)


def _pictures(run: RunData, node: str, paths: dict[str, Path]) -> list[str]:
    traces = {method: _drawable(read_traces(paths[method])) for method in run.methods if method in paths}
    traces = {method: found for method, found in traces.items() if found}
    if not traces:
        return []
    shared = set.intersection(*(set(found) for found in traces.values()))
    numbers = sorted(shared) or sorted({number for found in traces.values() for number in found})
    # The session in which most methods change lanes says most.
    changes = [n for found in traces.values() for n, trace in found.items() if trace.start is not None]
    number = max(numbers, key=changes.count)
    shown = {method: found[number] for method, found in traces.items() if number in found}
    gaps = np.concatenate([gap(trace) for trace in shown.values()])
    limits = (min(float(gaps.min()), 0.0) - _MARGIN, max(float(gaps.max()), 0.0) + _MARGIN)
    look = looks(run.methods)
    return [picture(method, node, trace, look[method].colour, limits) for method, trace in shown.items()]


def _drawable(traces: dict[int, Trace]) -> dict[int, Trace]:
    """The sessions with at least one step in which the cars stay at finite places."""
    return {
        number: trace
        for number, trace in traces.items()
        if trace.robot.size and np.isfinite(trace.robot).all() and np.isfinite(trace.human).all()
    }
