"""Learned rates of APFL: the learning rate of each tensor over the rounds."""

from __future__ import annotations

import numpy as np
from markupsafe import Markup
from matplotlib.colors import LogNorm, Normalize

from fedapps.base.report.figures import drawing
from fedapps.report.run_data import RunData
from fedapps.runs.records import RoundRecord

from . import section_of

_MOST_TENSORS = 40
_LOWEST = 1e-4

ORDER = 140


def section(run: RunData) -> Markup | None:
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
        axes.grid(False)
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        axes.set_xlabel("round")
        axes.set_title(method + cut)
        figure.figure.colorbar(picture, ax=axes, label="rate relative to the largest", pad=0.02, aspect=12, format="%g")
    return figure.markup


def _norm(rates: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Normalize:
    positive = rates[np.isfinite(rates) & (rates > 0)]
    top = float(positive.max()) if positive.size else 1.0
    low = max(_LOWEST, float(positive.min())) if positive.size else _LOWEST
    # A linear scale cannot show rates that span more than a factor of 30.
    return LogNorm(low, max(top, low * 10)) if top / low > 30 else Normalize(0.0, top)
