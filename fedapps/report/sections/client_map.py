"""Where the clients took their pictures, a map for each city."""

from __future__ import annotations

from fedapps.report.arrays import Arrays
from fedapps.report.city_map import City, maps, strips
from fedapps.report.markup import panels
from fedapps.report.markup import section as block
from fedapps.report.palette import looks
from fedapps.report.places import Positions, read_positions
from fedapps.report.run_data import RunData

_MOST = 6  # cities that are drawn
_COMMON = 2  # of them those of the common test, where there are many
_LISTED = 8

ORDER = 130


def section(run: RunData) -> str | None:
    """Up to six cities, those with most clients first; None for a task whose clients have no places."""
    own, common = _positions(run)
    cities = _cities(own, common)
    if not cities:
        return None
    chosen = _chosen(cities)
    colours = {client: look.colour for client, look in looks(sorted(own)).items()}
    flat = [city for city in chosen if city.is_line]
    wide = [city for city in chosen if not city.is_line]
    figures = [panels([maps(wide, colours)], wide=True)] if wide else []
    figures += [panels([strips(flat, colours)], wide=True)] if flat else []
    return block("map", "Where the clients are", *figures, lead=_lead(own, cities, chosen))


def _positions(run: RunData) -> tuple[dict[str, Positions], Positions | None]:
    """By client its own pictures, and those of the common test: under the method that has most clients.

    All methods have the same clients, but for those that pool all data in one.
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
    """Those with clients, most clients first, then the others."""
    by_client = {client: places.by_city() for client, places in own.items()}
    tested = common.by_city() if common else {}
    names = {name for of in by_client.values() for name in of} | set(tested)
    cities = [
        City(name, {client: of[name] for client, of in by_client.items() if name in of}, tested.get(name))
        for name in sorted(names)
    ]
    return sorted(cities, key=lambda city: -len(city.clients))


def _chosen(cities: list[City]) -> list[City]:
    """What is drawn: by name, those that only the common test has last."""
    with_clients = [city for city in cities if city.clients]
    others = [city for city in cities if not city.clients]
    room = _MOST - min(len(others), max(_COMMON, _MOST - len(with_clients)))
    return sorted(with_clients[:room], key=lambda city: city.name) + others[: _MOST - room]


def _lead(own: dict[str, Positions], cities: list[City], chosen: list[City]) -> str:
    places = sum(bool(city.clients) for city in cities)
    parts = [
        f"{_count(len(own), 'client', 'clients')} in {_count(places, 'area', 'areas')}. A mark is a picture, of each "
        "client at most a few hundred, evenly spaced. A colour is a client; where there are many, colours come again."
    ]
    if any(city.common is not None for city in cities):
        parts.append("Grey is what all are tested on.")
    left = [city for city in cities if city not in chosen]
    if left:
        listed = ", ".join(f"{city.name} ({_contents(city)})" for city in left[:_LISTED])
        more = f" and {len(left) - _LISTED} more" if len(left) > _LISTED else ""
        parts.append(f"Not drawn: {listed}{more}.")
    return " ".join(parts)


def _contents(city: City) -> str:
    return _count(len(city.clients), "client", "clients") if city.clients else "common test"


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
