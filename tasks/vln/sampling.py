"""Paths that nobody described, drawn as those of Room-to-Room were, and their labels by a speaker.

The paths of R2R are shortest paths of 4 to 6 edges and at least 5 m (Anderson et al., CVPR 2018, Section 4). Sampled
paths with a speaker's instructions are the augmented data of FedVLN (Zhou and Wang, ECCV 2022, Section 4.1).
"""

from collections.abc import Sequence
from math import pi

import numpy as np
import torch

from tasks.base import Batch, DataError

from .connectivity import Graph
from .episodes import encode
from .houses import Houses
from .instructions import InstructedPath
from .shortest_paths import shortest_paths
from .speaker import Speaker
from .vocabulary import Vocabulary

EDGES = (4, 6)
SHORTEST = 5.0  # metres
_CHUNK = 64


def sample_paths(graph: Graph, count: int, rng: np.random.Generator) -> list[InstructedPath]:
    """``count`` different shortest paths through a house, or all that there are, with random headings and no text.

    Raises :class:`DataError` for a house that has none.
    """
    paths = shortest_paths(graph)
    starts, goals = np.nonzero(np.isfinite(paths.distance) & (paths.distance >= SHORTEST))
    order = rng.permutation(len(starts))
    found: list[InstructedPath] = []
    for start, goal in zip(starts[order], goals[order], strict=True):
        if len(found) == count:
            break
        stops = paths.path(int(start), int(goal))
        if EDGES[0] <= len(stops) - 1 <= EDGES[1]:
            names = tuple(graph.viewpoints[stop] for stop in stops)
            found.append(
                InstructedPath(graph.scan, f"sampled-{len(found)}", names, float(rng.uniform(0, 2 * pi)), ("",))
            )
    if not found:
        raise DataError(
            f"house {graph.scan}: no shortest path of {EDGES[0]} to {EDGES[1]} edges and {SHORTEST:g} m to sample; it "
            "is too small for augmented training and pre-exploration"
        )
    return found


def label_paths(
    speaker: Speaker, houses: Houses, words: Vocabulary, paths: Sequence[InstructedPath], max_length: int
) -> list[InstructedPath]:
    """The paths with the speaker's descriptions as their instructions."""
    speaker.eval()
    episodes: Batch = encode(paths, houses.rows, words, max_length)
    labelled: list[InstructedPath] = []
    for rows in torch.split(torch.arange(len(paths)), _CHUNK):
        batch = {name: tensor[rows] for name, tensor in episodes.items()}
        said = speaker.describe(houses, batch, max_length - 2, len(words))
        for path, numbers in zip((paths[row] for row in rows.tolist()), said, strict=True):
            text = " ".join(words.decode(numbers))
            labelled.append(InstructedPath(path.scan, path.path_id, path.path, path.heading, (text,)))
    return labelled
