"""Matplotlib figures as markup: inline SVG, or PNG if the SVG would be large."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from markupsafe import Markup
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.text import Text

from .palette import INK, NEUTRAL
from .rendering import macro
from .series import named_series

_HEAVIEST_SVG = 300_000
_NARROW, _WIDE = 5.2, 7.6
_STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9ca3af",
    "axes.linewidth": 0.8,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "text.color": INK,
    "xtick.color": NEUTRAL,
    "ytick.color": NEUTRAL,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#e5e7eb",
    "grid.linewidth": 0.8,
    "lines.linewidth": 1.8,
    "svg.fonttype": "none",
}


class Drawing:
    """A figure to draw on.

    Attributes
    ----------
    alt : str
        Alternative text for screen readers.
    figure : Figure
        The matplotlib figure.
    axes : list of Axes
        Its axes, row by row.
    markup : Markup
        The ``<figure>`` element; empty until the context of the drawing has ended.
    """

    def __init__(self, alt: str, figure: Figure, axes: list[Axes]) -> None:
        self.alt = alt
        self.figure = figure
        self.axes = axes
        self.markup = Markup()

    def __repr__(self) -> str:
        return f"Drawing({self.alt!r})"

    def _repr_html_(self) -> str:
        """The picture, for notebooks."""
        return self.markup


_collected: ContextVar[list[Drawing] | None] = ContextVar("drawings", default=None)


@contextmanager
def collected() -> Iterator[list[Drawing]]:
    """Context that collects the drawings made in it."""
    found: list[Drawing] = []
    token = _collected.set(found)
    try:
        yield found
    finally:
        _collected.reset(token)


@contextmanager
def drawing(
    alt: str, *, rows: int = 1, columns: int = 1, width: float = _NARROW, height: float = 3.1
) -> Iterator[Drawing]:
    """Context in which to draw one figure in the style of the report.

    Parameters
    ----------
    alt : str
        Alternative text for screen readers.
    rows, columns : int
        Layout of the axes.
    width, height : float
        Size of the figure in inches. A width of 5.2 suits phones and a page with two columns.
    """
    with style.context({**_STYLE, "svg.hashsalt": alt}):
        figure = Figure(figsize=(width, height), layout="constrained")
        drawn = Drawing(alt, figure, list(figure.subplots(rows, columns, squeeze=False).flat))
        yield drawn
        drawn.markup = _markup(figure, alt)
    if (collection := _collected.get()) is not None:
        collection.append(drawn)


@contextmanager
def small_multiples(alt: str, count: int, *, height: float) -> Iterator[Drawing]:
    """Context in which to draw one figure with several small axes.

    Parameters
    ----------
    alt : str
        Alternative text for screen readers.
    count : int
        Number of axes, at least one.
    height : float
        Height of each axes in inches.
    """
    columns = panels_per_row(count)
    rows = -(-count // columns)
    width = _WIDE if columns > 2 else _NARROW
    with drawing(alt, rows=rows, columns=columns, width=width, height=rows * height + 0.5) as figure:
        for spare in figure.axes[count:]:
            spare.set_axis_off()
        figure.axes = figure.axes[:count]
        yield figure


def panels_per_row(count: int) -> int:
    """Number of small axes per row; a figure with more than two per row is wide."""
    return min(count, 3 if count in (5, 6, 9) else 4)


def _markup(figure: Figure, alt: str) -> Markup:
    for words in figure.findobj(lambda artist: isinstance(artist, Text) and "$" in artist.get_text()):
        words.set_parse_math(False)  # type: ignore[attr-defined]  # a $ in a name does not start a formula
    stream = io.BytesIO()
    # `savefig` would draw the figure twice: once for the layout, and again for the file.
    FigureCanvasSVG(figure).print_svg(stream, metadata={"Date": None, "Creator": None})
    svg = stream.getvalue().decode("utf-8")
    if len(svg) <= _HEAVIEST_SVG:
        return _inline(named_series(figure, svg), alt)
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=160, metadata={"Software": None})
    encoded = base64.b64encode(stream.getvalue()).decode("ascii")
    return macro("parts.html.md", "picture", f"data:image/png;base64,{encoded}", alt)


def _inline(svg: str, alt: str) -> Markup:
    """Prepare an SVG for embedding: no prologue, no fixed size, no metadata."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    opening, _, rest = svg.partition(">")
    opening = re.sub(r' (width|height|version|xmlns(:xlink)?)="[^"]*"', "", opening)
    return macro("parts.html.md", "drawing", Markup(opening), Markup(rest.strip()), alt)
