"""Tables of metrics: one row per method, one column per metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .metrics import Metric
from .palette import PlotStyle
from .records import Metrics


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
    missing : str
        What is shown in place of a value.
    """

    value: float | None
    best: bool = False
    half: float | None = None
    paper: float | None = None
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
    def head(self) -> list[str | tuple[str, str]]:
        """The titles of all columns, those of the metrics with their direction."""
        return ["method", *((metric.axis, metric.direction) for metric in self.metrics), *self.more]


def best_methods(metrics: Sequence[Metric], values: Mapping[str, Metrics]) -> dict[str, str | None]:
    """The best method in each metric, from the metrics of each method."""
    return {
        metric.name: metric.best({method: row[metric.name] for method, row in values.items() if metric.name in row})
        for metric in metrics
    }
