"""The page of a report: title, facts about the run, warnings, and the sections. It loads nothing from the network.

A section is a function from the run to markup; None if there is nothing to show. Those of ``fedapps/report/sections``
stand in :data:`SECTIONS`. A task and another package have theirs in modules with the function ``section(run)`` and the
number ``ORDER``, its place on the page: ``report_*`` in the folder of the task, and the entry points of the group
``fedapps.sections``. Results have small numbers, details large ones.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple, TypeAlias

from markupsafe import Markup

from fedapps.base.report.figures import Drawing, collected
from fedapps.base.report.numbers import counted
from fedapps.base.report.sections import render as render_template
from fedapps.registry import plugins
from fedapps.registry.tasks import own_modules

from .evaluated import unlike_nodes
from .generations import Fleet
from .run_data import RunData, configured_methods
from .sections import FOLDER, clusters, comparison, curves, details, generations, headline, heat_maps, simulated_time

GROUP = "fedapps.sections"
Render: TypeAlias = Callable[[RunData], Markup | None]


class Section(NamedTuple):
    """A section: its place on the page, its name, and its function."""

    order: float
    name: str
    render: Render


SECTIONS = (
    Section(10, "headline", headline.headline),
    Section(20, "varied", comparison.varied),
    Section(30, "comparison", comparison.comparison),
    Section(35, "held_out", comparison.held_out),
    Section(40, "matrices", heat_maps.matrices),
    Section(50, "seeds", comparison.seeds),
    Section(60, "curves", curves.curves),
    Section(65, "simulated_time", simulated_time.simulated_time),
    Section(70, "spread", curves.spread),
    Section(80, "clusters", clusters.clusters),
    Section(140, "rates", heat_maps.rates),
    Section(150, "traffic", details.traffic),
    Section(160, "timings", details.timings),
    Section(170, "details", details.details),
)


def sections() -> list[Section]:
    """All sections in the order of the page.

    Raises
    ------
    ValueError
        An entry point names no module with ``section`` and ``ORDER``.
    """
    modules = [*own_modules("report_"), *map(_other, plugins(GROUP))]
    names = [module.__name__.rpartition(".")[2].removeprefix("report_") for module in modules]
    others = [Section(float(of.ORDER), name, of.section) for name, of in zip(names, modules, strict=True)]
    return sorted([*SECTIONS, *others], key=lambda section: section.order)


def page(run: RunData) -> str:
    """The report of a run as one HTML document."""
    shown = [markup for section in sections() if (markup := section.render(run))]
    started = bool(shown) and bool(run.rounds or run.summary or run.comparison)
    return render_template(
        FOLDER,
        "page.html.md",
        name=run.name,
        facts=_facts(run),
        warnings=_warnings(run),
        started=started,
        sections=shown,
    )


def fleet_page(fleet: Fleet) -> str:
    """The report of the generations of a registry as one HTML document."""
    facts, sections = [counted(len(fleet.generations), "decision"), *fleet.facts()], [generations.generations(fleet)]
    name = fleet.registry.folder.resolve().name
    return render_template(FOLDER, "page.html.md", name=name, facts=facts, warnings=(), started=True, sections=sections)


def drawings(run: RunData) -> dict[str, tuple[Drawing, ...]]:
    """The figures of the report by the names of the sections; sections without figures are left out."""
    figures: dict[str, tuple[Drawing, ...]] = {}
    for section in sections():
        with collected() as drawn:
            section.render(run)
        if drawn:
            figures[section.name] = tuple(drawn)
    return figures


def _facts(run: RunData) -> list[str]:
    nodes = len({record.node for record in run.nodes})
    rounds = max((record.round - run.begun.get(record.method, 0) for record in run.rounds), default=0)
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


def _other(name: str) -> ModuleType:
    point = plugins(GROUP)[name]
    module = point.load()
    if not isinstance(module, ModuleType) or not callable(getattr(module, "section", None)):
        raise ValueError(
            f"entry point {name!r} = {point.value!r} of the group {GROUP!r}: must name a module with the function "
            "section(run) and the number ORDER"
        )
    return module
