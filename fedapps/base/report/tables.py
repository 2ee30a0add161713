"""One table of numbers and texts, and its renderings: plain text, Markdown, LaTeX and CSV; HTML by the parts of a page.

All numbers of a column have one format.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeAlias

from .metrics import Metric, PlotStyle
from .numbers import NEGLIGIBLE, ColumnFormat, Estimate

_LATEX = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}


class Strong(str):
    """A text that is emphasised."""


@dataclass(frozen=True)
class Cell:
    """A number.

    Attributes
    ----------
    estimate : Estimate or None
        The number with its interval; None if there is none, and then ``missing`` is shown.
    best : bool
        Whether it is the best of its column.
    differs : bool
        Whether a test finds that it differs from the best.
    limits : bool
        Whether the interval is shown as its limits, as that of a difference, and not as half its width.
    paper : float or None
        The value in the paper.
    group : str
        Cells of a column with different groups, such as metrics, have different formats.
    missing : str
    """

    estimate: Estimate | None = None
    best: bool = False
    differs: bool = False
    limits: bool = False
    paper: float | None = None
    group: str = ""
    missing: str = "–"

    @classmethod
    def of(cls, value: float | None, *, best: bool = False) -> Cell:
        """A number without an interval."""
        return cls(None if value is None else Estimate(value), best=best)


Row: TypeAlias = Sequence["str | Cell"]


@dataclass(frozen=True)
class Column:
    """The title of a column with a hint for readers, such as what is better, and whether it holds texts."""

    title: str
    hint: str = ""
    is_text: bool = False


class Shown(NamedTuple):
    """A cell as texts: the number, its interval, the seeds that count, the paper's number; empty if there is none."""

    text: str
    interval: str = ""
    counted: str = ""
    paper: str = ""
    best: bool = False
    differs: bool = False
    #: Whether the interval is given by its limits.
    limits: bool = False


@dataclass(frozen=True)
class Table:
    """A table.

    Parameters
    ----------
    columns : sequence of Column
    rows : sequence of sequences of str or Cell
    styles : mapping of str to PlotStyle
        How the method whose label is the first cell of a row is drawn, which HTML shows.
    """

    columns: Sequence[Column]
    rows: Sequence[Row]
    styles: Mapping[str, PlotStyle] = field(default_factory=dict)

    @cached_property
    def shown(self) -> list[list[str | Shown]]:
        """The cells of all rows with their numbers as text."""
        formats = [self._formats(index) for index in range(len(self.columns))]
        return [
            [
                cell if isinstance(cell, str) else _shown(cell, of[cell.group])
                for cell, of in zip(row, formats, strict=True)
            ]
            for row in self.rows
        ]

    def text(self, width: int = 0) -> str:
        """The table as plain text. One wider than ``width`` > 0 is split into several, one below the other.

        Of a part, rows are left out in which all numbers are missing.
        """
        columns = [_aligned([row[index] for row in self.shown]) for index in range(len(self.columns))]
        first = max(map(len, [self.columns[0].title, *columns[0]]))
        blocks: list[list[int]] = []
        room = 0
        for index in range(1, len(self.columns)):
            needed = 2 + max(map(len, [self.columns[index].title, *columns[index]]))
            if not blocks or (width and needed > room):
                blocks.append([])
                room = width - first
            blocks[-1].append(index)
            room -= needed
        texts = []
        for block in blocks or [[]]:
            rows = [[columns[index][line] for index in (0, *block)] for line in range(len(self.rows))]
            rows = [row for row in rows if len(blocks) < 2 or any(cell.strip("- –") for cell in row[1:])]
            titles = [self.columns[index].title for index in (0, *block)]
            left = [self.columns[index].is_text for index in block]
            texts.append(text_table(titles, rows, left=left))
        return "\n\n".join(texts)

    def markdown(self) -> str:
        """The table in Markdown; the best numbers are bold, and an asterisk marks those that differ from them."""
        head = [
            f"{column.title}{f' ({column.hint})' if column.hint else ''}".replace("|", r"\|") for column in self.columns
        ]
        rows = [[_markdown(cell) for cell in row] for row in self.shown]
        return "\n".join([_pipes(head), "|" + "---|" * len(head), *map(_pipes, rows)])

    def latex(self) -> str:
        """The table in LaTeX with the rules of the package booktabs; marks are those of :meth:`markdown`."""
        head = [_escaped(f"{column.title}{f' ({column.hint})' if column.hint else ''}") for column in self.columns]
        first, *body = [
            " & ".join(row) + r" \\" for row in [head, *([_latex(cell) for cell in row] for row in self.shown)]
        ]
        kinds = "".join("l" if column.is_text else "r" for column in self.columns)
        begin, end = rf"\begin{{tabular}}{{{kinds}}}", r"\end{tabular}"
        return "\n".join([begin, r"\toprule", first, r"\midrule", *body, r"\bottomrule", end])

    def csv(self) -> str:
        """The table as CSV: numbers with all digits and without intervals, nothing where one is missing."""
        stream = io.StringIO()
        lines = csv.writer(stream, lineterminator="\n")
        lines.writerow([column.title for column in self.columns])
        for row in self.rows:
            lines.writerow(
                [cell if isinstance(cell, str) else cell.estimate.mean if cell.estimate else "" for cell in row]
            )
        return stream.getvalue()

    def _formats(self, index: int) -> dict[str, ColumnFormat]:
        """The format of the numbers of each group of a column."""
        cells = [cell for row in self.rows if isinstance(cell := row[index], Cell)]
        return {
            group: _format_of([cell for cell in cells if cell.group == group]) for group in {c.group for c in cells}
        }


