"""The folder of a run as the source of trained models: its config, methods, nodes and checkpoints.

The message of an evaluation round is made by the method's strategy, restored from a checkpoint, so that nothing here
depends on what a method sends.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Message

from fedapps.app.client_app import app as client_app
from fedapps.app.round_config import RoundConfigs
from fedapps.app.server_app import initial_model, strategy_for
from fedapps.app.start import with_begun
from fedapps.base.errors import listed
from fedapps.base.report.numbers import mean_and_interval
from fedapps.clients.data import DataSource
from fedapps.config.parsing import Config, parse
from fedapps.config.run_config import RunConfig
from fedapps.runs.run_folder import RunFolder, read_config, read_label
from fedapps.sim.inprocess import InProcessGrid
from fedapps.strategies import BaseStrategy, Snapshot
from fedapps.tasks.base import Task
from fedapps.tasks.model_folder import why_no_model

_MAX_NAMES = 12
#: The data of at most so many nodes are simulated for each node that the records name.
_SIMULATED_PER_NODE = 10


@dataclass(frozen=True)
class StoredRun:
    """A run folder, which is only read. It may come from elsewhere, so it does not say where this machine writes.

    Parameters
    ----------
    path : Path
    """

    path: Path

    @classmethod
    def open(cls, path: Path) -> "StoredRun":
        """Open a folder.

        Raises
        ------
        ValueError
            It is no run folder. The message names the run folders in it, if there are any, or what it lacks as a model
            folder.
        """
        if not (path / "config.toml").is_file():
            inside = [str(file.parent) for file in sorted(path.glob("*/config.toml"))]
            hint = f"; it has the run folders {first_names(inside)}" if inside else ""
            missing = "there is no such folder" if not path.is_dir() else why_no_model(path) or "it has no config.toml"
            raise ValueError(f"{path} is neither a run folder nor a model folder: {missing}{hint}")
        return cls(path)

    @cached_property
    def config(self) -> Config:
        """The config of the run, whose folder may have been moved.

        Its ``cache-dir`` is the run's if that has the simulated world, which is then read. Otherwise it is the default
        of this machine.
        """
        path = self.path.absolute()
        keys = read_config(path) | {"name": path.name, "output-dir": str(path.parent)}
        config = parse(keys, on_node=True)
        if not config.run.has_data(config.task):
            config = parse(keys | {"cache-dir": ""}, on_node=True)
        return with_begun(config, path)

    def source(self, task: Task, partition: int) -> DataSource:
        """Where a simulated node has its data.

        Raises
        ------
        ValueError
            They would have to be simulated, and the run claims far more nodes than its records name.
        """
        run, known = self.config.run, len({row["node"] for row in self._node_rows})
        if not run.has_data(task) and run.num_nodes > _SIMULATED_PER_NODE * known:
            raise ValueError(
                f"{self.path / 'config.toml'}: num-nodes = {run.num_nodes}, but nodes.jsonl names {known} nodes; the "
                f"data of at most {_SIMULATED_PER_NODE * known} are simulated to load a model: load it on the machine "
                "of the run, which has them in its cache-dir"
            )
        return run.source(task, {"partition-id": partition, "num-partitions": run.num_nodes})

    @cached_property
    def folder(self) -> RunFolder:
        """The run folder with its label."""
        return RunFolder(self.path, read_label(self.path / "label"))

    @cached_property
    def _node_rows(self) -> list[dict[str, Any]]:
        return self.folder.lines("nodes.jsonl")

    def method(self, label: str | None) -> str:
        """The label of a method; that of the only one for ``None``. Raise ``ValueError`` if it is unknown."""
        known = tuple(self.config.methods)
        if label is None and len(known) == 1:
            return known[0]
        if label not in known:
            reason = "name one of" if label is None else f"method = {label!r}: must be one of"
            raise ValueError(f"{self.path}: {reason} {', '.join(map(repr, known))}")
        return label

    def rows(self, method: str, node: str | None = None) -> list[dict[str, Any]]:
        """The lines of ``nodes.jsonl`` of a method, and of one node."""
        return [row for row in self._node_rows if row["method"] == method and node in (None, row["node"])]

    def nodes(self, method: str) -> list[str]:
        """The keys of the nodes that took part under a method, sorted."""
        return sorted({row["node"] for row in self.rows(method)})

    def has_own_data(self, method: str, node: str | None = None) -> bool:
        """Whether a node, or any node, stated under a method that its data are its own."""
        return any(row.get("own_data") for row in self.rows(method, node))

    def reported(self, method: str, server_round: int, node: str) -> dict[str, Any]:
        """What the run reported of a round's evaluation: of one node, or of all for the empty key; empty if nothing."""
        if not node:
            rounds = (row for row in self.folder.lines("metrics.jsonl") if row["method"] == method)
            return next((dict(row["evaluate"]) for row in rounds if row["round"] == server_round), {})
        rows = (row for row in self.rows(method, node) if row["phase"] == "evaluate")
        return next((dict(row["metrics"]) for row in rows if row["round"] == server_round), {})

    def spread(self, method: str, server_round: int) -> dict[str, dict[str, float]]:
        """Mean and 95 % confidence interval over the nodes of a round's evaluation, as in
        :attr:`fedapps.tasks.trained.Origin.spread`.
        """
        values: dict[str, list[float]] = {}
        for row in self.rows(method):
            if row["phase"] == "evaluate" and row["round"] == server_round:
                for name, value in row["metrics"].items():
                    if isinstance(value, (int, float)) and isfinite(value):
                        values.setdefault(name, []).append(float(value))
        return {name: mean_and_interval(of_nodes) for name, of_nodes in values.items()}

    def snapshot(self, method: str, wanted: int | str | None) -> Snapshot:
        """The checkpoint of a round, ``"best"``, or of the last round for ``None``.

        Raises
        ------
        ValueError
            It is not kept, or damaged. The message lists the kept ones.
        """
        kept = self.folder.checkpoints(method)
        rounds = kept.rounds()
        if not rounds:
            raise ValueError(f"{self.path}: method {method!r} has no checkpoint yet; wait for its first round")
        if wanted == "best":
            if best_kept := kept.best():
                return best_kept
            raise ValueError(
                f"round = 'best': the run tracked no metric (track-metric), so it has no best round; there are {rounds}"
            )
        if wanted is not None and (isinstance(wanted, bool) or not isinstance(wanted, int)):
            raise ValueError(f"round = {wanted!r}: must be a round, 'best' or None for the last one")
        snapshot = kept.last() if wanted is None else kept.of_round(wanted)
        if snapshot is None:
            best = kept.best()
            further = f" and {best.round}, the best one" if best and best.round not in rounds else ""
            raise ValueError(f"round = {wanted}: its checkpoint is not kept; there are those of {rounds}{further}")
        return snapshot

    def partition(self, method: str, node: str) -> int | None:
        """The partition of a simulated node; ``None`` if no node of the simulation has this key."""
        run, task = self.config.run, self.config.task_of(self.config.methods[method])
        count = run.num_nodes
        known = self.nodes(method)
        likely = known.index(node) if node in known and len(known) == count else 0
        for number in (likely, *(other for other in range(count) if other != likely)):
            if self.source(task, number).profile(task).key == node:
                return number
        return None

    def restored(
        self, method: str, snapshot: Snapshot, run: RunConfig | None = None
    ) -> tuple[BaseStrategy, ArrayRecord]:
        """The strategy of a method in the state after a checkpoint, and the shared parameters.

        Parameters
        ----------
        method : str
        snapshot : Snapshot
        run : RunConfig, optional
            Takes the place of the run's own.

        Raises
        ------
        ValueError
            The checkpoint does not fit the model.
        """
        config = replace(self.config, run=run or self.config.run)
        strategy, initial = strategy_for(config, method, initial_model(config, method))
        return strategy, strategy.restore(snapshot, strategy.share(initial))

    def evaluate_message(self, method: str, snapshot: Snapshot, node_config: Mapping[str, Any]) -> Message | None:
        """The EVALUATE message that a node gets after the round of a checkpoint; ``None`` if it takes no part.

        Parameters
        ----------
        method : str
        snapshot : Snapshot
        node_config : mapping
            With the place of the node's data.
        """
        one_node = replace(
            self.config.run,
            num_nodes=1,
            fraction_evaluate=1.0,
            held_out_nodes="",
            bind_keys=False,
            timings=False,
            node_wait=0.0,
        )
        strategy, arrays = self.restored(method, snapshot, one_node)
        settings = RoundConfigs(self.config, method, self.folder.label).of_checkpoint(snapshot)
        grid = InProcessGrid(client_app, [node_config], self.config.flat())
        return next(iter(strategy.configure_evaluate(snapshot.round, arrays, settings, grid)), None)


def first_names(names: Iterable[str]) -> str:
    """The first of some names, and how many more there are."""
    return listed(names, _MAX_NAMES) or "none"
