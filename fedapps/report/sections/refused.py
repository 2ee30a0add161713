"""Refused replies by node and reason, and metrics that were left out of accepted replies."""

from __future__ import annotations

from markupsafe import Markup

from fedapps.base.errors import headline_of
from fedapps.report.rendering import render_section
from fedapps.report.run_data import RunData

_MOST = 50

ORDER = 160


def section(run: RunData) -> Markup | None:
    """One row per method, node and reason; None if no reply was refused and no metric left out."""
    found: dict[tuple[str, str, str], list[int]] = {}
    whole: dict[str, str] = {}  # a failure has another traceback in each phase
    left_out: dict[tuple[str, str, str], list[int]] = {}
    for record in run.rounds:
        for refusal in record.refused:
            reason = whole.setdefault(headline_of(refusal.reason), refusal.reason)
            found.setdefault((record.method, refusal.node, reason), []).append(record.round)
        for metric in record.left_out:
            left_out.setdefault((record.method, metric.node, metric.metric), []).append(record.round)
    if not (found or left_out):
        return None
    often, lost = _most_frequent(found), _most_frequent(left_out)
    return render_section(
        "refused",
        total=sum(map(len, found.values())),
        hidden=len(often[_MOST:]),
        rows=often[:_MOST],
        left_out=sum(map(len, left_out.values())),
        lost=lost[:_MOST],
    )


def _most_frequent(found: dict[tuple[str, str, str], list[int]]) -> list[list[object]]:
    often = sorted(found.items(), key=lambda item: -len(item[1]))
    return [[*key, _spans(sorted(set(rounds))), len(rounds)] for key, rounds in often]


def _spans(rounds: list[int]) -> str:
    """Rounds as ranges, such as 1–3, 7."""
    spans: list[list[int]] = []
    for number in rounds:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in spans)
