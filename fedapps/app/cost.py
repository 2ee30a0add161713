"""What a method cost: bytes, optimizer steps, and the rounds and steps to a target."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedapps.config.run_config import RunConfig
from fedapps.report.metrics import ROUNDS_TO_TARGET, STEPS_PER_NODE, STEPS_TO_TARGET
from fedapps.strategies.wire import EVALUATION_STEPS, STEPS


def traffic(rounds: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Bytes of one node in one round of training: what it sent, and what it received."""
    sent, received = (sum(row[name] for row in rounds) for name in ("train_bytes_up", "train_bytes_down"))
    replies, messages = (sum(row[name] for row in rounds) for name in ("train_replies", "train_messages"))
    return {
        "bytes_per_client_round": sent / max(replies, 1),
        "bytes_down_per_client_round": received / max(messages, 1),
    }


def steps_per_node(rows: Sequence[Mapping[str, Any]], num_nodes: int) -> dict[str, float]:
    """The local budget of a method: the mean number of optimizer steps behind the models of its last evaluation.

    These are all steps of training and those before the last evaluation, such as personalisation. Steps before earlier
    evaluations leave no trace in a model and do not count.

    Parameters
    ----------
    rows : sequence of mappings
        The lines of ``nodes.jsonl`` of one method.
    num_nodes : int
        The number of nodes of the run; nodes that never trained count, too.

    Returns
    -------
    dict
        ``steps_per_node``; empty if no node reported its steps.
    """
    trained = _steps((row for row in rows if row["phase"] == "train"), STEPS)
    if not trained:
        return {}
    evaluated = [row for row in rows if row["phase"] == "evaluate"]
    last = [row for row in evaluated if row["round"] == evaluated[-1]["round"]]
    before = _steps(last, EVALUATION_STEPS)
    nodes = max(num_nodes, len({row["node"] for row in rows}))
    return {STEPS_PER_NODE: sum(trained) / nodes + sum(before) / max(len(last), 1)}


def cost_to_target(
    run: RunConfig, evaluated: Sequence[Mapping[str, Any]], nodes: Sequence[Mapping[str, Any]]
) -> dict[str, float]:
    """What it took to reach the run's target: the rounds, and the optimizer steps of all nodes together.

    Parameters
    ----------
    run : RunConfig
        Its ``target``, ``track_metric`` and ``track_mode``.
    evaluated : sequence of mappings
        The lines of ``metrics.jsonl`` of one method that have an evaluation.
    nodes : sequence of mappings
        The lines of ``nodes.jsonl`` of the same method.

    Returns
    -------
    dict
        ``rounds_to_target``, the first evaluated round whose tracked metric reaches the target, and
        ``steps_to_target``; empty without a target, and if no evaluation reaches it.
    """
    if not run.target:
        return {}
    sign = 1 if run.track_mode == "max" else -1
    reached = [row for row in evaluated if sign * row["evaluate"][run.track_metric] >= sign * run.target]
    if not reached:
        return {}
    last = reached[0]["round"]
    steps = _steps((row for row in nodes if row["phase"] == "train" and row["round"] <= last), STEPS)
    return {ROUNDS_TO_TARGET: float(last), STEPS_TO_TARGET: float(sum(steps))}


def _steps(rows: Iterable[Mapping[str, Any]], name: str) -> list[float]:
    """The numbers that nodes reported under a name; they may report lists, too, which do not count."""
    return [value for row in rows if isinstance(value := row["metrics"].get(name), (int, float))]
