"""Sentences of a speaker beside what people wrote, with BLEU and the share of distinct sentences."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from textwrap import shorten

from fedapps.report.arrays import Arrays
from fedapps.report.formats import format_number
from fedapps.report.house_traces import Sentence, read_sentences
from fedapps.report.markup import render_section, swatch, table
from fedapps.report.metrics import describe
from fedapps.report.palette import plot_styles
from fedapps.report.records import Metrics
from fedapps.report.results import final_metrics
from fedapps.report.run_data import RunData
from fedapps.runs.tables import reference_label

_MOST_PATHS = 6
_LONGEST = 240  # letters of a sentence
_MOST_METHODS = 4
_METRICS = ("val_unseen.bleu", "val_unseen.distinct", "val_seen.bleu", "val_seen.distinct")

ORDER = 125


def section(run: RunData) -> str | None:
    """A table of scores and a table of sentences; None for tasks without a speaker."""
    found: dict[tuple[str, str], dict[str, Sentence]] = {}  # by (node, path) and method
    for (method, node), path in sorted(run.traces.items(), key=lambda item: item[0][1]):
        if method in run.methods[:_MOST_METHODS]:
            for number, sentence in read_sentences(Arrays(path)).items():
                found.setdefault((node, number), {})[method] = sentence
    if not found:
        return None
    lead = "What the speaker of each method says about a few paths, beside what one person wrote about them."
    parts = (_scores(run), "<h3>Sentences about the same paths</h3>", _sentences(run, found))
    return render_section("sentences", "Sentences of the speaker", *parts, lead=lead)


def _scores(run: RunData) -> str:
    final = final_metrics(run)
    names = [name for name in _METRICS if any(name in row for row in final.values())]
    head = ["method", *(f"{escape(describe(name).axis)}<small>{describe(name).direction}</small>" for name in names)]
    styles = plot_styles(run.methods)
    rows = [[f"{swatch(styles[method])}{escape(method)}", *_numbers(names, row)] for method, row in final.items()]
    rows += [[escape(reference_label(name)), *_numbers(names, row)] for name, row in run.references.items()]
    return table(head, rows, caption="Scores of the sentences")


def _numbers(names: list[str], row: Metrics) -> list[str]:
    return [format_number(row[name]) if name in row else "–" for name in names]


def _sentences(run: RunData, found: Mapping[tuple[str, str], Mapping[str, Sentence]]) -> str:
    methods = [method for method in run.methods if any(method in row for row in found.values())]
    rows = []
    for (node, _), row in _spread(found):
        said = [escape(_short(row[method].said)) if method in row else "–" for method in methods]
        rows.append([escape(node), escape(_short(next(iter(row.values())).instruction)), *said])
    head = ["house", "written by a person", *map(escape, methods)]
    return table(head, rows, texts=len(head), caption="Sentences about the same paths")


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
