"""The page around the sections: title, facts about the run and warnings. It loads nothing from the network."""

from __future__ import annotations

from . import rendering
from .evaluated import unlike_nodes
from .figures import Drawing, collected
from .formats import counted
from .run_data import RunData, configured_methods
from .sections import sections


def render(run: RunData) -> str:
    """Render the report of a run as one HTML document."""
    found = [markup for module in sections() if (markup := module.section(run))]
    started = bool(found) and bool(run.rounds or run.summary or run.comparison)
    return rendering.render(
        "page.html.md", run=run, facts=_facts(run), warnings=_warnings(run), started=started, sections=found
    )


def drawings(run: RunData) -> dict[str, tuple[Drawing, ...]]:
    """The figures of the report by the names of the sections' modules; sections without figures are left out."""
    found: dict[str, tuple[Drawing, ...]] = {}
    for module in sections():
        with collected() as drawn:
            module.section(run)
        if drawn:
            found[module.__name__.rpartition(".")[2]] = tuple(drawn)
    return found


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
        if run.summary is None:
            warnings.insert(0, "This run has not finished (no summary.json). The report shows the results so far.")
        elif not run.finished:
            under_way = [method for method in run.methods if method not in run.summary]
            warnings.insert(0, f"Not finished: {', '.join(under_way)}. The report shows the results so far.")
    return warnings
