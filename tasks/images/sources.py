"""Image data sets with known classes, sizes and statistics; scikit-learn's digits, and downloads from the hub."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits

import numpy as np

from fedapps.base.errors import DataError, need

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


def write_digits(folder: Path) -> None:
    """Write scikit-learn's 1,797 digits to ``train.npz``: ``images`` uint8 ``[n, 8, 8]`` and ``labels``."""
    need("sklearn", "images", "images.dataset = 'digits'")
    from sklearn.datasets import load_digits

    digits = load_digits()
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
    need("flwr_datasets", "images", f"images.dataset = {name!r}")
    from flwr_datasets import FederatedDataset

    try:
        federated = FederatedDataset(dataset=name, partitioners={}, shuffle=False)
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
