"""The training set of a node: queries and a database, in which triplets are mined; augmentation and loss.

A query must be nearer to its place than to others, by a margin (FedVPR, Equation 3). As in the benchmark of Berton et
al. (CVPR 2022), distances are Euclidean and not squared, the margin is 0.1 and the loss is the mean over negatives.

Images run through a network in chunks. Frozen layers never change, so a node that trains without augmentation needs to
run them only once. The map of an image takes 0.88 MB with FedVPR's ResNet18 at 288x384. Besides the result, one chunk
of images and its activations are in memory.

A network always computes ``trained_part(frozen_part(images))``. With cached maps, descriptors and gradients equal those
of the whole network bit by bit if the frozen layers ran on chunks of the same size, and otherwise up to rounding,
because libraries choose algorithms by size. On a CPU maps differed by up to 6e-7 of their largest value and descriptors
by 5e-8.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import torch
from fedapps.tasks.base import Batch
from fedapps.tasks.profiles import fingerprint
from torch import Tensor, nn

from fedapps.base.seeding import generator

from .images import Size
from .networks import PlaceNetwork
from .options import Options
from .places import Places
from .retrieval import Miner, Triplets

CHUNK = 32  # images per forward pass


def map_shape(network: PlaceNetwork, height: int, width: int) -> tuple[int, ...]:
    """Return the shape of the map of an image: channels, height and width, or whatever the frozen layers give."""
    image = torch.zeros(1, 3, height, width, dtype=torch.uint8)
    return tuple(computed(network, network.frozen_part, image).shape[1:])


def computed(network: PlaceNetwork, part: Callable[[Tensor], Tensor], inputs: Tensor, *, chunk: int = CHUNK) -> Tensor:
    """Compute what a ``part`` of a network in evaluation mode gives for inputs ``[n, ...]``, on the CPU.

    The parts are the network itself, from images to descriptors, :meth:`.PlaceNetwork.frozen_part` and
    :meth:`.PlaceNetwork.trained_part`. ``chunk`` inputs pass through it at a time.
    """
    training, device = network.training, next(network.parameters()).device
    network.eval()
    try:
        with torch.no_grad():
            return torch.cat([part(some.to(device)).cpu() for some in torch.split(inputs, chunk)])
    finally:
        network.train(training)


class FeatureMapCache:
    """Caches the feature maps of frozen layers for whole sets of images, up to ``capacity`` bytes.

    The maps of a set are always computed in the same chunks, so they have the same bits whether they come from the
    cache or are computed again. The least recently used sets are dropped first.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._kept: OrderedDict[str, tuple[bytes, Tensor]] = OrderedDict()

    def of(self, name: str, places: Places, size: Size, network: PlaceNetwork) -> Tensor | None:
        """Return the maps of all ``places``, a set with a unique ``name``; ``None`` if they exceed the capacity."""
        if self.capacity == 0:
            return None
        shape = len(places), *map_shape(network, *size)
        if 4 * prod(shape) > self.capacity:
            return None
        digest = fingerprint(network.frozen.state_dict().values())
        if (kept := self._kept.get(name)) is not None and kept[0] == digest:
            self._kept.move_to_end(name)
            return kept[1]
        maps = torch.empty(shape)
        self._kept.pop(name, None)
        while self._kept and maps.nbytes + sum(held.nbytes for _, held in self._kept.values()) > self.capacity:
            self._kept.popitem(last=False)
        for start in range(0, len(places), CHUNK):
            rows = np.arange(start, min(start + CHUNK, len(places)))
            maps[start : start + CHUNK] = computed(network, network.frozen_part, places.load_images(rows, size))
        self._kept[name] = digest, maps
        return maps


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images under a ``name`` that is unique among the sets that share ``kept``, resized to ``size``."""

    name: str
    places: Places
    size: Size
    kept: FeatureMapCache

    def through(self, network: PlaceNetwork) -> "NetworkInputs":
        """Return the images as input of ``network``, whose frozen layers must not change afterwards."""
        return NetworkInputs(self, network, self.kept.of(self.name, self.places, self.size, network))


@dataclass(frozen=True, eq=False)
class NetworkInputs:
    """Images as input of a network; ``maps`` are the cached feature maps of all of them, or ``None``."""

    image_set: ImageSet
    network: PlaceNetwork
    maps: Tensor | None

    def images(self, rows: np.ndarray) -> Tensor:
        """Load images, uint8 ``[n, 3, H, W]``."""
        return self.image_set.places.load_images(rows, self.image_set.size)

    def describe(self, rows: np.ndarray) -> np.ndarray:
        """Compute descriptors ``[n, width]`` with the network's current weights, in evaluation mode."""
        if self.maps is not None:
            return computed(self.network, self.network.trained_part, self.maps[torch.from_numpy(rows)]).numpy()
        chunks = [rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK)]
        described = [computed(self.network, self.network, self.images(some)).numpy() for some in chunks]
        return np.concatenate([np.empty((0, self.network.width), dtype=np.float32), *described])


