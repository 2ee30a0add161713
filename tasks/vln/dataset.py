"""A folder of houses: their graphs and paths with instructions, and who trains on which. Read once per process.

Paths that nobody described are drawn as those of R2R were (:data:`~fedapps.tasks.vln.connectivity.EDGES`). Sampled
paths with a speaker's instructions are the augmented data of FedVLN (Zhou and Wang, ECCV 2022, Section 4.1).

``python -m fedapps.tasks.vln.dataset FOLDER words.txt`` writes the vocabulary of a folder of houses, for nodes whose
folders hold one house.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from math import pi
from pathlib import Path

import numpy as np
from fedapps.tasks.profiles import check_partition

from fedapps.base.errors import DataError
from fedapps.base.options import split_names
from fedapps.base.seeding import generator
from fedapps.base.text_files import found_in

from .connectivity import EDGES, SHORTEST, Graph, graph_files, read_graphs, shortest_paths
from .instructions import FILES, InstructedPath, Vocabulary, find_dataset, in_folder, read_split
from .options import Options

SPLITS = ("train", "val_seen", "val_unseen")


@dataclass(frozen=True, eq=False)
class Dataset:
    """What a folder has: ``graphs`` by house, and ``paths`` by split and house.

    ``described`` has the paths of unseen houses that train in place of being tested (``vln.described-share``).
    """

    folder: Path
    graphs: Mapping[str, Graph]
    paths: Mapping[str, Mapping[str, tuple[InstructedPath, ...]]]
    described: Mapping[str, tuple[InstructedPath, ...]] = field(default_factory=dict)

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

    def training_paths(
        self, scans: Sequence[str], options: Options
    ) -> tuple[list[InstructedPath], list[InstructedPath]]:
        """What some houses train on in a stage: paths that people described, and sampled ones that a speaker labels.

        A house that is too small to sample paths in trains on described paths alone, and so does an unseen house with
        ``vln.described-share``.

        Raises :class:`DataError` where a stage needs a speaker that is not named, or there is no path to train on.
        """
        labelled = {"augmented": set(self.seen), "pre-exploration": set(scans) - set(self.seen)}.get(
            options.stage, set()
        )
        described = self.of("train", scans) + [path for scan in scans for path in self.described.get(scan, ())]
        if options.described_share:
            return described, []
        sampled = []
        for scan in (scan for scan in scans if scan in labelled):
            if not options.speaker_file:
                raise DataError(
                    f"vln.stage = {options.stage!r}: house {scan} trains on paths that a speaker labels; name the file "
                    "that vln.stage = 'speaker' left as vln.speaker-file"
                )
            rng = generator(options.sample_seed, "vln.paths", scan)
            paths = sample_paths(self.graphs[scan], options.sampled_paths, rng)
            if not paths and scan not in self.paths["train"]:
                raise DataError(
                    f"house {scan}: too small for vln.stage = {options.stage!r}: no shortest path of {EDGES[0]} to "
                    f"{EDGES[1]} edges and {SHORTEST:g} m to sample; leave out the house"
                )
            sampled += paths
        return described, sampled

    def nodes(self, options: Options) -> tuple[str, ...]:
        """The houses that are nodes, in the order of their numbers: seen ones first, each kind by name."""
        return {"seen": self.seen, "unseen": self.unseen, "all": (*self.seen, *self.unseen)}[options.houses]

    def pooled(self, options: Options) -> tuple[str, ...]:
        """The nodes whose data are pooled: in pre-exploration only the unseen houses."""
        scans = self.nodes(options)
        return tuple(scan for scan in self.unseen if scan in scans) if options.stage == "pre-exploration" else scans

    def groups(self, scan: str) -> dict[str, str]:
        """The labels of a house for sampling and reports."""
        return {"house": scan, "seen": str(scan in self.paths["train"]).lower()}


def house_of(dataset: Dataset, options: Options, partition: int, num_nodes: int) -> str:
    """The house that is node ``partition`` of ``num_nodes``. Raises :class:`DataError` when they are not as many."""
    check_partition(partition, num_nodes)
    scans = require_houses(dataset, dataset.nodes(options), options)
    if len(scans) != num_nodes:
        raise DataError(
            f"{dataset.folder}: vln.houses = {options.houses!r} are {len(scans)} houses ({len(dataset.seen)} seen, "
            f"{len(dataset.unseen)} unseen), but num-nodes is {num_nodes}: set num-nodes = {len(scans)}"
        )
    return scans[partition]


def require_houses(dataset: Dataset, scans: tuple[str, ...], options: Options) -> tuple[str, ...]:
    """Return ``scans``. Raises :class:`DataError`, which names the expected files, if there is no house."""
    if not scans:
        names = (FILES[name] for name in FILES if options.dataset in (name, "auto"))
        files = " or ".join(", ".join(name.format(split=split) for split in SPLITS) for name in names)
        pooled = "; 'pre-exploration' pools unseen houses only" if options.stage == "pre-exploration" else ""
        raise DataError(
            f"{dataset.folder}: no house with paths for vln.houses = {options.houses!r} in vln.stage = "
            f"{options.stage!r} with vln.dataset = {options.dataset!r}; expected {files}{pooled}"
        )
    return scans


def own_house(dataset: Dataset, options: Options) -> str:
    """The house of a deployed node's folder.

    Raises :class:`DataError` for more than one house, a vocabulary of other nodes' words, or a house without
    instructions in a stage that needs them.
    """
    if len(dataset.graphs) != 1:
        raise DataError(f"{dataset.folder}: has the graphs of {len(dataset.graphs)} houses; expected the node's one")
    if not options.vocabulary_file:
        raise DataError(
            "vln.vocabulary-file = '': a node with a folder of its own cannot know the words of other houses; name the "
            "file that all nodes have"
        )
    scan = next(iter(dataset.graphs))
    if scan not in dataset.seen and options.stage != "pre-exploration":
        raise DataError(
            f"{dataset.folder}: house {scan} has no training instructions, which vln.stage = {options.stage!r} needs; "
            "add R2R_train.json, or let the node take part in 'pre-exploration' alone"
        )
    return scan


def read_dataset(folder: Path, options: Options) -> Dataset:
    """Read a folder, again where its files have changed.

    Raises
    ------
    DataError
        A file is missing or malformed, or paths lead through a house that has no graph.
    """
    files = [*graph_files(folder), *found_in(folder, *(f"**/{name.format(split='*')}*" for name in FILES.values()))]
    stamp = tuple((str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(files))
    dataset = _read(folder, options.dataset, split_names(options.languages), stamp)
    return (
        _with_described(dataset, options.described_share, options.sample_seed) if options.described_share else dataset
    )


@lru_cache(maxsize=4)
def _with_described(dataset: Dataset, share: float, seed: int) -> Dataset:
    """The same paths, but a share of each unseen house's are ``described`` and not tested."""
    described, tested = {}, dict(dataset.paths["val_unseen"])
    for scan in dataset.unseen:
        paths = tested[scan]
        order = generator(seed, "vln.described", scan).permutation(len(paths))
        count = round(share * len(paths))
        if not 0 < count < len(paths):
            raise DataError(
                f"vln.described-share = {share:g}: house {scan} has {len(paths)} test paths, too few to train on some "
                "and be tested on others; choose another share or leave out the house"
            )
        described[scan] = tuple(paths[row] for row in sorted(order[:count]))
        tested[scan] = tuple(paths[row] for row in sorted(order[count:]))
    return replace(dataset, paths={**dataset.paths, "val_unseen": tested}, described=described)


