"""The loaded data of nodes, kept by the process that simulates them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedapps.tasks.base import NodeData


class DataCache:
    """Keeps the data used last: of ``nodes`` nodes, and of more while all of it takes at most ``size`` bytes.

    Nodes take turns, so a cache that is too small for all of them would never hold the one whose turn it is.

    Parameters
    ----------
    nodes : int
        ≥ 1.
    size : int
        ≥ 0, in bytes. Tensors that several nodes share count for each of them.
    """

    def __init__(self, nodes: int = 256, size: int = 1 << 30) -> None:
        self.nodes, self.size = nodes, size
        self._kept: OrderedDict[Hashable, tuple[NodeData, int]] = OrderedDict()
        self._bytes = 0

    def get(self, key: Hashable, load: Callable[[], NodeData]) -> NodeData:
        """The data under a key, loaded if it is not kept."""
        if key not in self._kept:
            data = load()
            self._kept[key] = data, _size_of(data)
            self._bytes += self._kept[key][1]
        self._kept.move_to_end(key)
        data = self._kept[key][0]
        while len(self._kept) > self.nodes and self._bytes > self.size:
            self._bytes -= self._kept.popitem(last=False)[1][1]
        return data


def _size_of(data: NodeData) -> int:
    splits = [*data.splits.values(), *(split for stage in data.stages for split in stage.values())]
    tensors = [tensor for split in splits for tensor in split.values()]
    return sum(tensor.nbytes for tensor in tensors) + sum(getattr(v, "nbytes", 0) for v in data.extra.values())
