"""Evaluation of a network on images that are common to all nodes, and on a node's own images, and what is drawn of it.

Traces show where a node's images lie, and which images its model matches to a few queries.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from functools import cached_property
from math import comb

import numpy as np
import torch
from fedapps.tasks.base import Metrics
from fedapps.tasks.profiles import fingerprint

from fedapps.base.seeding import generator

from .networks import PlaceNetwork
from .options import Options
from .places import Places
from .retrieval import nearest_rows, recall, within
from .training_set import ImageSet, TrainingSet, triplet_loss, triplet_terms

AMONG = (1, 5, 10)
SHOWN, NEAREST = 6, 3  # queries of a common set whose matches are drawn, and matches per query
_REMEMBERED = 64  # models whose results on a common set are cached: the shared model and those of many clusters
MOST = 400  # maximum number of positions per set of images, evenly spaced
PIXELS = 96  # maximum length of an image's longer side


@dataclass(frozen=True, eq=False)
class Tested:
    """Results of a model on a common set.

    Attributes
    ----------
    recalls : dict of str to float
        ``recall_at_1``, ``_5`` and ``_10`` in [0, 1]; empty if no query is findable.
    nearest : ndarray [len(shown), NEAREST], or fewer columns
        The nearest database images of the ``shown`` queries, counted within the database.
    """

    recalls: Metrics
    nearest: np.ndarray


@dataclass(frozen=True, eq=False)
class CommonSet:
    """Images on which every node's model is evaluated: the queries of ``images`` are searched in its database.

    The nodes of a process share the set. Results are cached by model.
    """

    images: ImageSet
    true_rows: list[np.ndarray]
    _tested: OrderedDict[bytes, Tested] = field(default_factory=OrderedDict)

    @classmethod
    def of(cls, images: ImageSet, radius: float) -> "CommonSet":
        """Return the set of ``images`` in which a match within ``radius`` metres of the query is correct."""
        return cls(images, _true_rows(images.places, images.places.queries, radius))

    @cached_property
    def findable(self) -> np.ndarray:
        """Indices into ``true_rows`` of the queries with a correct match in the database; others do not count."""
        return np.flatnonzero([len(rows) > 0 for rows in self.true_rows])

    def random_recalls(self) -> dict[str, float]:
        """Return the expected recalls of a database in random order; empty if no query is findable.

        Of m images, n are found first without one of the k correct ones with probability C(m - k, n) / C(m, n).
        """
        size = len(self.images.places.database)
        counts = [len(self.true_rows[query]) for query in self.findable]
        if not counts:
            return {}
        return {
            f"recall_at_{n}": float(
                np.mean([1 - comb(size - k, min(n, size)) / comb(size, min(n, size)) for k in counts])
            )
            for n in AMONG
        }

    @cached_property
    def shown(self) -> np.ndarray:
        """Up to ``SHOWN`` findable queries, evenly spaced, whatever the model."""
        count = min(SHOWN, len(self.findable))
        return self.findable[(2 * np.arange(count) + 1) * len(self.findable) // max(2 * count, 1)]

    def tested(self, network: PlaceNetwork) -> Tested:
        """Return the results of a model."""
        digest = fingerprint(network.state_dict().values())
        if (tested := self._tested.get(digest)) is None:
            inputs = self.images.through(network)
            places = self.images.places
            queries, database = inputs.describe(places.queries), inputs.describe(places.database)
            recalls = _recalls(queries, database, self.true_rows)
            tested = Tested(recalls, nearest_rows(queries[self.shown], database, NEAREST))
            self._tested[digest] = tested
            while len(self._tested) > _REMEMBERED:
                self._tested.popitem(last=False)
        return tested


def drawn_for_test(places: Places, options: Options) -> Places:
    """Draw the ``test_queries`` and ``test_database`` images of the common test.

    Queries are drawn among those with a correct match. Database images near a drawn query always stay.
    """
    rng = generator(options.split_seed, "vpr.test")
    queries, database = places.queries, places.database
    if 0 < options.test_queries < len(queries):
        queries = np.sort(rng.permutation(places.queries_with_positive(options.recall_radius))[: options.test_queries])
    if options.test_database:
        near = np.unique(
            database[np.concatenate([[], *_true_rows(places, queries, options.recall_radius)]).astype(int)]
        )
        others = rng.permutation(np.setdiff1d(database, near))[: options.test_database]
        database = np.concatenate([near, others])
    return places.select(np.sort(np.concatenate([queries, database])))


def own_metrics(
    network: PlaceNetwork, training: TrainingSet, train: np.ndarray, test: np.ndarray, options: Options, seed: int
) -> Metrics:
    """Evaluate a model on a node's own images.

    Parameters
    ----------
    network : PlaceNetwork
        The model.
    training : TrainingSet
        The node's training set.
    train, test : ndarray
        Training and held-out queries, as indices into the queries of the training set.
    options : Options
        The options of the task.
    seed : int
        Seed of the mining.

    Returns
    -------
    dict of str to float
        ``local.recall_at_*`` of the held-out queries or, without held-out queries, ``train.recall_at_*`` of all
        queries. ``train.loss``: the triplet loss of up to ``refresh`` queries, mined with this model.
        ``train.zero_loss``: the share of negatives that no longer contribute to the loss. Each metric comes with its
        number of queries; a metric without queries is absent.
    """
    inputs = training.images.through(network)
    described = np.empty((len(training.images.places), network.width), dtype=np.float32)
    for rows in (training.database, training.queries):
        described[rows] = inputs.describe(rows)
    prefix = "local" if len(test) else "train"
    asked = training.queries[test] if len(test) else training.queries
    true_rows = _true_rows(training.images.places, asked, options.recall_radius)
    recalls = _recalls(described[asked], described[training.database], true_rows)
    count = float(sum(len(rows) > 0 for rows in true_rows))
    metrics: Metrics = {f"{prefix}.{name}": value for name, value in recalls.items()}
    metrics |= {f"{prefix}.{name}.count": count for name in recalls}
    if len(train):
        metrics |= _mined_loss(training, described, train, options, generator(seed, "vpr.mining"))
    return metrics


def _mined_loss(
    training: TrainingSet, described: np.ndarray, train: np.ndarray, options: Options, rng: np.random.Generator
) -> Metrics:
    queries = np.sort(rng.permutation(train)[: options.refresh])
    pool = options.mining_pool()
    mined = training.miner.mine(
        queries,
        described[training.queries[queries]],
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
    percents = recall(queries, database, true_rows, among=AMONG)
    return {f"recall_at_{n}": percent / 100 for n, percent in percents.items()}


def _true_rows(places: Places, queries: np.ndarray, radius: float) -> list[np.ndarray]:
    """For each of the rows ``queries``, the database images that show its place, counted within the database."""
    return within(places.position_apart[queries], places.position_apart[places.database], radius)


def traces(
    network: PlaceNetwork, node_places: Places, common: CommonSet | None, radius: float
) -> dict[str, np.ndarray]:
    """Return the :func:`place_traces` of a node's images (``places.*``) and of the ``common`` ones (``common.*``).

    For the common images, also return the :func:`match_traces` of ``network``, in which matches within ``radius``
    metres are correct.
    """
    arrays = place_traces("places", node_places)
    if common is not None:
        arrays |= place_traces("common", common.images.places) | match_traces(network, common, radius)
    return arrays


def place_traces(prefix: str, places: Places) -> dict[str, np.ndarray]:
    """Return the positions of up to ``MOST`` images.

    ``<prefix>.cities`` uint8 holds the names of the cities in UTF-8, one per line; ``.city`` int32 ``[n]`` are indices
    into them; ``.position`` float32 ``[n, 2]`` is east and north in metres from the city's origin.
    """
    rows = np.unique(np.linspace(0, len(places) - 1, min(len(places), MOST)).astype(np.int64))
    return {
        f"{prefix}.cities": np.frombuffer("\n".join(places.cities).encode(), dtype=np.uint8),
        f"{prefix}.city": _city(places, rows).astype(np.int32),
        f"{prefix}.position": places.position[rows].astype(np.float32),
    }


def match_traces(network: PlaceNetwork, common: CommonSet, radius: float) -> dict[str, np.ndarray]:
    """Return the queries ``common.shown`` with their nearest images; empty if no query is findable.

    ``matches.asked`` uint8 ``[q, H, W, 3]`` and ``matches.found [q, k, H, W, 3]`` are the images; ``matches.metres``
    float64 ``[q, k]`` the distances between their positions, infinite in different cities; ``matches.right`` bool ``[q,
    k]`` whether a match is correct, that is, within ``matches.radius`` metres; ``matches.queries`` the number of
    findable queries.
    """
    if not len(common.shown):
        return {}
    places = common.images.places
    nearest = common.tested(network).nearest
    asked, nearest_places = places.queries[common.shown], places.database[nearest]
    metres = np.linalg.norm(places.position[nearest_places] - places.position[asked][:, None], axis=2)
    apart = _city(places, nearest_places) != _city(places, asked)[:, None]
    right = [np.isin(rows, common.true_rows[query]) for query, rows in zip(common.shown, nearest, strict=True)]
    return {
        "matches.asked": _images(common, asked),
        "matches.found": _images(common, nearest_places),
        "matches.metres": np.where(apart, np.inf, metres),
        "matches.right": np.stack(right),
        "matches.radius": np.array(radius),
        "matches.queries": np.array(len(common.findable)),
    }


def _city(places: Places, rows: np.ndarray) -> np.ndarray:
    """The index of each row's city in ``places.cities``, shaped like ``rows``."""
    number = {city: index for index, city in enumerate(places.cities)}
    cities: np.ndarray = np.array([number.get(track.city, -1) for track in places.tracks])[places.track[rows]]
    return cities


def _images(common: CommonSet, rows: np.ndarray) -> np.ndarray:
    """Small images with the aspect ratio that the network sees, uint8 ``[*rows.shape, H, W, 3]``."""
    height, width = common.images.size
    scale = min(1.0, PIXELS / max(height, width))
    size = (max(1, round(scale * height)), max(1, round(scale * width)))
    loaded = common.images.places.load_images(rows.ravel(), size)
    return loaded.permute(0, 2, 3, 1).numpy().reshape(*rows.shape, *size, 3)
