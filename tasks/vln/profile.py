"""The profiles of the nodes of the task "vln" and the simulation of their data, without torch."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import ClassVar

from fedapps.tasks.profiles import ModelRoles, NodeProfile, TaskProfiles

from fedapps.base.errors import DataError

from .dataset import Dataset, house_of, own_house, read_dataset
from .instructions import find_dataset
from .options import Options as VlnOptions


class VlnProfiles(TaskProfiles):
    """A node is a house: its key is the house's name, and its examples are the instructions that it trains on.

    A profile does not check whether features, vocabularies and weights fit.
    """

    name: ClassVar[str] = "vln"
    Options: ClassVar[type] = VlnOptions
    options: VlnOptions
    files: ClassVar[Mapping[str, str]] = {
        "`R2R_SPLIT.json`, `rxr_SPLIT_guide.jsonl`, `SCAN_connectivity.json`": (
            "as in Room-to-Room, Room-across-Room and Matterport3D (m, radians)"
        ),
        "`bbox.json` and `rooms.csv`, or `vln.feature-file`": (
            "REVERIE's boxes and room labels, or features by `SCAN_VIEWPOINT` (HDF5, TSV, NumPy)"
        ),
    }
    floors: ClassVar[tuple[str, ...]] = ("random", "random walk", "forward", "constant sentence")
    headline: ClassVar[tuple[str, ...]] = (
        *("val_unseen.sr", "val_unseen.spl", "val_unseen.ndtw", "val_seen.sr"),
        *("val_unseen.bleu", "val_unseen.distinct", "val_seen.bleu", "val_seen.distinct"),
    )

    def __init__(self, options: VlnOptions | None = None) -> None:
        """Raise :class:`DataError` if options are incompatible (:meth:`Options.check`)."""
        super().__init__(options)
        self.options.check()

    @property
    def roles(self) -> ModelRoles:
        """The body reads the instruction or the path, the head decides or speaks, step by step."""
        critic = () if self.options.speaks else ("critic.*",)
        return ModelRoles(head=("decoder.*", *critic), body=("encoder.*",))

    @property
    def has_world(self) -> bool:
        return self.options.source != "files"

    @property
    def world_options(self) -> dict[str, object]:
        """The options that :meth:`make_world` depends on."""
        return {
            name: value for name, value in asdict(self.options).items() if name.startswith("world_") or name == "houses"
        }

    def make_world(self, folder: Path, num_nodes: int, seed: int) -> None:
        """Simulate as many houses of the kind ``houses`` as there are nodes.

        Raise :class:`DataError` for the source "files".
        """
        from fedapps.tasks.vln.world.world import HouseWorld, write_houses

        chosen = self.options
        if not self.has_world:
            raise DataError(
                "vln.source = 'files': set data-dir to the folder of the houses, or set vln.source = 'simulated'"
            )
        unseen = chosen.world_unseen or max(1, num_nodes // 5)
        if chosen.houses == "all" and unseen >= num_nodes:
            raise DataError(f"vln.world-unseen = {unseen}: must leave a house to train in of num-nodes = {num_nodes}")
        seen = {"all": num_nodes - unseen, "seen": num_nodes, "unseen": 4 * num_nodes}[chosen.houses]
        world = HouseWorld(
            houses=seen,
            unseen_houses=num_nodes if chosen.houses == "unseen" else unseen,
            paths=chosen.world_paths,
            seen_paths=chosen.world_seen_paths,
            floors=chosen.world_floors,
        )
        write_houses(folder, world, seed)

    def node_profile(self, folder: Path, partition: int, num_partitions: int) -> NodeProfile:
        dataset = read_dataset(folder, self.options)
        return self._profile(dataset, house_of(dataset, self.options, partition, num_partitions))

    def own_profile(self, folder: Path) -> NodeProfile:
        dataset = read_dataset(folder, self.options)
        return self._profile(dataset, own_house(dataset, self.options))

    def describe_data(self, folder: Path, *, own: bool = False) -> str:
        dataset = read_dataset(folder, self.options)
        name = find_dataset(folder, self.options.dataset) or "no instructions"
        counts = ", ".join(f"{len(dataset.of(split, [*dataset.graphs]))} {split}" for split in dataset.paths)
        features = self.options.feature_file or "computed from the boxes of objects and rooms"
        return (
            f"{name}, {len(dataset.graphs)} houses, {len(dataset.seen)} seen and {len(dataset.unseen)} unseen; paths: "
            f"{counts}; features of views {features}; m and radians"
        )

    def _profile(self, dataset: Dataset, scan: str) -> NodeProfile:
        human, sampled = dataset.training_paths([scan], self.options)
        instructions = sum(len(path.instructions) for path in human) + len(sampled)
        return NodeProfile(scan, instructions, dataset.groups(scan))
