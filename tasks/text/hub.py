"""Data sets of the Hugging Face hub, written into a folder as a task reads it."""

from pathlib import Path

from sim.corpus import write_examples
from tasks.profiles import DataError

from .known import Hub


def fetch(hub: Hub, train: str, folder: Path) -> None:
    """Write the splits ``train`` and ``hub.test`` of a data set into ``folder`` as train.jsonl and test.jsonl.

    Raises :class:`DataError` when the data set cannot be had, or has not these splits and columns.
    """
    from datasets import load_dataset

    for name, split in (("train", train), ("test", hub.test)):
        try:
            examples = load_dataset(hub.name, split=split)
        except Exception as error:  # of the library, of the hub's client or of the network, without a common type
            raise DataError(
                f"the data set {hub.name!r}, split {split!r}, cannot be fetched from the Hugging Face hub ({error}). "
                "Where the hub cannot be reached, download its files elsewhere and name their folder: text.source = "
                "'files', data-dir = FOLDER"
            ) from error
        if missing := [column for column in hub.columns.all if column not in examples.column_names]:
            raise DataError(
                f"the data set {hub.name!r} has no column {', '.join(missing)}; found "
                f"{', '.join(examples.column_names)} (text.text-columns and text.label-column say which to read)"
            )
        parts = zip(*(examples[column] for column in hub.columns.text), strict=True)
        write_examples(folder / f"{name}.jsonl", [" ".join(part) for part in parts], examples[hub.columns.label])
