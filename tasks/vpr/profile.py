"""The profiles of the nodes of the task "vpr" and the simulation of their data, without torch or decoded images."""

import csv
from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import ClassVar

import numpy as np
from fedapps.tasks.profiles import ModelRoles, NodeProfile, TaskProfiles, check_partition
from fedapps.tasks.vpr.world.world import StreetWorld, write_streets

from fedapps.base.errors import DataError

from .clients import Client
from .datasets import Dataset, kind_of
from .msls import CONTINENTS_FILE
from .options import Options as VprOptions
from .options import require_weights
from .places import Places
from .shares import as_many, clients_of, dataset_of, groups_of, queries_to_train_on

_LISTED = 10  # cities that a line lists
#: The floor of a comparison: a database in random order.
RANDOM_ORDER = "random order"


class VprProfiles(TaskProfiles):
    """A node has sequences of queries and of the database, and trains on queries with a positive and a negative.

    A profile does not check whether the weights fit the network, nor whether the images of common tests can be read.
    The split "clustering" compares the features of images, which needs torch.
    """

    name: ClassVar[str] = "vpr"
    Options: ClassVar[type] = VprOptions
    options: VprOptions
    headline: ClassVar[tuple[str, ...]] = ("test.recall_at_1", "test.recall_at_5", "test.recall_at_10")
    files: ClassVar[Mapping[str, str]] = {
        "`places.csv`": (
            "`path, sequence, role` (query, database), `lon, lat` (degrees) or `x, y` (m), optionally `city, continent`"
        ),
        "`train_val/CITY/{query,database}`, or `nordland_64x32.npz`": (
            "as in Mapillary Street-Level Sequences, or Nordland"
        ),
    }
    floors: ClassVar[tuple[str, ...]] = (RANDOM_ORDER,)

    def __init__(self, options: VprOptions | None = None) -> None:
        """Raise :class:`DataError` if options are incompatible (:meth:`Options.check`)."""
        super().__init__(options)
        self.options.check()

    @property
    def roles(self) -> ModelRoles:
        """The model has no head: its descriptors are the representation. Its examples are mined in training."""
        return ModelRoles(features=True, examples=False)

    @property
    def has_world(self) -> bool:
        return self.options.source != "files"

    @property
    def world_options(self) -> dict[str, object]:
        """The options that :meth:`make_world` depends on."""
        names = ("size", "world_cities", "world_test_cities", "world_metres", "world_spacing")
        return {name: getattr(self.options, name) for name in names}

    def make_world(self, folder: Path, num_nodes: int, seed: int) -> None:
        """Simulate cities. Raise :class:`DataError` for the source "files"."""
        chosen = self.options
        if not self.has_world:
            raise DataError(
                "vpr.source = 'files': set data-dir to the folder of the images, or set vpr.source = 'simulated' for "
                "simulated cities"
            )
        try:
            world = StreetWorld(
                cities=chosen.world_cities,
                test_cities=chosen.world_test_cities,
                size=chosen.size[::-1],
                spacing=chosen.world_spacing,
            ).enough_for(num_nodes, chosen.world_metres)
        except ValueError as error:
            raise DataError(f"vpr.world-*: {error}") from error
        write_streets(folder, world, seed)
        with (folder / CONTINENTS_FILE).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("city", "continent"), *((n, c) for n, (c, _) in world.names().items())])

    def node_profile(self, folder: Path, partition: int, num_partitions: int) -> NodeProfile:
        check_partition(partition, num_partitions)
        require_weights(self.options.given_weights)
        dataset = dataset_of(folder, self.options, own=False)
        found = _clients(folder, self.options, num_partitions)
        client = as_many(found, dataset, num_partitions, folder, self.options)[partition]
        return self._profile(dataset, client.key, client.places(dataset.training), client.groups)

    def own_profile(self, folder: Path) -> NodeProfile:
        require_weights(self.options.given_weights)
        dataset = dataset_of(folder, self.options, own=True)
        return self._profile(dataset, folder.resolve().name, dataset.training, groups_of(dataset.training))

    def describe_data(self, folder: Path, *, own: bool = False) -> str:
        dataset = dataset_of(folder, self.options, own=own)
        sets = {"training": dataset.training, "common test": dataset.test, "common validation": dataset.validation}
        parts = [
            f"{name}: {len(places.queries)} queries and {len(places.database)} database images of {_cities(places)}"
            for name, places in sets.items()
            if places is not None
        ]
        return (
            f"data set {kind_of(folder, self.options)}, {'; '.join(parts)}; positions in m, right within "
            f"{self.options.recall_radius:g} m"
        )

    def _profile(self, dataset: Dataset, key: str, places: Places, groups: dict[str, str]) -> NodeProfile:
        dataset.inspection.require_readable(places)
        return NodeProfile(key, len(queries_to_train_on(key, places, self.options)), groups)


def _cities(places: Places) -> str:
    named = [city for city in places.cities[:_LISTED] if city]
    more = f" and {len(places.cities) - _LISTED} more" if len(places.cities) > _LISTED else ""
    return f"{', '.join(named)}{more}" if named else "one city"


@lru_cache(maxsize=4)
def _clients(folder: Path, options: VprOptions, num_nodes: int) -> tuple[Client, ...]:
    dataset = dataset_of(folder, options, own=False)
    return clients_of(dataset, options, num_nodes, partial(_features, dataset, options))[0]


def _features(dataset: Dataset, options: VprOptions) -> np.ndarray:
    from .nodes import sequence_features

    return sequence_features(dataset, options)
