"""One colour for each method, the same in every figure.

The colours are those of Okabe & Ito, "Color Universal Design" (2008), https://jfly.uni-koeln.de/color/,
with brown for the yellow and black that are hard to tell from paper and ink. Their order keeps neighbours
apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#7F4F24")
_DASHES = ("-", "--", ":", "-.")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
NEUTRAL = "#6b7280"
INK = "#1f2937"


@dataclass(frozen=True)
class PlotStyle:
    """How a method is drawn: colour, marker, and a dash pattern once the colours have all been used."""

    colour: str
    marker: str
    dash: str


def plot_styles(methods: Sequence[str]) -> dict[str, PlotStyle]:
    """The look of each method, given by its place in the run."""
    return {
        method: PlotStyle(
            _COLOURS[place % len(_COLOURS)],
            _MARKERS[place % len(_MARKERS)],
            _DASHES[place // len(_COLOURS) % len(_DASHES)],
        )
        for place, method in enumerate(methods)
    }
