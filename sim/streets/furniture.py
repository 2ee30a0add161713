"""Street furniture: trees, lamps, signs, and places where a car or a person may be."""

from dataclasses import dataclass, fields

import numpy as np

from .network import Network
from .noise import Bools, Floats, Ints
from .styles import Style

TREE, LAMP, SIGN, CAR, PERSON = range(5)


@dataclass(frozen=True)
class Furniture:
    """``N`` things at ``place [N, 2]``, of ``kind [N]``, ``height [N]`` metres and ``variant [N]``, a whole number.

    ``along [N, 2]`` is the direction of the street. A CAR or a PERSON is a place that is occupied at times.
    """

    place: Floats
    kind: Ints
    height: Floats
    variant: Ints
    along: Floats

    def take(self, which: Bools) -> "Furniture":
        """Return the things selected by ``which [N]``."""
        return Furniture(*(getattr(self, field.name)[which] for field in fields(self)))


def draw_furniture(network: Network, style: Style, rng: np.random.Generator) -> Furniture:
    """Draw things on both sides of all streets, away from crossings."""
    places: list[Floats] = []
    along: list[Floats] = []
    kinds: list[Ints] = []
    clear = 1.3 * (float(network.road.max()) + style.pavement)
    for edge, (a, b) in enumerate(network.edges.tolist()):
        start, length = network.nodes[a], float(network.lengths[edge])
        d = (network.nodes[b] - start) / length
        road, verge = float(network.road[edge]), style.pavement
        tree_share = np.clip(style.trees * rng.choice([0.0, 0.6, 1.0, 2.0]), 0, 0.95)
        for side in (-1.0, 1.0):
            out = side * np.array([-d[1], d[0]])
            for kind, spacing, share, offset in (
                (TREE, 8.0, tree_share, road + 0.35 * verge),
                (LAMP, 27.0, 0.9, road + 0.2 * verge),
                (SIGN, 21.0, 0.35, road + 0.3 * verge),
                (CAR, 5.8, 0.75, road - 1.1),
                (PERSON, 6.0, 1.0, road + 0.65 * verge),
            ):
                u = np.arange(clear + rng.uniform(0, spacing), length - clear, spacing)
                u = u[rng.random(len(u)) < share]
                places.append(start + u[:, None] * d + rng.normal(offset, 0.12, size=(len(u), 1)) * out)
                along.append(np.tile(d, (len(u), 1)))
                kinds.append(np.full(len(u), kind))
    every = np.concatenate(kinds)
    size = np.array([6.5, 7.0, 2.6, 1.5, 1.72])[every] * rng.uniform(0.85, 1.15, size=len(every))
    size = np.where(every == TREE, size * rng.uniform(0.6, 1.4, size=len(every)), size)
    variant = rng.integers(1 << 30, size=len(every))
    return Furniture(_single(places), every, size.astype(np.float32), variant, _single(along))


def _single(parts: list[Floats]) -> Floats:
    whole: Floats = np.concatenate(parts).astype(np.float32)
    return whole
