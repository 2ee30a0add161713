"""The two graphs of a scene: the compact one of the paper, and the relational one with the room and its walls.

Compact: the nodes are, in this order, the robot, the humans, the objects and one node per interaction. Every
interaction counts once, although the data list interactions between two people twice. Edges lead from humans and
objects to the robot, from the members of an interaction to its node, from interactions to the robot, and from every
node to itself. The network of Guerdan and Gunes, Decentralized Robot Learning for Personalization and Privacy, 2022,
Appendix A.3, has 7,681 parameters and therefore 7 inputs per node; the paper does not list them. Following Manso et
al., Graph Neural Networks for Human-Aware Social Navigation, 2020, https://arxiv.org/abs/1909.09003, we use the type of
the node and its pose.

Relational, after Manso et al.: edges of eleven types run in both directions between the robot and every human, every
object and the room, between the room and every wall, and between the members of an interaction. Nodes are grouped by
type, and the types of the two ends determine the type of an edge. The edges of one type therefore form one matrix from
the nodes of one type to those of another.
"""

from collections.abc import Sequence

import numpy as np
import torch
from fedapps.tasks.base import Batch
from torch import Tensor
from torch.nn.functional import pad

from .scenes import Pose, RatedScene

COMPACT_KINDS = ("robot", "human", "object", "interaction")
COMPACT_FEATURES = len(COMPACT_KINDS) + 3


def compact_graphs(scenes: Sequence[RatedScene], geometry: str) -> dict[str, Tensor]:
    """Build the graphs of N scenes, padded to the n nodes of the largest graph.

    Parameters
    ----------
    scenes : sequence of RatedScene
        The N scenes.
    geometry : str
        "cartesian": x and y (metres). "polar": distance (metres) and angle (radians, ``atan2(x, y)``; 0 is straight
        ahead).

    Returns
    -------
    dict of str to Tensor
        ``nodes`` float32 ``[N, n, 7]``: the one-hot type (:data:`COMPACT_KINDS`), two coordinates and the
        orientation in half turns, -1 to 1. An interaction is placed midway between its members and has orientation 0.
        ``adjacency`` float32 ``[N, n, n]``, row = target: the edge j -> i has weight ``1 / sqrt(d_i d_j)`` with the
        in-degrees d including self-loops, as in DGL's ``GraphConv`` at the time of the papers and in PyTorch
        Geometric's ``GCNConv``. Padding is 0 in both.
    """
    humans, objects = np.array([len(s.humans) for s in scenes]), np.array([len(s.objects) for s in scenes])
    bodies = 1 + humans + objects
    total = bodies + np.array([len(s.links) for s in scenes], dtype=int)
    count, size = len(scenes), int(total.max(initial=1))
    kinds = np.full((count, size), -1)
    kinds[:, 0] = 0
    poses = np.zeros((count, size, 3))
    for kind, groups, first in (
        (1, [scene.humans for scene in scenes], np.ones(count, dtype=int)),
        (2, [scene.objects for scene in scenes], 1 + humans),
    ):
        owner, rank, values = flattened(groups, 3)
        kinds[owner, first[owner] + rank] = kind
        poses[owner, first[owner] + rank] = values
    owner, rank, ends = flattened([scene.links for scene in scenes], 2)
    meeting, members = bodies[owner] + rank, ends.astype(int).T
    kinds[owner, meeting] = 3
    poses[owner, meeting, :2] = (poses[owner, members[0], :2] + poses[owner, members[1], :2]) / 2

    nodes = np.concatenate((kinds[..., None] == np.arange(len(COMPACT_KINDS)), located(poses, geometry)), axis=-1)
    edges = np.zeros((count, size, size), dtype=np.float32)
    edges[:, 0] = kinds >= 0
    edges[:, np.arange(size), np.arange(size)] = kinds >= 0
    edges[owner, meeting, members[0]] = edges[owner, meeting, members[1]] = 1
    root = np.sqrt(edges.sum(axis=2).clip(min=1))
    adjacency = edges / (root[:, :, None] * root[:, None, :])
    return {"nodes": torch.from_numpy(nodes.astype(np.float32)), "adjacency": torch.from_numpy(adjacency)}


def compact_sizes(graphs: Batch) -> Tensor:
    """Return the number of nodes of every graph, ``[N]``."""
    return (graphs["nodes"] != 0).any(dim=2).sum(dim=1)


