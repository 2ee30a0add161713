"""Nodes that were held out of all rounds: what they are asked after the last one, and what the run records of it.

Each of them reports three models on its own data: the one that it received, with initial private parameters; the same
after it fitted its personal part (:mod:`fedapps.clients.new_node`); and a model that it trained alone for as many
epochs, with the settings of the run. The server only sends a message and reads metrics, so this works wherever nodes
evaluate.
"""

from collections.abc import Mapping
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid

from fedapps.base.options import option_values
from fedapps.config.parsing import Config
from fedapps.strategies import BaseStrategy, RoundReport
from fedapps.strategies.wire import HELD_OUT, HELD_OUT_PREFIXES

from .round_config import evaluate_config, stage_of


def new_node_config(config: Config, label: str, run_label: str, server_round: int, epochs: int) -> ConfigRecord:
    """The config of the message to a new node: that of an evaluation, with the settings of training.

    Its data have the stage of the round only where they come in stages: it has collected none.
    """
    run, stages = config.run_of(label), config.num_stages
    return ConfigRecord(
        {
            **evaluate_config(config, label, run_label, server_round),
            **option_values(run.training),
            "held-out-epochs": epochs,
            "stage": stage_of(run, server_round, stages) if stages > 1 else 0,
            "final": True,
            "collect": False,
        }
    )


def held_out_results(
    strategy: BaseStrategy, grid: Grid, config: Config, label: str, run_label: str, arrays: ArrayRecord, last: int
) -> dict[str, Any]:
    """Ask the held-out nodes after the round ``last``.

    Returns
    -------
    dict
        ``held_out``, for the summary of the method: ``epochs``; the mean metrics of the three models as ``shared``,
        ``adapted`` and ``local``; ``nodes``, the same by node; and ``refused``, the reasons by node. Empty if the run
        holds out no node, or withholds test data.
    """
    run = config.run
    if not run.held_out_nodes or run.withhold_test:
        return {}
    asked = new_node_config(config, label, run_label, last, run.held_out_epochs)
    asked[HELD_OUT] = True
    report = strategy.evaluate_held_out(last, arrays, asked, grid, run.timeout)
    return {"held_out": {"epochs": run.held_out_epochs, **_by_model(report.evaluate), **_of_nodes(report)}}


def tracked_results(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The final metrics in the summary of a method, and those of held-out nodes as ``held-out.<model>.<metric>``."""
    held_out = facts.get("held_out", {})
    models = {prefix: held_out.get(prefix.removesuffix("."), {}) for prefix in HELD_OUT_PREFIXES}
    found = {f"held-out.{prefix}{name}": value for prefix, of in models.items() for name, value in of.items()}
    return {**facts["final"], **found}


def _of_nodes(report: RoundReport) -> dict[str, Any]:
    return {
        "nodes": {node.node: _by_model(node.metrics) for node in report.nodes},
        "refused": {refusal.node: refusal.reason for refusal in report.refused},
    }


def _by_model(metrics: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """The single numbers among metrics by model, without the prefix."""
    return {
        prefix.removesuffix("."): {
            name.removeprefix(prefix): float(value)
            for name, value in metrics.items()
            if name.startswith(prefix) and isinstance(value, (int, float))
        }
        for prefix in HELD_OUT_PREFIXES
    }
