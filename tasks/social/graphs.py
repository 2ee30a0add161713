"""The two representations of a scene as a graph, each with its network."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from fedapps.tasks.base import Batch
from torch import Tensor, nn

from . import compact, relational
from .compact import compact_graphs
from .networks import GraphConvolutions, RelationalConvolutions
from .options import Options
from .relational import relational_graphs
from .scenes import RatedScene


@dataclass(frozen=True)
class Graphs:
    """A representation of scenes as graphs.

    Attributes
    ----------
    build : callable
        Builds padded tensors from scenes, named like the arguments of the network.
    sizes : callable
        Returns the number of nodes of each graph, ``[N]``.
    trimmed : callable
        Removes the padding that all graphs of a batch share. Other tensors of the batch stay unchanged.
    network : callable
        Returns a newly initialised network.
    """

    build: Callable[[Sequence[RatedScene]], dict[str, Tensor]]
    sizes: Callable[[Batch], Tensor]
    trimmed: Callable[[Batch], Batch]
    network: Callable[[], nn.Module]


def graphs(options: Options) -> Graphs:
    """Return the representation that ``options`` select."""
    if options.graph == "relational":
        network = partial(RelationalConvolutions, options.hidden, options.depth())
        return Graphs(relational_graphs, relational.sizes, relational.trimmed, network)
    build = partial(compact_graphs, geometry=options.geometry)
    return Graphs(build, compact.sizes, compact.trimmed, partial(GraphConvolutions, options.hidden, options.depth()))
