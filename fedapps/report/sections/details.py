"""The end of the page: traffic, timings, secure aggregation, what was refused or left out, and the run config."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes

from fedapps.base.errors import headline_of
from fedapps.base.report.figures import drawing, in_lines, mark
from fedapps.base.report.metrics import NEUTRAL, Metric, plot_styles
from fedapps.base.report.numbers import BYTE_UNITS, format_bytes, format_duration
from fedapps.base.report.tables import Table, text_columns
from fedapps.report.run_data import RunData
from fedapps.runs.comparisons import Comparison
from fedapps.runs.records import Metrics, RoundRecord
from fedapps.strategies.wire import NODE_PHASES

from . import section_of
from .curves import metric_against

_PER_NODE = "bytes_per_client_round"
_UNEQUAL, _WIDE_RANGE = 1.1, 10.0
_WITHOUT_ARRAYS = 100  # bytes of a reply with metrics alone
#: The phases of the server, in the order in which they are drawn, as are those of ``NODE_PHASES``.
SERVER_PHASES = ("prepare", "wait", "decode", "fold", "step", "save", "other")
_COLOURS = {
    "train": "#0072B2", "wait": "#0072B2", "evaluate": "#56B4E9", "model": "#009E73", "fold": "#009E73",
    "data": "#E69F00", "prepare": "#E69F00", "state": "#D55E00", "save": "#D55E00", "decode": "#CC79A7",
    "encode": "#7F4F24", "step": "#7F4F24", "config": "#F0E442", "other": NEUTRAL,
}  # fmt: skip
#: Phases whose part is smaller in every bar count as other.
_LEAST_PART = 0.01
_MOST = 50
_LETTERS = 28  # of a method's name in a line beside a bar


def traffic(run: RunData) -> Markup | None:
    """Bytes per round in both directions, and the main metric against all bytes sent so far.

    In a comparison whose methods send different numbers of bytes, the main metric against those of a node in a round.
    """
    most = max((max(r.bytes_down, r.bytes_up) for r in run.rounds), default=0.0)
    in_rounds, final = run.leading_in_rounds(), run.leading_metric()
    drawn = [_per_round(run, most) if most > 0 else None]
    if in_rounds:
        words = ("the bytes sent so far", "traffic", "sent so far, both directions")
        drawn.append(metric_against(run, in_rounds, _sent, _scale, words))
    if run.comparison and final:
        drawn.append(_by_method(run.comparison, run.methods, final))
    figures = [figure for figure in drawn if figure]
    return section_of("traffic", styles=plot_styles(run.methods), figures=figures) if figures else None


def _sent(records: Sequence[RoundRecord]) -> Iterable[float]:
    return accumulate(record.bytes_down + record.bytes_up for record in records)


def _scale(most: float) -> tuple[str, float]:
    return next(((unit, scale) for unit, scale in BYTE_UNITS if most >= scale), ("B", 1.0))


def _per_round(run: RunData, most: float) -> Markup:
    unit, scale = _scale(most)
    styles = plot_styles(run.methods)
    totals = ", ".join(f"{m} {format_bytes(sum(r.bytes_down + r.bytes_up for r in run.of(m)))}" for m in run.methods)
    alt = f"Bar chart of the bytes per round, to and from the nodes, by method; totals: {totals}"
    with drawing(alt, height=1.2 + 0.5 * len(styles)) as figure:
        axes = figure.axes[0]
        for index, (method, style) in enumerate(styles.items()):
            for offset, alpha, way in ((-0.2, 1.0, "bytes_down"), (0.2, 0.55, "bytes_up")):
                sent = np.array([getattr(record, way) for record in run.of(method)]) / scale
                if sent.size:
                    reach = [[sent.mean() - sent.min()], [sent.max() - sent.mean()]]
                    errors = reach if np.ptp(sent) > 0.02 * sent.max() else None
                    bars = axes.barh(index + offset, sent.mean(), 0.36, xerr=errors, ecolor=NEUTRAL)
                    bars[0].set(color=style.colour, alpha=alpha)
        _name_bars(axes, list(styles))
        axes.set_title(f"{unit} per round")
        axes.set_xlabel("upper: to nodes, lower: from nodes\nmean over rounds; lines: minimum to maximum")
    return figure.markup


def _name_bars(axes: Axes, names: Sequence[str]) -> None:
    """The axes of horizontal bars, from the top to the bottom."""
    axes.set_yticks(range(len(names)), ["\n".join(in_lines(name, _LETTERS)) for name in names])
    axes.invert_yaxis()
    axes.grid(visible=True, axis="x")
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)


def _by_method(comparison: Comparison, methods: Sequence[str], metric: Metric) -> Markup | None:
    rows = {method: comparison.table.get(method, {}) for method in methods}
    points = {
        method: (row[_PER_NODE].mean, row[metric.name])
        for method, row in rows.items()
        if metric.name in row and _PER_NODE in row and row[_PER_NODE].mean > _WITHOUT_ARRAYS
    }
    sent = [number for number, _ in points.values()]
    if not sent or max(sent) < _UNEQUAL * min(sent):
        return None
    unit, scale = _scale(max(sent))
    points_of = "; ".join(
        f"{method} {format_bytes(number)}, {estimate.mean:.4g}" for method, (number, estimate) in points.items()
    )
    with drawing(
        f"Scatter plot of {metric.axis} against the bytes that a node sends in a round: {points_of}"
    ) as figure:
        axes = figure.axes[0]
        for method, (number, estimate) in points.items():
            style, half = plot_styles(methods)[method], estimate.half or 0.0
            x = number / scale
            (limits,) = axes.plot([x, x], [estimate.mean - half, estimate.mean + half], color=style.colour, linewidth=1)
            (dot,) = axes.plot([x], [estimate.mean], style.marker, color=style.colour)
            mark(limits, method)
            mark(dot, method)
        if max(sent) > _WIDE_RANGE * min(sent):
            axes.set_xscale("log")
        axes.margins(0.08)
        axes.set_title(f"{metric.axis} against traffic")
        axes.set_xlabel(f"sent by a node in a round [{unit}]; lines: 95 % interval")
    return figure.markup


def timings(run: RunData) -> Markup | None:
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
        _name_bars(axes, list(means))
        axes.set_title(title)
        figure.figure.legend(loc="outside lower left", ncols=5, frameon=False, fontsize=9, columnspacing=1.2)
    return figure.markup


def _means(timings: Sequence[Metrics], phases: Sequence[str]) -> dict[str, float]:
    return {phase: sum(of.get(phase, 0.0) for of in timings) / len(timings) for phase in phases}


def details(run: RunData) -> Markup | None:
    """All parts in which there is something to show."""
    return Markup("\n").join(part for part in (_exchanges(run), _refused(run), _configuration(run)) if part) or None


def _exchanges(run: RunData) -> Markup | None:
    """One row per method and exchange of secure aggregation, over all rounds and cohorts; None without it."""
    rows = []
    for method in run.methods:
        rounds = [record.strategy.secagg for record in run.of(method) if record.strategy.secagg]
        sums = [one for of_round in rounds for one in of_round]
        shares = ", ".join(sorted({f"{one.threshold} of {one.neighbours + 1}" for one in sums if one.threshold}))
        for step in dict.fromkeys(step for one in sums for step in one.exchanges):
            exchanges = [one.exchanges[step] for one in sums if step in one.exchanges]
            names = ("asked", "answered", "seconds", "bytes_up")
            asked, answered, seconds, size = (sum(of.get(name, 0.0) for of in exchanges) for name in names)
            counts = [f"{asked:.0f}", f"{asked - answered:.0f}"]
            costs = [f"{seconds / len(rounds):.3g}", format_bytes(size / max(answered, 1.0))]
            rows.append([method, step, shares, *counts, *costs])
    titles = ["method", "exchange", "shares to a secret", "messages", "dropped out", "s per round", "per answer"]
    return section_of("exchanges", rows=Table(text_columns(titles, texts=3), rows)) if rows else None


def _refused(run: RunData) -> Markup | None:
    """One row per method, node and reason; None if no reply was refused and no metric or node left out."""
    refused: dict[tuple[str, str, str], list[int]] = {}
    whole: dict[str, str] = {}  # a failure has another traceback in each phase
    left_out: dict[tuple[str, str, str], list[int]] = {}
    resting: dict[tuple[str, str, str], list[int]] = {}
    for record in run.rounds:
        for refusal in record.refused:
            reason = whole.setdefault(headline_of(refusal.reason), refusal.reason)
            refused.setdefault((record.method, refusal.node, reason), []).append(record.round)
        for metric in record.left_out:
            left_out.setdefault((record.method, metric.node, metric.metric), []).append(record.round)
        for node, reason in record.ineligible.items():
            resting.setdefault((record.method, node, reason), []).append(record.round)
    if not (refused or left_out or resting):
        return None
    often, lost, rested = map(_most_frequent, (refused, left_out, resting))
    return section_of(
        "refused",
        total=sum(map(len, refused.values())),
        hidden=len(often[_MOST:]),
        rows=often[:_MOST],
        left_out=sum(map(len, left_out.values())),
        lost=Table(text_columns(["method", "node", "metric", "rounds", "count"], texts=4), lost[:_MOST]),
        rested=Table(text_columns(["method", "node", "reason", "rounds", "count"], texts=4), rested[:_MOST]),
    )


def _configuration(run: RunData) -> Markup | None:
    """A collapsed table of all keys; None if the folder has no config."""
    if not run.config:
        return None
    rows = [[Markup("<code>{}</code>").format(key), str(value)] for key, value in run.config.items()]
    return section_of("configuration", keys=Table(text_columns(["key", "value"], texts=2), rows))


def _most_frequent(rounds_of: dict[tuple[str, str, str], list[int]]) -> list[list[str]]:
    often = sorted(rounds_of.items(), key=lambda item: -len(item[1]))
    return [[*key, _spans(sorted(set(rounds))), str(len(rounds))] for key, rounds in often]


def _spans(rounds: list[int]) -> str:
    """Rounds as ranges, such as 1–3, 7."""
    spans: list[list[int]] = []
    for number in rounds:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in spans)
