"""Results of a run as text: tables, and the nodes of which it has used nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedapps.base.errors import headline_of
from fedapps.base.report.tables import Cell, Column, Table, reference_label, text_columns
from fedapps.registry.tasks import task_class
from fedapps.strategies import RunEndedError
from fedapps.strategies.wire import HELD_OUT_PREFIXES

from .continual import measure_names
from .records import MethodSummary, RunSummary, read_json
from .run_folder import RunFolder

_PHASES = {"train": "training", "evaluate": "evaluation"}
_COSTS = ("refused", "MB up", "MB down", "seconds")


class RefusedNodesError(RunEndedError):
    """Every reply of a node was refused. The run has finished without this node; its results are kept."""


def refused_nodes(rounds: Sequence[Mapping[str, Any]], nodes: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Find the nodes whose training, or whose evaluation, was refused whenever they answered.

    A node that never answered does not count, because runs tolerate nodes that are absent or late; nor does one of
    which a single reply was used.

    Parameters
    ----------
    rounds, nodes : sequence of mapping
        The rows of one method in ``metrics.jsonl`` and in ``nodes.jsonl``.

    Returns
    -------
    dict of str to str
        How often each node was refused and the last reason, by the node's key.
    """
    used = {(row["node"], row["phase"]) for row in nodes}
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in rounds:
        for refusal in row["refused"]:
            key = refusal["node"], refusal["phase"]
            if refusal["answered"] and key not in used:
                reasons.setdefault(key, []).append(refusal["reason"])
    refused_nodes: dict[str, str] = {}
    for (node, phase), texts in reasons.items():
        refused_nodes.setdefault(node, f"{_PHASES[phase]} refused {len(texts)} times: {headline_of(texts[-1])}")
    return refused_nodes


def refused_text(folder: RunFolder) -> str:
    """Return the error of a finished run whose summary has such nodes; empty if it has none."""
    lines = [
        f"  {method}, {node}: {reason}"
        for method, facts in folder.summary().get("methods", {}).items()
        for node, reason in facts.get("refused_nodes", {}).items()
    ]
    if not lines:
        return ""
    return "\n".join(
        [
            "the run has finished without these nodes, every reply of which was refused:",
            *lines,
            f"correct their data, or leave them out; what was trained without them is in {folder.path}",
        ]
    )


def summary_table(folder: RunFolder) -> str:
    """One row per method: the main metrics of the last evaluation, refused replies, traffic and time.

    Of data in stages, the first main metric has its measures of continual learning, too. References follow, if the run
    has any, and a table of the nodes that were held out, if there are such nodes.
    """
    summary = read_json(folder.path / "summary.json", RunSummary) or RunSummary()
    headline = task_class(summary.task).headline
    known = {name for of in summary.methods.values() for name in of.final}
    staged = next((names for names in map(measure_names, headline) if names[0] in known), ())
    names = [name for name in (*staged, *headline) if name in known]
    titles = ["method", *(name.removeprefix("test.") for name in names), *_COSTS]
    rows: list[list[str | Cell]] = [
        [
            method,
            *(Cell.of(of.final.get(name)) for name in names),
            str(of.refused),
            f"{of.bytes_up / 1e6:.2f}",
            f"{of.bytes_down / 1e6:.2f}",
            f"{of.seconds:.0f}",
        ]
        for method, of in summary.methods.items()
    ]
    for reference, metrics in folder.references().items():
        rows.append(
            [reference_label(reference), *(Cell.of(metrics.get(name)) for name in names), *("–" for _ in _COSTS)]
        )
    tables = [Table(text_columns(titles), rows), *_held_out_table(summary.methods, headline)]
    return "\n\n".join(table.text() for table in tables)


def _held_out_table(methods: Mapping[str, MethodSummary], headline: Sequence[str]) -> list[Table]:
    """The first main metric of the received, the adapted and a locally trained model; none without held-out nodes."""
    held_out = {method: of.held_out for method, of in methods.items() if of.held_out.nodes}
    measured = [name for name in headline if any(name in of.adapted for of in held_out.values())]
    if not measured:
        return []
    models = [prefix.removesuffix(".") for prefix in HELD_OUT_PREFIXES]
    title = f"held-out nodes: {measured[0].removeprefix('test.')}"
    rows: list[list[str | Cell]] = [
        [method, *(Cell.of(one.get(measured[0])) for one in (of.shared, of.adapted, of.local))]
        for method, of in held_out.items()
    ]
    return [Table([Column(title, is_text=True), *text_columns(models, texts=0)], rows)]
