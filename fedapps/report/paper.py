"""Tables and figures for a paper: ``table.tex``, ``table.md``, ``table.csv``, and the figures of the report as PDF."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedapps.base.atomic import write_whole
from fedapps.registry.tasks import task_class, task_names
from fedapps.runs.tables import reference_label

from . import write_report
from .caveats import SIGNIFICANT
from .formats import decimals
from .json_files import ReportError
from .metrics import Metric, bare, describe
from .records import Comparison, Spread
from .results import final_metrics
from .run_data import RunData, read_run
from .tables import best_methods

_LATEX = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}
_HEAD = ("method", "metric", "mean", "std", "low", "high", "seeds", "p_holm_against_best")


@dataclass(frozen=True)
class _Value:
    """A cell: a spread over seeds, whether it is the best of its column, and the p-value against the best."""

    spread: Spread
    best: bool
    p_holm: float


@dataclass(frozen=True)
class _Table:
    """The results of all methods in the main metrics, of a run or at one value of a varied key."""

    title: str
    seeds: int
    metrics: tuple[Metric, ...]
    rows: Mapping[str, Mapping[str, _Value]]

    def decimals(self, metric: Metric) -> int:
        """The decimals of a column."""
        values = [row[metric.name].spread for row in self.rows.values() if metric.name in row]
        return decimals((value.mean for value in values), (value.half for value in values))


def write_formats(folder: Path, formats: Sequence[str]) -> list[Path]:
    """Write the results of a run or a comparison in these formats; existing files are replaced.

    Parameters
    ----------
    folder : Path
        The folder of a run or a comparison.
    formats : sequence of str
        Of :data:`FORMATS`. ``tex`` is a booktabs table with the mean and the 95 % interval over seeds; the best mean is
        bold, and an asterisk marks methods that differ from it (sign-flip test, Holm-corrected). ``md`` is the same
        table in Markdown, ``csv`` has a line per method and metric, and ``pdf`` is the folder ``figures`` with the
        figures of the report.

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
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    key = _varied_key(run)
    lines.writerow([*key, *_HEAD])
    for table in _tables(run):
        for method, row in table.rows.items():
            for name, value in row.items():
                spread = value.spread
                limits = spread.mean - spread.half, spread.mean + spread.half
                numbers = [spread.mean, spread.std, *limits, spread.finished or table.seeds, value.p_holm]
                at = [table.title] if key else []
                lines.writerow([*at, method, name, *("" if math.isnan(number) else number for number in numbers)])
    return [_written(folder / "table.csv", text.getvalue())]


def _md(run: RunData, folder: Path) -> list[Path]:
    lines = []
    for head, rows, note in _laid_out(run, _markdown_cell, lambda name: name.replace("|", r"\|")):
        lines += [_pipes(head), "|" + "---|" * len(head), *map(_pipes, rows), "", note, ""]
    return [_written(folder / "table.md", "\n".join(lines))]


def _tex(run: RunData, folder: Path) -> list[Path]:
    lines = [r"% needs \usepackage{booktabs}"]
    for head, rows, note in _laid_out(run, _latex_cell, _escaped):
        columns = "l" * (1 + len(_varied_key(run))) + "r" * (len(head) - 1 - len(_varied_key(run)))
        first, *body = [" & ".join(row) + r" \\" for row in (head, *rows)]
        begin, end = rf"\begin{{tabular}}{{{columns}}}", r"\end{tabular}"
        lines += [f"% {note}", begin, r"\toprule", first, r"\midrule", *body, r"\bottomrule", end]
    return [_written(folder / "table.tex", "\n".join(lines) + "\n")]


#: What writes each format into the folder of a run.
FORMATS: Mapping[str, Callable[[RunData, Path], list[Path]]] = {
    "html": _html, "tex": _tex, "md": _md, "csv": _csv, "pdf": _pdf,
}  # fmt: skip


