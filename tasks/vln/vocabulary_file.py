"""Write the vocabulary of a folder of houses, for nodes whose folders hold one house:
``python -m fedapps.tasks.vln.vocabulary_file FOLDER words.txt``."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from fedapps.base.errors import DataError

from .dataset import read_dataset
from .options import Options


def main(argv: Sequence[str] | None = None) -> None:
    """Write the words of all training instructions, those that a run on the folder uses without vln.vocabulary-file."""
    standard = Options()
    parser = argparse.ArgumentParser(
        prog="python -m fedapps.tasks.vln.vocabulary_file",
        description="Write the words of a folder's training instructions, one per line, as vln.vocabulary-file.",
    )
    parser.add_argument("folder", type=Path, help="data-dir of a run: graphs and training instructions of houses")
    parser.add_argument("file", type=Path, help="the file to write")
    parser.add_argument("--size", type=int, default=standard.vocabulary_size, help="vln.vocabulary-size")
    parser.add_argument("--dataset", default=standard.dataset, choices=("auto", "r2r", "rxr"), help="vln.dataset")
    parser.add_argument("--languages", default=standard.languages, help="vln.languages")
    arguments = parser.parse_args(argv)
    options = Options(vocabulary_size=arguments.size, dataset=arguments.dataset, languages=arguments.languages)
    try:
        read_dataset(arguments.folder, options).vocabulary(options).write(arguments.file)
    except (DataError, OSError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
