"""What a report can draw: a house from above, walks through it beside what was described, and sentences."""

from collections.abc import Mapping, Sequence

import numpy as np
from fedapps.tasks.base import Batch
from torch import Tensor

from .episodes import one_per_path
from .houses import Houses
from .instructions import InstructedPath

DRAWN = 6  # paths of a split


def house_traces(houses: Houses) -> dict[str, np.ndarray]:
    """``viewpoints [V, 3]`` in metres and ``edges [E, 2]``, the rows that they join."""
    here, column = np.nonzero(houses.neighbour.cpu().numpy() >= 0)
    there = houses.neighbour.cpu().numpy()[here, column]
    edges = np.stack([here, there], axis=1)[here < there]
    return {"viewpoints": houses.positions.cpu().numpy(), "edges": edges}


def walk_traces(
    split: str, trails: Tensor, scores: Mapping[str, Tensor], episodes: Batch, paths: Sequence[InstructedPath]
) -> dict[str, np.ndarray]:
    """The walks of the agent for one instruction of each of the first paths of a split.

    ``<split>.<number>.walked`` and ``.reference`` are rows of viewpoints, ``.error`` is the distance of the end from
    the goal in metres, ``.success`` 1 or 0, and ``.instruction`` the text.
    """
    found: dict[str, np.ndarray] = {}
    for number, row in enumerate(one_per_path(episodes)[:DRAWN].tolist()):
        walked, reference = trails[row].numpy(), episodes["path"][row].numpy()
        found |= {
            f"{split}.{number}.walked": walked[walked >= 0],
            f"{split}.{number}.reference": reference[reference >= 0],
            f"{split}.{number}.error": scores["ne"][row].numpy(),
            f"{split}.{number}.success": scores["sr"][row].numpy(),
            f"{split}.{number}.instruction": _bytes(paths[number].instructions[0]),
        }
    return found


def sentence_traces(
    split: str, said: Sequence[Sequence[str]], paths: Sequence[InstructedPath]
) -> dict[str, np.ndarray]:
    """For the first paths of a split, what the speaker said, ``<split>.<number>.said``, and the ``.instruction`` that
    a person wrote."""
    found: dict[str, np.ndarray] = {}
    for number, (sentence, path) in enumerate(list(zip(said, paths, strict=True))[:DRAWN]):
        found |= {
            f"{split}.{number}.said": _bytes(" ".join(sentence)),
            f"{split}.{number}.instruction": _bytes(path.instructions[0]),
        }
    return found


def _bytes(text: str) -> np.ndarray:
    """A text as the array of its bytes in UTF-8: files of arrays hold no strings."""
    return np.frombuffer(text.encode(), dtype=np.uint8)
