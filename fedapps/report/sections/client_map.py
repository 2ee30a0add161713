"""Positions of the nodes' images, one map per city."""

from __future__ import annotations

from markupsafe import Markup

from fedapps.report.arrays import Arrays
from fedapps.report.city_map import City, maps, strips
from fedapps.report.formats import counted
from fedapps.report.palette import plot_styles
from fedapps.report.places import Positions, read_positions
from fedapps.report.rendering import render_section
from fedapps.report.run_data import RunData

_MOST = 6  # maximum number of maps
_COMMON = 2  # maps reserved for cities that only the common test has
_LISTED = 8

ORDER = 130


def section(run: RunData) -> Markup | None:
    """Draw up to six cities, preferring those with most nodes; None for tasks without positions."""
    own, common = _positions(run)
    cities = _cities(own, common)
    if not cities:
        return None
    chosen = _chosen(cities)
    colours = {node: style.colour for node, style in plot_styles(sorted(own)).items()}
    flat = [city for city in chosen if city.is_line]
    wide = [city for city in chosen if not city.is_line]
    left = [city for city in cities if city not in chosen]
    return render_section(
        "client_map",
        nodes=len(own),
        areas=sum(bool(city.nodes) for city in cities),
        common=any(city.common is not None for city in cities),
        missing=[f"{city.name} ({_contents(city)})" for city in left[:_LISTED]],
        hidden=len(left[_LISTED:]),
        figures=[*([maps(wide, colours)] if wide else []), *([strips(flat, colours)] if flat else [])],
    )


def _positions(run: RunData) -> tuple[dict[str, Positions], Positions | None]:
    """The positions of each node and of the common test, from the method with most nodes.

    All methods have the same nodes, except methods that train on pooled data and have only one.
    """
    for method in sorted(run.methods, key=lambda name: -sum(of == name for of, _ in run.traces)):
        own: dict[str, Positions] = {}
        common = None
        for (of, node), path in sorted(run.traces.items()):
            if of == method:
                arrays = Arrays(path)
                if (places := read_positions(arrays, "places")) is not None:
                    own[node] = places
                common = common or read_positions(arrays, "common")
        if own or common:
            return own, common
    return {}, None


def _cities(own: dict[str, Positions], common: Positions | None) -> list[City]:
    """All cities, those with most nodes first."""
    by_node = {node: positions.by_city() for node, positions in own.items()}
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
    room = _MOST - min(len(others), max(_COMMON, _MOST - len(with_nodes)))
    return sorted(with_nodes[:room], key=lambda city: city.name) + others[: _MOST - room]


def _contents(city: City) -> str:
    return counted(len(city.nodes), "node") if city.nodes else "common test"