@lru_cache(maxsize=4)
def _read(folder: Path, name: str, languages: tuple[str, ...], stamp: tuple[tuple[str, int, int], ...]) -> Dataset:
    graphs = read_graphs(folder)
    dataset = find_dataset(folder, name)
    paths: dict[str, dict[str, tuple[InstructedPath, ...]]] = {}
    for split in SPLITS:
        of_split = read_split(folder, dataset, split, languages) if dataset else None
        by_house: dict[str, list[InstructedPath]] = {}
        for path in of_split or ():
            _check(path, graphs, f"{folder}, {split}")
            by_house.setdefault(path.scan, []).append(path)
        paths[split] = {scan: tuple(of_house) for scan, of_house in by_house.items()}
    return Dataset(folder, graphs, paths)


def _check(path: InstructedPath, graphs: Mapping[str, Graph], location: str) -> None:
    """Raise :class:`DataError` for a path that cannot be walked."""
    what = f"{location}: path {path.path_id} of house {path.scan}"
    graph = graphs.get(path.scan)
    if graph is None:
        raise DataError(f"{what}: the house has no graph; add {path.scan}_connectivity.json or remove its paths")
    for stop in path.path:
        if stop not in graph.numbers:
            raise DataError(
                f"{what}: viewpoint {stop} is not in the house's graph (unknown, or not included); give the graph that "
                "the path was made with"
            )
    for start, neighbour in pairwise(path.path):
        if not graph.navigable[graph.numbers[start], graph.numbers[neighbour]]:
            raise DataError(f"{what}: the graph has no edge from {start} to {neighbour}; give the graph of the path")


@lru_cache(maxsize=4)
def _frequent_words(dataset: Dataset, size: int) -> Vocabulary:
    texts = (text for path in dataset.of("train", dataset.seen) for text in path.instructions)
    return Vocabulary.of(texts, size)


def sample_paths(graph: Graph, count: int, rng: np.random.Generator) -> list[InstructedPath]:
    """``count`` different shortest paths through a house, with random headings and no text; all for ``count`` 0, or if
    there are fewer."""
    paths = shortest_paths(graph)
    starts, goals = np.nonzero(np.isfinite(paths.distance) & (paths.distance >= SHORTEST))
    order = rng.permutation(len(starts))
    sampled: list[InstructedPath] = []
    for start, goal in zip(starts[order], goals[order], strict=True):
        if count and len(sampled) == count:
            break
        stops = paths.path(int(start), int(goal))
        if EDGES[0] <= len(stops) - 1 <= EDGES[1]:
            names = tuple(graph.viewpoints[stop] for stop in stops)
            sampled.append(
                InstructedPath(graph.scan, f"sampled-{len(sampled)}", names, float(rng.uniform(0, 2 * pi)), ("",))
            )
    return sampled


def main(argv: Sequence[str] | None = None) -> None:
    """Write the words of all training instructions, those that a run on the folder uses without vln.vocabulary-file."""
    standard = Options()
    parser = argparse.ArgumentParser(
        prog="python -m fedapps.tasks.vln.dataset",
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
