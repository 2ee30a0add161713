"""The cost of defences as a table and as a figure."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from matplotlib.figure import Figure

from fedapps.comparison.paired_seeds import half_width
from fedapps.report.palette import plot_styles
from fedapps.runs.tables import number, text_table


@dataclass(frozen=True)
class Cost:
    """What one defence hides, and what it costs.

    Parameters
    ----------
    name, attacker : str
        The defence, and the strongest attacker that it permits.
    words : float
        The share of words that the strongest attack reads from an update, in [0, 1].
    global_accuracy, local_accuracy : sequence of float
        The final accuracy on the common test examples and on the nodes' own, one per seed.
    """

    name: str
    attacker: str
    words: float
    global_accuracy: Sequence[float]
    local_accuracy: Sequence[float]


def cost_table(costs: Sequence[Cost]) -> str:
    """One row per defence; accuracies are means with the half-width of their 95 % confidence interval over seeds."""
    rows = [
        [cost.name, cost.attacker, f"{cost.words:.3f}", _cell(cost.global_accuracy), _cell(cost.local_accuracy)]
        for cost in costs
    ]
    return text_table(["defence", "attacker's vectors", "words read", "global accuracy", "local accuracy"], rows)


def cost_figure(costs: Sequence[Cost], path: Path) -> None:
    """Draw the accuracies of all defences over the share of words read."""
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    axes = figure.subplots(1, 2, sharex=True)
    styles = plot_styles([cost.name for cost in costs])
    for plot, title in zip(axes, ("global", "local"), strict=True):
        for cost in costs:
            values = cost.global_accuracy if title == "global" else cost.local_accuracy
            if values:
                style = styles[cost.name]
                spread = half_width(values) if len(values) > 1 else 0.0
                plot.errorbar(
                    cost.words, fmean(values), spread, color=style.colour, marker=style.marker, linestyle="none",
                    capsize=3, label=cost.name,
                )  # fmt: skip
        plot.set(title=f"{title} accuracy", xlabel="share of words read from an update", xlim=(-0.03, 1.03))
        plot.grid(alpha=0.3)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize="small", frameon=False)
    figure.savefig(path, dpi=150)


def _cell(values: Sequence[float]) -> str:
    if not values:
        return "-"
    spread = f" ± {number(half_width(values))}" if len(values) > 1 else ""
    return f"{number(fmean(values))}{spread}"
