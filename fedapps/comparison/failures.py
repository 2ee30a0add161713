"""Runs of a comparison that failed, and what this means for the methods that lack their seeds.

A method that lacks seeds has a mean over the seeds that finished, and its cells say how many they are. As the failed
runs may be those with the worst results, such a method has no part in tests, claims, curves and results by node.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from textwrap import shorten
from typing import Any

from fedapps.base.report.estimates import Estimate
from fedapps.runs.comparisons import Estimates, FailedRun

#: The longest reason in a sentence; ``compare.json`` has all of it.
_LETTERS = 300

Row = Mapping[str, Any]


def failed_row(method: str, seed: int, last_round: int, reason: str) -> dict[str, Any]:
    """The row of a run that failed, in place of that of :func:`~fedapps.comparison.compare.run_cell`.

    Parameters
    ----------
    method : str
    seed : int
    last_round : int
        The last round that was recorded; 0 if there is none.
    reason : str
    """
    return {"method": method, "seed": seed, "failed": {"round": last_round, "reason": reason}}


def finished_rows(rows: Sequence[Row]) -> list[Row]:
    """The rows of the runs that finished."""
    return [row for row in rows if "failed" not in row]


def complete_rows(rows: Sequence[Row]) -> list[Row]:
    """The rows of the methods of which no run failed."""
    lacking = {row["method"] for row in rows if "failed" in row}
    return [row for row in rows if row["method"] not in lacking]


def failures(rows: Sequence[Row]) -> list[FailedRun]:
    """The runs that failed."""
    return [FailedRun(method=row["method"], seed=row["seed"], **row["failed"]) for row in rows if "failed" in row]


def with_counts(table: Estimates, rows: Sequence[Row]) -> dict[str, dict[str, Estimate]]:
    """A table whose estimates of methods that lack seeds also say how many were planned."""
    planned = Counter(row["method"] for row in rows)
    lacking = {run.method for run in failures(rows)}
    return {
        method: {name: replace(one, planned=planned[method] if method in lacking else 0) for name, one in row.items()}
        for method, row in table.items()
    }


def about_failures(rows: Sequence[Row]) -> list[str]:
    """A sentence on each method that lacks seeds, and one on what follows."""
    failed, sentences = failures(rows), []
    for method in dict.fromkeys(run.method for run in failed):
        of_method = [run for run in failed if run.method == method]
        planned = sum(row["method"] == method for row in rows)
        reasons = "; ".join(f"seed {run.seed} {where(run)}" for run in of_method)
        sentences.append(f"{method}: {len(of_method)} of {planned} runs failed ({reasons}).")
    if sentences:
        sentences.append(
            "Methods with failed runs have the mean of the other seeds, with their number in parentheses, and are left "
            "out of tests, claims, curves and results by node."
        )
    return sentences


def where(run: FailedRun) -> str:
    """The last round of a failed run and the reason, in some words."""
    return f"after round {run.round}: {shorten(run.reason, _LETTERS, placeholder=' ...')}"
