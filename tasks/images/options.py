"""Options of the task "images", the data sets that it knows, and their download.

The classes, sizes and statistics of data sets are known, and their names and columns on the Hugging Face hub; digits
come with scikit-learn.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits

import numpy as np
from fedapps.tasks.partitioners import StageOptions

from fedapps.base.errors import DataError, need
from fedapps.base.options import did_you_mean, option, split_names

Statistics = tuple[tuple[float, ...], tuple[float, ...]]
"""The mean and the standard deviation of each channel, of pixels from 0 to 1."""


@dataclass(frozen=True)
class Columns:
    """The columns with the image, its label, and what nodes are by nature; "" if the data have no such column."""

    image: str
    label: str
    group: str = ""


@dataclass(frozen=True)
class PublishedImages:
    """A published data set.

    Attributes
    ----------
    labels : tuple of str
        The names of the classes in the order of their numbers.
    size : (int, int, int)
        Height and width in pixels, and channels.
    statistics : Statistics
        Of the training images, as the literature uses them.
    hub : str
        The name on the hub; "" if the data set is not there.
    columns : Columns
    """

    labels: tuple[str, ...]
    size: tuple[int, int, int]
    statistics: Statistics
    hub: str
    columns: Columns = Columns("image", "label")


_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_FASHION = (
    *("T - shirt / top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
# In alphabetical order, as in the data set.
_CIFAR100 = (
    "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can "
    "castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin "
    "elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard "
    "lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear "
    "pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark "
    "shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone "
    "television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm "
)
DIGITS = "digits"

PUBLISHED: Mapping[str, PublishedImages] = {
    # E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998; 1,797 images in scikit-learn
    DIGITS: PublishedImages(tuple(digits), (8, 8, 1), ((0.3053,), (0.3759,)), ""),
    # Y. LeCun et al., Gradient-Based Learning Applied to Document Recognition, Proceedings of the IEEE, 1998
    "mnist": PublishedImages(tuple(digits), (28, 28, 1), ((0.1307,), (0.3081,)), "ylecun/mnist"),
    # H. Xiao et al., Fashion-MNIST, 2017, https://arxiv.org/abs/1708.07747
    "fashion-mnist": PublishedImages(_FASHION, (28, 28, 1), ((0.2860,), (0.3530,)), "zalando-datasets/fashion_mnist"),
    # G. Cohen et al., EMNIST: an extension of MNIST to handwritten letters, 2017; the split "letters", 26 classes
    "emnist": PublishedImages(tuple(ascii_uppercase), (28, 28, 1), ((0.1722,), (0.3309,)), "tanganke/emnist_letters"),
    # S. Caldas et al., LEAF: A Benchmark for Federated Settings, 2018; dark letters on a white ground. The statistics
    # are those of FL-bench.
    "femnist": PublishedImages(
        (*digits, *ascii_uppercase, *ascii_lowercase),
        (28, 28, 1),
        ((0.9637,), (0.1550,)),
        "flwrlabs/femnist",
        Columns("image", "character", "writer_id"),
    ),
    # A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009
    "cifar10": PublishedImages(
        _CIFAR10,
        (32, 32, 3),
        ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        "uoft-cs/cifar10",
        Columns("img", "label"),
    ),
    "cifar100": PublishedImages(
        tuple(_CIFAR100.split()),
        (32, 32, 3),
        ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
        "uoft-cs/cifar100",
        Columns("img", "fine_label"),
    ),
}


PARTITIONS = ("dirichlet", "pathological", "natural", "iid")
#: The networks that have names of their own; all others are those of torchvision.
NETWORKS = ("cnn", "mlp", "lenet", "resnet8", "resnet18")
#: The smallest height and width that a network takes: two poolings halve the maps of the CNN.
SMALLEST = 4


@dataclass(frozen=True)
class Layout:
    """What the images of all nodes have in common.

    Attributes
    ----------
    labels : tuple of str
        The names of the classes in the order of their numbers; empty if they are found in the data.
    classes : int
    size : (int, int, int)
        Height, width and channels of the network's input.
    columns : Columns
    label_named : bool
        Whether the column of the label is known, and not only usual.
    published : bool
        Whether the classes are those of a known data set, in its order.
    """

    labels: tuple[str, ...]
    classes: int
    size: tuple[int, int, int]
    columns: Columns
    label_named: bool
    published: bool


@dataclass(frozen=True)
class Options(StageOptions):
    """Options of the task "images"."""

    dataset: str = option(
        DIGITS,
        f"{', '.join(PUBLISHED)}, whose classes, columns and sizes are known; or another name. If data-dir is not set, "
        "digits come with scikit-learn, and others are downloaded from the Hugging Face hub, unknown ones under this "
        "name",
    )
    image_column: str = option(
        "", "Column of the image in tables, its bytes or the path of its file; '' = the data set's, or 'image'"
    )
    label_column: str = option("", "Column, or array in .npz files, of the label; '' = the data set's, or 'label'")
    group_column: str = option(
        "", "Column, or array in .npz files, by which the partition natural divides images; '' = the data set's"
    )
    labels: str = option(
        "",
        "Names of the classes in their order, separated by commas; '' = the data set's, or in a simulation those in "
        "data-dir, sorted",
    )
    classes: int = option(
        0, "Number of classes of a data set that is not known, if labels is empty", minimum=0, maximum=10**5
    )
    height: int = option(
        0,
        "Height in pixels to which images are resized; 0 = the data set's, or in a simulation the commonest in "
        "data-dir, at most 224",
        minimum=0,
        maximum=4096,
    )
    width: int = option(0, "Width in pixels; 0 = the data set's, or the height", minimum=0, maximum=4096)
    channels: int = option(0, "1 for grey, 3 for colour; 0 = the data set's, or 3", minimum=0, maximum=3)
    partition: str = option(
        "dirichlet",
        "How images are partitioned among nodes, by flwr-datasets: dirichlet divides each class by shares from a "
        "Dirichlet distribution; pathological gives each node few classes; iid; natural: a node for each value of "
        "group-column, or for as many as num-nodes, drawn",
        choices=PARTITIONS,
    )
    alpha: float = option(
        0.5, "Concentration of the partition dirichlet; smaller values give more unequal classes", above=0
    )
    classes_per_node: int = option(2, "Classes per node of the partition pathological", minimum=1)
    min_examples: int = option(
        10, "Images that a node has at least; the partition natural leaves out nodes with fewer", minimum=1
    )
    rotations: int = option(
        1,
        "Groups of simulated nodes whose images are turned alike, one node after another: 2, upright and upside down; "
        "4, by quarter turns (rotated MNIST of IFCA, Ghosh et al., 2020, Section 6); 1 = none",
        minimum=1,
        maximum=4,
    )
    test_share: float = option(0.2, "Share of a node's images held out for its own test", minimum=0, maximum=0.8)
    validation_share: float = option(0.1, "Share of a node's images held out for validation", minimum=0, maximum=0.8)
    global_share: float = option(
        0.2,
        "Share of all images held out for the test common to all nodes, if there are no test images",
        minimum=0,
        maximum=0.8,
    )
    global_examples: int = option(0, "Images of the common test, drawn once; 0 = all", minimum=0)
    model: str = option(
        "cnn",
        "cnn: two 5x5 convolutions and a layer of 512 (McMahan et al., 2017); mlp: two layers of 200 (theirs); lenet: "
        "LeNet-5 with ReLU (Li et al., 2022); resnet8 and resnet18 (He et al., 2016) for small images; or a classifier "
        "of torchvision.models, such as mobilenet_v2",
    )
    norm: str = option(
        "group",
        "Normalisation in resnet8 and resnet18: batch, or two groups of channels (Reddi et al., 2021)",
        choices=("group", "batch"),
    )
    normalise: str = option(
        "published",
        "Mean and standard deviation by which pixels are normalised: published, the data set's (0.5 for unknown ones); "
        "data, those of the training images, on a deployed node of its own; image, each image's; none",
        choices=("published", "data", "image", "none"),
    )
    augment: str = option(
        "none",
        "Random changes of training images: flip, horizontally; crop-flip: also shifts by up to an eighth of the "
        "height, 4 pixels of 32 (He et al., 2016)",
        choices=("none", "flip", "crop-flip"),
    )

    @property
    def known(self) -> PublishedImages | None:
        """The data set, if it is a known one."""
        return PUBLISHED.get(self.dataset)

    @property
    def statistics(self) -> Statistics | None:
        """The constants by which pixels are normalised, ``None`` if they are each image's or those of the data."""
        channels = self.layout().size[2]
        if self.normalise == "none":
            return (0.0,) * channels, (1.0,) * channels
        if self.normalise != "published":
            return None
        if self.known and len(self.known.statistics[0]) == channels:
            return self.known.statistics
        return (0.5,) * channels, (0.5,) * channels

    def check(self) -> None:
        """Raise :class:`DataError` if options are incompatible, or data that are not known lack a description."""
        layout = self.layout()
        if self.validation_share + self.test_share > 0.9:
            raise DataError(
                f"images.validation-share = {self.validation_share} and images.test-share = {self.test_share}: leave "
                "at least 0.1 of a node's images for training"
            )
        if self.partition == "pathological" and self.classes_per_node > layout.classes:
            raise DataError(
                f"images.classes-per-node = {self.classes_per_node}: must be at most {layout.classes}, the number of "
                "classes"
            )
        if self.rotations == 3:
            raise DataError("images.rotations = 3: must be 1, 2 or 4, as images are turned by quarter turns")
        if self.rotations > 1 and layout.size[0] != layout.size[1]:
            raise DataError(
                f"images.rotations = {self.rotations}: images must be square to be turned; set images.height and "
                "images.width to the same number"
            )
        if self.partition == "natural" and not layout.columns.group:
            raise DataError(
                "images.partition = 'natural': name the column of the nodes in images.group-column, or choose "
                f"another partition ({', '.join(PARTITIONS)})"
            )

    def layout(self) -> Layout:
        """Return what images have in common. Raise :class:`DataError` if it is unknown."""
        known = self.known
        labels = split_names(self.labels) or (known.labels if known else ())
        if len(set(labels)) != len(labels):
            raise DataError(f"images.labels = {self.labels!r}: a label occurs twice; list each label once")
        classes = len(labels) or self.classes
        problem = f"images.dataset = {self.dataset!r} is not one of {', '.join(PUBLISHED)}"
        advice = "a run with data-dir takes them from the folder, and `fedapps check-node` prints them"
        if classes < 2:
            raise DataError(
                f"{problem}{did_you_mean(self.dataset, PUBLISHED)}: list its classes, at least 2, in images.labels, or "
                f"set images.classes to their number ({advice})"
            )
        if self.classes not in (0, classes):
            raise DataError(
                f"images.classes = {self.classes}: there are {classes} labels ({', '.join(labels[:9])}); leave it 0, "
                "or list the labels of your data in images.labels"
            )
        height, width, channels = known.size if known else (0, 0, 3)
        if not (self.height or height):
            raise DataError(
                f"{problem}: set images.height, and images.width and images.channels, to the size of images ({advice})"
            )
        size = (self.height or height, self.width or self.height or width, self.channels or channels)
        if min(size[:2]) < SMALLEST or size[2] == 2:
            raise DataError(
                f"images of {size[0]}x{size[1]} with {size[2]} channels: images.height and images.width must be at "
                f"least {SMALLEST}, and images.channels 1 or 3"
            )
        columns = known.columns if known else Columns("image", "label")
        return Layout(
            labels,
            classes,
            size,
            Columns(
                self.image_column.strip() or columns.image,
                self.label_column.strip() or columns.label,
                self.group_column.strip() or columns.group,
            ),
            known is not None or bool(self.label_column.strip()),
            known is not None and not split_names(self.labels),
        )


