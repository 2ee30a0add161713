"""Sentences of a speaker beside what people wrote, with BLEU and the share of distinct sentences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten

from markupsafe import Markup

from fedapps.base.report.metrics import describe, plot_styles
from fedapps.base.report.sections import Arrays, ReportedRun, section_markup
from fedapps.base.report.tables import Cell, Row, Table, metric_columns, reference_label, text_columns

from .report_houses import recorded_paths

_MOST_PATHS = 6
_LONGEST = 240  # letters of a sentence
_MOST_METHODS = 4
_METRICS = ("val_unseen.bleu", "val_unseen.distinct", "val_seen.bleu", "val_seen.distinct")

ORDER = 125


@dataclass(frozen=True)
class Sentence:
    """The ``description`` of a path by a speaker, and the ``instruction`` that a person wrote."""

    instruction: str
    description: str


def read_sentences(arrays: Arrays) -> dict[str, Sentence]:
    """Read the sentences by their path, such as ``val_unseen.0``.

    Raises
    ------
    ReportError
        If a text is malformed.
    """
    return {
        path: Sentence(arrays.text(f"{path}.instruction"), arrays.text(f"{path}.said"))
        for path in recorded_paths(arrays)
        if f"{path}.said" in arrays
    }


def section(run: ReportedRun) -> Markup | None:
    """A table of scores and a table of sentences; None for tasks without a speaker."""
    sentences: dict[tuple[str, str], dict[str, Sentence]] = {}  # by (node, path) and method
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
            _short(next(iter(row.values())).instruction),
            *(_short(row[method].description) if method in row else "–" for method in methods),
        ]
        for (node, _), row in _spread(sentences)
    ]
    columns = text_columns(["house", "written by a person", *methods], texts=2 + len(methods))
    return section_markup(Path(__file__).parent, "sentences", scores=_scores(run), sentences=Table(columns, rows))


def _scores(run: ReportedRun) -> Table:
    final = run.final_metrics()
    names = [name for name in _METRICS if any(name in row for row in final.values())]
    rows = {**final, **{reference_label(reference): row for reference, row in run.references.items()}}
    cells: list[Row] = [[label, *(Cell.of(row.get(name)) for name in names)] for label, row in rows.items()]
    return Table(metric_columns([describe(name) for name in names]), cells, plot_styles(run.methods))


def _short(text: str) -> str:
    return shorten(text, _LONGEST, placeholder=" …")


def _spread(
    sentences: Mapping[tuple[str, str], Mapping[str, Sentence]],
) -> list[tuple[tuple[str, str], Mapping[str, Sentence]]]:
    """A few paths: the first of each house, then the second and so on, unseen houses first."""

    def rank(key: tuple[str, str]) -> tuple[int, bool, str]:
        node, (split, _, number) = key[0], key[1].rpartition(".")
        return int(number), split != "val_unseen", node

    return [(key, sentences[key]) for key in sorted(sentences, key=rank)[:_MOST_PATHS]]
