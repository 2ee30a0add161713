"""What each node of a fleet learns from: its part of one folder or of a simulated world, or a folder of its own."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedapps.app.profile_query import data_source
from fedapps.config.parsing import Config
from fedapps.launch.launch import check_data
from tasks.base import DataError

from .superlink import NodeConfig


@dataclass(frozen=True)
class NodeData:
    """As many nodes as there are ``folders``, each with its own; without any, ``nodes`` partitions of one source."""

    nodes: int
    folders: tuple[Path, ...] = ()

    @classmethod
    def read(cls, config: Config, nodes: int | None, folders: str) -> "NodeData":
        """From the command line: ``--nodes`` and ``--node-data``, a folder of folders or several with commas.

        Raises ``ValueError`` when they do not go together, or not with the run config.
        """
        found = _node_folders(folders) if folders else ()
        count = (len(found) or config.run.num_nodes) if nodes is None else nodes
        if count < 1:
            raise ValueError(f"--nodes {count}: must be at least 1")
        if found and count != len(found):
            raise ValueError(f"--nodes {count}: --node-data names {len(found)} folders; leave --nodes out")
        if count < config.run.num_nodes:
            raise ValueError(
                f"--nodes {count}: the run waits for num-nodes = {config.run.num_nodes}; add --set num-nodes={count}"
            )
        if found and config.run.data_dir:
            raise ValueError(
                f"--node-data, but data-dir = {config.run.data_dir!r}: either every node has a folder of its own, or "
                "one folder holds the data of all"
            )
        return cls(count, found)

    def check(self, config: Config) -> None:
        """Read what the nodes will read; a simulated world is made where there is none yet.

        Raises ``DataError`` when data are missing or cannot be used, and for methods that pool the data of all nodes.
        """
        pooled = [label for label, method in config.methods.items() if method.pools_data]
        if pooled:
            others = ",".join(label for label in config.methods if label not in pooled)
            raise DataError(
                f"methods: {', '.join(pooled)} learns from the data of all nodes together, which no node of a fleet "
                f"has: leave it to `fedapps run`" + (f", or add --set methods={others}" if others else "")
            )
        task = config.task
        if self.folders:
            task.check_nodes(self.nodes)
            for folder in self.folders:
                task.load_own(folder)
            return
        check_data(replace(config, run=replace(config.run, num_nodes=self.nodes)))
        data_source(config.run, task, self.configs()[0])

    def configs(self) -> Sequence[NodeConfig]:
        """The config of each node."""
        if self.folders:
            return [{"data-dir": str(folder)} for folder in self.folders]
        return [{"partition-id": index, "num-partitions": self.nodes} for index in range(self.nodes)]


def _node_folders(text: str) -> tuple[Path, ...]:
    paths = [Path(part.strip()).expanduser().absolute() for part in text.split(",") if part.strip()]
    for path in paths:
        if not path.is_dir():
            raise ValueError(f"--node-data {path}: no such folder")
    if len(paths) != 1:
        return tuple(paths)
    below = sorted(path for path in paths[0].iterdir() if path.is_dir() and not path.name.startswith("."))
    if not below:
        raise ValueError(
            f"--node-data {paths[0]}: expected a folder for each node in it, found none; give such a folder, or the "
            "folders of the nodes with commas between them"
        )
    return tuple(below)
