"""Refused replies by node and reason."""

from __future__ import annotations

from html import escape

from fedapps.report.markup import render_section, table
from fedapps.report.run_data import RunData

_MOST = 50

ORDER = 160


def section(run: RunData) -> str | None:
    """One row per method, node and reason; None if no reply was refused."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for record in run.rounds:
        for refusal in record.refused:
            found.setdefault((record.method, refusal.node, refusal.reason), []).append(record.round)
    if not found:
        return None
    often = sorted(found.items(), key=lambda item: -len(item[1]))
    rows = [[*map(escape, key), _spans(sorted(set(rounds))), str(len(rounds))] for key, rounds in often[:_MOST]]
    total = sum(map(len, found.values()))
    hidden = f" The {len(often) - _MOST} least frequent reasons are not listed." if len(often) > _MOST else ""
    lead = (
        f"{total} repl{'y was' if total == 1 else 'ies were'} refused and not aggregated; the rounds continued "
        f"without {'it' if total == 1 else 'them'}.{hidden}"
    )
    head = ["method", "node", "reason", "rounds", "count"]
    return render_section("refused", "Refused replies", table(head, rows, texts=4), lead=lead)


def _spans(rounds: list[int]) -> str:
    """Rounds as ranges, such as 1–3, 7."""
    spans: list[list[int]] = []
    for number in rounds:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in spans)