Augmentation = Callable[[Tensor], Tensor]
#: Strengths of torchvision's ``ColorJitter`` (brightness, contrast, saturation, hue). The paper does not give its own.
JITTER = (0.5, 0.5, 0.5, 0.1)
#: Ranges of a random crop: its share of the image's area, and its width over its height.
AREA, ASPECT = (0.5, 1.0), (3 / 4, 4 / 3)


@dataclass(frozen=True, eq=False)
class PerImage:
    """Applies all ``steps``, transforms of one image, to each image with ``probability``.

    A transform of torchvision has the same draws for all images of a batch, so it gets one image at a time.
    """

    steps: tuple[nn.Module, ...]
    probability: float = 0.5

    def __call__(self, images: Tensor) -> Tensor:
        changed = images.clone()
        for index in (torch.rand(len(images)) < self.probability).nonzero()[:, 0].tolist():
            for step in self.steps:
                changed[index] = step(changed[index])
        return changed


def augmentation_of(options: Options, key: str) -> Augmentation | None:
    """Return the augmentation of the node ``key``, applied with probability 1/2 (FedVPR, Appendix B), or ``None``.

    With ``client-jitter``, a node draws each of its strengths once, uniformly from 0 to the usual strength.
    """
    if options.augment == "none":
        return None
    from torchvision.transforms import v2

    strengths = np.array(JITTER)
    if options.augment == "client-jitter":
        strengths *= generator(options.split_seed, "vpr", "jitter", key).uniform(size=4)
    jitter = v2.ColorJitter(*strengths.tolist())
    crop = (v2.RandomResizedCrop(options.size, AREA, ASPECT),) if options.augment == "jitter-crop" else ()
    return PerImage((jitter, *crop))


def triplet_terms(queries: Tensor, positives: Tensor, negatives: Tensor, *, margin: float = 0.1) -> Tensor:
    """Return max(|q - p| - |q - n| + margin, 0) for each negative, ``[b, k]``.

    Parameters
    ----------
    queries, positives : Tensor [b, d]
        Descriptors.
    negatives : Tensor [b, k, d]
        Descriptors.
    margin : float
        The margin.

    The gradient of a distance of 0 is 0. The share of zero terms shows how many triplets no longer contribute to
    training.
    """
    # torch's gradient of a norm at 0 is 0.
    near = torch.linalg.vector_norm(queries - positives, dim=-1)
    far = torch.linalg.vector_norm(queries[:, None] - negatives, dim=-1)
    terms: Tensor = (near[:, None] - far + margin).relu()
    return terms


