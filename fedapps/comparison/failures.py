"""Runs of a comparison that failed, and what this means for the methods that lack their seeds.

A method that lacks seeds has a mean over the seeds that finished, and its cells say how many they are. As the failed
runs may be those with the worst results, such a method has no part in tests, claims, curves and results by node.
"""

from collections.abc import Mapping, Sequence
from textwrap import shorten
from typing import Any

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


def failures(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """``method``, ``seed``, ``round`` and ``reason`` of each run that failed."""
    return [{"method": row["method"], "seed": row["seed"], **row["failed"]} for row in rows if "failed" in row]


def with_counts(table: Mapping[str, Mapping[str, Any]], rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """A table whose cells of methods that lack seeds also have ``finished`` and ``planned``, numbers of seeds."""
    planned = [row["method"] for row in rows]
    failed = [row["method"] for row in failures(rows)]
    counted = {}
    for method, row in table.items():
        lacking = failed.count(method)
        counts = {"finished": planned.count(method) - lacking, "planned": planned.count(method)} if lacking else {}
        counted[method] = {name: {**spread, **counts} for name, spread in row.items()}
    return counted


def about_failures(rows: Sequence[Row]) -> list[str]:
    """A sentence on each method that lacks seeds, and one on what follows."""
    found = failures(rows)
    sentences = []
    for method in dict.fromkeys(failure["method"] for failure in found):
        of_method = [failure for failure in found if failure["method"] == method]
        planned = sum(row["method"] == method for row in rows)
        told = "; ".join(f"seed {one['seed']} {where(one)}" for one in of_method)
        sentences.append(f"{method}: {len(of_method)} of {planned} runs failed ({told}).")
    if sentences:
        sentences.append(
            "Methods with failed runs have the mean of the other seeds, with their number in parentheses, and are left "
            "out of tests, claims, curves and results by node."
        )
    return sentences


def where(failure: Mapping[str, Any]) -> str:
    """The last round of a failed run and the reason, in some words."""
    reason = shorten(str(failure["reason"]), _LETTERS, placeholder=" ...")
    return f"after round {failure['round']}: {reason}"
