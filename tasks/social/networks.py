"""The options of the social task, and the networks that they choose: each predicts a score at the robot's node.

A scene is represented as one of two kinds of graphs, each with its network, which reads padded batches of graphs.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from fedapps.tasks.base import Batch
from torch import Tensor, nn
from torch.nn.functional import elu, linear

from fedapps.base.errors import DataError
from fedapps.base.options import option

from .graphs import (
    COMPACT_FEATURES,
    RELATIONAL_FEATURES,
    RELATIONAL_KINDS,
    RELATIONS,
    SOURCES,
    compact_graphs,
    compact_sizes,
    compact_trimmed,
    means,
    relational_graphs,
    relational_sizes,
    relational_trimmed,
)
from .scenes import RatedScene

#: The coordinates of the nodes of the compact graph.
GEOMETRIES = ("cartesian", "polar")
#: The default number of hidden layers for each representation.
LAYERS = {"compact": 8, "relational": 3}


@dataclass(frozen=True)
class Options:
    """Options of the task "social". The defaults are those of Guerdan and Gunes, 2022, Appendix A."""

    participants: str = option(
        "a,b,c,d;e,f,g,h;i,j,l,k",
        "The participants whose ratings each node learns: ';' separates nodes, ',' separates the participants "
        "that a node meets in sequence; the ratings of each are in <participant>.json",
        data=True,
    )
    source: str = option(
        "recorded",
        "recorded: ratings by people, read from data-dir; simulated: ratings by simulated people, generated if "
        "data-dir is not set",
        choices=("recorded", "simulated"),
        data=True,
    )
    together: bool = option(
        False, "Train on all participants of a node at once, in one stage, instead of one after another", data=True
    )
    graph: str = option(
        "compact",
        "compact: robot, humans, objects and interactions, for the paper's network; relational: also the room and "
        "its walls, with 11 types of edges, for an R-GCN",
        choices=tuple(LAYERS),
    )
    geometry: str = option(
        "cartesian",
        "Coordinates of a node in the compact graph, besides its orientation: cartesian (x and y) or polar "
        "(distance and angle)",
        choices=GEOMETRIES,
    )
    augment: bool = option(True, "Add the mirror image of every training scene, which doubles the training split")
    train_fraction: float = option(
        1.0,
        "Share of each participant's training scenes to use; smaller shares are subsets of larger ones",
        above=0,
        maximum=1,
        data=True,
    )
    split_seed: int = option(0, "Seed of the split into training, validation and test scenes", minimum=0)
    hidden: int = option(32, "Units of each hidden layer", minimum=1)
    layers: int = option(
        0, "Hidden layers of the network; 0 = the default, 8 for compact graphs and 3 for relational graphs", minimum=0
    )
    world_scenes: int = option(150, "Scenes per simulated participant", minimum=20, data=True)

    def depth(self) -> int:
        """Return the number of hidden layers, with the default of the graph filled in."""
        return self.layers or LAYERS[self.graph]

    def nodes(self) -> tuple[tuple[str, ...], ...]:
        """Return the participants of every node, in the order in which the node meets them.

        Raises
        ------
        DataError
            A name is not a valid file name or occurs twice, or nodes have different numbers of participants although
            ``together`` is false.
        """
        groups = tuple(tuple(name.strip() for name in group.split(",")) for group in self.participants.split(";"))
        names = [name for group in groups for name in group]
        if wrong := [name for name in names if not re.fullmatch(r"[\w-]+", name)]:
            raise DataError(
                f"social.participants = {self.participants!r}: {wrong[0]!r} is not a valid name; use letters, digits, "
                "'_' and '-', separate the participants of a node by ',' and nodes by ';'"
            )
        if twice := [name for name, times in Counter(names).items() if times > 1]:
            raise DataError(
                f"social.participants = {self.participants!r}: {', '.join(twice)} occurs twice; name each once"
            )
        if not self.together and len({len(group) for group in groups}) > 1:
            lengths = "; ".join(f"{','.join(group)} has {len(group)}" for group in groups)
            raise DataError(
                f"social.participants = {self.participants!r}: all nodes must have the same number of participants, "
                f"but {lengths}; change the lists, or set social.together = true to train on "
                "all participants of a node at once"
            )
        return groups


class GraphConvolutions(nn.Module):
    """Graph convolutions on compact graphs (:func:`~fedapps.tasks.social.graphs.compact_graphs`).

    The defaults give the network of Guerdan and Gunes, Appendix A.3: 9 convolutions 7 -> 32 -> ... -> 32 -> 1 with ELU
    between them and tanh at the end, 7,681 parameters. Weights are initialised Glorot-uniform and biases with 0, as in
    DGL. A layer is ``elu(A X Wᵀ + b)`` for the normalised adjacency A, features X and ``weight`` W ``[outputs,
    inputs]``.
    """

    def __init__(self, hidden: int = 32, layers: int = 8) -> None:
        super().__init__()
        widths = [COMPACT_FEATURES, *[hidden] * layers, 1]
        convolutions = [nn.Linear(inputs, outputs) for inputs, outputs in pairwise(widths)]
        for layer in convolutions:
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.layers = nn.ModuleList(convolutions)

    def forward(self, nodes: Tensor, adjacency: Tensor) -> Tensor:
        """Map ``nodes [b, n, 7]`` and normalised ``adjacency [b, n, n]`` to scores in (-1, 1), ``[b]``."""
        hidden = nodes
        for layer in list(self.layers)[:-1]:
            hidden = elu(layer(torch.bmm(adjacency, hidden)))
        # The last layer is computed for the robot only.
        return torch.tanh(self.layers[-1](torch.bmm(adjacency[:, :1], hidden))).reshape(-1)


class RelationalConvolution(nn.Module):
    """A layer of an R-GCN with full weight matrices, a bias, and no nonlinearity.

    Schlichtkrull et al., Modeling Relational Data with Graph Convolutional Networks, 2018, Equation 2,
    https://arxiv.org/abs/1703.06103. Node i becomes ``W₀ x_i + b + Σ_r W_r mean_j x_j``, with the mean over its
    neighbours j under relation r. ``root`` holds W₀ and b; ``weight [outputs, 11, inputs]`` holds the W_r in the order
    of :data:`~fedapps.tasks.social.graphs.RELATIONS`. Weights are initialised Glorot-uniform with half the usual
    range, because up to four terms add up in a node; biases start at 0.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.root = nn.Linear(inputs, outputs)
        self.weight = nn.Parameter(torch.empty(outputs, len(RELATIONS), inputs))
        for relation in (self.root.weight, *self.weight.unbind(1)):
            nn.init.xavier_uniform_(relation, gain=0.5)
        nn.init.zeros_(self.root.bias)

    def forward(self, nodes: Tensor, mean: Tensor, targets: Mapping[str, int]) -> Tensor:
        """Compute the new features of the first nodes, ``targets`` of each type, in the order of the types.

        Parameters
        ----------
        nodes : Tensor [b, n, inputs]
            Features, types in the order of :data:`~fedapps.tasks.social.graphs.RELATIONAL_KINDS`.
        mean : Tensor
            The matrix of :func:`~fedapps.tasks.social.graphs.means`.
        targets : mapping of str to int
            The number of nodes of each type to compute.
        """
        rows = [count * len(SOURCES[kind]) for kind, count in targets.items()]
        neighbours = torch.split(torch.bmm(mean[:, : sum(rows)], nodes), rows, dim=1)
        first, reached = 0, []
        for (kind, count), of_kind in zip(targets.items(), neighbours, strict=True):
            weight = self.weight[:, first : first + len(SOURCES[kind])].flatten(1)
            reached.append(linear(of_kind.reshape(nodes.shape[0], count, weight.shape[1]), weight))
            first += len(SOURCES[kind])
        own: Tensor = self.root(nodes[:, : sum(targets.values())])
        return own + torch.cat(reached, dim=1)


