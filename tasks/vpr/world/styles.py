"""Styles of the cities of a continent, and of a city: materials, heights, roofs, streets, trees."""

from dataclasses import dataclass, replace

import numpy as np

from .noise import Floats

FLAT, EAVES, GABLE = 0, 1, 2
BROAD, CONIFER, PALM = "broad", "conifer", "palm"


@dataclass(frozen=True)
class Style:
    """The style of a city. Lengths are in metres, colours RGB in [0, 1], ranges (low, high), shares in [0, 1].

    ``walls``, ``roofs`` and ``signs`` are palettes ``[K, 3]``; ``roof_kinds`` are the shares of flat roofs, eaves and
    gables. ``gap`` is the share of buildings that stand apart from the next one. ``window`` is the spacing of windows
    and ``glass`` the share of it that is glass. ``road`` is half the width of a road. ``block`` is the distance between
    crossings and ``jitter`` its relative variation. ``trees`` is the share of places for a tree that have one.
    """

    walls: Floats
    roofs: Floats
    signs: Floats
    storeys: tuple[float, float]
    storey: float
    width: tuple[float, float]
    setback: tuple[float, float]
    gap: float
    window: tuple[float, float]
    glass: tuple[float, float]
    roof_kinds: tuple[float, float, float]
    shops: float
    road: float
    pavement: float
    block: float
    jitter: float
    tree: str
    trees: float
    line: tuple[float, float, float]
    yard: tuple[float, float, float]
    left_hand: bool
    southern: bool


def _palette(*codes: str) -> Floats:
    return np.array([[int(code[i : i + 2], 16) / 255 for i in (0, 2, 4)] for code in codes], np.float32)


CONTINENTS = {
    "europe": Style(
        walls=_palette("c9a06b", "b5533c", "d9c7a3", "8f4a3a", "c7b8a0", "e0d2b8", "a8794f", "9c9a8c", "d8a58a"),
        roofs=_palette("8a4030", "5c4a44", "44464c", "a0533a"),
        signs=_palette("2d5f3a", "7a1f2b", "1f3a6a", "b8892f", "3a3a3a"),
        storeys=(2.6, 6.0), storey=3.1, width=(6.0, 13.0), setback=(0.0, 0.5), gap=0.06,
        window=(1.7, 2.6), glass=(0.42, 0.6), roof_kinds=(0.2, 0.45, 0.35), shops=0.4,
        road=3.6, pavement=2.4, block=72.0, jitter=0.2, tree=BROAD, trees=0.35,
        line=(0.85, 0.85, 0.82), yard=(0.42, 0.44, 0.30), left_hand=False, southern=False,
    ),
    "america": Style(
        walls=_palette("9aa7ae", "c4c0b6", "8c5a48", "b9a58c", "6f7f8a", "d8d4ca", "7c8a7a", "a86b52", "5f6870"),
        roofs=_palette("55575a", "6b5a50", "3f4448", "7a7468"),
        signs=_palette("c8322c", "e0b020", "2463ae", "2f8f57", "e8e4dc"),
        storeys=(1.0, 5.5), storey=3.5, width=(10.0, 24.0), setback=(0.0, 4.0), gap=0.5,
        window=(2.4, 4.0), glass=(0.5, 0.8), roof_kinds=(0.65, 0.2, 0.15), shops=0.35,
        road=5.6, pavement=2.6, block=94.0, jitter=0.04, tree=BROAD, trees=0.28,
        line=(0.86, 0.70, 0.22), yard=(0.36, 0.46, 0.25), left_hand=False, southern=False,
    ),
    "asia": Style(
        walls=_palette("d8d3c8", "b8b0a2", "9fb3b0", "c9b79a", "a49a90", "d2a98a", "8b9aa5", "e2dccb", "7f8c84"),
        roofs=_palette("58606a", "7b8890", "6a4b3a", "35607a"),
        signs=_palette("d62839", "f2b705", "0b7fab", "1e9e5a", "e86a17", "7b2d8b", "f4f1e8"),
        storeys=(1.8, 7.5), storey=2.9, width=(4.5, 11.0), setback=(0.0, 1.2), gap=0.22,
        window=(1.8, 3.2), glass=(0.5, 0.75), roof_kinds=(0.7, 0.2, 0.1), shops=0.65,
        road=3.2, pavement=1.5, block=64.0, jitter=0.18, tree=PALM, trees=0.25,
        line=(0.86, 0.86, 0.84), yard=(0.50, 0.46, 0.38), left_hand=True, southern=False,
    ),
    "oceania": Style(
        walls=_palette("e3ddcf", "c98f6a", "b9c4c2", "efe6d2", "a7b59b", "d3b9a0", "8fa3b0", "bf7a5a", "f0efe8"),
        roofs=_palette("9a4a35", "6d7478", "7f8f8a", "b0603f", "4f565c"),
        signs=_palette("1d6fa5", "e07a3f", "3b8e5a", "d9c24a"),
        storeys=(1.0, 2.8), storey=3.0, width=(9.0, 17.0), setback=(2.0, 6.5), gap=0.8,
        window=(2.4, 4.2), glass=(0.4, 0.6), roof_kinds=(0.1, 0.55, 0.35), shops=0.15,
        road=4.6, pavement=2.8, block=86.0, jitter=0.1, tree=CONIFER, trees=0.45,
        line=(0.86, 0.86, 0.84), yard=(0.40, 0.50, 0.26), left_hand=True, southern=True,
    ),
}  # fmt: skip
"""The styles of the four continents by which FedVPR's hierarchy groups its clients (Appendix B)."""

NAMES = {
    "europe": ("aldmark", "brisegard", "corvenna", "dunholt", "estrelle", "falkenmoor", "gravenna", "hollisund"),
    "america": ("altapina", "bluefork", "cedarvane", "dos-lagos", "elkmouth", "fairhollow", "granmesa", "highbend"),
    "asia": ("ambalor", "banyura", "chenlou", "damarang", "erhaishi", "furukoda", "gandapur", "haliang"),
    "oceania": ("arrawonga", "billaroo", "coolendra", "dunamarra", "echuma", "fernlea", "goorawin", "hakanui"),
}
"""Invented names of cities by continent."""


def city_style(continent: str, rng: np.random.Generator) -> Style:
    """Draw a city's style: a few of its continent's materials, tinted, with other heights, widths and trees."""
    style = CONTINENTS[continent]

    def choose(palette: Floats, count: int) -> Floats:
        chosen = palette[rng.choice(len(palette), min(count, len(palette)), replace=False)]
        tinted: Floats = np.clip(chosen * rng.uniform(0.88, 1.1, size=3), 0, 1).astype(np.float32)
        return tinted

    low, high = style.storeys
    height, width, glass = rng.uniform(0.8, 1.25), rng.uniform(0.85, 1.2), rng.uniform(0.9, 1.1)
    return replace(
        style,
        walls=choose(style.walls, 5),
        roofs=choose(style.roofs, 3),
        signs=choose(style.signs, 4),
        storeys=(max(1.0, low * height), high * height),
        width=(style.width[0] * width, style.width[1] * width),
        glass=(style.glass[0] * glass, style.glass[1] * glass),
        road=style.road * rng.uniform(0.9, 1.15),
        block=style.block * rng.uniform(0.9, 1.1),
        trees=style.trees * rng.uniform(0.5, 1.5),
    )
