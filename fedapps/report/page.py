"""The page around the sections: title, facts about the run and warnings. It loads nothing from the network."""

from __future__ import annotations

from fedapps.base.report.figures import Drawing, collected
from fedapps.base.report.formats import counted
from fedapps.base.report.sections import render as render_template

from .evaluated import unlike_nodes
from .run_data import RunData, configured_methods
from .sections import FOLDER, sections


def render(run: RunData) -> str:
    """Render the report of a run as one HTML document."""
    shown = [section for module in sections() if (section := module.section(run))]
    started = bool(shown) and bool(run.rounds or run.summary or run.comparison)
    return render_template(
        FOLDER, "page.html.md", run=run, facts=_facts(run), warnings=_warnings(run), started=started, sections=shown
    )


def drawings(run: RunData) -> dict[str, tuple[Drawing, ...]]:
    """The figures of the report by the names of the sections' modules; sections without figures are left out."""
    figures: dict[str, tuple[Drawing, ...]] = {}
    for module in sections():
        with collected() as drawn:
            module.section(run)
        if drawn:
            figures[module.__name__.rpartition(".")[2].removeprefix("report_")] = tuple(drawn)
    return figures


def _facts(run: RunData) -> list[str]:
    nodes = len({record.node for record in run.nodes})
    rounds = max((record.round for record in run.rounds), default=0)
    facts = [
        f"task {run.task}" if run.task else "",
        f"{len(run.methods)} methods" if len(run.methods) > 1 else "",
        counted(nodes, "node") if nodes else "",
        counted(rounds, "round") if rounds else "",
        f"seed {run.config['seed']}" if "seed" in run.config else "",
    ]
    return [fact for fact in facts if fact]


def _warnings(run: RunData) -> list[str]:
    warnings = [*run.notes, *filter(None, [unlike_nodes(run)])]
    if run.comparison is None:
        wanted = set(configured_methods(run.config))
        if absent := sorted(wanted - set(run.methods)):
            warnings.insert(0, f"No results yet: {', '.join(absent)}.")
        if not run.summary:
            warnings.insert(0, "This run has not finished (no summary.json). The report shows the results so far.")
        elif not run.finished:
            under_way = [method for method in run.methods if method not in run.summary]
            warnings.insert(0, f"Not finished: {', '.join(under_way)}. The report shows the results so far.")
    return warnings
