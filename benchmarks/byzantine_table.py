"""The outcomes of runs under attack as a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from fedapps.comparison.paired_seeds import half_width
from fedapps.runs.tables import number, text_table

NO_ATTACK = "none"


@dataclass(frozen=True)
class Outcome:
    """One run under attack.

    Parameters
    ----------
    aggregation, attack : str
        Their names.
    attackers : float
        The share of attackers, in [0, 1).
    seed : int
        The seed of the run.
    metric : str
        The name of a metric.
    value : float or None
        The metric at the last evaluation; ``None`` if the run failed.
    error : str
        Why the run failed; empty if it did not.
    """

    aggregation: str
    attack: str
    attackers: float
    seed: int
    metric: str
    value: float | None
    error: str = ""


def outcome_table(outcomes: Sequence[Outcome]) -> str:
    """One row per attack and aggregation, one column per share of attackers.

    A cell is the mean over the seeds with the half-width of its 95 % confidence interval (Student's t), from two seeds
    on. It shows in parentheses how many runs did not fail, if any failed.
    """
    attacks = list(dict.fromkeys(o.attack for o in outcomes if o.attackers)) or [NO_ATTACK]
    aggregations = list(dict.fromkeys(outcome.aggregation for outcome in outcomes))
    shares = sorted({outcome.attackers for outcome in outcomes})
    cells: dict[tuple[str, str, float], list[Outcome]] = {}
    for outcome in outcomes:
        for attack in attacks if outcome.attack == NO_ATTACK else [outcome.attack]:
            cells.setdefault((attack, outcome.aggregation, outcome.attackers), []).append(outcome)
    rows = [
        [f"{attack}, {aggregation}", *(_cell(cells[attack, aggregation, share]) for share in shares)]
        for attack in attacks
        for aggregation in aggregations
    ]
    return text_table([f"{outcomes[0].metric} of", *(f"{share:.0%} attackers" for share in shares)], rows)


def _cell(outcomes: Sequence[Outcome]) -> str:
    values = [outcome.value for outcome in outcomes if outcome.value is not None]
    if not values:
        return "failed"
    interval = f" ± {number(half_width(values))}" if values[1:] else ""
    finished = f" ({len(values)} of {len(outcomes)})" if len(values) < len(outcomes) else ""
    return f"{number(fmean(values))}{interval}{finished}"
