"""Sentences of a speaker beside what people wrote, with BLEU and the share of distinct sentences."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import shorten

from markupsafe import Markup

from fedapps.report.arrays import Arrays
from fedapps.report.house_traces import Sentence, read_sentences
from fedapps.report.metrics import describe
from fedapps.report.palette import plot_styles
from fedapps.report.rendering import render_section
from fedapps.report.results import final_metrics
from fedapps.report.run_data import RunData
from fedapps.report.tables import Cell, MetricTable, Row
from fedapps.runs.tables import reference_label

_MOST_PATHS = 6
_LONGEST = 240  # letters of a sentence
_MOST_METHODS = 4
_METRICS = ("val_unseen.bleu", "val_unseen.distinct", "val_seen.bleu", "val_seen.distinct")

ORDER = 125


def section(run: RunData) -> Markup | None:
    """A table of scores and a table of sentences; None for tasks without a speaker."""
    found: dict[tuple[str, str], dict[str, Sentence]] = {}  # by (node, path) and method
    for (method, node), path in sorted(run.traces.items(), key=lambda item: item[0][1]):
        if method in run.methods[:_MOST_METHODS]:
            for number, sentence in read_sentences(Arrays(path)).items():
                found.setdefault((node, number), {})[method] = sentence
    if not found:
        return None
    methods = [method for method in run.methods if any(method in row for row in found.values())]
    rows = []
    for (node, _), row in _spread(found):
        said = [_short(row[method].said) if method in row else "–" for method in methods]
        rows.append([node, _short(next(iter(row.values())).instruction), *said])
    return render_section("sentences", scores=_scores(run), methods=methods, rows=rows)


def _scores(run: RunData) -> MetricTable:
    final = final_metrics(run)
    names = [name for name in _METRICS if any(name in row for row in final.values())]
    styles = plot_styles(run.methods)
    rows = [Row(method, [Cell(row.get(name)) for name in names], styles[method]) for method, row in final.items()]
    for reference, row in run.references.items():
        rows.append(Row(reference_label(reference), [Cell(row.get(name)) for name in names]))
    return MetricTable([describe(name) for name in names], rows)


def _short(text: str) -> str:
    return shorten(text, _LONGEST, placeholder=" …")


def _spread(
    found: Mapping[tuple[str, str], Mapping[str, Sentence]],
) -> list[tuple[tuple[str, str], Mapping[str, Sentence]]]:
    """A few paths: the first of each house, then the second and so on, unseen houses first."""

    def rank(key: tuple[str, str]) -> tuple[int, bool, str]:
        node, (split, _, number) = key[0], key[1].rpartition(".")
        return int(number), split != "val_unseen", node

    chosen = sorted(found, key=rank)[:_MOST_PATHS]
    return [(key, found[key]) for key in chosen]
