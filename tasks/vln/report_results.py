"""Results of each house, the first method beside each other one, and sentences beside what people wrote."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from textwrap import shorten

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from fedapps.base.report.figures import panels_per_row, small_multiples
from fedapps.base.report.metrics import NEUTRAL, Metric, PlotStyle, describe, plot_styles
from fedapps.base.report.sections import Arrays, ReportedRun, section_markup
from fedapps.base.report.tables import Cell, Row, Table, metric_columns, reference_label, text_columns

from .report_houses import recorded_paths

ORDER = 80
_MOST_PATHS = 6
_LONGEST = 240  # letters of a sentence
_MOST_METHODS = 4
_SENTENCE_METRICS = ("val_unseen.bleu", "val_unseen.distinct", "val_seen.bleu", "val_seen.distinct")


#: What a person wrote about a path, and what a speaker said.
Sentences = tuple[str, str]


def read_sentences(arrays: Arrays) -> dict[str, Sentences]:
    """Read the sentences by their path, such as ``val_unseen.0``.

    Raises
    ------
    ReportError
        If a text is malformed.
    """
    return {
        path: (arrays.text(f"{path}.instruction"), arrays.text(f"{path}.said"))
        for path in recorded_paths(arrays)
        if f"{path}.said" in arrays
    }


def section(run: ReportedRun) -> Markup | None:
    """The success rate, or BLEU, of each house, then sentences; None for tasks without houses."""
    return Markup("\n").join(part for part in (house_results(run), described_paths(run)) if part) or None


def described_paths(run: ReportedRun) -> Markup | None:
    """A table of scores and a table of sentences; None for tasks without a speaker."""
    sentences: dict[tuple[str, str], dict[str, Sentences]] = {}  # by (node, path) and method
    for (method, node), path in sorted(run.traces.items(), key=lambda item: item[0][1]):
        if method in run.methods[:_MOST_METHODS]:
            for number, sentence in read_sentences(Arrays(path)).items():
                sentences.setdefault((node, number), {})[method] = sentence
    if not sentences:
        return None
    methods = [method for method in run.methods if any(method in row for row in sentences.values())]
    rows = [
        [
            node,
            _short(next(iter(row.values()))[0]),
            *(_short(row[method][1]) if method in row else "–" for method in methods),
        ]
        for (node, _), row in _spread(sentences)
    ]
    columns = text_columns(["house", "written by a person", *methods], texts=2 + len(methods))
    return section_markup(Path(__file__).parent, "sentences", scores=_scores(run), sentences=Table(columns, rows))


def _scores(run: ReportedRun) -> Table:
    final = run.final_metrics()
    names = [name for name in _SENTENCE_METRICS if any(name in row for row in final.values())]
    rows = {**final, **{reference_label(reference): row for reference, row in run.references.items()}}
    cells: list[Row] = [[label, *(Cell.of(row.get(name)) for name in names)] for label, row in rows.items()]
    return Table(metric_columns([describe(name) for name in names]), cells, plot_styles(run.methods))


def _short(text: str) -> str:
    return shorten(text, _LONGEST, placeholder=" …")


def _spread(
    sentences: Mapping[tuple[str, str], Mapping[str, Sentences]],
) -> list[tuple[tuple[str, str], Mapping[str, Sentences]]]:
    """A few paths: the first of each house, then the second and so on, unseen houses first."""

    def rank(key: tuple[str, str]) -> tuple[int, bool, str]:
        node, (split, _, number) = key[0], key[1].rpartition(".")
        return int(number), split != "val_unseen", node

    return [(key, sentences[key]) for key in sorted(sentences, key=rank)[:_MOST_PATHS]]


_HOUSE_METRICS = ("val_unseen.sr", "val_unseen.bleu", "val_seen.sr", "val_seen.bleu")
_ROW = 0.17  # inches for each house
#: By method and house.
Values = dict[str, dict[str, float]]


def house_results(run: ReportedRun) -> Markup | None:
    """One figure for unseen and one for seen houses; None for tasks without houses."""
    by_metric = {describe(name): values for name in _HOUSE_METRICS if (values := _values(run, name))}
    if not by_metric:
        return None
    return section_markup(
        Path(__file__).parent,
        "house_results",
        baseline=next(iter(next(iter(by_metric.values())))) if len(run.methods) > 1 else "",
        figures=[(metric.axis, *_figure(run, metric, values)) for metric, values in by_metric.items()],
    )


def _values(run: ReportedRun, name: str) -> Values:
    values = {}
    for method, nodes in run.last_evaluations().items():
        row = {node: record.numbers[name] for node, record in nodes.items() if name in record.numbers}
        if finite := {node: value for node, value in row.items() if math.isfinite(value)}:
            values[method] = finite
    return values


def _figure(run: ReportedRun, metric: Metric, values: Values) -> tuple[Markup, bool]:
    """The figure, and whether it is wide."""
    baseline, before = next(iter(values.items()))  # the first method, such as the model before pre-exploration
    others = {method: row for method, row in values.items() if method != baseline} or {baseline: before}
    houses = sorted({node for row in values.values() for node in row}, key=lambda node: (before.get(node, 0.0), node))
    titles = {method: _title(method, before, row, metric) for method, row in others.items()}
    alt = f"Dot plots of {metric.axis} by house: {', '.join(titles.values())}"
    with small_multiples(alt, len(others), height=0.6 + _ROW * len(houses)) as figure:
        for index, (axes, (method, row)) in enumerate(zip(figure.axes, others.items(), strict=True)):
            _draw(axes, houses, before, row, plot_styles(run.methods)[method], metric.better)
            first = index % panels_per_row(len(others)) == 0
            axes.set_yticks(range(len(houses)), houses if first else [""] * len(houses), fontsize=7)
            axes.set_title(titles[method], fontsize=8.5)
        highest = max(value for row in values.values() for value in row.values())
        for axes in figure.axes:
            axes.set_xlim(-0.03 * highest, 1.05 * highest if highest else 1.0)
        figure.figure.supxlabel(metric.title, fontsize=9)
    return figure.markup, len(others) > 2


def _title(method: str, before: dict[str, float], after: dict[str, float], metric: Metric) -> str:
    both = [node for node in after if node in before]
    if before is after:
        return method
    better = sum(metric.better * after[node] > metric.better * before[node] for node in both)
    return f"{method}\nbetter in {better} of {len(both)}"


def _draw(
    axes: Axes, houses: list[str], before: dict[str, float], after: dict[str, float], style: PlotStyle, better: int
) -> None:
    for row, house in enumerate(houses):
        if house in before and house in after and before is not after:
            gain = better * (after[house] - before[house]) >= 0
            line = [before[house], after[house]]
            axes.plot(line, [row] * 2, "-" if gain else "--", color=style.colour, linewidth=1.1, zorder=1)
            axes.plot(before[house], row, "o", color="white", markeredgecolor=NEUTRAL, markersize=4.5, zorder=2)
        if house in after:
            axes.plot(after[house], row, style.marker, color=style.colour, markersize=4.5, zorder=3)
    axes.set_ylim(-0.7, len(houses) - 0.3)
    axes.grid(visible=True, axis="both")
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=7.5)
    axes.xaxis.set_major_locator(MaxNLocator(4))