def _laid_out(
    run: RunData, cell: Callable[[_Value, int], str], text: Callable[[str], str]
) -> Iterator[tuple[list[str], list[list[str]], str]]:
    """The head, the rows and a note of one table; those of a varied key have a column for it."""
    tables = _tables(run)
    if not tables:
        return
    key, metrics = _varied_key(run), tables[0].metrics
    arrows = {-1: " (lower is better)", 0: "", 1: " (higher is better)"}
    rows = []
    for table in tables:
        for method, row in table.rows.items():
            cells = [cell(row[m.name], table.decimals(m)) if m.name in row else "--" for m in metrics]
            rows.append([*([text(table.title)] if key else []), text(method), *cells])
    seeds = max(table.seeds for table in tables)
    note = f"{seeds} seed{'s' * (seeds != 1)}"
    if seeds > 1:
        note += (
            ": mean with the half width of its 95 % confidence interval (Student's t); bold: best mean; "
            f"*: differs from the best (sign-flip test, Holm-corrected p < {SIGNIFICANT:g})"
        )
    if any(value.spread.planned for table in tables for row in table.rows.values() for value in row.values()):
        note += "; (k of n): the runs of the other seeds failed"
    head = [*map(text, key), "method", *(text(metric.axis) + arrows[metric.better] for metric in metrics)]
    yield head, rows, note + "."


def _tables(run: RunData) -> list[_Table]:
    if run.comparison is None:
        finals = final_metrics(run)
        spreads = {m: {bare(n): Spread(v, 0.0) for n, v in row.items()} for m, row in finals.items()}
        return [_table(run, "", 1, spreads, None)] if spreads else []
    varied = run.comparison.varied
    titles = [str(value) for value, _ in varied.values] if varied else [""]
    parts = run.comparison.parts.values()
    return [_table(run, title, part.seeds, part.table, part) for title, part in zip(titles, parts, strict=True)]


def _table(
    run: RunData, title: str, seeds: int, spreads: Mapping[str, Mapping[str, Spread]], part: Comparison | None
) -> _Table:
    tested = [test.metric for test in part.tests] if part else []
    main = task_class(run.task).headline if run.task in task_names() else ()
    found = {name for row in spreads.values() for name in row}
    names = [name for name in dict.fromkeys(map(bare, [*tested, *main])) if name in found] or sorted(found)
    metrics = tuple(describe(name) for name in names)
    ranked = part.complete if part else spreads
    best = best_methods(metrics, {m: {n: s.mean for n, s in row.items()} for m, row in ranked.items()})
    p_values = {(bare(t.metric), frozenset((t.a, t.b))): t.p_holm for t in part.tests} if part else {}

    def value(method: str, name: str) -> _Value:
        leader = best[name]
        p_holm = p_values.get((name, frozenset((method, leader or ""))), math.nan)
        return _Value(spreads[method][name], leader == method, p_holm)

    rows = {
        method: {name: value(method, name) for name in names if name in spreads[method]}
        for method in run.methods
        if method in spreads
    }
    for reference, row in (part.references if part else {}).items():
        if shown := {name: _Value(row[name], best=False, p_holm=math.nan) for name in names if name in row}:
            rows[reference_label(reference)] = shown
    return _Table(title, seeds, metrics, rows)


def _varied_key(run: RunData) -> list[str]:
    return [run.comparison.varied.key] if run.comparison and run.comparison.varied else []


def _latex_cell(value: _Value, decimals: int) -> str:
    mean = f"{value.spread.mean:.{decimals}f}"
    half = "" if math.isnan(value.spread.half) else rf" \pm {value.spread.half:.{decimals}f}"
    strong = rf"\mathbf{{{mean}}}" if value.best else mean
    return f"${strong}{half}{'^{*}' if value.p_holm < SIGNIFICANT else ''}$ {value.spread.counted}".rstrip()


def _markdown_cell(value: _Value, decimals: int) -> str:
    mean = f"{value.spread.mean:.{decimals}f}"
    half = "" if math.isnan(value.spread.half) else f" ± {value.spread.half:.{decimals}f}"
    strong = f"**{mean}**" if value.best else mean
    return f"{strong}{half}{' *' if value.p_holm < SIGNIFICANT else ''} {value.spread.counted}".rstrip()


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)


def _pipes(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _written(path: Path, text: str) -> Path:
    write_whole(path, text.encode())
    return path
