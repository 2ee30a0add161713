"""The compact graph of a scene: the robot, humans, objects and interactions, with all edges leading to the robot.

The nodes are, in this order, the robot, the humans, the objects and one node per interaction. Every interaction counts
once, although the data list interactions between two people twice. Edges lead from humans and objects to the robot,
from the members of an interaction to its node, from interactions to the robot, and from every node to itself.

The network of Guerdan and Gunes, Decentralized Robot Learning for Personalization and Privacy, 2022, Appendix A.3, has
7,681 parameters and therefore 7 inputs per node; the paper does not list them. Following Manso et al., Graph Neural
Networks for Human-Aware Social Navigation, 2020, we use the type of the node and its pose.
"""

from collections.abc import Sequence

import numpy as np
import torch
from fedapps.tasks.base import Batch
from torch import Tensor

from .scenes import Pose, RatedScene

KINDS = ("robot", "human", "object", "interaction")
FEATURES = len(KINDS) + 3


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
        ``nodes`` float32 ``[N, n, 7]``: the one-hot type (:data:`KINDS`), two coordinates and the orientation in half
        turns, -1 to 1. An interaction is placed midway between its members and has orientation 0.
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

    nodes = np.concatenate((kinds[..., None] == np.arange(len(KINDS)), located(poses, geometry)), axis=-1)
    edges = np.zeros((count, size, size), dtype=np.float32)
    edges[:, 0] = kinds >= 0
    edges[:, np.arange(size), np.arange(size)] = kinds >= 0
    edges[owner, meeting, members[0]] = edges[owner, meeting, members[1]] = 1
    root = np.sqrt(edges.sum(axis=2).clip(min=1))
    adjacency = edges / (root[:, :, None] * root[:, None, :])
    return {"nodes": torch.from_numpy(nodes.astype(np.float32)), "adjacency": torch.from_numpy(adjacency)}


def sizes(graphs: Batch) -> Tensor:
    """Return the number of nodes of every graph, ``[N]``."""
    return (graphs["nodes"] != 0).any(dim=2).sum(dim=1)


def trimmed(graphs: Batch) -> Batch:
    """Return the graphs, padded only to the largest of them."""
    size = int(sizes(graphs).max())
    return {**graphs, "nodes": graphs["nodes"][:, :size], "adjacency": graphs["adjacency"][:, :size, :size]}


def located(poses: np.ndarray, geometry: str) -> np.ndarray:
    """Convert ``poses [..., (x, y, orientation)]`` to one of :data:`~fedapps.tasks.social.options.GEOMETRIES`."""
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
