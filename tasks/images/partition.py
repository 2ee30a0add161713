"""The images of every node: which it trains on, which it holds out, and which are the test common to all nodes."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from fedapps.tasks.partitioners import Part, flower_partition, hold_out

from fedapps.base.errors import DataError
from fedapps.base.seeding import derive_seed, generator
from fedapps.base.tables import refuse_spellings

from .formats import Folder, read_folder
from .image_set import ImageSet, joined
from .options import Options


@dataclass(frozen=True, eq=False)
class NodeImages:
    """The images of one node.

    Attributes
    ----------
    key : str
        The node's key.
    classes : tuple of str
        The names of the classes.
    splits : mapping of str to ImageSet
        "train", "validation" and "test", as far as the node has images of them.
    common : ImageSet or None
        The test common to all nodes; ``None`` if there is none.
    pool : ImageSet
        The images whose statistics normalise pixels: all that the nodes of a simulation have.
    turns : int or None
        The number of quarter turns of all images of the node; ``None`` if no node's are turned.
    """

    key: str
    classes: tuple[str, ...]
    splits: Mapping[str, ImageSet]
    common: ImageSet | None
    pool: ImageSet
    turns: int | None = None

    @property
    def groups(self) -> dict[str, str]:
        """The labels ``most_frequent``, the class of most of the node's training images, and ``rotation`` in degrees,
        if images of nodes are turned.
        """
        groups = {} if self.turns is None else {"rotation": str(90 * self.turns)}
        if "train" in self.splits:
            counts = np.bincount(self.splits["train"].labels, minlength=len(self.classes))
            groups["most_frequent"] = self.classes[int(counts.argmax())]
        return groups

    def require_readable(self) -> None:
        """Raise :class:`DataError` if images of the node are damaged (:meth:`Pictures.require_readable`)."""
        for images in self.splits.values():
            images.require_readable()
        if self.common is not None:
            _require_readable_once(self.common)


def node_images(folder: Path, options: Options, partition: int, num_partitions: int) -> NodeImages:
    """Return the images of node ``partition`` of ``num_partitions``.

    Raises
    ------
    DataError
        As :func:`~fedapps.tasks.images.formats.read_folder`, or the images cannot be divided among the nodes.
    """
    read = read_folder(folder, options.layout())
    pool, common = _pooled(read, options)
    keys, parts = _parts(pool, options, num_partitions)
    key, rows = keys[partition], parts[partition]
    turns = partition % options.rotations * (4 // options.rotations) if options.rotations > 1 else None
    return NodeImages(key, read.classes, _held_out(pool.at(rows), options, key), common, pool, turns)


def all_images(folder: Path, options: Options) -> NodeImages:
    """Return all images as one node, which is called by the folder; its splits are those of a single node.

    Raises
    ------
    DataError
        The images of nodes are turned differently.
    """
    if options.rotations > 1:
        raise DataError(
            f"images.rotations = {options.rotations}: one node with all images has no rotation; leave out centralised "
            "methods, or set images.rotations = 1"
        )
    read = read_folder(folder, options.layout())
    pool, common = _pooled(read, options)
    splits = _held_out(pool, options, _key(0))
    return NodeImages(folder.resolve().name, read.classes, splits, common, pool)


def own_images(folder: Path, options: Options, labels: tuple[str, ...] = ()) -> NodeImages:
    """Return the images of a deployed node.

    The folder's own validation and test images are used. If it has none, images are held out; a draw for each image
    decides, so that its split stays the same when the folder grows. ``labels`` are the classes of a trained model,
    instead of those of the options.
    """
    layout = options.layout()
    if labels:
        published = layout.published and labels == layout.labels
        layout = replace(layout, labels=labels, classes=len(labels), published=published)
    read = read_folder(folder, layout)
    key = folder.resolve().name
    splits = {split: images for split, images in read.splits.items() if split != "common"}
    if "train" in splits:
        splits |= _held_out_by_name(splits["train"], options, folder, splits.keys())
    pool = splits.get("train", next(iter(read.splits.values())))
    return NodeImages(key, read.classes, splits, read.splits.get("common"), pool)


@lru_cache(maxsize=4)
def _require_readable_once(images: ImageSet) -> None:
    """As :meth:`ImageSet.require_readable`, once for all nodes of a process that share the images."""
    images.require_readable()


def _key(partition: int) -> str:
    return f"client-{partition:03d}"


@lru_cache(maxsize=8)
def _pooled(read: Folder, options: Options) -> tuple[ImageSet, ImageSet]:
    """The images that are divided among nodes, and the common test."""
    sets = [read.splits[split] for split in ("train", "validation") if split in read.splits]
    if not sets:
        where = ", ".join(sorted(read.sources.values()))
        raise DataError(f"{where}: only test images; add the training images, as in train/CLASS/*.png or train.npz")
    pool = joined(sets)
    if "test" in read.splits:
        return pool, _drawn(read.splits["test"], options)
    kept, held = hold_out(np.arange(len(pool)), options.global_share, options.partition_seed, "images.common")
    return pool.at(kept), _drawn(pool.at(held), options)


def _drawn(images: ImageSet, options: Options) -> ImageSet:
    count = options.global_examples
    if not 0 < count < len(images):
        return images
    order = generator(options.partition_seed, "images.global").permutation(len(images))
    return images.at(np.sort(order[:count]))


@lru_cache(maxsize=8)
def _parts(pool: ImageSet, options: Options, num_nodes: int) -> tuple[list[str], list[Part]]:
    """The keys of the nodes, and the rows of their images."""
    if num_nodes * options.min_examples > len(pool):
        raise DataError(
            f"num-nodes = {num_nodes}: {len(pool)} images are fewer than images.min-examples = {options.min_examples} "
            "for each node; decrease one of the two"
        )
    if options.partition == "natural":
        return _natural(pool, options, num_nodes)
    parts = flower_partition(
        "images",
        options.partition,
        pool.labels,
        num_nodes,
        alpha=options.alpha,
        classes_per_node=options.classes_per_node,
        min_examples=options.min_examples,
        seed=options.partition_seed,
    )
    return [_key(node) for node in range(num_nodes)], parts


def _natural(pool: ImageSet, options: Options, num_nodes: int) -> tuple[list[str], list[Part]]:
    """The images of ``num_nodes`` groups, drawn among those with enough images, in the order of their names."""
    column = options.layout().columns.group
    if pool.groups is None:
        raise DataError(
            f"images.partition = 'natural': the images have no column {column} (images.group-column); Parquet files "
            "and .npz archives can have one"
        )
    refuse_spellings(pool.groups.tolist(), "images.group-column", "")
    names, group, counts = np.unique(pool.groups, return_inverse=True, return_counts=True)
    enough = np.flatnonzero(counts >= options.min_examples)
    if len(enough) < num_nodes:
        raise DataError(
            f"num-nodes = {num_nodes}: the column {column} has {len(names)} values, of which {len(enough)} have at "
            f"least images.min-examples = {options.min_examples} images; decrease one of the two"
        )
    drawn = np.sort(generator(options.partition_seed, "images.natural").permutation(enough)[:num_nodes])
    order = np.argsort(group, kind="stable")
    ends = np.cumsum(counts)
    return [str(names[one]) for one in drawn], [order[ends[one] - counts[one] : ends[one]] for one in drawn]


def _held_out(images: ImageSet, options: Options, key: str) -> dict[str, ImageSet]:
    """Split a node's images at random. Empty splits are left out."""
    order = generator(options.partition_seed, "images.split", key).permutation(len(images))
    tests = int(options.test_share * len(images))
    return _divided(images, order, tests, tests + int(options.validation_share * len(images)))


