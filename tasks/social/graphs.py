"""The two ways to see a scene as a graph, each with its network."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from tasks.base import Batch

from . import compact, relational
from .compact import compact_graphs
from .networks import GraphConvolutions, RelationalConvolutions
from .options import Options
from .relational import relational_graphs
from .scenes import RatedScene


@dataclass(frozen=True)
class Graphs:
    """``build`` makes padded tensors of scenes, by the names of the arguments of the ``network``.

    ``sizes`` ``[N]`` tells how large each graph is, ``trimmed`` takes away what is padding in all graphs of a batch;
    both leave other tensors of the batch alone.
    """

    build: Callable[[Sequence[RatedScene]], dict[str, Tensor]]
    sizes: Callable[[Batch], Tensor]
    trimmed: Callable[[Batch], Batch]
    network: Callable[[], nn.Module]


def graphs(options: Options) -> Graphs:
    """The graphs that ``options`` choose."""
    if options.graph == "relational":
        network = partial(RelationalConvolutions, options.hidden, options.depth())
        return Graphs(relational_graphs, relational.sizes, relational.trimmed, network)
    build = partial(compact_graphs, geometry=options.geometry)
    return Graphs(build, compact.sizes, compact.trimmed, partial(GraphConvolutions, options.hidden, options.depth()))