def compact_trimmed(graphs: Batch) -> Batch:
    """Return the graphs, padded only to the largest of them."""
    size = int(compact_sizes(graphs).max())
    return {**graphs, "nodes": graphs["nodes"][:, :size], "adjacency": graphs["adjacency"][:, :size, :size]}


def located(poses: np.ndarray, geometry: str) -> np.ndarray:
    """Convert ``poses [..., (x, y, orientation)]`` to one of :data:`~fedapps.tasks.social.networks.GEOMETRIES`."""
    if geometry == "cartesian":
        return poses
    x, y, turn = np.moveaxis(poses, -1, 0)
    return np.stack((np.hypot(x, y), np.arctan2(x, y), turn), axis=-1)


def flattened(
    groups: Sequence[Sequence[Sequence[float]]] | Sequence[tuple[Pose, ...]], width: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Concatenate the members of all groups; return their group ``[M]``, their index in it ``[M]``, and values ``[M,
    width]``.
    """
    counts = np.array([len(group) for group in groups], dtype=int)
    owner = np.repeat(np.arange(len(groups)), counts)
    rank = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    return owner, rank, np.array([row for group in groups for row in group], dtype=float).reshape(-1, width)


RELATIONAL_KINDS = ("robot", "human", "object", "room", "wall")
#: The types of nodes from which edges lead to each type.
SOURCES = {
    "robot": ("human", "object", "room"),
    "human": ("robot", "human", "object"),
    "object": ("robot", "human"),
    "room": ("robot", "wall"),
    "wall": ("room",),
}
#: The types of edges as (source, target).
RELATIONS = tuple((source, target) for target, sources in SOURCES.items() for source in sources)
#: The columns of the features of each type, after the five columns of the one-hot type.
COLUMNS = {"human": slice(5, 9), "object": slice(9, 13), "room": slice(13, 17), "wall": slice(17, 20)}
RELATIONAL_FEATURES = 20
WALL_LENGTH = 4.0  # metres of a side of the room per additional wall node
#: Units in which features are about 1. In other units tanh saturates before the network learns.
UNIT = 3.0  # metres
PARTY = 4  # people


def relational_graphs(scenes: Sequence[RatedScene]) -> dict[str, Tensor]:
    """Build the graphs of N scenes, padded to the maximum numbers H of humans, O of objects and W of walls.

    Returns
    -------
    dict of str to Tensor
        Nodes, float32: ``robot`` and ``room`` ``[N, 1, 20]``, ``human [N, H, 20]``, ``object [N, O, 20]`` and ``wall
        [N, W, 20]``. Features are the one-hot type (:data:`RELATIONAL_KINDS`), then four numbers of a human and four of
        an object (distance d, d², angle, orientation), four of the room (distance to the nearest human or -1, its
        square, number of humans, its square) and three of a wall (d, d², angle); features of other types are 0.
        Interactions, float32, 1 or 0: ``with_human [N, H, H]``, symmetric, and ``with_object [N, H, O]``. Padding is 0.

    Notes
    -----
    Distances are in units of 3 m, numbers of humans in units of 4, angles in radians (``atan2(x, y)``; 0 is straight
    ahead), orientations in half turns, -1 to 1. A side of the room of L metres consists of ⌊L / 4⌋ + 1 walls of equal
    length, each represented by its middle.
    """
    people, things = [scene.humans for scene in scenes], [scene.objects for scene in scenes]
    count, humans = len(scenes), np.array([len(group) for group in people], dtype=int)
    nearest = np.array([min((np.hypot(x, y) / UNIT for x, y, _ in group), default=-1.0) for group in people])
    crowd = humans / PARTY
    once = (np.arange(count), np.zeros(count, dtype=int))
    described = {
        "robot": (*once, np.empty((count, 0))),
        "human": _bodies(people),
        "object": _bodies(things),
        "room": (*once, np.column_stack((nearest, nearest**2, crowd, crowd**2))),
        "wall": _walls(scenes),
    }
    graphs = {}
    for index, kind in enumerate(RELATIONAL_KINDS):
        owner, rank, values = described[kind]
        graphs[kind] = np.zeros((count, int(rank.max(initial=-1)) + 1, RELATIONAL_FEATURES), dtype=np.float32)
        graphs[kind][owner, rank, index] = 1
        if kind in COLUMNS:
            graphs[kind][owner, rank, COLUMNS[kind]] = values

    owner, _, ends = flattened([scene.links for scene in scenes], 2)
    one, other = ends.astype(int).T - 1
    most, talks = graphs["human"].shape[1], other < humans[owner]
    graphs["with_human"] = np.zeros((count, most, most), dtype=np.float32)
    graphs["with_object"] = np.zeros((count, most, graphs["object"].shape[1]), dtype=np.float32)
    first, second = one[talks], other[talks]
    graphs["with_human"][owner[talks], first, second] = graphs["with_human"][owner[talks], second, first] = 1
    graphs["with_object"][owner[~talks], one[~talks], (other - humans[owner])[~talks]] = 1
    return {name: torch.from_numpy(array) for name, array in graphs.items()}


def relational_sizes(graphs: Batch) -> Tensor:
    """Return the number of nodes of every graph, ``[N]``."""
    return torch.stack([_there(graphs, kind).sum(dim=1) for kind in RELATIONAL_KINDS]).sum(dim=0)


def relational_trimmed(graphs: Batch) -> Batch:
    """Return the graphs, padded only to the maximum numbers of humans, objects and walls among them."""
    humans, objects, walls = (int(_there(graphs, kind).sum(dim=1).max()) for kind in ("human", "object", "wall"))
    return {
        **graphs,
        "human": graphs["human"][:, :humans],
        "object": graphs["object"][:, :objects],
        "wall": graphs["wall"][:, :walls],
        "with_human": graphs["with_human"][:, :humans, :humans],
        "with_object": graphs["with_object"][:, :humans, :objects],
    }


def means(graphs: Batch) -> Tensor:
    """Return the matrix ``[b, K, n]`` that computes the means over edges from all n nodes in the order of
    :data:`RELATIONAL_KINDS`.
    Its rows are, for every target in the order of the nodes, one mean for each type in :data:`SOURCES`; the mean over
    no edges is 0.
    """
    present = {kind: _there(graphs, kind) for kind in RELATIONAL_KINDS}
    links = {
        ("human", "human"): graphs["with_human"],
        ("human", "object"): graphs["with_object"].transpose(1, 2),
        ("object", "human"): graphs["with_object"],
    }
    rows = []
    for target, sources in SOURCES.items():
        blocks = []
        for source in sources:
            edges = links.get((source, target), present[target][:, :, None] * present[source][:, None])
            shares = edges / edges.sum(dim=2, keepdim=True).clamp(min=1)
            before, after = (sum(present[kind].shape[1] for kind in part) for part in _around(source))
            blocks.append(pad(shares, (before, after)))
        rows.append(torch.stack(blocks, dim=2).flatten(1, 2))
    return torch.cat(rows, dim=1)


def _there(graphs: Batch, kind: str) -> Tensor:
    """1 for the nodes of a type, 0 for padding."""
    return graphs[kind][..., RELATIONAL_KINDS.index(kind)]


def _around(kind: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return RELATIONAL_KINDS[: RELATIONAL_KINDS.index(kind)], RELATIONAL_KINDS[RELATIONAL_KINDS.index(kind) + 1 :]


def _bodies(groups: Sequence[Sequence[tuple[float, float, float]]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    owner, rank, poses = flattened(groups, 3)
    return owner, rank, np.column_stack((_away(poses[:, :2]), poses[:, 2]))


def _walls(scenes: Sequence[RatedScene]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    owner, rank, corners = flattened([scene.room for scene in scenes], 2)
    corner = np.arange(len(owner))
    last = np.append(owner[1:] != owner[:-1], True)
    sides = corners[np.where(last, corner - rank, corner + 1)] - corners
    pieces = (np.hypot(*sides.T) // WALL_LENGTH).astype(int) + 1
    side = np.repeat(corner, pieces)
    piece = np.arange(len(side)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    middles = corners[side] + ((piece + 0.5) / pieces[side])[:, None] * sides[side]
    before = np.searchsorted(owner[side], owner[side])  # number of walls of earlier scenes
    return owner[side], np.arange(len(side)) - before, _away(middles)


def _away(places: np.ndarray) -> np.ndarray:
    """Distance, squared distance and angle ``[M, 3]`` of ``places [M, 2]`` in metres."""
    distance = np.hypot(*places.T) / UNIT
    return np.column_stack((distance, distance**2, np.arctan2(*places.T)))
