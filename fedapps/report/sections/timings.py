"""Where the time goes: the seconds of each phase, on the server and on the nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from fedapps.base.report.figures import drawing
from fedapps.base.report.formats import format_duration
from fedapps.base.report.palette import NEUTRAL
from fedapps.report.run_data import RunData
from fedapps.runs.records import Metrics
from fedapps.strategies.wire import NODE_PHASES

from . import section_of

ORDER = 160
#: The phases of the server, in the order in which they are drawn, as are those of ``NODE_PHASES``.
SERVER_PHASES = ("prepare", "wait", "decode", "fold", "step", "save", "other")
_COLOURS = {
    "train": "#0072B2", "wait": "#0072B2", "evaluate": "#56B4E9", "model": "#009E73", "fold": "#009E73",
    "data": "#E69F00", "prepare": "#E69F00", "state": "#D55E00", "save": "#D55E00", "decode": "#CC79A7",
    "encode": "#7F4F24", "step": "#7F4F24", "other": NEUTRAL,
}  # fmt: skip
#: Phases whose part is smaller in every bar count as other.
_LEAST_PART = 0.01


def section(run: RunData) -> Markup | None:
    """Bars of the phases of a round on the server and of a reply on a node, by method; only with ``timings = true``."""
    rounds = {method: [record.timings for record in run.of(method) if record.timings] for method in run.methods}
    replies = {
        f"{method}, {phase}": [
            node.timings for node in run.nodes if node.timings and (node.method, node.phase) == (method, phase)
        ]
        for method in run.methods
        for phase in ("train", "evaluate")
    }
    figures = [
        _stacked(title, SERVER_PHASES if title.startswith("server") else NODE_PHASES, timings)
        for title, timings in (("server, per round", rounds), ("nodes, per reply", replies))
        if any(timings.values())
    ]
    return section_of("timings", figures=figures) if figures else None


def _stacked(title: str, phases: Sequence[str], timings: Mapping[str, Sequence[Metrics]]) -> Markup:
    means = {label: _means(of_label, phases) for label, of_label in timings.items() if of_label}
    totals = {label: sum(of.values()) for label, of in means.items()}
    large = [
        phase
        for phase in phases
        if phase != "other" and any(of[phase] > _LEAST_PART * totals[label] for label, of in means.items())
    ]
    text = ", ".join(f"{label} {format_duration(total)}" for label, total in totals.items())
    with drawing(
        f"Stacked bars of seconds by phase, {title}; totals: {text}", height=1.5 + 0.35 * len(means)
    ) as figure:
        axes = figure.axes[0]
        left = [0.0] * len(means)
        for phase in [*large, "other"]:
            small = [name for name in phases if name not in large] if phase == "other" else [phase]
            widths = [sum(of[name] for name in small) for of in means.values()]
            axes.barh(range(len(means)), widths, 0.6, left=left, color=_COLOURS[phase], label=phase)
            left = [start + width for start, width in zip(left, widths, strict=True)]
        axes.set_yticks(range(len(means)), list(means))
        axes.invert_yaxis()
        axes.grid(visible=True, axis="x")
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.set_title(title)
        figure.figure.legend(loc="outside lower left", ncols=5, frameon=False, fontsize=9, columnspacing=1.2)
    return figure.markup


def _means(timings: Sequence[Metrics], phases: Sequence[str]) -> dict[str, float]:
    return {phase: sum(of.get(phase, 0.0) for of in timings) / len(timings) for phase in phases}