def write_digits(folder: Path) -> None:
    """Write scikit-learn's 1,797 digits to ``train.npz``: ``images`` uint8 ``[n, 8, 8]`` and ``labels``."""
    digits = need("sklearn.datasets", "images", "images.dataset = 'digits'").load_digits()
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    np.savez(folder / "train.npz", images=images, labels=digits.target.astype(np.int64))


def fetch(name: str, columns: Columns, folder: Path) -> None:
    """Write the splits of a data set of the hub to Parquet files in ``folder``, as the hub has them.

    Parameters
    ----------
    name : str
        Its name on the hub, or the path of a local copy.
    columns : Columns
        Those that are kept.
    folder : Path

    Raises
    ------
    DataError
        The data set cannot be downloaded, or lacks a column.
    """
    library = need("flwr_datasets", "images", f"images.dataset = {name!r}")
    try:
        federated = library.FederatedDataset(dataset=name, partitioners={}, shuffle=False)
        examples_of = {"train": federated.load_split("train")}
        for split in ("validation", "test"):
            with suppress(ValueError):  # there is no such split
                examples_of[split] = federated.load_split(split)
    except Exception as error:  # errors of the library, the client and the network have no common type
        raise DataError(
            f"images.dataset: {name!r} cannot be downloaded from the Hugging Face hub ({error}). If the hub is "
            "unreachable, download the data set's Parquet files elsewhere and set data-dir to their folder; without "
            "network and data, set images.dataset = 'digits'"
        ) from error
    kept = [column for column in (columns.image, columns.label, columns.group) if column]
    for split, examples in examples_of.items():
        if missing := [column for column in kept if column not in examples.column_names]:
            raise DataError(
                f"images.dataset: {name!r} has no column {', '.join(missing)}; found "
                f"{', '.join(examples.column_names)} (images.image-column, images.label-column, images.group-column)"
            )
        examples.select_columns(kept).to_parquet(str(folder / f"{split}.parquet"))
