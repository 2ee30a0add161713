"""Nodes that take no part in the rounds, on which a trained model is measured as a new node finds it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from ..checks import MAX_NAME_LENGTH, require_integer, truncate
from ..rounds.snapshots import Stateful
from .profiles import Profile, in_key_order
from .samplers import draw, draw_generator, rounded_share


@dataclass
class HeldOut(Stateful):
    """Chooses by their keys the nodes that neither train nor evaluate in any round.

    A share is drawn once, from the nodes that are known before the first round and have data. It is stored in the
    snapshots, so that a node that has trained is never held out, and a node that joins later takes part.

    Parameters
    ----------
    share : float
        In [0, 1). The number of nodes is share · n, halves rounded up, at least 1 if the share is above 0; at least one
        node is always left to train.
    keys : sequence of str
        The stable keys of the nodes, in place of a share.
    seed : int
        ≥ 0, of the draw.

    Raises
    ------
    ValueError
        A parameter is out of range, or both a share and keys are given.
    """

    share: float = 0.0
    keys: Sequence[str] = ()
    seed: int = 0
    _chosen: frozenset[str] | None = field(default=None, init=False, repr=False)
    kept: ClassVar[tuple[str, ...]] = ("_chosen",)

    def __post_init__(self) -> None:
        if isinstance(self.keys, str):
            raise ValueError(f"keys = {self.keys!r}: must be a list of keys, such as [{self.keys!r}]")
        if not 0 <= self.share < 1 or (self.share and self.keys):
            raise ValueError(f"share = {self.share}, keys = {list(self.keys)}: give a share in [0, 1), or keys")
        require_integer("seed", self.seed, least=0)

    def among(self, profiles: Collection[Profile]) -> list[Profile]:
        """The nodes that are held out, in the order of their keys; the first call chooses them.

        Raises
        ------
        ValueError
            At the first call: a key is not that of a node, or no node is left to train.
        """
        if not (self.share or self.keys):
            return []
        if self._chosen is None:
            self._chosen = self._choose([node for node in profiles if not node.no_data and node.num_examples != 0])
        return [node for node in in_key_order(profiles) if node.key in self._chosen]

    def holds(self, key: str) -> bool:
        """Whether the node of a key is held out; false before the first call of :meth:`among`."""
        return bool(self.share or self.keys) and self._chosen is not None and key in self._chosen

    def _choose(self, nodes: Sequence[Profile]) -> frozenset[str]:
        if not self.keys:
            count = min(rounded_share(self.share, len(nodes)), max(len(nodes) - 1, 0))
            return frozenset(node.key for node in draw(nodes, count, draw_generator(self.seed, "train", 0, "held-out")))
        known = sorted(node.key for node in nodes)
        if missing := sorted(set(self.keys) - set(known)):
            listed = truncate(", ".join(known), MAX_NAME_LENGTH)
            raise ValueError(f"held-out nodes {', '.join(missing)}: no such node with data; the nodes are {listed}")
        if not set(known) - set(self.keys):
            raise ValueError("held-out nodes: all nodes are held out; leave some of them to train")
        return frozenset(self.keys)