def triplet_loss(terms: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the mean of :func:`triplet_terms` over negatives, then over queries, a scalar.

    Negatives for which ``mask`` ``[b, k]`` is false do not count, nor do queries without negatives. The loss is 0 if
    nothing counts.
    """
    if mask is None:
        mask = torch.ones_like(terms, dtype=torch.bool)
    counts = mask.sum(dim=1)
    of_queries = torch.where(mask, terms, 0).sum(dim=1) / counts.clamp(min=1)
    return of_queries.sum() / (counts > 0).sum().clamp(min=1)


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """The ``images`` of a node. ``queries`` and ``database`` are rows of them; ``miner`` numbers each from 0."""

    images: ImageSet
    queries: np.ndarray
    database: np.ndarray
    miner: Miner

    @classmethod
    def of(cls, images: ImageSet, options: Options) -> "TrainingSet":
        """Return the set of all ``images``, with near and far as in ``options``."""
        return cls(images, images.places.queries, images.places.database, miner_of(images.places, options))

    def triplets(
        self, inputs: NetworkInputs, drawn_queries: np.ndarray, options: Options, rng: np.random.Generator
    ) -> Triplets:
        """Mine triplets of ``drawn_queries`` with the network's current weights. Rows are those of the images."""
        pool = options.mining_pool()
        drawn = pool.draw(self.miner, rng)
        wanted = self.miner.wanted(drawn_queries, drawn)
        described = np.zeros((len(self.database), inputs.network.width), dtype=np.float32)
        described[wanted] = inputs.describe(self.database[wanted])
        # Describe a query that was drawn twice only once.
        distinct, places = np.unique(drawn_queries, return_inverse=True)
        queries = inputs.describe(self.queries[distinct])[places]
        mined = self.miner.mine(drawn_queries, queries, described, pool=pool, drawn=drawn, negatives=options.negatives)
        return Triplets(
            self.queries[mined.queries], self.database[mined.positives], self.database[mined.negatives], mined.distinct
        )

    def losses(self, network: PlaceNetwork, drawn_queries: np.ndarray, options: Options) -> Tensor:
        """Return the triplet loss of each of ``drawn_queries``, ``[n]``; each needs a positive and a negative.

        Negatives are mined in the whole database: in a part of it, a query may have none.
        """
        options = replace(options, nearest_sequences=0, pool=max(1, len(self.database)))
        inputs = self.images.through(network)
        mined = self.triplets(inputs, drawn_queries, options, np.random.default_rng(int(torch.randint(2**62, ()))))
        parts = (mined.queries, mined.positives, mined.negatives.ravel())
        queries, positives, negatives = (torch.from_numpy(inputs.describe(rows)) for rows in parts)
        negatives = negatives.reshape(*mined.negatives.shape, network.width)
        terms, masks = triplet_terms(queries, positives, negatives, margin=options.margin), mined.mask
        triplets = zip(terms[:, None], torch.from_numpy(masks)[:, None], strict=True)
        return torch.stack([triplet_loss(*triplet) for triplet in triplets])


def miner_of(places: Places, options: Options) -> Miner:
    """Return the miner of the queries and the database of ``places``, with cities apart."""
    queries, database = places.queries, places.database
    return Miner(
        places.position_apart[queries],
        places.position_apart[database],
        places.track[database],
        near=options.near,
        far=options.far,
    )


def epoch_of_triplets(
    training: TrainingSet, network: PlaceNetwork, queries: Tensor, batch_size: int, options: Options, key: str
) -> Iterator[Batch]:
    """Yield one epoch over ``queries`` int64 ``[n]`` in random order, for training ``network``.

    Triplets are mined again after every ``refresh`` queries, with the current weights. Draws come from torch's global
    generator. In a batch of b triplets (a query, its positive and k negatives each), some images come as ``images``
    uint8 ``[b, i, 3, H, W]`` and the others as ``maps`` ``[b, 2 + k - i, channels, h, w]`` of the frozen layers, in the
    order of the triplet. ``mask`` bool ``[b, k]`` tells which negatives are not repetitions.
    """
    order = queries[torch.randperm(len(queries))]
    if options.queries_per_epoch:
        order = order[: options.queries_per_epoch]
    inputs = training.images.through(network)
    augmentation = augmentation_of(options, key)
    as_images = _as_images(inputs, augmentation, options)
    for drawn_queries in torch.split(order, options.refresh):
        rng = np.random.default_rng(int(torch.randint(2**62, ())))
        mined = training.triplets(inputs, drawn_queries.numpy(), options, rng)
        rows = np.concatenate([mined.queries[:, None], mined.positives[:, None], mined.negatives], axis=1)
        mask = torch.from_numpy(mined.mask)
        for start in range(0, len(rows), batch_size):
            some = rows[start : start + batch_size]
            batch = {"mask": mask[start : start + batch_size]}
            if as_images:
                images = inputs.images(some[:, :as_images].ravel())
                images = images.reshape(len(some), as_images, *images.shape[1:])
                if augmentation is not None:
                    changed = as_images if options.augmented == "all" else 1
                    some_images = images[:, :changed]
                    images[:, :changed] = augmentation(some_images.flatten(0, 1)).reshape(some_images.shape)
                batch["images"] = images
            if inputs.maps is not None and as_images < some.shape[1]:
                batch["maps"] = inputs.maps[torch.from_numpy(some[:, as_images:])]
            yield batch


def described(network: PlaceNetwork, batch: Batch) -> Tensor:
    """Return the descriptors of a batch of :func:`epoch_of_triplets`, ``[n, images, width]``."""
    parts = []
    if "images" in batch:
        images = batch["images"]
        # These layers are not trained; an audit searches the images.
        with torch.set_grad_enabled(images.requires_grad):
            made = network.frozen_part(images.flatten(0, 1))
        parts.append(made.reshape(*images.shape[:2], *made.shape[1:]))
    if "maps" in batch:
        parts.append(batch["maps"])
    maps = torch.cat(parts, dim=1)
    return network.trained_part(maps.flatten(0, 1)).reshape(*maps.shape[:2], network.width)


def loss_of_triplets(network: PlaceNetwork, batch: Batch, margin: float) -> Tensor:
    """Return the triplet loss of a batch of :func:`epoch_of_triplets`, a scalar."""
    vectors = described(network, batch)
    terms = triplet_terms(vectors[:, 0], vectors[:, 1], vectors[:, 2:], margin=margin)
    return triplet_loss(terms, batch["mask"])


def _as_images(inputs: NetworkInputs, augmentation: Augmentation | None, options: Options) -> int:
    """The number of images of a triplet, from the query on, that must pass through the frozen layers in every step."""
    if inputs.maps is None or (augmentation is not None and options.augmented == "all"):
        return 2 + options.negatives
    return 0 if augmentation is None else 1
