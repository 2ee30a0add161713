"""What was learned and what forgotten: the error on every stage after every stage, a heat map for each method.

The matrices are those of L. Guerdan and H. Gunes, "Decentralized Robot Learning for Personalization and Privacy",
Fig. 5; `fedapps.runs.continual` computes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import fill

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize

from fedapps.report.figures import across, multiples
from fedapps.report.markup import details, panels
from fedapps.report.markup import section as block
from fedapps.report.metrics import bare, describe, number
from fedapps.report.palette import INK
from fedapps.report.records import Matrix
from fedapps.report.run_data import RunData
from fedapps.runs.continual import average, backward_transfer, forward_transfer, stage_metrics, train_test_matrix

_DARK = 0.48
_WIDE_RANGE = 10

ORDER = 40


def section(run: RunData) -> str | None:
    """A figure of the matrices, one for each value of a varied key; None for a task without stages."""
    found = (
        {title: part.matrices for title, part in run.comparison.parts.items()} if run.comparison else {"": _own(run)}
    )
    parts = []
    for title, matrices in found.items():
        # The first metric on test data: those of other splits keep the split in their names.
        metric = next((name for of_method in matrices.values() for name in of_method if "." not in name), "")
        shown = {method: matrices[method][metric] for method in run.methods if metric in matrices.get(method, {})}
        if any(np.isfinite(matrix).any() for matrix in shown.values()):
            figure = panels([_figure(shown, metric)], wide=across(len(shown)) > 2)
            parts.append(details(title, figure) if title else figure)
    if not parts:
        return None
    lead = (
        f"Test error after each stage (rows) on each stage (columns){', mean over seeds' if run.comparison else ''}. "
        "The mean of the diagonal is AMSE. Below the diagonal are earlier stages: an error that grew down a column was "
        "forgotten (BWT). Above it are stages still to come (FWT)."
    )
    return block("stages", "Stage by stage", *parts, lead=lead)


def _own(run: RunData) -> dict[str, dict[str, Matrix]]:
    """By method and metric the matrices of a run, NaN where it has not come yet."""
    rounds = int(run.config.get("rounds", 0))
    found = {}
    for method in run.methods:
        rows = [{"round": record.round, "evaluate": record.evaluate} for record in run.of(method)]
        found[method] = {
            bare(metric): train_test_matrix(rows, metric, num_stages=count, rounds=rounds)
            for metric, count in stage_metrics(rows).items()
            if rounds and rounds % count == 0
        }
    return found


def _figure(matrices: Mapping[str, Matrix], metric: str) -> str:
    scale = _scale(np.concatenate([matrix.ravel() for matrix in matrices.values()]))
    label = describe(metric).label
    said = "; ".join(
        f"{method} {number(average(p))}, {number(backward_transfer(p))}, {number(forward_transfer(p))}"
        for method, p in matrices.items()
    )
    alt = f"Heat maps of the {label} after each stage on each stage; mean, backward and forward transfer: {said}"
    with multiples(alt, len(matrices), height=1.95) as figure:
        for axes, (method, matrix) in zip(figure.axes, matrices.items(), strict=True):
            _draw(axes, matrix, scale)
            axes.set_title(fill(method, 17), fontsize=8.5)
        figure.figure.supxlabel("tested on stage", fontsize=9)
        figure.figure.supylabel("after stage", fontsize=9)
    return figure.markup


def _draw(axes: Axes, matrix: Matrix, scale: Normalize) -> None:
    axes.imshow(matrix, norm=scale, cmap="cividis_r")
    for (i, j), value in np.ndenumerate(matrix):
        if np.isfinite(value):
            weight = "bold" if i == j else "normal"
            colour = "white" if scale(value) > _DARK else INK
            axes.text(j, i, number(value, 2), ha="center", va="center", fontsize=7, color=colour, weight=weight)
    names = [str(stage + 1) for stage in range(len(matrix))]
    axes.set_xticks(range(len(matrix)), names, fontsize=8)
    axes.set_yticks(range(len(matrix)), names, fontsize=8)
    axes.tick_params(length=0)
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _scale(values: Matrix) -> Normalize:
    finite = values[np.isfinite(values)]
    low, high = float(finite.min()), float(finite.max())
    # Methods that forget are ten times as far off: on a linear scale the others would all look alike.
    return LogNorm(low, high) if low > 0 and high > _WIDE_RANGE * low else Normalize(low, high)
