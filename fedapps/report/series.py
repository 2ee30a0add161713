"""Series of a figure as elements that the script of the report finds: named, and with the values of their points.

In the SVG, an element of a series is ``<g data-series="NAME">``. A line also has ``data-points``, a JSON list of its
points: the position in the picture and the text that describes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from urllib.parse import quote, unquote

import numpy as np
from markupsafe import Markup
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from .formats import format_number

_GID = "series-"
#: A line with more points stays without their values, which would make the page large.
_MOST_POINTS = 500
_SVG_DPI = 72


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


def named_series(figure: Figure, svg: str) -> str:
    """The SVG of a figure with the names of its series, and without any other id of a group."""
    found = figure.findobj(lambda artist: (artist.get_gid() or "").startswith(_GID))
    groups = {artist.get_gid(): _attributes(artist, figure) for artist in found}
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
