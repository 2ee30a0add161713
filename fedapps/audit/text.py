"""An audit for the terminal: the table, sentences side by side, and what is protected from whom."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedapps.runs.tables import text_table
from tasks.text.privacy.attackers import ATTACKERS

from .plan import ANYBODY

#: What the text of the paper says of its Table 2 and Figure 3 (Zhang et al., FedVocab, Section 4.2 and Appendix B.3).
PAPER: Mapping[tuple[str, str], str] = {
    ("fedavg", "known"): "almost all, digits too",
    ("fedrecon", "known"): "high, but for digits",
    ("fedvocab", "foreign"): "almost zero",
}
#: Shares of the words from which on they are read, and up to which they are protected.
READ, PROTECTED = 0.5, 0.1
_HELD = {**ATTACKERS, ANYBODY: "the shared rows of the embedding table, and their words"}

Row = Mapping[str, Any]


def row_line(row: Row) -> str:
    """A row of the table on a line of its own."""
    return (
        f"{row['method']}, {row['attacker']}, {row['attack']}, batch size {row['batch_size']}: "
        f"precision {row['precision']:.3f}, recall {row['recall']:.3f}, digit tokens {_share(row['ptlr'])}, "
        f"{row['seconds']:.1f} s a sentence"
    )


def audit_text(found: Mapping[str, Any]) -> str:
    """All that an audit (see :func:`.cells.finished`) says."""
    held = [f"  {name}: {_HELD[name]}" for name in dict.fromkeys(row["attacker"] for row in found["rows"])]
    return "\n\n".join(
        [
            _table(found["rows"]),
            "\n".join(["PTLR: share of digit tokens read. What an attacker holds beside what is shared:", *held]),
            _side_by_side(found["recovered"]),
            statement(found["rows"]),
        ]
    )


def statement(rows: Sequence[Row]) -> str:
    """What is protected and what is not, by the highest recall and PTLR over attacks and batch sizes."""
    lines = [
        f"what is protected (the worst of all attacks and batch sizes; read: at least {READ:.0%} of the words, "
        f"protected: at most {PROTECTED:.0%})"
    ]
    for method in dict.fromkeys(row["method"] for row in rows):
        by_attacker: dict[str, list[Row]] = {}
        for row in rows:
            if row["method"] == method:
                by_attacker.setdefault(row["attacker"], []).append(row)
        words = {name: max(row["recall"] for row in seen) for name, seen in by_attacker.items()}
        digits = {
            name: max(row["ptlr"] for row in seen if row["ptlr"] is not None)
            for name, seen in by_attacker.items()
            if any(row["ptlr"] is not None for row in seen)
        }
        lines += [f"  {method}: words {_summary(words)}"] + ([f"    digit tokens {_summary(digits)}"] if digits else [])
    return "\n".join(lines)


def _summary(shares: Mapping[str, float]) -> str:
    """Who reads how much, the most protected last."""
    by_verdict: dict[str, list[str]] = {}
    for name, share in shares.items():
        by_verdict.setdefault(_verdict(share), []).append(f"{name} ({share:.3f})")
    said = {"read": "read by", "read in part": "read in part by", "protected": "protected from"}
    return "; ".join(
        f"{words} {', '.join(by_verdict[verdict])}" for verdict, words in said.items() if verdict in by_verdict
    )


def _table(rows: Sequence[Row]) -> str:
    header = ["method", "attacker", "attack", "batch", "precision", "recall", "F1", "PTLR", "s/sentence", "the paper"]
    cells = [
        [
            row["method"],
            row["attacker"],
            row["attack"],
            str(row["batch_size"]),
            *(f"{row[name]:.3f}" for name in ("precision", "recall", "f1")),
            _share(row["ptlr"]),
            f"{row['seconds']:.2f}",
            PAPER.get((row["method"], row["attacker"]), "-"),
        ]
        for row in rows
    ]
    return text_table(header, cells)


def _side_by_side(recovered: Sequence[Mapping[str, Any]]) -> str:
    """The first sentences of the smallest batch size and what each attacker took them for; right words in capitals."""
    guessed = [one for one in recovered if one["attacker"] != ANYBODY] or list(recovered)
    if not guessed:
        return "no sentence was attacked"
    attack, size = guessed[0]["attack"], min(one["batch_size"] for one in guessed)
    shown = [one for one in guessed if one["attack"] == attack and one["batch_size"] == size]
    lines = [f"sentences as written, and as {attack} read them with batch size {size} (right words in capitals)"]
    for target in dict.fromkeys(one["target"] for one in shown):
        readers: dict[str, list[str]] = {}
        for one in shown:
            if one["target"] == target:
                readers.setdefault(one["recovered"], []).append(f"{one['method']}/{one['attacker']}")
        words = set(target.split())
        lines += ["", f"  written: {target}"]
        for text, names in readers.items():
            marked = " ".join(word.upper() if word in words else word for word in text.split())
            lines.append(f"  {', '.join(names)}: {marked}")
    return "\n".join(lines)


def _verdict(share: float) -> str:
    return "read" if share >= READ else "protected" if share <= PROTECTED else "read in part"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