def metric_columns(metrics: Sequence[Metric]) -> list[Column]:
    """A column of methods, and one for each metric, with its direction."""
    return [Column("method", is_text=True), *(Column(metric.axis, metric.direction) for metric in metrics)]


def text_columns(titles: Sequence[str], texts: int = 1) -> list[Column]:
    """Columns of which the first ``texts`` hold texts."""
    return [Column(title, is_text=index < texts) for index, title in enumerate(titles)]


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[bool] = ()) -> str:
    """Texts as a plain table; the first column and those that ``left`` says are left-aligned, others right-aligned."""
    widths = [max(len(row[index]) for row in [head, *rows]) for index in range(len(head))]
    lefts = [True, *(left or [False] * (len(head) - 1))]
    lines = [
        "  ".join(
            cell.ljust(width) if is_left else cell.rjust(width)
            for cell, width, is_left in zip(row, widths, lefts, strict=True)
        ).rstrip()
        for row in [head, *rows]
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def reference_label(name: str) -> str:
    """The label of a reference, which is not a method, in tables."""
    return f"reference: {name}"


def best_methods(metrics: Sequence[Metric], values: Mapping[str, Mapping[str, float]]) -> dict[str, str | None]:
    """The best method in each metric, from the metrics of each method."""
    return {
        metric.name: metric.best({method: row[metric.name] for method, row in values.items() if metric.name in row})
        for metric in metrics
    }


def _format_of(cells: Sequence[Cell]) -> ColumnFormat:
    estimates = [cell.estimate for cell in cells if cell.estimate]
    means = [one.mean for one in estimates]
    if any(cell.limits for cell in cells):
        least = NEGLIGIBLE * max(map(abs, means), default=0.0)
        means = [mean for mean in means if not abs(mean) <= least]
    return ColumnFormat.of(
        [*means, *(cell.paper for cell in cells if cell.paper is not None)],
        [one.half for one in estimates if one.half is not None],
    )


def _shown(cell: Cell, number: ColumnFormat) -> Shown:
    paper = "" if cell.paper is None else number(cell.paper)
    estimate = cell.estimate
    if estimate is None:
        return Shown(cell.missing, paper=paper)
    interval = ""
    if cell.limits and estimate.low is not None and estimate.high is not None:
        interval = f"{number(estimate.low)} to {number(estimate.high)}"
    elif not cell.limits and estimate.half is not None:
        interval = f"± {number(estimate.half)}"
    return Shown(number(estimate.mean), interval, estimate.counted, paper, cell.best, cell.differs, cell.limits)


def _tail(cell: Shown) -> str:
    """What follows the number in plain text."""
    interval = f"({cell.interval})" if cell.interval and cell.limits else cell.interval
    return " ".join(part for part in (interval, cell.counted) if part)


def _aligned(cells: Sequence[str | Shown]) -> list[str]:
    """The cells of a column in plain text: numbers, intervals and the paper's numbers stand below each other."""
    parts = [
        ("", cell, "") if isinstance(cell, str) else (cell.text, _tail(cell), f"[{cell.paper}]" if cell.paper else "")
        for cell in cells
    ]
    if all(isinstance(cell, str) for cell in cells):
        return [str(cell) for cell in cells]
    first, *rest = [max((len(part[index]) for part in parts), default=0) for index in range(3)]
    return [
        " ".join([mean.rjust(first), *(text.ljust(width) for text, width in zip(others, rest, strict=True) if width)])
        for mean, *others in parts
    ]


def _markdown(cell: str | Shown) -> str:
    if isinstance(cell, str):
        text = cell.replace("|", r"\|")
        return f"**{text}**" if isinstance(cell, Strong) else text
    number = f"**{cell.text}**" if cell.best else cell.text
    paper = f"[{cell.paper}]" if cell.paper else ""
    interval = f"({cell.interval})" if cell.interval and cell.limits else cell.interval
    return " ".join(part for part in (number, interval, "*" * cell.differs, cell.counted, paper) if part)


def _latex(cell: str | Shown) -> str:
    if isinstance(cell, str):
        return rf"\textbf{{{_escaped(cell)}}}" if isinstance(cell, Strong) else _escaped(cell)
    if cell.text == "–":
        return "--"
    number = _formula(cell.text)
    interval = _formula(cell.interval).replace("±", r"\pm")
    if cell.limits and interval:
        interval = "(" + interval.replace(" to ", r",\ ") + ")"
    formula = " ".join(part for part in (rf"\mathbf{{{number}}}" if cell.best else number, interval) if part)
    paper = f"[${_formula(cell.paper)}$]" if cell.paper else ""
    return " ".join(part for part in (f"${formula}{'^{*}' * cell.differs}$", cell.counted, paper) if part)


def _formula(number: str) -> str:
    """Numbers as in a formula of LaTeX."""
    plain = number.replace("\N{MINUS SIGN}", "-").replace(",", "{,}")
    return re.sub(r"e([+-])0*(\d+)", lambda power: rf" \cdot 10^{{{power[1].strip('+')}{power[2]}}}", plain)


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)


def _pipes(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
