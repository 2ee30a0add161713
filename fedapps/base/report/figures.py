"""Matplotlib figures as markup: inline SVG, or PNG if the SVG would be large.

The script of the report finds the series of a figure. In the SVG, an element of a series is ``<g data-series="NAME">``.
A line also has ``data-points``, a JSON list of its points: the position in the picture and the text that describes it.
"""

from __future__ import annotations

import base64
import io
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from textwrap import wrap
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
from markupsafe import Markup
from matplotlib import style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from .metrics import INK, NEUTRAL, PlotStyle, describe
from .numbers import format_length, format_number
from .sections import part

_GID = "series-"
#: A line with more points stays without their values, which would make the page large.
_MOST_POINTS = 500
_SVG_DPI = 72
#: Between the dots of two methods with the same seed.
_SEED_STEP = 0.08
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
    drawings: list[Drawing] = []
    token = _collected.set(drawings)
    try:
        yield drawings
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


def mark(artist: Artist, name: str, at: Sequence[str] | None = None) -> None:
    """Make an artist part of a series.

    Parameters
    ----------
    artist : Artist
        A line, whose points get values, or another artist that the figure draws for the series.
    name : str
        The series, usually a method.
    at : sequence of str, optional
        The text of each x coordinate of a line, if it is not the number itself.
    """
    # The last item distinguishes artists of the same series; the SVG does not contain it.
    artist.set_gid(_GID + quote(json.dumps([name, None if at is None else list(at), id(artist)]), safe=""))


def draw_line(axes: Axes, x: Sequence[float], y: Sequence[float], style: PlotStyle, name: str) -> None:
    """Draw the line of a series, with markers if it has few points."""
    few = len(x) <= 30
    (line,) = axes.plot(x, y, style.dash, color=style.colour, marker=style.marker if few else None, markersize=4)
    mark(line, name)


def in_lines(name: str, letters: int) -> list[str]:
    """Split a method's name into lines of at most ``letters`` characters, before an argument where possible."""
    if len(name) <= letters:
        return [name]
    words = re.sub(r"([(,])", r"\1 ", name)
    lines = wrap(words, letters, break_on_hyphens=max(map(len, words.split())) > letters)
    return [line.replace("( ", "(") for line in lines]


def limit_bands(axes: Axes, values: Sequence[float]) -> None:
    """Cut the bands around lines where they reach farther than the range of the lines' finite ``values`` beyond them.

    With few seeds, an interval can be so wide that the lines look alike.
    """
    low, high = min(values), max(values)
    reach = max(high - low, 0.25 * abs(high))
    bottom, top = axes.get_ylim()
    if reach:
        axes.set_ylim(max(bottom, low - reach), min(top, high + reach))


def dots_by_seed(
    runs: Mapping[str, Mapping[int, Mapping[str, float]]], styles: Mapping[str, PlotStyle], name: str
) -> Markup:
    """Draw the values of a metric by method and seed, from the metrics of the runs."""
    metric = describe(name)
    with drawing(f"{metric.label} of each method by seed") as figure:
        axes = figure.axes[0]
        for index, (method, of_method) in enumerate(runs.items()):
            points = [(seed, metrics[name]) for seed, metrics in sorted(of_method.items()) if name in metrics]
            if not points:
                continue  # only some methods report it
            style = styles[method]
            x, y = zip(*points, strict=True)
            aside = (index - (len(runs) - 1) / 2) * _SEED_STEP
            (dots,) = axes.plot(np.add(x, aside), y, color=style.colour, marker=style.marker, linestyle="none")
            mark(dots, method, at=[str(seed) for seed in x])
        values = [metrics[name] for of_method in runs.values() for metrics in of_method.values() if name in metrics]
        if min(values) > 0 and max(values) > 20 * min(values):
            axes.set_yscale("log")
        axes.set_xticks(sorted({seed for of_method in runs.values() for seed in of_method}))
        axes.set_xlabel("seed")
        axes.set_title(metric.title)
    return figure.markup


def scale_bar(axes: Axes, x: float, y: float, reach: float) -> None:
    """Draw a bar of a round length, at most 0.4 of a map's ``reach`` > 0 in metres, from (x, y) to the right."""
    power = 10.0 ** math.floor(math.log10(0.4 * reach))
    bar = next(step * power for step in (5, 2, 1) if step * power <= 0.4 * reach * (1 + 1e-9))
    axes.plot([x, x + bar], [y, y], color=INK, linewidth=2, solid_capstyle="butt")
    axes.annotate(format_length(bar), (x + bar, y), (4, 0), textcoords="offset points", fontsize=7.5, va="center")


def _markup(figure: Figure, alt: str) -> Markup:
    for words in figure.findobj(lambda artist: isinstance(artist, Text) and "$" in artist.get_text()):
        words.set_parse_math(False)  # type: ignore[attr-defined]  # a $ in a name does not start a formula
    stream = io.BytesIO()
    # `savefig` would draw the figure twice: once for the layout, and again for the file.
    FigureCanvasSVG(figure).print_svg(stream, metadata={"Date": None, "Creator": None})
    svg = stream.getvalue().decode("utf-8")
    if len(svg) <= _HEAVIEST_SVG:
        return _inline(_named_series(figure, svg), alt)
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=160, metadata={"Software": None})
    encoded = base64.b64encode(stream.getvalue()).decode("ascii")
    return part("picture", f"data:image/png;base64,{encoded}", alt)


def _inline(svg: str, alt: str) -> Markup:
    """Prepare an SVG for embedding: no prologue, no fixed size, no metadata."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    opening, _, rest = svg.partition(">")
    opening = re.sub(r' (width|height|version|xmlns(:xlink)?)="[^"]*"', "", opening)
    return part("drawing", Markup(opening), Markup(rest.strip()), alt)


def _named_series(figure: Figure, svg: str) -> str:
    """The SVG of a figure with the names of its series, and without any other id of a group."""
    artists = figure.findobj(lambda artist: (artist.get_gid() or "").startswith(_GID))
    groups = {artist.get_gid(): _attributes(artist, figure) for artist in artists}
    return re.sub(r'<g id="([^"]*)"', lambda group: f"<g{groups.get(group[1], '')}", svg)


def _attributes(artist: Artist, figure: Figure) -> Markup:
    name, at, _ = json.loads(unquote(str(artist.get_gid()).removeprefix(_GID)))
    attributes = Markup(' data-series="{}"').format(name)
    if isinstance(artist, Line2D) and np.size(artist.get_xdata()) <= _MOST_POINTS:
        attributes += Markup(' data-points="{}"').format(json.dumps(_points(artist, figure, at)))
    return attributes


def _points(line: Line2D, figure: Figure, at: Sequence[str] | None) -> list[tuple[float, float, str]]:
    values = np.asarray(line.get_xydata(), float)
    pixels = line.get_transform().transform(values) * _SVG_DPI / figure.dpi
    height = figure.get_figheight() * _SVG_DPI
    axis = line.axes.get_xlabel() if line.axes else ""
    texts = at or [format_number(x) for x, _ in values]
    return [
        (round(float(x), 1), round(float(height - y), 1), f"{axis} {text}: {format_number(value)}".strip())
        for (x, y), text, value in zip(pixels, texts, values[:, 1], strict=True)
        if np.isfinite((x, y)).all()
    ]
