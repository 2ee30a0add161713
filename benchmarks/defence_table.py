"""The cost of defences as a table and as a figure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from matplotlib.figure import Figure

from fedapps.comparison.paired_seeds import half_width
from fedapps.report.palette import plot_styles
from fedapps.runs.tables import number, text_table

#: The key of the words that a guess finds without an update.
GUESS = "frequency"
(_STYLE,) = plot_styles(["accuracy"]).values()


@dataclass(frozen=True)
class Cost:
    """What one defence hides, and what it costs.

    Parameters
    ----------
    name, attacker : str
        The defence, and the strongest attacker that it permits.
    words : mapping of str to float
        The share of words that each attack reads from an update, in [0, 1], and that of a :data:`GUESS`.
    global_accuracy, local_accuracy : sequence of float
        The final accuracy on the common test examples and on the nodes' own, one per seed, in the order of the seeds.
    """

    name: str
    attacker: str
    words: Mapping[str, float]
    global_accuracy: Sequence[float]
    local_accuracy: Sequence[float]

    @property
    def strongest(self) -> str:
        """The attack that reads the most words."""
        return max((name for name in self.words if name != GUESS), key=self.words.__getitem__)


def cost_table(costs: Sequence[Cost]) -> str:
    """One row per defence; the first one is what the others are compared with.

    Accuracies, and their differences to the first row, are means with the half-width of their 95 % confidence interval
    over seeds. Differences are paired by seed.
    """
    header = ["defence", "attacker's vectors", "words read", "attack", "guessed", "global accuracy", "change"]
    header += ["local accuracy", "change"]
    rows = [
        [
            cost.name,
            cost.attacker,
            f"{cost.words[cost.strongest]:.3f}",
            cost.strongest,
            f"{cost.words[GUESS]:.3f}",
            _cell(cost.global_accuracy),
            _cell(_changes(cost.global_accuracy, costs[0].global_accuracy)),
            _cell(cost.local_accuracy),
            _cell(_changes(cost.local_accuracy, costs[0].local_accuracy)),
        ]
        for cost in costs
    ]
    return text_table(header, rows)


def cost_figure(costs: Sequence[Cost], path: Path) -> None:
    """Draw a row for each defence: the share of words read, and the changes of both accuracies with their intervals."""
    figure = Figure(figsize=(9, 0.9 + 0.28 * len(costs)), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    rows = range(len(costs))
    panels[0].plot([cost.words[cost.strongest] for cost in costs], rows, "o", color=_STYLE.colour)
    panels[0].plot([cost.words[GUESS] for cost in costs], rows, "|", color="grey", label="guessed")
    panels[0].legend()
    panels[0].set(title="words read\nfrom an update", xlim=(-0.04, 1.04))
    first = costs[0]
    changes = {
        "global": [_changes(cost.global_accuracy, first.global_accuracy) for cost in costs],
        "local": [_changes(cost.local_accuracy, first.local_accuracy) for cost in costs],
    }
    for panel, (name, found) in zip(panels[1:], changes.items(), strict=True):
        for row, values in enumerate(found):
            if values:
                spread = half_width(values) if len(values) > 1 else 0.0
                panel.errorbar(fmean(values), row, xerr=spread, color=_STYLE.colour, marker="o", capsize=3)
        panel.axvline(0, color="grey", linewidth=1)
        panel.set(title=f"change of\n{name} accuracy")
    panels[0].set_yticks(rows, [cost.name for cost in costs])
    panels[0].invert_yaxis()
    for panel in panels:
        panel.grid(alpha=0.3)
    figure.savefig(path, dpi=150)


def _changes(values: Sequence[float], reference: Sequence[float]) -> list[float]:
    """The differences of each seed; none if a run lacks the accuracy."""
    return [a - b for a, b in zip(values, reference, strict=True)] if len(values) == len(reference) else []


def _cell(values: Sequence[float]) -> str:
    if not values:
        return "-"
    spread = f" ± {number(half_width(values))}" if len(values) > 1 else ""
    return f"{number(fmean(values))}{spread}"
