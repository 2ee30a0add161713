"""Colours, markers and dash patterns of methods, the same in every figure.

The colours are those of Okabe & Ito, "Color Universal Design" (2008), https://jfly.uni-koeln.de/color/, with brown
instead of yellow and black, which are hard to distinguish from the background and the text. They are ordered so that
adjacent colours differ strongly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#7F4F24")
_DASHES = ("-", "--", ":", "-.")
#: Length of a dash within five pixels, for methods that are not drawn as solid lines.
_STRIPES = {"--": "3px", ":": "1px", "-.": "2px"}
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
NEUTRAL = "#6b7280"
INK = "#1f2937"


@dataclass(frozen=True)
class PlotStyle:
    """How to draw a method: its colour, marker and dash pattern. Dash patterns vary once all colours are used."""

    colour: str
    marker: str
    dash: str

    @property
    def background(self) -> str:
        """The background of its swatch in CSS: the colour, with stripes if the method is not drawn as a solid line."""
        if self.dash not in _STRIPES:
            return self.colour
        return f"repeating-linear-gradient(90deg,{self.colour} 0 {_STRIPES[self.dash]},#fff 0 5px)"


def plot_styles(methods: Sequence[str]) -> dict[str, PlotStyle]:
    """The style of each method, determined by its position."""
    return {
        method: PlotStyle(
            _COLOURS[index % len(_COLOURS)],
            _MARKERS[index % len(_MARKERS)],
            _DASHES[index // len(_COLOURS) % len(_DASHES)],
        )
        for index, method in enumerate(methods)
    }
