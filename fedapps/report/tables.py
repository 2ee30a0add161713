"""Tables of metrics: one row per method, one column per metric."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .formats import ColumnFormat
from .metrics import Metric
from .palette import PlotStyle
from .records import CheckedClaim, Metrics, PairedTest

#: A difference below this share of the largest one of its metric needs no digits.
_NEGLIGIBLE = 1e-6


@dataclass(frozen=True)
class Cell:
    """The value of a metric.

    Attributes
    ----------
    value : float or None
        The value; None if there is none, and then ``missing`` is shown.
    best : bool
        Whether it is the best of its column.
    half : float or None
        Half the width of its 95 % interval over seeds.
    paper : float or None
        The value in the paper.
    counted : str
        The number of seeds that count, if some failed.
    missing : str
        What is shown in place of a value.
    """

    value: float | None
    best: bool = False
    half: float | None = None
    paper: float | None = None
    counted: str = ""
    missing: str = "–"


@dataclass(frozen=True)
class Row:
    """A row: a method with its style, or something else without; its cells, and texts in further columns."""

    name: str
    cells: Sequence[Cell]
    style: PlotStyle | None = None
    more: Sequence[str] = ()


@dataclass(frozen=True)
class MetricTable:
    """A table of metrics; ``more`` are the titles of further columns."""

    metrics: Sequence[Metric]
    rows: Sequence[Row]
    more: Sequence[str] = field(default=())

    @property
    def formats(self) -> list[ColumnFormat]:
        """The format of the numbers of each metric."""
        columns = [[row.cells[place] for row in self.rows] for place in range(len(self.metrics))]
        return [column_format(cells) for cells in columns]

    @property
    def head(self) -> list[str | tuple[str, str]]:
        """The titles of all columns, those of the metrics with their direction."""
        return ["method", *((metric.axis, metric.direction) for metric in self.metrics), *self.more]


def column_format(cells: Iterable[Cell]) -> ColumnFormat:
    """The format of the values and the paper's values in these cells."""
    found = list(cells)
    values = [number for cell in found for number in (cell.value, cell.paper) if number is not None]
    return ColumnFormat.of(values, [cell.half for cell in found if cell.half is not None])


def difference_formats(found: Sequence[PairedTest | CheckedClaim]) -> dict[str, ColumnFormat]:
    """By metric, the format of the differences of methods and of their intervals."""
    formats = {}
    for metric in {one.metric for one in found}:
        of_metric = [one for one in found if one.metric == metric]
        differences = [one.mean_difference if isinstance(one, PairedTest) else one.difference for one in of_metric]
        least = _NEGLIGIBLE * max(map(abs, differences), default=0.0)
        halves = [(one.high - one.low) / 2 for one in of_metric]
        formats[metric] = ColumnFormat.of([value for value in differences if abs(value) > least], halves)
    return formats


def best_methods(metrics: Sequence[Metric], values: Mapping[str, Metrics]) -> dict[str, str | None]:
    """The best method in each metric, from the metrics of each method."""
    return {
        metric.name: metric.best({method: row[metric.name] for method, row in values.items() if metric.name in row})
        for metric in metrics
    }