class RelationalConvolutions(nn.Module):
    """An R-GCN on relational graphs (:func:`~fedapps.tasks.social.graphs.relational_graphs`).

    The defaults give layers 20 -> 32 -> 32 -> 32 -> 1 with ELU between them and tanh at the end, 32,737 parameters.
    Three hidden layers carry information from every wall to the robot and back.
    """

    def __init__(self, hidden: int = 32, layers: int = 3) -> None:
        super().__init__()
        widths = [RELATIONAL_FEATURES, *[hidden] * layers, 1]
        self.layers = nn.ModuleList(RelationalConvolution(inputs, outputs) for inputs, outputs in pairwise(widths))

    def forward(
        self,
        robot: Tensor,
        human: Tensor,
        object: Tensor,
        room: Tensor,
        wall: Tensor,
        with_human: Tensor,
        with_object: Tensor,
    ) -> Tensor:
        """Map the tensors of b relational graphs to scores in (-1, 1), ``[b]``."""
        nodes = dict(zip(RELATIONAL_KINDS, (robot, human, object, room, wall), strict=True))
        mean = means(nodes | {"with_human": with_human, "with_object": with_object})
        counts = {kind: of_kind.shape[1] for kind, of_kind in nodes.items()}
        hidden = torch.cat(list(nodes.values()), dim=1)
        for layer in list(self.layers)[:-1]:
            hidden = elu(layer(hidden, mean, counts))
        # The last layer is computed for the robot only.
        return torch.tanh(self.layers[-1](hidden, mean, {"robot": 1})).reshape(-1)


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
        return Graphs(relational_graphs, relational_sizes, relational_trimmed, network)
    build = partial(compact_graphs, geometry=options.geometry)
    return Graphs(build, compact_sizes, compact_trimmed, partial(GraphConvolutions, options.hidden, options.depth()))
