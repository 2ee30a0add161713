"""Tables and figures for a paper: ``table.tex``, ``table.md``, ``table.csv``, and the figures of the report as PDF."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedapps.base.atomic import write_whole
from fedapps.base.errors import ReportError
from fedapps.base.report.metrics import bare, describe
from fedapps.base.report.numbers import Estimate, counted
from fedapps.base.report.tables import Cell, Row, Table, best_methods, metric_columns, reference_label, text_columns
from fedapps.runs.comparisons import Compared, VariedPart

from . import write_report
from .comparison_tables import SIGNIFICANT
from .generations import is_registry
from .run_data import RunData, read_run

_HEAD = ("method", "metric", "mean", "std", "low", "high", "seeds")


@dataclass(frozen=True)
class _Value:
    """The estimate of a method or reference in a metric, at the values of the varied keys if there are any."""

    at: tuple[str, ...]
    method: str
    metric: str
    estimate: Estimate
    is_best: bool = False
    p: float | None = None


def write_formats(folder: Path, formats: Sequence[str]) -> list[Path]:
    """Write the results of a run or a comparison in these formats; existing files are replaced.

    Parameters
    ----------
    folder : Path
        The folder of a run or a comparison; or a registry of champions, which has no format but ``html``.
    formats : sequence of str
        Of :data:`FORMATS`. ``tex`` is a booktabs table with the mean and the 95 % interval over seeds; the best mean is
        bold, and an asterisk marks methods that differ from it, or from the baseline if there is one (sign-flip test,
        Holm-corrected). ``md`` is the same table in Markdown, ``csv`` has a line per method and metric, and ``pdf`` is
        the folder ``figures`` with the figures of the report.

    Returns
    -------
    list of Path
        The files.

    Raises
    ------
    ReportError
        If a format is unknown, the folder is missing or a file is malformed.
    """
    if unknown := [name for name in formats if name not in FORMATS]:
        raise ReportError(f"format {unknown[0]!r}: must be one of {', '.join(FORMATS)}")
    if is_registry(folder):
        if list(formats) != ["html"]:
            raise ReportError(f"format {','.join(formats)!r}: must be html for {folder}, a registry of champions")
        return [write_report(folder)]
    run = read_run(folder)
    return [path for name in formats for path in FORMATS[name](run, folder)]


def _html(run: RunData, folder: Path) -> list[Path]:
    return [write_report(folder)]


def _pdf(run: RunData, folder: Path) -> list[Path]:
    from .page import drawings

    (folder / "figures").mkdir(exist_ok=True)
    paths = []
    for section, drawn in drawings(run).items():
        for number, drawing in enumerate(drawn, start=1):
            path = folder / "figures" / f"{section}-{number}.pdf"
            stream = io.BytesIO()
            drawing.figure.savefig(stream, format="pdf", metadata={"CreationDate": None, "Producer": None})
            write_whole(path, stream.getvalue())
            paths.append(path)
    return paths


def _csv(run: RunData, folder: Path) -> list[Path]:
    keys, rows = _varied_keys(run), []
    for value in _values(run):
        one = value.estimate
        numbers = (one.mean, one.sd, one.low, one.high, one.seeds, value.p)
        texts = ("" if number is None else str(number) for number in numbers)
        rows.append([*value.at, value.method, value.metric, *texts])
    head = (*keys, *_HEAD, "p_holm_against_baseline" if _baseline(run) else "p_holm_against_best")
    return [_written(folder / "table.csv", Table(text_columns(head), rows).csv())]


def _md(run: RunData, folder: Path) -> list[Path]:
    table, note = _table(run)
    return [_written(folder / "table.md", f"{table.markdown()}\n\n{note}\n" if table.rows else "")]


def _tex(run: RunData, folder: Path) -> list[Path]:
    table, note = _table(run)
    text = f"% needs \\usepackage{{booktabs}}\n% {note}\n{table.latex()}\n"
    return [_written(folder / "table.tex", text if table.rows else "")]


#: What writes each format into the folder of a run.
FORMATS: Mapping[str, Callable[[RunData, Path], list[Path]]] = {
    "html": _html, "tex": _tex, "md": _md, "csv": _csv, "pdf": _pdf,
}  # fmt: skip


def _table(run: RunData) -> tuple[Table, str]:
    """The main metrics of all methods, and a note; results at values of varied keys have a column for each."""
    values = list(_values(run))
    names = list(dict.fromkeys(value.metric for value in values))
    cells: dict[tuple[tuple[str, ...], str], dict[str, Cell]] = {}
    for value in values:
        differs = value.p is not None and value.p < SIGNIFICANT
        cell = Cell(value.estimate, best=value.is_best, differs=differs)
        cells.setdefault((value.at, value.method), {})[value.metric] = cell
    rows: list[Row] = [[*at, method, *(row.get(name, Cell()) for name in names)] for (at, method), row in cells.items()]
    seeds = max((value.estimate.seeds for value in values), default=0)
    note = counted(seeds, "seed")
    if seeds > 1:
        note += (
            ": mean with the half width of its 95 % confidence interval (Student's t); bold: best mean; "
            f"*: differs from {_baseline(run) or 'the best'} (sign-flip test, Holm-corrected p < {SIGNIFICANT:g})"
        )
    if any(value.estimate.planned for value in values):
        note += "; (k of n): the runs of the other seeds failed"
    columns = [*text_columns(_varied_keys(run)), *metric_columns([describe(name) for name in names])]
    return Table(columns, rows), f"{note}."


def _values(run: RunData) -> Iterator[_Value]:
    if run.comparison is None:
        finals = run.final_metrics()
        rows = {m: {bare(n): Estimate(v) for n, v in row.items()} for m, row in finals.items()}
        yield from _part(run, (), Compared(table=rows))
        return
    for part in run.comparison.parts.values():
        yield from _part(run, tuple(map(str, part.point.values())) if isinstance(part, VariedPart) else (), part)


def _part(run: RunData, at: tuple[str, ...], part: Compared) -> Iterator[_Value]:
    measured = {name for row in part.table.values() for name in row}
    wanted = dict.fromkeys(map(bare, [*(test.metric for test in part.tests), *run.headline]))
    names = [name for name in wanted if name in measured] or sorted(measured)
    means = {method: {name: one.mean for name, one in row.items()} for method, row in part.complete.items()}
    best = best_methods([describe(name) for name in names], means)
    tests = {(bare(t.metric), frozenset((t.a, t.b))): t.difference.p_holm for t in part.tests}
    for method, row in part.table.items():
        for name in names:
            if name in row:
                p_holm = tests.get((name, frozenset((method, _baseline(run) or best[name] or ""))))
                p_holm = None if p_holm is None or math.isnan(p_holm) else p_holm
                yield _Value(at, method, name, row[name], best[name] == method, p_holm)
    for reference, row in part.references.items():
        yield from (_Value(at, reference_label(reference), name, row[name]) for name in names if name in row)


def _baseline(run: RunData) -> str:
    return run.comparison.against if run.comparison else ""


def _varied_keys(run: RunData) -> Sequence[str]:
    return run.comparison.varied_keys if run.comparison else ()


def _written(path: Path, text: str) -> Path:
    write_whole(path, text.encode())
    return path
