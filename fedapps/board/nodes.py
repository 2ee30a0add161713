"""What the server knows of the nodes of a run: their last replies, which are missing, and why replies were refused."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from fedapps.base.errors import headline_of
from fedapps.report import RunData

_MOST_REASONS = 50


@dataclass(frozen=True)
class NodeStatus:
    """What the server knows of a node: its last accepted reply, and its refused replies under all methods.

    Only the end of a round shows which nodes did not reply: a node that dies is seen to be missing after the next round
    that evaluates.

    Attributes
    ----------
    name : str
        The key of the node.
    method : str
        The method of its last reply; empty if there is none.
    round : int
        The round of its last reply; of the last refusal if there is no reply.
    examples : float
        The number of examples of its last reply.
    bytes : float
        The size of its last reply.
    seconds : float
        How long it worked on its last reply; 0 if the run does not record timings.
    since : float
        When the round of its last reply ended, in seconds since the epoch; 0 if there is no reply. It is the time of
        the last round less the seconds of those that followed.
    missed : int
        The number of rounds that have ended since without an accepted reply of it.
    missing : bool
        Whether one of these rounds evaluated all connected nodes, and no reply of it was refused since.
    refused : int
        The number of refused replies.
    """

    name: str
    method: str
    round: int
    examples: float
    bytes: float
    seconds: float
    since: float
    missed: int
    missing: bool
    refused: int


@dataclass(frozen=True)
class RefusalStatus:
    """Why replies were refused.

    Attributes
    ----------
    reason : str
        The line of the reason that says most.
    whole : str
        The whole reason, such as a traceback.
    count : int
        How often it was given.
    nodes : list of str
        To whose replies, the most frequent first.
    """

    reason: str
    whole: str
    count: int
    nodes: list[str]


def nodes_of(run: RunData, changed: float) -> list[NodeStatus]:
    """All nodes of a run whose last round ended at ``changed``, in seconds since the epoch; missing ones first."""
    counts = Counter(refusal.node for record in run.rounds for refusal in record.refused)
    refused_at = {refusal.node: index for index, record in enumerate(run.rounds) for refusal in record.refused}
    last = {record.node: record for record in run.nodes}
    # When each round ended: the last one has written the files, and the seconds of the later ones lie between.
    index_of = {(record.method, record.round): index for index, record in enumerate(run.rounds)}
    ends, end = [0.0] * len(run.rounds), changed
    for index in reversed(range(len(run.rounds))):
        ends[index] = end
        end -= finite(run.rounds[index].seconds)
    evaluated = [index_of.get((node.method, node.round), 0) for node in run.nodes if node.phase == "evaluate"]
    last_evaluated = max(evaluated, default=-1) if run.config.get("fraction-evaluate", 1) == 1 else -1
    statuses = []
    for name in sorted({*last, *counts}):
        refused = refused_at.get(name, -1)
        number, method, index = run.rounds[refused].round if refused >= 0 else 0, "", -1
        examples, size, seconds, since = 0.0, 0.0, 0.0, 0.0
        if record := last.get(name):
            method, number = record.method, record.round
            examples, size, seconds = map(finite, (record.num_examples, record.bytes_up, sum(record.timings.values())))
            index = index_of.get((method, number), len(run.rounds) - 1)
            since = ends[index] if ends else changed
        missed = len(run.rounds) - 1 - index
        missing = last_evaluated > max(index, refused)
        statuses.append(NodeStatus(name, method, number, examples, size, seconds, since, missed, missing, counts[name]))
    return sorted(statuses, key=lambda node: (not node.missing, -node.refused))


def refusals_of(run: RunData) -> list[RefusalStatus]:
    """Why replies were refused, the most frequent reasons first."""
    by_reason: dict[str, Counter[str]] = {}
    whole: dict[str, str] = {}
    for record in run.rounds:
        for refusal in record.refused:
            reason = headline_of(refusal.reason)
            by_reason.setdefault(reason, Counter())[refusal.node] += 1
            whole[reason] = refusal.reason.strip()
    statuses = [
        RefusalStatus(reason, whole[reason], of.total(), [node for node, _ in of.most_common()])
        for reason, of in by_reason.items()
    ]
    return sorted(statuses, key=lambda refusal: -refusal.count)[:_MOST_REASONS]


def finite(value: float) -> float:
    """The value, or 0 if it is not finite."""
    return value if math.isfinite(value) else 0.0
