"""The compact graph of a scene: robot, humans, objects and interactions, all pointing at the robot.

Nodes, in this order: the robot, the humans, the objects, one node per interaction. A link is one interaction however
often it is listed: the data lists that of two people twice and that with an object once, which tells nothing about
the people. Edges run human -> robot, object -> robot, member -> interaction -> robot, and from every node to itself.

The network of Guerdan and Gunes, Decentralized Robot Learning for Personalization and Privacy, 2022, Appendix A.3,
has 7,681 parameters, hence 7 inputs per node; which 7 is not printed. After Manso et al., Graph Neural Networks for
Human-Aware Social Navigation, 2020, we take the node's type and its place.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tasks.base import Batch

from .scenes import Pose, Scene

KINDS = ("robot", "human", "object", "interaction")
FEATURES = len(KINDS) + 3


def compact_graphs(scenes: Sequence[Scene], geometry: str) -> dict[str, Tensor]:
    """The graphs of N scenes, padded to the n nodes of the largest.

    Gives ``nodes`` float32 ``[N, n, 7]``: one-hot of the type (:data:`KINDS`), then x, y (metres) and orientation
    (half turns, -1 to 1), or, with ``geometry`` "polar", distance (metres), angle (radians, ``atan2(x, y)``: 0 is
    straight ahead) and orientation. An interaction stands half-way between its members and has orientation 0.
    Gives ``adjacency`` float32 ``[N, n, n]``, row = target: the edge j -> i has weight ``1 / sqrt(d_i d_j)`` with
    the in-degrees d, self-loops counted: the normalisation of DGL's ``GraphConv`` when the networks of the papers
    were built with it, and of PyTorch Geometric's ``GCNConv``. Padding is 0 in both.
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
    """How many nodes every graph has, ``[N]``."""
    return (graphs["nodes"] != 0).any(dim=2).sum(dim=1)


def trimmed(graphs: Batch) -> Batch:
    """The same graphs, padded only to the largest of them."""
    size = int(sizes(graphs).max())
    return {**graphs, "nodes": graphs["nodes"][:, :size], "adjacency": graphs["adjacency"][:, :size, :size]}


def located(poses: np.ndarray, geometry: str) -> np.ndarray:
    """``poses`` ``[..., (x, y, orientation)]`` in one of :data:`~tasks.social.options.GEOMETRIES`."""
    if geometry == "cartesian":
        return poses
    x, y, turn = np.moveaxis(poses, -1, 0)
    return np.stack((np.hypot(x, y), np.arctan2(x, y), turn), axis=-1)


def flattened(
    groups: Sequence[Sequence[Sequence[float]]] | Sequence[tuple[Pose, ...]], width: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All members of all groups in one table: their group, their place in it, and their values ``[M, width]``."""
    counts = np.array([len(group) for group in groups], dtype=int)
    owner = np.repeat(np.arange(len(groups)), counts)
    rank = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    return owner, rank, np.array([row for group in groups for row in group], dtype=float).reshape(-1, width)
