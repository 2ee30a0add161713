"""How well places are found: on images that are common to all nodes, and on a node's own."""

from collections import OrderedDict
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch

from sim.seeding import generator
from tasks.base import Metrics

from .image_sets import ImageSet, fingerprint
from .nearest import nearest_rows
from .networks import PlaceNetwork
from .options import Options
from .places import Places
from .recall import recall, true_within
from .training_set import TrainingSet
from .triplets import triplet_loss, triplet_terms

AMONG = (1, 5, 10)
SHOWN, NEAREST = 6, 3  # queries of a common set whose matches are there to look at, and matches of each
_REMEMBERED = 64  # models whose results on a common set are kept: those of many clusters, and the shared one


@dataclass(frozen=True, eq=False)
class _Tested:
    recalls: Metrics
    nearest: np.ndarray


@dataclass(frozen=True, eq=False)
class CommonSet:
    """ImageSet that every node's model is tested on, the queries of ``images`` in its database.

    Nodes of a process share the set: a model that was tested on it is not tested again.
    """

    images: ImageSet
    true_rows: list[np.ndarray]
    _found: OrderedDict[bytes, _Tested] = field(default_factory=OrderedDict)

    @classmethod
    def of(cls, images: ImageSet, radius: float) -> "CommonSet":
        """``radius`` in metres is how near an image shows a query's place."""
        return cls(images, _true_rows(images.places, images.places.queries, radius))

    @cached_property
    def findable(self) -> np.ndarray:
        """The queries whose place the database shows, rows of ``true_rows``: the others do not count."""
        return np.flatnonzero([len(rows) > 0 for rows in self.true_rows])

    @cached_property
    def shown(self) -> np.ndarray:
        """Up to ``SHOWN`` of the findable queries, evenly spaced over them, so that no model has a say in it."""
        count = min(SHOWN, len(self.findable))
        return self.findable[(2 * np.arange(count) + 1) * len(self.findable) // max(2 * count, 1)]

    def recalls(self, network: PlaceNetwork) -> Metrics:
        """``recall_at_1``, ``_5`` and ``_10`` in [0, 1]; empty where no query can be found."""
        return self._tested(network).recalls

    def nearest(self, network: PlaceNetwork) -> np.ndarray:
        """``[len(shown), NEAREST]``, or as many as there are: what is found first for the ``shown`` queries.

        The images are counted in the database.
        """
        return self._tested(network).nearest

    def _tested(self, network: PlaceNetwork) -> _Tested:
        digest = fingerprint(network.state_dict().values())
        if (found := self._found.get(digest)) is None:
            inputs = self.images.through(network)
            places = self.images.places
            queries, database = inputs.describe(places.queries), inputs.describe(places.database)
            recalls = _recalls(queries, database, self.true_rows)
            found = _Tested(recalls, nearest_rows(queries[self.shown], database, NEAREST))
            self._found[digest] = found
            while len(self._found) > _REMEMBERED:
                self._found.popitem(last=False)
        return found


def drawn_for_test(places: Places, options: Options) -> Places:
    """The ``test_queries`` and ``test_database`` of ``places``, drawn once; what is near a drawn query always stays.

    Queries are drawn among those that can be found.
    """
    rng = generator(options.split_seed, "vpr.test")
    queries, database = places.queries, places.database
    if 0 < options.test_queries < len(queries):
        queries = np.sort(rng.permutation(places.queries_with_positive(options.recall_radius))[: options.test_queries])
    if options.test_database:
        near = np.unique(np.concatenate([database[:0], *_near(places, queries, database, options.recall_radius)]))
        others = rng.permutation(np.setdiff1d(database, near))[: options.test_database]
        database = np.concatenate([near, others])
    return places.select(np.sort(np.concatenate([queries, database])))


def own_metrics(
    network: PlaceNetwork, training: TrainingSet, train: np.ndarray, test: np.ndarray, options: Options, seed: int
) -> Metrics:
    """What a node's own images say of a model.

    ``train`` and ``test`` are queries, numbered as in the training set. ``local.recall_at_*`` is that of the held-out
    ``test`` queries; where there are none, ``train.recall_at_*`` that of all queries. ``train.loss`` is the triplet
    loss of up to ``refresh`` queries, mined with this model, and ``train.zero_loss`` the share of their negatives
    that are already far enough to cost nothing. Each is there with the number of its queries, or not at all.
    """
    inputs = training.images.through(network)
    described = np.empty((len(training.images.places), network.width), dtype=np.float32)
    for rows in (training.database, training.queries):
        described[rows] = inputs.describe(rows)
    prefix = "local" if len(test) else "train"
    asked = training.queries[test] if len(test) else training.queries
    true_rows = _true_rows(training.images.places, asked, options.recall_radius)
    found = _recalls(described[asked], described[training.database], true_rows)
    count = float(sum(len(rows) > 0 for rows in true_rows))
    metrics: Metrics = {f"{prefix}.{name}": value for name, value in found.items()}
    metrics |= {f"{prefix}.{name}.count": count for name in found}
    if len(train):
        metrics |= _mined_loss(training, described, train, options, generator(seed, "vpr.mining"))
    return metrics


def _mined_loss(
    training: TrainingSet, described: np.ndarray, train: np.ndarray, options: Options, rng: np.random.Generator
) -> Metrics:
    chosen = np.sort(rng.permutation(train)[: options.refresh])
    pool = options.mining_pool()
    mined = training.miner.mine(
        chosen,
        described[training.queries[chosen]],
        described[training.database],
        pool=pool,
        drawn=pool.draw(training.miner, rng),
        negatives=options.negatives,
    )
    if not len(mined.queries):
        return {}
    database = torch.from_numpy(described[training.database])
    terms = triplet_terms(
        torch.from_numpy(described[training.queries[mined.queries]]),
        database[torch.from_numpy(mined.positives)],
        database[torch.from_numpy(mined.negatives)],
        margin=options.margin,
    )
    mask = torch.from_numpy(mined.mask)
    count = float(len(mined.queries))
    return {
        "train.loss": float(triplet_loss(terms, mask)),
        "train.loss.count": count,
        "train.zero_loss": float((terms[mask] == 0).float().mean()),
        "train.zero_loss.count": count,
    }


def _recalls(queries: np.ndarray, database: np.ndarray, true_rows: list[np.ndarray]) -> Metrics:
    if not any(len(rows) for rows in true_rows):
        return {}
    found = recall(queries, database, true_rows, among=AMONG)
    return {f"recall_at_{n}": found.percent[n] / 100 for n in AMONG}


def _true_rows(places: Places, queries: np.ndarray, radius: float) -> list[np.ndarray]:
    """For each of the rows ``queries``, which images of the database show its place, counted in the database."""
    return true_within(places.position_apart[queries], places.position_apart[places.database], radius)


def _near(places: Places, queries: np.ndarray, database: np.ndarray, radius: float) -> list[np.ndarray]:
    return [database[rows] for rows in _true_rows(places, queries, radius)]
