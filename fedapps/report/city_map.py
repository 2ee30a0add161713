"""Cities from above with the pictures of their clients, and lines, such as railways, as strips."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes

from .arrays import Array
from .figures import drawing, small_multiples
from .palette import INK

_COMMON = "#6b7280"
_FLAT = 0.02  # of its length, within which a city is a line
_NAMED = 6  # clients that have room for their names
_HEAVY = 1500  # points from which on they are drawn as one picture
_LETTER = 0.009  # of the width of a strip


@dataclass(frozen=True)
class City:
    """What lies in a city: the pictures [n, 2] of each of its clients in metres, and those of the common test."""

    name: str
    clients: Mapping[str, Array]
    common: Array | None = None

    @property
    def points(self) -> Array:
        """[n, 2], all of them."""
        return np.concatenate([*self.clients.values(), *([] if self.common is None else [self.common])])

    @property
    def extent(self) -> Array:
        """[2], how far it reaches east and north, in metres."""
        extent: Array = np.ptp(self.points, axis=0)
        return extent

    @property
    def is_line(self) -> bool:
        """Whether its pictures lie along one line, to east or to north."""
        return bool(self.extent.min() <= _FLAT * self.extent.max())

    @property
    def title(self) -> str:
        count = len(self.clients)
        parts = [f"{count} client{'s' if count > 1 else ''}"] if count else []
        return f"{self.name or 'all'}: {', '.join([*parts, *(['common test'] if self.common is not None else [])])}"

    def short(self, client: str) -> str:
        """The name of a client without the city's."""
        return (client.removeprefix(self.name).strip("-_ ") if self.name else client) or client


def maps(cities: Sequence[City], colours: Mapping[str, str]) -> str:
    """The markup of a panel for each city, each with a scale of its own.

    Args:
        cities: at least one.
        colours: of the clients.
    """
    said = "; ".join(f"{city.title} within {length(float(city.extent.max()))}" for city in cities)
    with small_multiples(f"Maps of where pictures were taken. {said}", len(cities), height=2.3) as figure:
        for axes, city in zip(figure.axes, cities, strict=True):
            _draw_city(axes, city, colours)
    return figure.markup


def strips(cities: Sequence[City], colours: Mapping[str, str]) -> str:
    """The markup of a strip for each city that is a line, from the end where its positions begin."""
    said = "; ".join(f"{city.title} along {length(float(city.extent.max()))}" for city in cities)
    reach = max(float(city.extent.max()) for city in cities) or 1.0
    unit, metres = ("km", 1000.0) if reach >= 2000 else ("m", 1.0)
    alt = f"Strips of where pictures were taken. {said}"
    with drawing(alt, width=7.6, height=0.8 + 0.55 * len(cities)) as figure:
        axes = figure.axes[0]
        for row, city in enumerate(cities):
            way = int(city.extent.argmax())
            start = city.points[:, way].min()
            if city.common is not None:
                _ticks(axes, (city.common[:, way] - start) / metres, row, _COMMON)
            for client, points in city.clients.items():
                _ticks(axes, (points[:, way] - start) / metres, row, colours[client])
            _name_ticks(axes, city, row, start, way, reach, metres)
        axes.set_ylim(len(cities) - 0.55, -0.75)
        axes.set_xlim(-0.01 * reach / metres, 1.01 * reach / metres)
        axes.set_yticks(range(len(cities)), [city.name for city in cities])
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False)
        axes.spines["left"].set_visible(False)
        axes.set_xlabel(f"from the beginning of each [{unit}]")
    return figure.markup


def length(metres: float) -> str:
    """A length as people say it."""
    return f"{metres / 1000:.3g} km" if metres >= 1000 else f"{metres:.3g} m"


def nice(metres: float) -> float:
    """The largest of 1, 2 and 5 times a power of ten up to a length above 0."""
    power = 10.0 ** math.floor(math.log10(metres))
    return next(step * power for step in (5, 2, 1) if step * power <= metres * (1 + 1e-9))


def _draw_city(axes: Axes, city: City, colours: Mapping[str, str]) -> None:
    heavy = len(city.points) > _HEAVY
    shown = [(points, colours[client]) for client, points in city.clients.items()]
    for points, colour in [*([] if city.common is None else [(city.common, _COMMON)]), *shown]:
        axes.plot(points[:, 0], points[:, 1], "o", color=colour, markersize=2, markeredgewidth=0, rasterized=heavy)
    for client, points in city.clients.items() if len(city.clients) <= _NAMED else ():
        # The picture nearest to the middle: the middle itself may be far from all.
        x, y = points[np.linalg.norm(points - points.mean(axis=0), axis=1).argmin()]
        halo = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.75}
        axes.text(x, y, city.short(client), fontsize=7, ha="center", va="center", bbox=halo, color=INK)
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


def _ticks(axes: Axes, places: Array, row: int, colour: str) -> None:
    heavy = len(places) > _HEAVY
    axes.plot(places, np.full(len(places), row), "|", color=colour, markersize=13, rasterized=heavy)


def _name_ticks(axes: Axes, city: City, row: int, start: float, way: int, reach: float, metres: float) -> None:
    """The names of clients above their middles, where they all have room."""
    middles = {city.short(client): float(points[:, way].mean()) - start for client, points in city.clients.items()}
    if city.common is not None:
        middles["common test"] = float(city.common[:, way].mean()) - start
    order = sorted(middles, key=lambda name: middles[name])
    room = all(
        middles[right] - middles[left] > _LETTER * reach * (len(left) + len(right)) / 2
        for left, right in pairwise(order)
    )
    for name in order if room else ():
        axes.text(middles[name] / metres, row - 0.28, name, fontsize=7, ha="center", va="bottom")
