"""The rounds of a run once more, in one process, with the nodes whose replies were used."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedapps.sim.inprocess import run_inprocess
from fedapps.strategies import Profile, RoundStep, Sampler, Save, Snapshot, in_key_order
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedapps.app.client_app import app as client_app
from fedapps.app.round_config import RoundConfigs
from fedapps.app.server_app import initial_arrays
from fedapps.app.strategy import build_strategy
from fedapps.config.parsing import Config
from fedapps.deployment.superlink import NodeConfig
from fedapps.runs.checkpoints import DiskCheckpoints


@dataclass(frozen=True)
class Recorded(Sampler):
    """The nodes whose replies were used in a phase of each round."""

    keys: Mapping[int, Collection[str]]

    @classmethod
    def of(cls, lines: Sequence[Mapping[str, Any]], phase: RoundStep) -> "Recorded":
        """From the lines of ``nodes.jsonl``."""
        keys: dict[int, set[str]] = {}
        for line in lines:
            if line["phase"] == phase:
                keys.setdefault(line["round"], set()).add(line["node"])
        return cls(keys)

    def sample(self, profiles: Collection[Profile], server_round: int, purpose: RoundStep) -> list[Profile]:
        return in_key_order([node for node in profiles if node.key in self.keys.get(server_round, ())])


def replay(
    config: Config, lines: Sequence[Mapping[str, Any]], node_configs: Sequence[NodeConfig], folder: Path, rounds: int
) -> Snapshot:
    """Run the first ``rounds`` of the only method of ``config`` with the nodes of ``lines`` (``nodes.jsonl``).

    Nodes keep their private state in ``folder``, under ``node-<index>/state``. What a node trained without its reply
    being used is not trained again: a method whose nodes train on from private parameters may end otherwise.
    """
    (method,) = config.methods
    checkpoints = DiskCheckpoints(folder / "checkpoints")
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        initial = initial_arrays(config, method)
        strategy = build_strategy(config, method, initial.keys())
        configs = RoundConfigs(config, method, "replay")
        strategy.sampler, strategy.evaluate_sampler = Recorded.of(lines, "train"), Recorded.of(lines, "evaluate")
        strategy.start(
            grid,
            initial,
            num_rounds=rounds,
            train_config=configs.train,
            evaluate_config=configs.evaluate,
            evaluate_every=config.run.evaluate_every,
            callbacks=[Save(checkpoints)],
        )

    own = [{**given, "state-dir": str(folder / f"node-{i}" / "state")} for i, given in enumerate(node_configs)]
    run_inprocess(app, client_app, node_configs=own, run_config=config.flat())
    snapshot = checkpoints.latest()
    assert snapshot
    return snapshot
