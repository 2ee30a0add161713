"""The data that come with scikit-learn, and data sets of the Hugging Face hub."""

from contextlib import suppress
from pathlib import Path

import numpy as np

from fedapps.base.errors import DataError, need

from .published import Columns


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
