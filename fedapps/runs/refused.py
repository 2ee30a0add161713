"""Nodes of which a run has used nothing, because every reply of theirs was refused."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedapps.base.errors import headline_of
from fedapps.strategies import RunEndedError

from .run_folder import RunFolder

_PHASES = {"train": "training", "evaluate": "evaluation"}


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
