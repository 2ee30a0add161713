"""Details: refused replies by node and reason, metrics that were left out of accepted replies, and the run config."""

from __future__ import annotations

from markupsafe import Markup

from fedapps.base.errors import headline_of
from fedapps.base.report.tables import Table, text_columns
from fedapps.report.run_data import RunData

from . import section_of

_MOST = 50

ORDER = 170


def section(run: RunData) -> Markup | None:
    """Both parts, if there is something to show in them."""
    return Markup("\n").join(part for part in (_refused(run), _configuration(run)) if part) or None


def _refused(run: RunData) -> Markup | None:
    """One row per method, node and reason; None if no reply was refused and no metric left out."""
    refused: dict[tuple[str, str, str], list[int]] = {}
    whole: dict[str, str] = {}  # a failure has another traceback in each phase
    left_out: dict[tuple[str, str, str], list[int]] = {}
    for record in run.rounds:
        for refusal in record.refused:
            reason = whole.setdefault(headline_of(refusal.reason), refusal.reason)
            refused.setdefault((record.method, refusal.node, reason), []).append(record.round)
        for metric in record.left_out:
            left_out.setdefault((record.method, metric.node, metric.metric), []).append(record.round)
    if not (refused or left_out):
        return None
    often, lost = _most_frequent(refused), _most_frequent(left_out)
    return section_of(
        "refused",
        total=sum(map(len, refused.values())),
        hidden=len(often[_MOST:]),
        rows=often[:_MOST],
        left_out=sum(map(len, left_out.values())),
        lost=Table(text_columns(["method", "node", "metric", "rounds", "count"], texts=4), lost[:_MOST]),
    )


def _configuration(run: RunData) -> Markup | None:
    """A collapsed table of all keys; None if the folder has no config."""
    if not run.config:
        return None
    rows = [[Markup("<code>{}</code>").format(key), str(value)] for key, value in run.config.items()]
    return section_of("configuration", keys=Table(text_columns(["key", "value"], texts=2), rows))


def _most_frequent(rounds_of: dict[tuple[str, str, str], list[int]]) -> list[list[str]]:
    often = sorted(rounds_of.items(), key=lambda item: -len(item[1]))
    return [[*key, _spans(sorted(set(rounds))), str(len(rounds))] for key, rounds in often]


def _spans(rounds: list[int]) -> str:
    """Rounds as ranges, such as 1–3, 7."""
    spans: list[list[int]] = []
    for number in rounds:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in spans)
