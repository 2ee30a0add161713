"""The config of the messages that nodes receive in each round of a method, and what held-out nodes are asked.

A node that was held out of all rounds reports three models on its own data after the last one: the one that it
received, with initial private parameters; the same after it fitted its personal part (:mod:`fedapps.clients.new_node`);
and a model that it trained alone for as many epochs, with the settings of the run. The server only sends a message and
reads metrics, so this works wherever nodes evaluate.
"""

from collections.abc import Mapping
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid

from fedapps.base.options import option_values
from fedapps.clients.settings import LINEAGE, LocalTraining
from fedapps.config.parsing import Config
from fedapps.config.run_config import RunConfig
from fedapps.methods.base import Scalar
from fedapps.strategies import BaseStrategy, RoundReport
from fedapps.strategies.wire import FIXED_DIGEST, HELD_OUT, HELD_OUT_PREFIXES, TIMINGS_WANTED


def stage_of(run: RunConfig, server_round: int, num_stages: int = 1, begun: int = 0) -> int:
    """The stage of a round, counted from 0.

    Stages of the data share the rounds of the run equally, which come after ``begun`` others; without them stage 1
    begins after nodes have collected data.
    """
    if num_stages > 1:
        return (server_round - begun - 1) * num_stages // run.rounds
    return int(0 < run.collect_after < server_round)


def timings_wanted(run: RunConfig) -> dict[str, bool]:
    """The key that asks nodes for their timings, only where the run asks for it."""
    return {TIMINGS_WANTED: True} if run.timings else {}


def fixed_digest(config: Config) -> dict[str, str]:
    """The key with which nodes check what they build from their own files, only where there is such a thing."""
    found = config.task.fixed_digest
    return {FIXED_DIGEST: found} if found else {}


def train_config(config: Config, label: str, run_label: str, server_round: int) -> ConfigRecord:
    """The config of the TRAIN messages of the method ``label``; ``run_label`` names the folder of private states."""
    return ConfigRecord(
        {**_common(config, label, run_label, server_round), **option_values(_training(config, label, server_round))}
    )


def evaluate_config(config: Config, label: str, run_label: str, server_round: int) -> ConfigRecord:
    """The config of the EVALUATE messages of the method ``label``.

    Nodes that train before an evaluation know all settings but the learning rate of the round.
    """
    run = config.run_of(label)
    return ConfigRecord(
        {
            **_common(config, label, run_label, server_round),
            "learning-rate": _training(config, label, server_round).learning_rate,
            "final": server_round == config.last_round(label),
            "collect": server_round == run.collect_after,
        }
    )


def _common(config: Config, label: str, run_label: str, server_round: int) -> dict[str, Scalar | list[str]]:
    run = config.run_of(label)
    return {
        "run": run_label,
        "method": label,
        **timings_wanted(run),
        **fixed_digest(config),
        "stage": stage_of(run, server_round, config.num_stages, config.begun.get(label, 0)),
        **({LINEAGE: list(config.lineage)} if config.lineage else {}),
    }


def _training(config: Config, label: str, server_round: int) -> LocalTraining:
    own_round = server_round - config.begun.get(label, 0)
    return config.methods[label].training(config.run_of(label).training_in(own_round))


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
            "stage": stage_of(run, server_round, stages, config.begun.get(label, 0)) if stages > 1 else 0,
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
    of_held_out = {f"held-out.{prefix}{name}": value for prefix, of in models.items() for name, value in of.items()}
    return {**facts["final"], **of_held_out}


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
