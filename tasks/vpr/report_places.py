"""The best matches of queries, and positions of the nodes' images.

There is one map per city; cities on a line, such as a railway, are drawn as strips.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup
from matplotlib.axes import Axes
from PIL import Image

from fedapps.base.report.figures import drawing, scale_bar, small_multiples
from fedapps.base.report.metrics import INK, plot_styles
from fedapps.base.report.numbers import counted, format_length
from fedapps.base.report.sections import Array, Arrays, ReportedRun, section_markup

ORDER = 120
_OPEN = 4
_RANKS = ("1st", "2nd", "3rd")


@dataclass(frozen=True)
class Matches:
    """The k best matches of each of q queries.

    Attributes
    ----------
    queries : ndarray of shape [q, H, W, 3]
        Query images in RGB.
    matches : ndarray of shape [q, k, H, W, 3]
        Database images, the best match first.
    metres : ndarray of shape [q, k]
        Distance from the query in metres; inf in another city.
    correct : ndarray of shape [q, k]
        Whether the match is within ``radius`` of the query.
    radius : float
        In metres.
    num_queries : int
        Number of queries from which the q were chosen.
    """

    queries: npt.NDArray[np.uint8]
    matches: npt.NDArray[np.uint8]
    metres: Array
    correct: npt.NDArray[np.bool_]
    radius: float
    num_queries: int


def section(run: ReportedRun) -> Markup | None:
    """Matches, then positions; None for tasks without place recognition."""
    return Markup("\n").join(part for part in (best_matches(run), image_positions(run)) if part) or None


def best_matches(run: ReportedRun) -> Markup | None:
    """One panel per method, four of them open; None for tasks without place recognition."""
    retrieved = {method: of for method in run.methods if (of := _first(run, method))}
    if not retrieved:
        return None
    _, matches = next(iter(retrieved.values()))
    count, depth = matches.matches.shape[:2]
    return section_markup(
        Path(__file__).parent,
        "matches",
        methods=[_retrieved(run, method, *of) for method, of in retrieved.items()],
        shown=_OPEN,
        count=count,
        num_queries=matches.num_queries,
        depth=depth,
        radius=f"{matches.radius:g}",
    )


def _first(run: ReportedRun, method: str) -> tuple[str, Matches] | None:
    """The first node of a method with matches, and its matches."""
    paths = {node: path for (of, node), path in run.traces.items() if of == method}
    return next(((node, matches) for node in sorted(paths) if (matches := read_matches(Arrays(paths[node])))), None)


def _retrieved(run: ReportedRun, method: str, node: str, matches: Matches) -> dict[str, Any]:
    """What the template shows of a method."""
    depth = matches.matches.shape[1]
    record = run.last_evaluations().get(method, {}).get(node)
    return {
        "name": method,
        "node": node,
        "cluster": record.cluster if record else "",
        "hits": int(matches.correct[:, 0].sum()),
        "heads": ["query", *(_RANKS[rank] if rank < len(_RANKS) else f"{rank + 1}th" for rank in range(depth))],
        "queries": [
            {
                "image": _image(pixels),
                "matches": [
                    {"image": _image(match), "correct": bool(correct), "distance": distance_text(metres)}
                    for match, correct, metres in zip(*of_query, strict=True)
                ],
            }
            for pixels, *of_query in zip(matches.queries, matches.matches, matches.correct, matches.metres, strict=True)
        ],
    }


def distance_text(metres: float) -> str:
    """The distance of a match from its query as text."""
    if not math.isfinite(metres):
        return "another city"
    if metres < 1000:
        return f"{metres:.0f} m"
    return f"{metres / 1000:.3g} km" if metres < 1e6 else f"{metres / 1000:,.0f} km"


def _image(pixels: Any) -> str:
    """The address of an embedded image, as PNG or JPEG, whichever is smaller."""
    coded = []
    for kind, how in (("png", {"optimize": True}), ("jpeg", {"quality": 88})):
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, format=kind, **how)
        coded.append((kind, stream.getvalue()))
    kind, content = min(coded, key=lambda item: len(item[1]))
    return f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"


def read_matches(arrays: Arrays) -> Matches | None:
    """Read the queries and their matches; None if there are none.

    Raises
    ------
    ReportError
        If an array is missing or has a wrong shape or range.
    """
    if "matches.asked" not in arrays:
        return None
    queries = arrays.pixels("matches.asked", None, None, None, 3)
    images = arrays.pixels("matches.found", len(queries), None, *queries.shape[1:])
    shape = images.shape[:2]
    metres = arrays.get("matches.metres", *shape)
    radius = arrays.get("matches.radius")
    for name, distances in (("metres", metres), ("radius", radius)):
        if not (distances >= 0).all():
            raise arrays.fail(f"matches.{name}", "must be 0 or more")
    matches = Matches(
        queries=queries,
        matches=images,
        metres=metres,
        correct=arrays.indices("matches.right", 2, *shape).astype(bool),
        radius=float(radius),
        num_queries=int(arrays.indices("matches.queries", 2**53)),
    )
    return matches if images.size else None


_COMMON = "#6b7280"
_LINE_RATIO = 0.02  # a city at most this wide relative to its length is a line
_MAX_LABELS = 6  # label the nodes of a city only up to this number
_RASTERIZE_ABOVE = 1500  # rasterize more points than this
_LETTER_WIDTH = 0.009  # relative to the width of a strip
_MOST = 6  # maximum number of maps
_COMMON_MAPS = 2  # maps reserved for cities that only the common test has
_LISTED = 8


@dataclass(frozen=True)
class Positions:
    """Positions of n images.

    Attributes
    ----------
    cities : tuple of str
        Names of the cities.
    city : ndarray of shape [n]
        Index of each image's city.
    metres : ndarray of shape [n, 2]
        Position (east, north) in metres; each city may have a separate origin.
    """

    cities: tuple[str, ...]
    city: npt.NDArray[np.int64]
    metres: Array

    def by_city(self) -> dict[str, Array]:
        """The positions by city, without cities that have none."""
        by_name = {name: self.metres[self.city == index] for index, name in enumerate(self.cities)}
        return {name: metres for name, metres in by_name.items() if len(metres)}


def image_positions(run: ReportedRun) -> Markup | None:
    """Draw up to six cities, preferring those with most nodes; None for tasks without positions."""
    of_nodes, common = _positions(run)
    cities = _cities(of_nodes, common)
    if not cities:
        return None
    drawn = _chosen(cities)
    colours = {node: style.colour for node, style in plot_styles(sorted(of_nodes)).items()}
    flat = [city for city in drawn if city.is_line]
    wide = [city for city in drawn if not city.is_line]
    left = [city for city in cities if city not in drawn]
    return section_markup(
        Path(__file__).parent,
        "positions",
        nodes=len(of_nodes),
        areas=sum(bool(city.nodes) for city in cities),
        common=any(city.common is not None for city in cities),
        missing=[f"{city.name} ({_contents(city)})" for city in left[:_LISTED]],
        hidden=len(left[_LISTED:]),
        figures=[*([maps(wide, colours)] if wide else []), *([strips(flat, colours)] if flat else [])],
    )


def _positions(run: ReportedRun) -> tuple[dict[str, Positions], Positions | None]:
    """The positions of each node and of the common test, from the method with most nodes.

    All methods have the same nodes, except methods that train on pooled data and have only one.
    """
    for method in sorted(run.methods, key=lambda name: -sum(of == name for of, _ in run.traces)):
        of_nodes: dict[str, Positions] = {}
        common = None
        for (of, node), path in sorted(run.traces.items()):
            if of == method:
                arrays = Arrays(path)
                if (positions := read_positions(arrays, "places")) is not None:
                    of_nodes[node] = positions
                common = common or read_positions(arrays, "common")
        if of_nodes or common:
            return of_nodes, common
    return {}, None


def _cities(of_nodes: dict[str, Positions], common: Positions | None) -> list[City]:
    """All cities, those with most nodes first."""
    by_node = {node: positions.by_city() for node, positions in of_nodes.items()}
    tested = common.by_city() if common else {}
    names = {name for of in by_node.values() for name in of} | set(tested)
    cities = [
        City(name, {node: of[name] for node, of in by_node.items() if name in of}, tested.get(name))
        for name in sorted(names)
    ]
    return sorted(cities, key=lambda city: -len(city.nodes))


def _chosen(cities: list[City]) -> list[City]:
    """The cities to draw, sorted by name; cities that only the common test has come last."""
    with_nodes = [city for city in cities if city.nodes]
    others = [city for city in cities if not city.nodes]
    room = _MOST - min(len(others), max(_COMMON_MAPS, _MOST - len(with_nodes)))
    return sorted(with_nodes[:room], key=lambda city: city.name) + others[: _MOST - room]


def _contents(city: City) -> str:
    return counted(len(city.nodes), "node") if city.nodes else "common test"


def read_positions(arrays: Arrays, prefix: str) -> Positions | None:
    """Read the positions of the node's images (prefix ``places``) or of the common test (prefix ``common``).

    Returns
    -------
    Positions or None
        None if there are none.

    Raises
    ------
    ReportError
        If an array is missing or has a wrong shape or range.
    """
    if f"{prefix}.position" not in arrays:
        return None
    metres = arrays.get(f"{prefix}.position", None, 2)
    if not np.isfinite(metres).all():
        raise arrays.fail(f"{prefix}.position", "must be finite")
    cities = tuple(arrays.text(f"{prefix}.cities").split("\n"))
    city = arrays.indices(f"{prefix}.city", len(cities), len(metres))
    return Positions(cities, city, metres) if len(metres) else None


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
        parts = [counted(len(self.nodes), "node")] if self.nodes else []
        return f"{self.name or 'all'}: {', '.join([*parts, *(['common test'] if self.common is not None else [])])}"

    def short(self, node: str) -> str:
        """The name of a node without the name of the city."""
        return (node.removeprefix(self.name).strip("-_ ") if self.name else node) or node


def maps(cities: Sequence[City], colours: Mapping[str, str]) -> Markup:
    """Draw a map of each city, with a scale bar; ``colours`` has the colour of each node."""
    sizes = "; ".join(f"{city.title} within {format_length(float(city.extent.max()))}" for city in cities)
    with small_multiples(f"Maps of image positions. {sizes}", len(cities), height=2.3) as figure:
        for axes, city in zip(figure.axes, cities, strict=True):
            _draw_city(axes, city, colours)
    return figure.markup


def strips(cities: Sequence[City], colours: Mapping[str, str]) -> Markup:
    """Draw a strip for each city whose positions lie on a line; ``colours`` has the colour of each node."""
    sizes = "; ".join(f"{city.title} along {format_length(float(city.extent.max()))}" for city in cities)
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
    west, south = city.points.min(axis=0)
    reach = float(city.extent.max())
    scale_bar(axes, west, south - 0.1 * (reach or 1.0), reach or 2.5)
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_title(city.title, fontsize=8.5)
    axes.set_axis_off()


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
