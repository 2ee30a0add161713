"""What the result of each method gives to nodes that took no part in its rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fedapps.registry.tasks import task_class, task_names
from fedapps.report.formats import ColumnFormat
from fedapps.report.metrics import Metric, bare, describe
from fedapps.report.palette import PlotStyle, plot_styles
from fedapps.report.records import HeldOut, HeldOutMetric, Spread
from fedapps.report.rendering import render_section
from fedapps.report.run_data import RunData
from fedapps.report.tables import Cell, column_format

ORDER = 35


@dataclass(frozen=True)
class _Row:
    """A method: the cells of its three models, and the differences between them."""

    name: str
    style: PlotStyle
    cells: Sequence[Cell]
    found: HeldOutMetric


def section(run: RunData) -> Markup | None:
    """A table for each main metric of the task; None if no node was held out."""
    parts = {title: part.held_out for title, part in run.comparison.parts.items()} if run.comparison else {}
    if not run.comparison:
        parts = {"": {name: of.held_out for name, of in (run.summary or {}).items() if of.held_out}}
    shown = {title: _tables(run, found) for title, found in parts.items() if found}
    if not shown:
        return None
    sizes = sorted({(found.nodes, found.epochs) for part in parts.values() for found in part.values()})
    return render_section("held_out", sizes=sizes, parts=shown)


def _tables(run: RunData, found: Mapping[str, HeldOut]) -> list[tuple[Metric, list[_Row], ColumnFormat]]:
    """For each metric its rows, and the format of all their numbers."""
    styles = plot_styles(run.methods)
    there = list(dict.fromkeys(name for of_method in found.values() for name in of_method.metrics))
    main = [bare(name) for name in task_class(run.task).headline] if run.task in task_names() else []
    tested = (name for name in there if bare(name) in main)  # not in trials, whose test data are withheld
    names = sorted(tested, key=lambda name: main.index(bare(name))) or there[:1]
    tables = []
    for name in names:
        rows = [
            _Row(method, styles[method], _cells(of.metrics[name], describe(name)), of.metrics[name])
            for method, of in found.items()
            if name in of.metrics and method in styles
        ]
        tables.append((describe(bare(name)), rows, column_format(cell for row in rows for cell in row.cells)))
    return tables


def _cells(found: HeldOutMetric, metric: Metric) -> list[Cell]:
    models: dict[str, Spread] = {"shared": found.shared, "adapted": found.adapted, "local": found.local}
    best = metric.best({name: model.mean for name, model in models.items()})
    return [Cell(model.mean, best=name == best, half=model.half) for name, model in models.items()]
