"""Instructions and paths as tensors: the examples of the task.

A batch has a row for each instruction:

==============  =======  ======  ===============================================================
``tokens``      int32    [n, L]  numbers of the words, 0 where the text has ended
``length``      int64    [n]     of the text, at least 2
``path``        int64    [n, P]  rows of the viewpoints in :class:`~fedapps.tasks.vln.houses.Houses`, -1 after the end
``path_length`` int64    [n]     viewpoints of the path, at least 2
``facing``      int64    [n]     the view column, 0 to 11, that the agent faces at the start
``record``      int64    [n]     number of the path: instructions of the same path have the same
``weight``      float32  [n]     how much the teacher's choices count
==============  =======  ======  ===============================================================
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from fedapps.tasks.base import Batch
from torch import Tensor
from torch.nn.functional import pad

from .geometry import nearest_heading
from .instructions import InstructedPath
from .vocabulary import PAD, Vocabulary

_COLUMNS = {"tokens": "length", "path": "path_length"}  # what is padded, and how far it is used
_POOL = 8  # batches among which instructions of like length are put together


def encode(
    paths: Sequence[InstructedPath], rows: Mapping[str, int], words: Vocabulary, max_length: int, weight: float = 1.0
) -> Batch:
    """Tensors of all instructions of some paths.

    Parameters
    ----------
    paths : sequence of InstructedPath
        At least one; all their viewpoints have rows.
    rows : mapping of names to int
        The row of each viewpoint ``<scan>_<viewpoint>``.
    words : Vocabulary
        Numbers of the words; others are ``<UNK>``.
    max_length : int
        Tokens of an instruction that are kept, with ``<BOS>`` and ``<EOS>``.
    weight : float
        How much the teacher's choices count.
    """
    texts = [words.encode(text, max_length) for path in paths for text in path.instructions]
    numbers = [number for number, path in enumerate(paths) for _ in path.instructions]
    stops = [[rows[f"{path.scan}_{stop}"] for stop in path.path] for path in paths]
    return {
        "tokens": _padded(texts, PAD).to(torch.int32),
        "length": torch.tensor([len(text) for text in texts]),
        "path": _padded([stops[number] for number in numbers], -1),
        "path_length": torch.tensor([len(stops[number]) for number in numbers]),
        "facing": torch.from_numpy(nearest_heading(np.array([paths[number].heading for number in numbers]))),
        "record": torch.tensor(numbers),
        "weight": torch.full((len(texts),), weight),
    }


def joined(first: Batch, second: Batch) -> Batch:
    """The examples of both; paths of the second have numbers after those of the first."""
    fill = {"tokens": PAD, "path": -1}
    both = {}
    for name, tensor in first.items():
        other = second[name] + (int(tensor.max()) + 1 if name == "record" else 0)
        if name in fill:
            width = max(tensor.shape[1], other.shape[1])
            tensor, other = (pad(each, (0, width - each.shape[1]), value=fill[name]) for each in (tensor, other))
        both[name] = torch.cat([tensor, other])
    return both


def _padded(lists: Sequence[Sequence[int]], value: int) -> Tensor:
    table = np.full((len(lists), max(map(len, lists), default=0)), value, dtype=np.int64)
    for row, numbers in enumerate(lists):
        table[row, : len(numbers)] = numbers
    return torch.from_numpy(table)


def chosen(episodes: Batch, rows: Tensor) -> Batch:
    """Some rows, with columns cut to what they use. The cut changes no result: padding is masked."""
    part = {name: tensor[rows] for name, tensor in episodes.items()}
    for name, used in _COLUMNS.items():
        part[name] = part[name][:, : int(part[used].max())]
    return part


def random_batches(episodes: Batch, batch_size: int) -> Iterator[Batch]:
    """One epoch in a random order (torch's global generator), in batches of instructions of like length.

    Batches are drawn, then sorted by length within pools of a few, and come in a random order again: that saves
    padding, and an instruction may still meet any other.
    """
    order = torch.randperm(len(episodes["length"]))
    pools = torch.split(order, _POOL * batch_size)
    sorted_pools = [pool[episodes["length"][pool].argsort(stable=True)] for pool in pools]
    batches = [batch for pool in sorted_pools for batch in torch.split(pool, batch_size)]
    for index in torch.randperm(len(batches)).tolist():
        yield chosen(episodes, batches[index])


def sorted_batches(episodes: Batch, batch_size: int) -> Iterator[tuple[Tensor, Batch]]:
    """Every row once, the shortest instructions first, with the numbers of the rows."""
    for rows in torch.split(episodes["length"].argsort(stable=True), batch_size):
        yield rows, chosen(episodes, rows)


def one_per_path(episodes: Batch) -> Tensor:
    """The first row of each path, in the order of the paths."""
    records = episodes["record"].numpy()
    return torch.from_numpy(np.unique(records, return_index=True)[1])
