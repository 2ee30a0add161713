"""Downloads data sets from the Hugging Face hub into a folder, in the format that the task reads."""

from pathlib import Path

from fedapps.sim.corpus import write_examples
from fedapps.tasks.profiles import DataError, need

from .published import HubDataset


def fetch(hub: HubDataset, train: str, folder: Path) -> None:
    """Write the splits ``train`` and ``hub.test`` of a data set to train.jsonl and test.jsonl in ``folder``.

    Raises
    ------
    DataError
        The data set cannot be downloaded, or lacks a split or a column.
    """
    need("datasets", "text", "text.source = 'hub'")
    from datasets import load_dataset

    for name, split in (("train", train), ("test", hub.test)):
        try:
            examples = load_dataset(hub.name, split=split)
        except Exception as error:  # errors of the library, the client and the network have no common type
            raise DataError(
                f"the data set {hub.name!r}, split {split!r}, cannot be downloaded from the Hugging Face hub "
                f"({error}). If the hub is unreachable, download the files elsewhere and set text.source = 'files' and "
                "data-dir to their folder"
            ) from error
        if missing := [column for column in hub.columns.all if column not in examples.column_names]:
            raise DataError(
                f"the data set {hub.name!r} has no column {', '.join(missing)}; found "
                f"{', '.join(examples.column_names)} (text.text-columns and text.label-column name the columns to read)"
            )
        parts = zip(*(examples[column] for column in hub.columns.text), strict=True)
        write_examples(folder / f"{name}.jsonl", [" ".join(part) for part in parts], examples[hub.columns.label])
