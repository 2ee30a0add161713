"""The floors and ceilings of the houses that are nodes: what walkers score, and sentences that no speaker made."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from fedapps.sim.seeding import generator
from torch import Tensor

from .baselines import WALKERS, walk
from .bleu import bleu, bleu_statistics
from .dataset import Dataset
from .episodes import encode
from .geometry import VIEWS
from .houses import assemble
from .instructions import InstructedPath
from .nodes import TESTED, read_houses
from .options import Options
from .sentences import constant_sentence, human_sentences, looks_of, references_of, retrieved_sentences
from .vocabulary import Vocabulary

#: Metrics such as "val_unseen.sr" by the name of a reference.
References = Mapping[str, Mapping[str, float]]


def walker_references(dataset: Dataset, options: Options) -> References:
    """The metrics of :data:`~fedapps.tasks.vln.baselines.WALKERS`: means over all instructions of the nodes' houses.

    Draws are keyed by (``sample_seed``, walker, split).
    """
    found: dict[str, dict[str, float]] = {name: {} for name in WALKERS}
    for split in TESTED:
        paths = dataset.of(split, dataset.nodes(options))
        if not paths:
            continue
        graphs = [dataset.graphs[scan] for scan in dict.fromkeys(path.scan for path in paths)]
        viewpoints = sum(len(graph.viewpoints) for graph in graphs)
        houses = assemble(graphs, np.zeros((viewpoints, VIEWS, 0), dtype=np.float32))  # walkers look at no feature
        episodes = encode(paths, houses.rows, Vocabulary(()), options.max_length)
        for name, walker in WALKERS.items():
            scores = walk(houses, episodes, walker, generator(options.sample_seed, "vln.walker", name, split))
            found[name] |= {f"{split}.{metric}": float(values.mean()) for metric, values in scores.items()}
    return _reported(found)


def sentence_references(dataset: Dataset, options: Options) -> References:
    """BLEU-4 in [0, 100] of sentences that no speaker made, for all paths of the nodes' houses.

    "constant sentence" is one training instruction for all paths, "retrieved sentence" an instruction of the most
    similar training path, and "one person" what one person wrote, compared with what the others wrote.
    """
    train = dataset.of("train", dataset.seen)
    found: dict[str, dict[str, float]] = {"constant sentence": {}, "retrieved sentence": {}, "one person": {}}
    constant = constant_sentence(train, options.sample_seed) if train else []
    known = _looks(dataset, "train", dataset.seen, options) if train else None
    for split in TESTED:
        scans = dataset.nodes(options)
        paths = dataset.of(split, scans)
        said = {"one person": human_sentences(paths)}
        if known is not None and paths:
            asked = _looks(dataset, split, scans, options)
            said["constant sentence"] = [constant] * len(paths), paths
            said["retrieved sentence"] = retrieved_sentences(known, train, asked), paths
        for name, (sentences, described) in said.items():
            if described:
                found[name][f"{split}.bleu"] = bleu(bleu_statistics(sentences, references_of(described)))
    return _reported(found)


def _looks(dataset: Dataset, split: str, scans: Sequence[str], options: Options) -> Tensor:
    """The looks of the paths of a split, one house after another, so that only one house's features are in memory."""
    found = []
    for scan in scans:
        paths: Sequence[InstructedPath] = dataset.of(split, [scan])
        if paths:
            houses = read_houses(dataset, [scan], options)
            found.append(looks_of(houses, encode(paths, houses.rows, Vocabulary(()), options.max_length)))
    return torch.cat(found)


def _reported(found: References) -> References:
    """Without the references that have no metric."""
    return {name: metrics for name, metrics in found.items() if metrics}
