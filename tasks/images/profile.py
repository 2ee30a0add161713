"""The task "images" without torch: the profiles of nodes, and the data that are made or downloaded."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from fedapps.tasks.profiles import ModelRoles, NodeProfile, TaskProfiles, check_partition

from .download import fetch, write_digits
from .formats import Folder, read_folder
from .options import Options as ImagesOptions
from .partition import NodeImages, node_images, own_images
from .published import DIGITS

_LISTED = 10  # classes that a line lists
#: The floor that predicts the most frequent class of the training images.
FREQUENT = "most frequent class"


class ImagesProfiles(TaskProfiles):
    """A node has some of the images. Labels are enough to divide them, so that profiles decode none; image files are
    checked by their first and last bytes."""

    name: ClassVar[str] = "images"
    Options: ClassVar[type] = ImagesOptions
    options: ImagesOptions
    files: ClassVar[Mapping[str, str]] = {
        "`train/CLASS/*.png`, the same with `test`": "images",
        "`*.npz`": "`images, labels`, or `x_train, y_train, x_test, y_test`",
        "`*.parquet`": "as on the Hugging Face hub; `images.image-column`, `images.label-column`",
    }
    floors: ClassVar[tuple[str, ...]] = (FREQUENT,)
    headline: ClassVar[tuple[str, ...]] = ("test.global_accuracy", "test.local_accuracy")

    def __init__(self, options: ImagesOptions | None = None) -> None:
        """Raise :class:`~fedapps.base.errors.DataError` if options are incompatible."""
        super().__init__(options)
        self.options.check()
        self.layout = self.options.layout()

    @property
    def roles(self) -> ModelRoles:
        """The head is the last linear layer, and the representation its input."""
        return ModelRoles(("head.*",), ("body.*",), features=True)

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
        classes = ", ".join(f"{number} {name}" for number, name in enumerate(read.classes[:_LISTED]))
        more = f" and {len(read.classes) - _LISTED} more" if len(read.classes) > _LISTED else ""
        height, width, channels = self.layout.size
        size = f"resized to {height}x{width} with {channels} channel{'s'[: channels - 1]}"
        return f"images, {'; '.join(splits)}; classes {classes}{more}; {size}"

    def node_profile(self, folder: Path, partition: int, num_partitions: int) -> NodeProfile:
        check_partition(partition, num_partitions)
        return _profile(node_images(folder, self.options, partition, num_partitions))

    def own_profile(self, folder: Path) -> NodeProfile:
        return _profile(own_images(folder, self.options))


def _within(folder: Path, read: Folder, split: str) -> str:
    """What a split was read from, relative to the folder."""
    return read.sources[split].removeprefix(str(folder)).lstrip("/") or "folders of classes"


def _profile(node: NodeImages) -> NodeProfile:
    node.require_readable()
    return NodeProfile(node.key, len(node.splits["train"]) if "train" in node.splits else 0, node.groups)
