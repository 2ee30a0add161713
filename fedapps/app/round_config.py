"""The config of the messages that nodes receive in each round of a method, and what held-out nodes are asked.

A node that was held out of all rounds reports three models on its own data after the last one: the one that it
received, with initial private parameters; the same after it fitted its personal part (:mod:`fedapps.clients.new_node`);
and a model that it trained alone for as many epochs, with the settings of the run. The server only sends a message and
reads metrics, so this works wherever nodes evaluate.
"""

from collections.abc import Mapping
from math import cos, pi
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid

from fedapps.base.options import option_values
from fedapps.clients.settings import CHAMPION_RUNS, LINEAGE
from fedapps.config.parsing import Config
from fedapps.methods.base import Scalar
from fedapps.runs.tracking import stage_of
from fedapps.strategies import BaseStrategy, RoundReport, Snapshot
from fedapps.strategies.records import to_text
from fedapps.strategies.wire import (
    ATTEMPTS,
    BEST_ROUND,
    DURABLE_ROUND,
    FIXED_DIGEST,
    HELD_OUT,
    HELD_OUT_PREFIXES,
    TIMINGS_WANTED,
)


class RoundConfigs:
    """The configs of the messages of one method: what stays the same in all rounds is built once.

    Parameters
    ----------
    config : Config
    label : str
        The method.
    run_label : str
        Names the folder of private states.
    """

    def __init__(self, config: Config, label: str, run_label: str) -> None:
        self.run, self.num_stages = config.run_of(label), config.num_stages
        self.begun, self.last_round = config.begun.get(label, 0), config.last_round(label)
        self.training = config.methods[label].training(self.run.training)
        self._training = option_values(self.training)
        self._common: dict[str, Scalar | list[str]] = {"run": run_label, "method": label}
        if config.lineage:
            self._common[LINEAGE] = list(config.lineage)
        if config.registry_label:
            self._common["registry"] = config.registry_label
        if config.champions:
            self._common[CHAMPION_RUNS] = [label for chain in config.champions for label in (*chain, "")]
        if self.run.timings:
            self._common[TIMINGS_WANTED] = True
        if digest := config.task.fixed_digest:  # nodes check what they build from their own files
            self._common[FIXED_DIGEST] = digest

    def train(self, server_round: int) -> ConfigRecord:
        """The config of the TRAIN messages of a round."""
        return ConfigRecord({**self._common, **self._training, **self._of_round(server_round)})

    def evaluate(self, server_round: int) -> ConfigRecord:
        """The config of the EVALUATE messages of a round.

        Nodes that train before an evaluation know all settings but the learning rate of the round.
        """
        return ConfigRecord(
            {
                **self._common,
                **self._of_round(server_round),
                "final": server_round == self.last_round,
                "collect": server_round == self.run.collect_after,
            }
        )

    def of_checkpoint(self, snapshot: Snapshot) -> ConfigRecord:
        """The config of the messages to evaluate a checkpoint: that of its round, with the private state of then."""
        kept: dict[str, int | str] = {DURABLE_ROUND: snapshot.round, ATTEMPTS: to_text(snapshot.attempts)}
        if best := int(snapshot.facts.get("best", {}).get("round", 0)):
            kept[BEST_ROUND] = best
        return ConfigRecord({**self.evaluate(snapshot.round), **kept})

    def new_node(self, server_round: int, epochs: int) -> ConfigRecord:
        """The config of the message to a new node: that of an evaluation, with the settings of training.

        Its data have the stage of the round only where they come in stages: it has collected none.
        """
        return ConfigRecord(
            {
                **self.evaluate(server_round),
                **option_values(self.run.training),
                "held-out-epochs": epochs,
                "stage": self._stage(server_round) if self.num_stages > 1 else 0,
                "final": True,
                "collect": False,
            }
        )

    def _of_round(self, server_round: int) -> dict[str, Scalar]:
        factor = 1.0
        if self.run.learning_rate_schedule == "cosine":
            # ½ (1 + cos(π (t - 1) / T)) in round t of T (Loshchilov and Hutter, SGDR, ICLR 2017, eq. 5, no restarts)
            factor = 0.5 * (1 + cos(pi * (server_round - self.begun - 1) / self.run.rounds))
        return {"stage": self._stage(server_round), "learning-rate": self.training.learning_rate * factor}

    def _stage(self, server_round: int) -> int:
        return stage_of(self.run, server_round, self.num_stages, self.begun)


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
    asked = RoundConfigs(config, label, run_label).new_node(last, run.held_out_epochs)
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
