"""The results of an audit as text: the table, reconstructed sentences, and who can read what under each method."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from fedapps.base.report.tables import text_table
from fedapps.tasks.privacy.audit import ATTACKERS

from .plan import ANYBODY, GUESSER

#: What a paper says, by (method, attacker).
Paper = Mapping[tuple[str, str], str]
#: Words count as read from a recall of ``READ`` on, and as protected up to a recall of ``PROTECTED``.
READ, PROTECTED = 0.5, 0.1
_KNOWLEDGE = {
    **ATTACKERS,
    ANYBODY: "the shared rows of the embedding table, and their words",
    GUESSER: "nothing of what is shared, but how often words occur in public texts",
}

_LEGEND = (
    "PTLR: share of digit tokens recovered. distance: of the matched gradient, relative to the squared norm of the "
    "shared one.\nKnown besides what is shared, to"
)

Row = Mapping[str, Any]


def row_line(row: Row) -> str:
    """One row of the results as a line of text."""
    return (
        f"{row['method']}, {row['attacker']}, {row['attack']} on {row['on']}, batch size {row['batch_size']}: "
        f"precision {row['precision']:.3f}, recall {row['recall']:.3f}, digit tokens {_share(row['ptlr'])}, "
        f"{row['seconds']:.1f} s per sentence"
    )


def audit_text(results: Mapping[str, Any], paper: Paper | None = None) -> str:
    """The results of an audit (see :func:`.jobs.finished`) as text, beside what a paper says."""
    knowledge = [f"  {name}: {_KNOWLEDGE[name]}" for name in dict.fromkeys(row["attacker"] for row in results["rows"])]
    return "\n\n".join(
        [
            _table(results["rows"], paper or {}),
            "\n".join([_LEGEND, *knowledge]),
            _side_by_side(results["recovered"]),
            statement(results["rows"]),
        ]
    )


def leakage_text(rows: Sequence[Row]) -> str:
    """The rows as a table: means over the seeds, and the least and the largest share that was read."""
    cells = [
        [
            row["attack"],
            row["situation"],
            *(f"{fmean(row[name]):.3g} {row['unit']}" if name in row else "-" for name in ("error", "guess")),
            f"{fmean(row['read']):.2f} ({min(row['read']):.2f} to {max(row['read']):.2f})",
            f"{fmean(row['another']):.2f}",
        ]
        for row in rows
    ]
    head = ["attack", "update", "error", "of the mean example", "read (least to most)", "another node's"]
    return text_table(head, cells)


def statement(rows: Sequence[Row]) -> str:
    """Who can read what under each method, by the strongest attack: the highest recall and PTLR of all rows.

    A guess is no attack.
    """
    rows = [row for row in rows if row["attacker"] != GUESSER]
    attacks = dict.fromkeys(f"{row['attack']} on {row['on']}" for row in rows)
    sizes = sorted({row["batch_size"] for row in rows})
    lines = [
        f"by the strongest of the attacks {', '.join(attacks)}, batch sizes {', '.join(map(str, sizes))} "
        f"(read: at least {READ:.0%} recovered, protected: at most {PROTECTED:.0%})"
    ]
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        lines.append(f"  {method}: words {_summary(own, 'recall')}")
        if digits := [row for row in own if row["ptlr"] is not None]:
            lines.append(f"    digit tokens {_summary(digits, 'ptlr')}")
    return "\n".join(lines)


def _summary(rows: Sequence[Row], measure: str) -> str:
    """The attackers by verdict, from "read" to "protected", each with its strongest attack."""
    strongest: dict[str, Row] = {}
    for row in rows:
        if row["attacker"] not in strongest or row[measure] > strongest[row["attacker"]][measure]:
            strongest[row["attacker"]] = row
    by_verdict: dict[str, list[str]] = {}
    for name, row in strongest.items():
        shown = f"{name} ({row[measure]:.3f}, {row['attack']} on {row['on']})"
        by_verdict.setdefault(_verdict(row[measure]), []).append(shown)
    phrases = {"read": "read by", "partly read": "partly read by", "protected": "protected from"}
    return "; ".join(
        f"{phrase} {', '.join(by_verdict[verdict])}" for verdict, phrase in phrases.items() if verdict in by_verdict
    )


def _table(rows: Sequence[Row], paper: Paper) -> str:
    header = ["method", "attacker", "attack", "on", "batch", "precision", "recall", "F1", "PTLR"]
    header += ["distance", "s/sentence", "paper"]
    cells = [
        [
            row["method"],
            row["attacker"],
            row["attack"],
            row["on"],
            str(row["batch_size"]),
            *(f"{row[name]:.3f}" for name in ("precision", "recall", "f1")),
            _share(row["ptlr"]),
            "-" if row["distance"] is None else f"{row['distance']:.1e}",
            f"{row['seconds']:.2f}",
            paper.get((row["method"], row["attacker"]), "-"),
        ]
        for row in rows
    ]
    return text_table(header, cells)


def _side_by_side(recovered: Sequence[Mapping[str, Any]]) -> str:
    """The first sentences and their reconstructions at the smallest batch size; correct words in capitals."""
    guessed = [one for one in recovered if one["attacker"] not in (ANYBODY, GUESSER)] or list(recovered)
    if not guessed:
        return "no sentence was attacked yet"
    attack, on, size = guessed[0]["attack"], guessed[0]["on"], min(one["batch_size"] for one in guessed)
    shown = [one for one in guessed if (one["attack"], one["on"], one["batch_size"]) == (attack, on, size)]
    lines = [
        f"original sentences and what {attack} on {on} reconstructs, batch size {size} (correct words in capitals)"
    ]
    for target in dict.fromkeys(one["target"] for one in shown):
        readers: dict[str, list[str]] = {}
        for one in shown:
            if one["target"] == target:
                readers.setdefault(one["recovered"], []).append(f"{one['method']}/{one['attacker']}")
        words = set(target.split())
        lines += ["", f"  original: {target}"]
        for text, names in readers.items():
            marked = " ".join(word.upper() if word in words else word for word in text.split())
            lines.append(f"  {', '.join(names)}: {marked}")
    return "\n".join(lines)


def _verdict(share: float) -> str:
    return "read" if share >= READ else "protected" if share <= PROTECTED else "partly read"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
