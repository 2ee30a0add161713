"""What the result of each method gives to nodes that took no part in its rounds."""

from __future__ import annotations

from collections.abc import Mapping

from markupsafe import Markup

from fedapps.base.report.estimates import Estimate
from fedapps.base.report.metrics import bare
from fedapps.base.report.palette import plot_styles
from fedapps.base.report.tables import Table
from fedapps.report.comparison_tables import held_out_tables
from fedapps.report.run_data import RunData
from fedapps.runs.comparisons import HeldOut, HeldOutMetric
from fedapps.runs.records import HeldOutNodes

from . import section_of

ORDER = 35


def section(run: RunData) -> Markup | None:
    """A table for each main metric of the task; None if no node was held out."""
    if run.comparison:
        parts = {title: part.held_out for title, part in run.comparison.parts.items()}
    else:
        parts = {"": {name: _of_run(of.held_out) for name, of in run.summary.items() if of.held_out.nodes}}
    shown = {title: _tables(run, of_part) for title, of_part in parts.items() if of_part}
    if not shown:
        return None
    sizes = sorted({(of.nodes, of.epochs) for part in parts.values() for of in part.values()})
    return section_of("held_out", sizes=sizes, parts=shown)


def _tables(run: RunData, held_out: Mapping[str, HeldOut]) -> dict[str, Table]:
    measured = list(dict.fromkeys(name for of_method in held_out.values() for name in of_method.metrics))
    main = [bare(name) for name in run.headline]
    tested = (name for name in measured if bare(name) in main)  # not in trials, whose test data are withheld
    names = sorted(tested, key=lambda name: main.index(bare(name))) or measured[:1]
    methods = {method: of for method, of in held_out.items() if method in run.methods}
    return held_out_tables(methods, names, plot_styles(run.methods))


def _of_run(held_out: HeldOutNodes) -> HeldOut:
    """The means over nodes of a single seed."""
    return HeldOut(
        epochs=held_out.epochs,
        nodes=len(held_out.nodes),
        metrics={
            name: HeldOutMetric(
                shared=Estimate(held_out.shared[name]),
                adapted=Estimate(value),
                local=Estimate(held_out.local[name]),
                gain=Estimate(value - held_out.shared[name]),
                lead=Estimate(value - held_out.local[name]),
            )
            for name, value in held_out.adapted.items()
            if name in held_out.shared and name in held_out.local
        },
    )
