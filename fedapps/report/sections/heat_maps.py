"""Heat maps: train-test matrices of continual learning, and the learned rates of APFL.

The matrices are those of L. Guerdan and H. Gunes, "Decentralized Robot Learning for Personalization and Privacy",
Fig. 5; :mod:`fedapps.runs.continual` computes them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize

from fedapps.base.report.figures import drawing, in_lines, panels_per_row, small_multiples
from fedapps.base.report.metrics import INK, bare, describe
from fedapps.base.report.numbers import format_number
from fedapps.report.run_data import RunData
from fedapps.runs.comparisons import Matrix
from fedapps.runs.continual import (
    average,
    backward_transfer,
    forward_transfer,
    so_far,
    stage_metrics,
    train_test_matrix,
)
from fedapps.runs.records import RoundRecord

from . import section_of

_DARK = 0.48
_WIDE_RANGE = 10
_MOST_TENSORS = 40
_LOWEST = 1e-4


def matrices(run: RunData) -> Markup | None:
    """One figure of all methods, or one per value of a varied key; None for tasks without stages."""
    by_title = (
        {title: part.matrices for title, part in run.comparison.parts.items()} if run.comparison else {"": _own(run)}
    )
    parts = []
    for title, matrices in by_title.items():
        # The first metric without a split in its name is measured on test data.
        metric = next((name for of_method in matrices.values() for name in of_method if "." not in name), "")
        shown = {method: matrices[method][metric] for method in run.methods if metric in matrices.get(method, {})}
        if any(np.isfinite(matrix).any() for matrix in shown.values()):
            parts.append((title, _figure(shown, metric), panels_per_row(len(shown)) > 2))
    return section_of("matrices", over_seeds=bool(run.comparison), parts=parts) if parts else None


def _own(run: RunData) -> dict[str, dict[str, Matrix]]:
    """The matrices of a run by method and metric; NaN for stages that have not finished."""
    rounds = run.config.get("rounds", 0)
    by_method = {}
    for method in run.methods:
        rows = [{"round": record.round, "evaluate": record.evaluate} for record in run.of(method)]
        begun = run.begun.get(method, 0)
        by_method[method] = {
            bare(metric): train_test_matrix(rows, metric, num_stages=count, rounds=rounds, begun=begun)
            for metric, count in stage_metrics(rows).items()
            if rounds and rounds % count == 0
        }
    return by_method


def _figure(matrices: Mapping[str, Matrix], metric: str) -> Markup:
    scale = _scale(np.concatenate([matrix.ravel() for matrix in matrices.values()]))
    label = describe(metric).label
    summaries = (average, backward_transfer, forward_transfer)
    transfers = "; ".join(
        f"{method} {', '.join(format_number(summary(matrix)) for summary in summaries)}"
        for method, matrix in matrices.items()
    )
    alt = (
        f"Heat maps of the {label} after each stage on each stage; average, backward and forward transfer: {transfers}"
    )
    with small_multiples(alt, len(matrices), height=1.95) as figure:
        for axes, (method, matrix) in zip(figure.axes, matrices.items(), strict=True):
            _draw(axes, matrix, scale)
            axes.set_title("\n".join(in_lines(method, 17)), fontsize=8.5)
        figure.figure.supxlabel("tested on stage", fontsize=9)
        figure.figure.supylabel("trained up to stage", fontsize=9)
    return figure.markup


def _draw(axes: Axes, matrix: Matrix, scale: Normalize) -> None:
    shown = np.column_stack([matrix, so_far(matrix)])
    axes.imshow(shown, norm=scale, cmap="cividis_r")
    for (i, j), value in np.ndenumerate(shown):
        if np.isfinite(value):
            weight = "bold" if i == j else "normal"
            colour = "white" if scale(value) > _DARK else INK
            axes.text(j, i, format_number(value, 2), ha="center", va="center", fontsize=7, color=colour, weight=weight)
    names = [str(stage + 1) for stage in range(len(matrix))]
    axes.set_xticks(range(len(matrix) + 1), [*names, "so far"], fontsize=8)
    axes.set_yticks(range(len(matrix)), names, fontsize=8)
    _leave_out_frame(axes)


def _scale(values: Matrix) -> Normalize:
    finite = values[np.isfinite(values)]
    low, high = float(finite.min()), float(finite.max())
    # Errors of methods that forget can be ten times larger; a linear scale would hide differences between the others.
    return LogNorm(low, high) if low > 0 and high > _WIDE_RANGE * low else Normalize(low, high)


def rates(run: RunData) -> Markup | None:
    """One heat map per method with learned rates; None if there is none."""
    drawn = []
    for method in run.methods:
        records = [record for record in run.of(method) if record.strategy.rates]
        if records:
            drawn.append(_map(method, records))
    return section_of("rates", figures=drawn) if drawn else None


def _map(method: str, records: list[RoundRecord]) -> Markup:
    names = list(dict.fromkeys(name for record in records for name in record.strategy.rates))
    rates = np.array([[record.strategy.rates.get(name, np.nan) for record in records] for name in names])
    cut = ""
    if len(names) > _MOST_TENSORS:
        order = np.sort(np.argsort(-np.nan_to_num(rates[:, -1]))[:_MOST_TENSORS])
        cut = f", the {_MOST_TENSORS} tensors with the highest rates of {len(names)}"
        names, rates = [names[index] for index in order], rates[order]
    last = np.nan_to_num(rates[:, -1])
    alt = (
        f"Heat map of the learned rates of {method}, {len(names)} tensors by {len(records)} rounds. In the last round "
        f"{names[int(last.argmax())]} has the highest rate and {names[int(last.argmin())]} the lowest."
    )
    with drawing(alt, width=7.6, height=0.95 + 0.23 * max(len(names), 4)) as figure:
        axes = figure.axes[0]
        picture = axes.pcolormesh(
            np.arange(len(records) + 1) - 0.5,
            np.arange(len(names) + 1) - 0.5,
            np.clip(rates, _LOWEST, None),
            norm=_norm(rates),
            cmap="cividis",
            rasterized=rates.size > 400,
        )
        axes.set_yticks(range(len(names)), names, fontsize=8)
        axes.invert_yaxis()
        step = max(1, -(-len(records) // 12))
        axes.set_xticks(range(0, len(records), step), [str(r.round) for r in records[::step]])
        _leave_out_frame(axes)
        axes.set_xlabel("round")
        axes.set_title(method + cut)
        figure.figure.colorbar(picture, ax=axes, label="rate (largest = 1)", pad=0.02, aspect=12, format="%g")
    return figure.markup


def _norm(rates: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Normalize:
    positive = rates[np.isfinite(rates) & (rates > 0)]
    top = float(positive.max()) if positive.size else 1.0
    low = max(_LOWEST, float(positive.min())) if positive.size else _LOWEST
    # A linear scale cannot show rates that span more than a factor of 30.
    return LogNorm(low, max(top, low * 10)) if top / low > 30 else Normalize(0.0, top)


def _leave_out_frame(axes: Axes) -> None:
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
