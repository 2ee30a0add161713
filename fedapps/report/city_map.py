"""Maps of image positions by city; cities whose positions lie on a line, such as a railway, are drawn as strips."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes

from .arrays import Array
from .figures import drawing, small_multiples
from .palette import INK

_COMMON = "#6b7280"
_LINE_RATIO = 0.02  # a city at most this wide relative to its length is a line
_MAX_LABELS = 6  # label the nodes of a city only up to this number
_RASTERIZE_ABOVE = 1500  # rasterize more points than this
_LETTER_WIDTH = 0.009  # relative to the width of a strip


@dataclass(frozen=True)
class City:
    """The image positions of a city.

    Attributes
    ----------
    name : str
        Name of the city; may be empty.
    nodes : mapping of str to ndarray of shape [n, 2]
        By node, the positions of its images in metres (east, north).
    common : ndarray of shape [n, 2], optional
        Positions of the common test set.
    """

    name: str
    nodes: Mapping[str, Array]
    common: Array | None = None

    @property
    def points(self) -> Array:
        """[n, 2], the positions of all images."""
        return np.concatenate([*self.nodes.values(), *([] if self.common is None else [self.common])])

    @property
    def extent(self) -> Array:
        """[2], the extent to the east and to the north in metres."""
        extent: Array = np.ptp(self.points, axis=0)
        return extent

    @property
    def is_line(self) -> bool:
        """Whether all positions lie on a line from west to east or from south to north."""
        return bool(self.extent.min() <= _LINE_RATIO * self.extent.max())

    @property
    def title(self) -> str:
        count = len(self.nodes)
        parts = [f"{count} node{'s' if count > 1 else ''}"] if count else []
        return f"{self.name or 'all'}: {', '.join([*parts, *(['common test'] if self.common is not None else [])])}"

    def short(self, node: str) -> str:
        """The name of a node without the name of the city."""
        return (node.removeprefix(self.name).strip("-_ ") if self.name else node) or node


def maps(cities: Sequence[City], colours: Mapping[str, str]) -> Markup:
    """Draw one map per city, each with a scale bar.

    Parameters
    ----------
    cities : sequence of City
        At least one.
    colours : mapping
        Colour of each node.

    Returns
    -------
    Markup
        The figure.
    """
    sizes = "; ".join(f"{city.title} within {length(float(city.extent.max()))}" for city in cities)
    with small_multiples(f"Maps of image positions. {sizes}", len(cities), height=2.3) as figure:
        for axes, city in zip(figure.axes, cities, strict=True):
            _draw_city(axes, city, colours)
    return figure.markup


def strips(cities: Sequence[City], colours: Mapping[str, str]) -> Markup:
    """Draw one strip per city whose positions lie on a line; returns the markup of the figure."""
    sizes = "; ".join(f"{city.title} along {length(float(city.extent.max()))}" for city in cities)
    reach = max(float(city.extent.max()) for city in cities) or 1.0
    unit, metres = ("km", 1000.0) if reach >= 2000 else ("m", 1.0)
    alt = f"Strips of image positions. {sizes}"
    with drawing(alt, width=7.6, height=0.8 + 0.55 * len(cities)) as figure:
        axes = figure.axes[0]
        for row, city in enumerate(cities):
            way = int(city.extent.argmax())
            start = city.points[:, way].min()
            if city.common is not None:
                _ticks(axes, (city.common[:, way] - start) / metres, row, _COMMON)
            for node, points in city.nodes.items():
                _ticks(axes, (points[:, way] - start) / metres, row, colours[node])
            _name_ticks(axes, city, row, start, way, reach, metres)
        axes.set_ylim(len(cities) - 0.55, -0.75)
        axes.set_xlim(-0.01 * reach / metres, 1.01 * reach / metres)
        axes.set_yticks(range(len(cities)), [city.name for city in cities])
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False)
        axes.spines["left"].set_visible(False)
        axes.set_xlabel(f"distance from the start of the line [{unit}]")
    return figure.markup


def length(metres: float) -> str:
    """A length in metres as text, in m or km."""
    return f"{metres / 1000:.3g} km" if metres >= 1000 else f"{metres:.3g} m"


def nice(metres: float) -> float:
    """The largest round length (1, 2 or 5 times a power of ten) that is at most ``metres``, which must be above 0."""
    power = 10.0 ** math.floor(math.log10(metres))
    return next(step * power for step in (5, 2, 1) if step * power <= metres * (1 + 1e-9))


def _draw_city(axes: Axes, city: City, colours: Mapping[str, str]) -> None:
    heavy = len(city.points) > _RASTERIZE_ABOVE
    shown = [(points, colours[node]) for node, points in city.nodes.items()]
    for points, colour in [*([] if city.common is None else [(city.common, _COMMON)]), *shown]:
        axes.plot(points[:, 0], points[:, 1], "o", color=colour, markersize=2, markeredgewidth=0, rasterized=heavy)
    for node, points in city.nodes.items() if len(city.nodes) <= _MAX_LABELS else ():
        # Label the image nearest to the mean position: the mean itself may be far from every image.
        x, y = points[np.linalg.norm(points - points.mean(axis=0), axis=1).argmin()]
        halo = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.75}
        axes.text(x, y, city.short(node), fontsize=7, ha="center", va="center", bbox=halo, color=INK)
    _scale_bar(axes, city)
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_title(city.title, fontsize=8.5)
    axes.set_axis_off()


def _scale_bar(axes: Axes, city: City) -> None:
    west, south = city.points.min(axis=0)
    reach = float(city.extent.max())
    bar = nice(0.4 * reach) if reach else 1.0
    below = south - 0.1 * (reach or 1.0)
    axes.plot([west, west + bar], [below, below], color=INK, linewidth=2, solid_capstyle="butt")
    axes.annotate(length(bar), (west + bar, below), (4, 0), textcoords="offset points", fontsize=7.5, va="center")


def _ticks(axes: Axes, positions: Array, row: int, colour: str) -> None:
    heavy = len(positions) > _RASTERIZE_ABOVE
    axes.plot(positions, np.full(len(positions), row), "|", color=colour, markersize=13, rasterized=heavy)


def _name_ticks(axes: Axes, city: City, row: int, start: float, way: int, reach: float, metres: float) -> None:
    """Write the names of all nodes above their mean positions, if they do not overlap."""
    middles = {city.short(node): float(points[:, way].mean()) - start for node, points in city.nodes.items()}
    if city.common is not None:
        middles["common test"] = float(city.common[:, way].mean()) - start
    order = sorted(middles, key=lambda name: middles[name])
    room = all(
        middles[right] - middles[left] > _LETTER_WIDTH * reach * (len(left) + len(right)) / 2
        for left, right in pairwise(order)
    )
    for name in order if room else ():
        axes.text(middles[name] / metres, row - 0.28, name, fontsize=7, ha="center", va="bottom")
