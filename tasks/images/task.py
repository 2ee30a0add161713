"""The task "images": classify images with networks of the literature on nodes that have few of the classes."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from shlex import quote
from typing import Any, ClassVar, cast

import numpy as np
import torch
from fedapps.tasks.base import Batch, DataError, Evaluation, Metrics, NodeData, Secret, Task, shuffled
from fedapps.tasks.model_folder import numbers_of, texts_of
from fedapps.tasks.partitioners import by_stage, own_label_shares, right_in_stage, stages_in
from fedapps.tasks.profiles import ModelRoles, NodeProfile, check_partition, pixels
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn.functional import cross_entropy, pad

from fedapps.base.errors import listed
from fedapps.base.options import label_keys, parse_options

from .formats import Folder, read_folder
from .image_set import ImageSet
from .networks import ImageClassifier, check_network, image_classifier
from .options import DIGITS, SMALLEST, Statistics, fetch, write_digits
from .options import Options as ImagesOptions
from .partition import NodeImages, all_images, node_images, own_images

#: The padding before a random crop, as a part of the height: 4 pixels of 32 (He et al., 2016).
_PART = 8
_LISTED = 10  # classes that a line lists
#: The floor that predicts the most frequent class of the training images.
FREQUENT = "most frequent class"
#: How many images are looked at for their size, and the largest height and width that are taken from them.
_MEASURED, _LARGEST = 50, 224
CHUNK = 256  # images per batch in evaluation
_SMALL = 1 << 23  # pixels of a split that is scaled once an epoch


def augmentation_of(name: str, size: tuple[int, int, int]) -> Callable[[Tensor], Tensor] | None:
    """Return the changes of images ``[n, C, H, W]`` by the key ``images.augment``; ``None`` for none.

    Every image has its own draws, from torch's global generator: it is mirrored with probability 1/2, and with
    "crop-flip" it is padded with black pixels and cropped to its size before. All images are changed at once.
    """
    if name == "none":
        return None
    height, width, _ = size
    padding = max(1, height // _PART) if name == "crop-flip" else 0

    def change(images: Tensor) -> Tensor:
        count, device = len(images), images.device
        shifts = torch.randint(2 * padding + 1, (2, count, 1))
        mirrored = torch.rand(count, 1) < 0.5
        columns = torch.where(mirrored, torch.arange(width).flip(0), torch.arange(width)) + shifts[1]
        rows = (torch.arange(height) + shifts[0]).to(device)[:, None, :, None]
        channels = torch.arange(images.shape[1], device=device)[None, :, None, None]
        first = torch.arange(count, device=device)[:, None, None, None]
        return pad(images, [padding] * 4)[first, channels, rows, columns.to(device)[:, None, None, :]]

    return change


class ImagesTask(Task):
    """Classify images.

    Splits hold ``image`` uint8 ``[n, C, H, W]`` and ``label`` int64 ``[n]``: "train", "validation" and "test" are the
    node's own; with ``images.stages`` they have the classes of one stage. ``NodeData.extra`` holds ``classes``, the
    names of the classes, ``statistics``, by which pixels are normalised, and ``common``, the test images common to all
    nodes, if there are any.

    A node has some of the images. Labels are enough to divide them, so that profiles and outlines decode few; images
    are checked by their first and last bytes.
    """

    name: ClassVar[str] = "images"
    Options: ClassVar[type] = ImagesOptions
    options: ImagesOptions
    files: ClassVar[Mapping[str, str]] = {
        "`train/CLASS/*.png`, the same with `test`": "images",
        "`*.npz`": "`images, labels`, or `x_train, y_train, x_test, y_test`",
        "`train`, `test` (`.parquet`, `.csv`, `.tsv`, `.jsonl`)": (
            "encoded images as on the Hugging Face hub, or paths of image files, and labels; `images.image-column`, "
            "`images.label-column`"
        ),
    }
    output_keys: ClassVar[tuple[str, ...]] = ("labels", "classes")
    floors: ClassVar[tuple[str, ...]] = (FREQUENT,)
    headline: ClassVar[tuple[str, ...]] = ("test.global_accuracy", "test.local_accuracy")
    common_metrics: ClassVar[tuple[str, ...]] = ("test.global_*",)
    validation_options: ClassVar[Mapping[str, object]] = {"validation_share": 0.1}
    trained_model: ClassVar[str] = "fedapps.tasks.images.trained:ImagesTrained"
    log_import: ClassVar[str] = "fedapps.tasks.images.logs:ImagesImport"

    on_device: ClassVar[bool] = True

    def __init__(self, options: ImagesOptions | None = None) -> None:
        """Raise :class:`~fedapps.base.errors.DataError` if options are incompatible."""
        super().__init__(options)
        self.options.check()
        self.layout = self.options.layout()
        self.stage_of = self.options.stage_of("images", self.layout.classes)

    @classmethod
    def found_keys(cls, values: Mapping[str, object], folder: Path) -> tuple[dict[str, str | int], str]:
        """Return the classes and the size of images of a data set that is not known."""
        arguments, errors = parse_options(ImagesOptions, dict(values))
        options = ImagesOptions(**({} if errors else arguments))
        needs_classes = not (options.labels or options.classes)
        if options.known or not (needs_classes or not options.height):
            return {}, ""
        if not folder.is_dir():
            raise DataError(f"data-dir = {str(folder)!r}: no such folder; give the folder with the images")
        unknown = replace(options, classes=options.classes or 2, height=options.height or SMALLEST)
        read = read_folder(folder, replace(unknown.layout(), classes=0))
        images = read.splits.get("train") or read.splits["test"]
        keys: dict[str, str | int] = {}
        lines = []
        if needs_classes:
            keys |= label_keys(read.classes)
            lines.append(f"{len(read.classes)} classes ({listed(read.classes, _LISTED)})")
        if not options.height:
            rows = np.linspace(0, len(images) - 1, min(len(images), _MEASURED)).astype(int)
            (width, height), same = Counter(images[row].size for row in rows.tolist()).most_common(1)[0]
            keys |= {"height": min(height, _LARGEST)} | ({} if options.width else {"width": min(width, _LARGEST)})
            lines.append(f"{height}x{width} pixels in {same} of {len(rows)} images")
        settings = " ".join(f"--set {quote(f'images.{key}={value}')}" for key, value in keys.items())
        return keys, f"{' and '.join(lines)} in {folder}, which a deployment lists: {settings}"

    @property
    def roles(self) -> ModelRoles:
        """The head is the last linear layer, and the representation its input."""
        return ModelRoles(("head.*",), ("body.*",), features=True)

    @property
    def num_stages(self) -> int:
        return self.options.stages

    @property
    def world_options(self) -> dict[str, object]:
        """The options that :meth:`make_world` depends on."""
        names = ("dataset", "image_column", "label_column", "group_column")
        return {name: getattr(self.options, name) for name in names}

    def make_world(self, folder: Path, num_nodes: int, seed: int) -> None:
        """Write scikit-learn's digits, or download the data set. They depend on neither nodes nor seed."""
        if self.options.dataset == DIGITS:
            write_digits(folder)
        else:
            known = self.options.known
            fetch(known.hub if known else self.options.dataset, self.layout.columns, folder)

    def describe_data(self, folder: Path, *, own: bool = False) -> str:
        read = read_folder(folder, self.layout)
        splits = [
            f"{split}: {len(images)} from {_within(folder, read, split)}" for split, images in read.splits.items()
        ]
        if "test" not in read.splits:
            share = self.options.test_share if own else self.options.global_share
            splits.append(f"test: {share:.0%} of these, drawn")
        classes = listed((f"{number} {name}" for number, name in enumerate(read.classes)), _LISTED)
        height, width, channels = self.layout.size
        size = f"resized to {height}x{width} with {channels} channel{'s'[: channels - 1]}"
        return f"images, {'; '.join(splits)}; classes {classes}; {size}"

    def node_profile(self, folder: Path, partition: int, num_partitions: int) -> NodeProfile:
        check_partition(partition, num_partitions)
        return self._profile(node_images(folder, self.options, partition, num_partitions))

    def own_profile(self, folder: Path) -> NodeProfile:
        return self._profile(own_images(folder, self.options))

    def _profile(self, node: NodeImages) -> NodeProfile:
        node.require_readable()
        labels = {split: {"label": torch.from_numpy(images.labels)} for split, images in node.splits.items()}
        if node.common is not None and len(node.common):
            by_stage("the common test", {"train": {"label": torch.from_numpy(node.common.labels)}}, self.stage_of)
        return self._staged(node, labels, {}).profile()

    @property
    def vectorises(self) -> bool:  # type: ignore[override]
        """Whether the network has neither batch normalisation nor dropout."""
        return self.options.model in ("cnn", "mlp", "lenet") or (
            self.options.model in ("resnet8", "resnet18") and self.options.norm == "group"
        )

    # -- models --------------------------------------------------------------------------------------------

    def build_model(self) -> ImageClassifier:
        return image_classifier(self.options, self.layout.classes, self.options.statistics)

    def build_model_for(self, data: NodeData) -> ImageClassifier:
        """Return the network, which normalises by the statistics of the data with ``images.normalise = 'data'``."""
        return image_classifier(self.options, self.layout.classes, _statistics(data))

    def model_key(self, data: NodeData) -> Hashable | None:
        """Return the statistics of the data."""
        return "statistics", _statistics(data)

    def facts(self, data: NodeData | None) -> Mapping[str, Any]:
        """Return ``classes``, and ``mean`` and ``deviation`` of pixels unless each image has its own.

        Raises
        ------
        DataError
            They are those of the data, and there are none.
        """
        if data is None and (not self.layout.labels or self.options.normalise == "data"):
            raise DataError(
                "the classes or the statistics of the model are those of the nodes' images, which are not here: set "
                "images.labels, and images.normalise to 'published' or 'image'"
            )
        classes = self.layout.labels if data is None else cast(tuple[str, ...], data.extra["classes"])
        statistics = self.options.statistics if data is None else _statistics(data)
        facts: dict[str, Any] = {"classes": list(classes)}
        if statistics:
            facts |= {"mean": list(statistics[0]), "deviation": list(statistics[1])}
        return facts

    def model_of(self, facts: Mapping[str, Any], files: Path | None) -> ImageClassifier:
        classes, statistics = texts_of(facts, "classes", least=2), None
        if self.options.normalise != "image":
            statistics = numbers_of(facts, "mean"), numbers_of(facts, "deviation")
            channels = self.layout.size[2]
            if any(len(numbers) != channels for numbers in statistics) or not min(statistics[1]) > 0:
                raise DataError(f"mean, deviation: must be {channels} numbers each, and deviations above 0")
        return image_classifier(self.options, len(classes), statistics)

    # -- data ----------------------------------------------------------------------------------------------

    def check_nodes(self, num_nodes: int) -> None:
        """Raise :class:`DataError` if the network does not exist or does not take images of this size."""
        check_network(self.options, self.layout)

    def load_node(self, folder: Path, partition: int, num_partitions: int) -> NodeData:
        check_partition(partition, num_partitions)
        return self._loaded(node_images(folder, self.options, partition, num_partitions))

    def outline_node(self, folder: Path, partition: int, num_partitions: int) -> NodeData:
        check_partition(partition, num_partitions)
        node = node_images(folder, self.options, partition, num_partitions)
        node.require_readable()
        splits = {split: _outline(images, self.layout.size) for split, images in node.splits.items()}
        return self._staged(node, splits, {"classes": node.classes})

    def load_all(self, folder: Path) -> NodeData:
        """Read all images as one node, whose splits are those of a single node of a simulation."""
        return self._loaded(all_images(folder, self.options))

    def load_own(self, folder: Path) -> NodeData:
        """Read a deployed node's folder. Validation and test images that it lacks are held out."""
        return self.read_with((), folder, None, 1)

    def has_common_test(self, folder: Path) -> bool:
        return "common" in read_folder(folder, self.layout).splits

    def read_with(self, classes: tuple[str, ...], folder: Path, partition: int | None, num_partitions: int) -> NodeData:
        """Read a folder, or one node's part of it, with the classes of a trained model; those of the options, if empty.

        The folder is read as a whole for a trained model, which has learned all stages.

        Raises
        ------
        DataError
            As :meth:`load_node`, or a label is none of the classes.
        """
        if partition is not None:
            return self.load_node(folder, partition, num_partitions)
        return self._loaded(own_images(folder, self.options, classes), staged=not classes)

    def _loaded(self, node: NodeImages, *, staged: bool = True) -> NodeData:
        size = self.layout.size
        turns = node.turns or 0
        splits = {split: _tensors(images, size, turns) for split, images in node.splits.items()}
        statistics = self.options.statistics
        if self.options.normalise == "data":
            statistics = _measured(node.pool, size)
        extra: dict[str, object] = {"classes": node.classes, "statistics": statistics}
        if node.common is not None and len(node.common):
            extra["common"] = _common(node.common, size, turns)
        return self._staged(node, splits, extra) if staged else NodeData(node.key, splits, node.groups, extra)

    def _staged(self, node: NodeImages, splits: Mapping[str, Batch], extra: Mapping[str, object]) -> NodeData:
        stages = by_stage(f"the training images of {node.key}", splits, self.stage_of)
        return NodeData(node.key, stages[0], node.groups, extra, stages if self.num_stages > 1 else ())

    @property
    def validation_metric(self) -> str:
        """The accuracy on the nodes' own validation images. Raises :class:`DataError` if they hold out none."""
        if not self.options.validation_share:
            raise DataError(
                "images.validation-share = 0.0: must be above 0 to choose settings on validation data, because test "
                "data must not choose them"
            )
        return "validation.accuracy"

    def without_test(self, data: NodeData) -> NodeData:
        """As :meth:`fedapps.tasks.base.Task.without_test`, also without the test images common to all nodes."""
        extra = {name: value for name, value in data.extra.items() if name != "common"}
        return super().without_test(replace(data, extra=extra))

    def node_references(self, folder: Path, num_nodes: int) -> Mapping[str, Sequence[Metrics]]:
        """The accuracies of the most frequent class: of the node's training images on its own test, and of all nodes'
        on the common one.
        """
        nodes = [node_images(folder, self.options, node, num_nodes) for node in range(num_nodes)]
        for node in nodes if self.num_stages > 1 else ():
            self._profile(node)  # refuses a node that lacks a stage
        scores: list[Metrics] = [{} for _ in nodes]
        for stage in range(self.num_stages):
            prefix = f"stage-{stage + 1}." if self.num_stages > 1 else ""
            train = [self._labels(node.splits["train"], stage) for node in nodes]
            everywhere = _most_frequent(np.concatenate(train))
            for metrics, node, own in zip(scores, nodes, train, strict=True):
                asked = {"global": (node.common, everywhere), "local": (node.splits.get("test"), _most_frequent(own))}
                for name, (images, label) in asked.items():
                    if images is not None and len(labels := self._labels(images, stage)):
                        metrics[f"{prefix}test.{name}_accuracy"] = float((labels == label).mean())
                        metrics[f"{prefix}test.{name}_accuracy.count"] = float(len(labels))
        return {FREQUENT: scores}

    def _labels(self, images: ImageSet, stage: int) -> np.ndarray:
        """The labels of those images that arrive in a stage, counted from 0."""
        of_stage: np.ndarray = images.labels[self.stage_of[images.labels] == stage]
        return of_stage

    # -- learning ------------------------------------------------------------------------------------------

    @property
    def secrets(self) -> tuple[Secret, ...]:
        return (pixels("image", "images"),)

    @property
    def num_classes(self) -> int:
        return self.layout.classes

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross-entropy."""
        return cross_entropy(model(batch["image"]), batch["label"])

    def drawn_labels(self, model: nn.Module, batch: Batch, temperature: float) -> Batch:
        """Return labels that have the probabilities of the model."""
        return {**batch, "label": Categorical(logits=model(batch["image"])).sample()}

    def batches(self, data: NodeData, split: str, batch_size: int) -> Iterator[Batch]:
        """Yield one epoch in random order. Training images are changed at random (``images.augment``). A split that is
        small is scaled to [0, 1] here, once an epoch, and otherwise by the network.
        """
        examples = data.splits[split]
        images = examples["image"]
        change = augmentation_of(self.options.augment, self.layout.size) if split == "train" else None
        if change:
            images = change(images)
        if images.numel() <= _SMALL:
            images = images.to(torch.get_default_dtype()).div_(255)
        return shuffled({**examples, "image": images}, batch_size)

    @torch.no_grad()
    def evaluate(self, model: nn.Module, data: NodeData, *, seed: int, final: bool) -> Evaluation:
        """Return accuracy, loss (cross-entropy) and the number of examples of every split that exists.

        ``test.global_*`` are images common to all nodes, ``test.local_*`` and ``validation.*`` the node's own, which
        are evaluated in :func:`~fedapps.tasks.partitioners.own_label_shares`. ``test.global_macro_accuracy`` is the
        mean over the classes of their accuracies, ``test.global_worst_class_accuracy`` the lowest of these. With
        ``images.stages``, all are of the classes of the stage, among all classes; ``stage_accuracy`` in place of
        ``accuracy`` is that among the classes of the stage (:func:`~fedapps.tasks.partitioners.right_in_stage`).
        """
        metrics: Metrics = {}
        stage_of = self.stage_of if self.num_stages > 1 else None
        if "common" in data.extra:
            common = cast(Batch, data.extra["common"])
            if stage_of is not None:
                rows = np.isin(stage_of[common["label"].cpu().numpy()], stages_in(data, stage_of))
                common = {name: tensor[torch.from_numpy(rows)] for name, tensor in common.items()}
            metrics |= _scores("test.global_", model, common, stage_of, by_class=True)
        with own_label_shares(model):
            for prefix, split in (("test.local_", "test"), ("validation.", "validation")):
                if split in data.splits:
                    metrics |= _scores(prefix, model, data.splits[split], stage_of)
        return Evaluation(metrics)


def _statistics(data: NodeData) -> Statistics | None:
    return cast(Statistics | None, data.extra["statistics"])


def _most_frequent(labels: np.ndarray) -> int:
    """The first of the classes with most images."""
    return int(np.bincount(labels).argmax())


def _tensors(images: ImageSet, size: tuple[int, int, int], turns: int) -> Batch:
    """The images, turned anticlockwise by quarter turns, and their labels."""
    pixels = np.ascontiguousarray(np.rot90(images.pixels(size), turns, axes=(2, 3)))
    return {"image": torch.from_numpy(pixels), "label": torch.from_numpy(images.labels)}


def _outline(images: ImageSet, size: tuple[int, int, int]) -> Batch:
    """The labels, and black images that take no memory."""
    height, width, channels = size
    pixels = torch.zeros((), dtype=torch.uint8).expand(len(images), channels, height, width)
    return {"image": pixels, "label": torch.from_numpy(images.labels)}


@lru_cache(maxsize=4)
def _common(images: ImageSet, size: tuple[int, int, int], turns: int) -> Batch:
    """The common test, which all nodes of a process share whose images are turned alike."""
    return _tensors(images, size, turns)


@lru_cache(maxsize=4)
def _measured(images: ImageSet, size: tuple[int, int, int]) -> Statistics:
    """The mean and the standard deviation of each channel; a channel that is constant is divided by 1."""
    levels = np.zeros((size[2], 256), dtype=np.int64)
    for start in range(0, len(images), CHUNK):
        pixels = images.at(np.arange(start, min(start + CHUNK, len(images)))).pixels(size)
        levels += [np.bincount(channel.reshape(-1), minlength=256) for channel in pixels.transpose(1, 0, 2, 3)]
    values = np.arange(256) / 255
    mean = levels @ values / levels.sum(axis=1)
    deviation = np.sqrt(levels @ values**2 / levels.sum(axis=1) - mean**2)
    return tuple(mean.tolist()), tuple(np.where(deviation > 0, deviation, 1.0).tolist())


def _scores(
    prefix: str, model: nn.Module, examples: Batch, stage_of: np.ndarray | None, *, by_class: bool = False
) -> Metrics:
    device = next(model.parameters()).device
    labels = examples["label"].to(device)
    hits, in_stage, losses = [], [], []
    for start in range(0, len(labels), CHUNK):
        logits = model(examples["image"][start : start + CHUNK].to(device))
        target = labels[start : start + CHUNK]
        hits.append(logits.argmax(dim=1) == target)
        losses.append(cross_entropy(logits, target, reduction="sum"))
        if stage_of is not None:
            in_stage.append(right_in_stage(logits, target, stage_of))
    labels, right = labels.cpu(), torch.cat(hits).cpu()  # a GPU is waited for once
    loss = sum(torch.stack(losses).tolist())
    metrics: Metrics = {f"{prefix}accuracy": int(right.sum()) / len(labels), f"{prefix}loss": loss / len(labels)}
    if in_stage:
        metrics[f"{prefix}stage_accuracy"] = int(torch.cat(in_stage).sum()) / len(labels)
    metrics |= {f"{name}.count": float(len(labels)) for name in list(metrics)}
    if by_class:
        counts = torch.bincount(labels)
        shares = torch.bincount(labels, weights=right.double())[counts > 0] / counts[counts > 0]
        metrics |= {
            f"{prefix}macro_accuracy": float(shares.mean()),
            f"{prefix}worst_class_accuracy": float(shares.min()),
        }
    return metrics


def _within(folder: Path, read: Folder, split: str) -> str:
    """What a split was read from, relative to the folder."""
    return read.sources[split].removeprefix(str(folder)).lstrip("/") or "folders of classes"
