"""Comparisons as text tables."""

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

from fedapps.report.caveats import about_claims, about_tests
from fedapps.report.metrics import columns
from fedapps.runs.tables import number, reference_label, text_table

from .held_out import held_out_text
from .significance import scheme

#: Wider tables are split into several, one below the other.
_WIDTH = 120


def comparison_text(comparison: Mapping[str, Any]) -> str:
    """A comparison as text: means over seeds, paired tests and the paper's claims.

    The comparison is that of :func:`~fedapps.comparison.summary.summarise`. If a key was varied, each of its values has
    separate tables. Numbers in brackets are the paper's. References follow the methods. Metrics of single stages are
    omitted.
    """
    if "varied" not in comparison:
        return _one_comparison(comparison)
    key, parts = comparison["varied"]["key"], comparison["varied"]["values"]
    texts = [f"{key} = {part['value']}\n\n{_one_comparison(part)}" for part in parts]
    return "\n\n\n".join([*texts, *_notes(comparison), *_claims(comparison.get("claims", []))])


def _one_comparison(part: Mapping[str, Any]) -> str:
    table, paper, tests = part["table"], part["paper"], part["tests"]
    names = columns(name for of_method in table.values() for name in of_method)
    references = {reference_label(name): row for name, row in part.get("references", {}).items()}
    lines = {**table, **references}
    cells = {n: _column([(v.get(n), paper.get(label, {}).get(n)) for label, v in lines.items()]) for n in names}
    blocks: list[list[str]] = []
    room = 0
    for name in names:
        width = 2 + max(len(name), *map(len, cells[name]))
        if width > room:
            blocks.append([])
            room = _WIDTH - max(map(len, ("method", *lines)))
        blocks[-1].append(name)
        room -= width
    texts = []
    for block in blocks:
        rows = [[label, *(cells[name][i] for name in block)] for i, label in enumerate(lines)]
        # Omit methods and references that report none of these metrics.
        filled = [row for row in rows if any(cell.strip() != "-" for cell in row[1:])]
        texts.append(text_table(["method", *block], filled))
    texts += _notes(part)
    of_metric = {
        metric: [t for t in tests if t["metric"] == metric] for metric in dict.fromkeys(t["metric"] for t in tests)
    }
    said = ""
    for metric, found in of_metric.items():
        note = _note(found)
        texts.append(_tests(metric, found) if note == said else f"{note}\n{_tests(metric, found)}")
        said = note
    if aside := held_out_text(part.get("held_out", {})):
        texts.append(aside)
    return "\n\n".join([*texts, *_claims(part.get("claims", []))])


def _notes(part: Mapping[str, Any]) -> list[str]:
    return ["\n".join(fill(note, _WIDTH) for note in part["notes"])] if part.get("notes") else []


def _claims(claims: Sequence[Mapping[str, Any]]) -> list[str]:
    if not claims:
        return []
    header = ["claim of the paper", "metric", "difference", "interval", "claimed", "verdict"]
    rows = [
        [
            claim["claim"],
            claim["metric"],
            f"{claim['method']} - {claim['rival']} = {claim['difference']:+.4f}",
            _interval(claim),
            f"> {claim['by']:g}",
            claim["verdict"],
        ]
        for claim in claims
    ]
    return [f"{fill(about_claims(claims[0]['seeds']), _WIDTH)}\n{text_table(header, rows)}"]


def _column(pairs: Sequence[tuple[Mapping[str, float | None] | None, float | None]]) -> list[str]:
    """Cells with mean, half the width of its interval and the paper's number, each aligned over the rows."""
    parts = [_parts(ours, printed) for ours, printed in pairs]
    first, *rest = [max(len(part[i]) for part in parts) for i in range(3)]
    return [
        " ".join([mean.rjust(first), *(p.ljust(w) for p, w in zip(others, rest, strict=True) if w)])
        for mean, *others in parts
    ]


def _parts(ours: Mapping[str, float | None] | None, printed: float | None) -> tuple[str, str, str]:
    bracket = "" if printed is None else f"[{printed:,g}]"
    if ours is None:
        return "-", "", bracket
    # A whole number without deviation, such as a number of parameters, keeps all digits.
    mean = float(ours["mean"] or 0.0)
    exact = mean.is_integer() and not ours["std"]
    half = "" if ours["half"] is None else f"± {ours['half']:.2g}"
    counted = f"({ours['finished']} of {ours['planned']})" if "planned" in ours else ""
    return f"{mean:,.0f}" if exact else number(mean), f"{half} {counted}".strip(), bracket


def _note(tests: Sequence[Mapping[str, Any]]) -> str:
    """What the tests of a metric compare, and the caveat; it stands above the first of the tables that share it."""
    which = scheme([(test["a"], test["b"]) for test in tests])
    caveat = fill(about_tests(tests[0]["seeds"], len(tests)), _WIDTH)
    return "\n".join([*([which] if which else []), caveat])


def _tests(metric: str, tests: Sequence[Mapping[str, Any]]) -> str:
    header = [f"{metric}: a - b", "mean", "95 % interval", "p", "Holm", "nodes lower : higher"]
    rows = [
        [
            f"{test['a']} - {test['b']}",
            number(test["mean_difference"]),
            _interval(test),
            f"{test['p']:.3g}",
            f"{test['p_holm']:.3g}",
            f"{test['nodes_lower']} : {test['nodes_higher']}" if test["nodes_lower"] or test["nodes_higher"] else "-",
        ]
        for test in tests
    ]
    return text_table(header, rows)


def _interval(found: Mapping[str, float | None]) -> str:
    return "-" if found["low"] is None else f"{number(found['low'])} to {number(found['high'])}"