def _held_out_by_name(
    images: ImageSet, options: Options, folder: Path, present: Collection[str]
) -> dict[str, ImageSet]:
    """As :func:`_held_out`, where images are added between runs: none that trained is held out later.

    Each image draws a number by its name. Where that holds out none, but the share is that of an image, the first one
    is held out. Splits that are ``present`` keep their images.
    """
    label = folder.resolve().name
    draws = [
        derive_seed(options.partition_seed, "images.split", label, pictures.name_of(number, folder)) / 2**63
        for pictures, number in images.pictures
    ]
    order, count = np.argsort(draws, kind="stable"), len(images)
    test, validation = (
        0.0 if split in present else share
        for split, share in (("test", options.test_share), ("validation", options.validation_share))
    )
    one_test, one_validation = min(1, int(test * count)), min(1, int(validation * count))
    tests = max(sum(draw < test for draw in draws), one_test)
    held_out = max(sum(draw < test + validation for draw in draws), tests + one_validation)
    held_out = min(held_out, count - 1)  # one image trains
    return _divided(images, order, min(tests, held_out - one_validation), held_out)


def _divided(images: ImageSet, order: Part, tests: int, held_out: int) -> dict[str, ImageSet]:
    parts = {"train": order[held_out:], "validation": order[tests:held_out], "test": order[:tests]}
    return {split: images.at(np.sort(rows)) for split, rows in parts.items() if len(rows)}
