"""A folder of houses: their graphs, features and paths with instructions. Read once per process."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np

from tasks.base import DataError

from .connectivity import Graph, graph_files, read_graphs
from .feature_cache import cached_object_features
from .features import read_features
from .files import in_folder
from .houses import Houses, assemble
from .instructions import FILES, InstructedPath, find_dataset, read_split
from .options import Options
from .vocabulary import Vocabulary

SPLITS = ("train", "val_seen", "val_unseen")


@dataclass(frozen=True, eq=False)
class Dataset:
    """What a folder has: ``graphs`` by house, and ``paths`` by split and house."""

    folder: Path
    graphs: Mapping[str, Graph]
    paths: Mapping[str, Mapping[str, tuple[InstructedPath, ...]]]

    @property
    def seen(self) -> tuple[str, ...]:
        """The houses of the training split, by name."""
        return tuple(sorted(self.paths["train"]))

    @property
    def unseen(self) -> tuple[str, ...]:
        """The houses of ``val_unseen`` that are not in the training split, by name."""
        return tuple(sorted(self.paths["val_unseen"].keys() - self.paths["train"].keys()))

    def of(self, split: str, scans: Sequence[str]) -> list[InstructedPath]:
        """The paths of some houses in a split."""
        return [path for scan in scans for path in self.paths[split].get(scan, ())]

    def vocabulary(self, options: Options) -> Vocabulary:
        """The words of ``vocabulary_file``, or the frequent ones of all training instructions.

        Raises :class:`DataError` where there are neither, or the file has more words than the embedding has rows.
        """
        if options.vocabulary_file:
            words = Vocabulary.read(in_folder(options.vocabulary_file, self.folder))
            if len(words) > options.vocabulary_size:
                raise DataError(
                    f"vln.vocabulary-size = {options.vocabulary_size}: {options.vocabulary_file} needs {len(words)} "
                    f"rows; set vln.vocabulary-size = {len(words)}"
                )
            return words
        if not self.paths["train"]:
            raise DataError(
                f"{self.folder}: has no training instructions whose words could be the vocabulary; name the "
                "vln.vocabulary-file that the model was trained with"
            )
        return _frequent_words(self, options.vocabulary_size)

    def houses(self, scans: Sequence[str], options: Options) -> Houses:
        """Some houses as tensors, with their features.

        Raises :class:`DataError` where features are missing or do not fit.
        """
        graphs = [self.graphs[scan] for scan in scans]
        if options.feature_file:
            names = [f"{graph.scan}_{viewpoint}" for graph in graphs for viewpoint in graph.viewpoints]
            features = read_features(in_folder(options.feature_file, self.folder), names, options.width)
        else:
            features = cached_object_features(
                self.folder, self.graphs, scans, options.label_width, options.cache_folder
            )
        if options.ablation == "angles-only":
            features = np.zeros_like(features)
        return assemble(graphs, features)


def read_dataset(folder: Path, options: Options) -> Dataset:
    """Read a folder, again where its files have changed.

    Raises
    ------
    DataError
        A file is missing or malformed, or paths lead through a house that has no graph.
    """
    files = [
        *graph_files(folder),
        *(path for name in FILES.values() for path in folder.rglob(name.format(split="*") + "*")),
    ]
    stamp = tuple((str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(files))
    return _read(folder, options.dataset, options.spoken, stamp)


@lru_cache(maxsize=4)
def _read(folder: Path, name: str, languages: tuple[str, ...], stamp: tuple[tuple[str, int, int], ...]) -> Dataset:
    graphs = read_graphs(folder)
    dataset = find_dataset(folder, name)
    paths: dict[str, dict[str, tuple[InstructedPath, ...]]] = {}
    for split in SPLITS:
        found = read_split(folder, dataset, split, languages) if dataset else None
        by_house: dict[str, list[InstructedPath]] = {}
        for path in found or ():
            _check(path, graphs, f"{folder}, {split}")
            by_house.setdefault(path.scan, []).append(path)
        paths[split] = {scan: tuple(of_house) for scan, of_house in by_house.items()}
    return Dataset(folder, graphs, paths)


def _check(path: InstructedPath, graphs: Mapping[str, Graph], place: str) -> None:
    """Raise :class:`DataError` for a path that cannot be walked."""
    what = f"{place}: path {path.path_id} of house {path.scan}"
    graph = graphs.get(path.scan)
    if graph is None:
        raise DataError(f"{what}: the house has no graph; add {path.scan}_connectivity.json or remove its paths")
    for stop in path.path:
        if stop not in graph.numbers:
            raise DataError(
                f"{what}: viewpoint {stop} is not in the house's graph (unknown, or not included); give the graph that "
                "the path was made with"
            )
    for here, there in pairwise(path.path):
        if not graph.navigable[graph.numbers[here], graph.numbers[there]]:
            raise DataError(f"{what}: the graph has no edge from {here} to {there}; give the graph of the path")


@lru_cache(maxsize=4)
def _frequent_words(dataset: Dataset, size: int) -> Vocabulary:
    texts = (text for path in dataset.of("train", dataset.seen) for text in path.instructions)
    return Vocabulary.of(texts, size)
