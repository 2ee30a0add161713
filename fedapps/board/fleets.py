"""The generations of a registry of champions, as plain values for the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedapps.base.report.metrics import plot_styles
from fedapps.base.report.tables import Table
from fedapps.report.generations import read_fleet

#: The newest decisions that the board shows; the report has all.
_MOST_DECISIONS = 10
_MOST_NODES = 200


@dataclass(frozen=True)
class GroupLine:
    """The champion's values of a group of nodes.

    Attributes
    ----------
    name, colour : str
        The group, and its colour as ``#rrggbb``.
    value : float or None
        The last value.
    points : list of (int, float)
        Numbers of decisions and values.
    """

    name: str
    colour: str
    value: float | None
    points: list[tuple[int, float]]


@dataclass(frozen=True)
class FleetStatus:
    """The state of a registry.

    Attributes
    ----------
    path : str
        Its folder, relative to the folder of the board, with ``/``.
    problem : str
        Why it cannot be read.
    facts : list of str
        The model in use, and nodes that drift or are silent.
    metric : str
        Title of the metric; empty before the first comparison.
    groups : list of GroupLine
    decisions, nodes : list of list of str
        The titles of a table and its rows: the newest decisions, and the nodes with a state.
    """

    path: str
    problem: str = ""
    facts: list[str] = field(default_factory=list)
    metric: str = ""
    groups: list[GroupLine] = field(default_factory=list)
    decisions: list[list[str]] = field(default_factory=list)
    nodes: list[list[str]] = field(default_factory=list)


def read_fleet_status(folder: Path, path: str, foreign: Sequence[str]) -> FleetStatus:
    """Read the state of the registry in a folder, unless it has ``foreign`` files, which lie elsewhere."""
    if foreign:
        return FleetStatus(path, f"{', '.join(foreign)}: no regular file of this folder")
    try:
        fleet = read_fleet(folder)
    except (ValueError, ArithmeticError, OSError) as error:  # also values of which no number holds the sum
        return FleetStatus(path, str(error))
    lines, groups = fleet.lines, []
    for name, style in plot_styles(list(lines)).items():
        points = [(number, value) for number, value in zip(*lines[name], strict=True) if math.isfinite(value)]
        groups.append(GroupLine(name, style.colour, points[-1][1] if points else None, points))
    decisions = _texts(fleet.table())[: _MOST_DECISIONS + 1]
    nodes = _texts(fleet.node_table(flagged=True))[: _MOST_NODES + 1]
    return FleetStatus(path, "", fleet.facts(), fleet.metric, groups, decisions, nodes)


def _texts(table: Table) -> list[list[str]]:
    """The titles and the rows of a table."""
    numbers = [[(c, "") if isinstance(c, str) else (c.text, c.interval) for c in row] for row in table.shown]
    rows = [[f"{text} ({interval})" if interval else text for text, interval in row] for row in numbers]
    return [[column.title for column in table.columns], *rows]
