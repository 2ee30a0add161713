"""Refused replies by node and reason."""

from __future__ import annotations

from markupsafe import Markup

from fedapps.report.rendering import render_section
from fedapps.report.run_data import RunData

_MOST = 50

ORDER = 160


def section(run: RunData) -> Markup | None:
    """One row per method, node and reason; None if no reply was refused."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for record in run.rounds:
        for refusal in record.refused:
            found.setdefault((record.method, refusal.node, refusal.reason), []).append(record.round)
    if not found:
        return None
    often = sorted(found.items(), key=lambda item: -len(item[1]))
    rows = [[*key, _spans(sorted(set(rounds))), len(rounds)] for key, rounds in often[:_MOST]]
    return render_section("refused", total=sum(map(len, found.values())), hidden=len(often[_MOST:]), rows=rows)


def _spans(rounds: list[int]) -> str:
    """Rounds as ranges, such as 1–3, 7."""
    spans: list[list[int]] = []
    for number in rounds:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in spans)
