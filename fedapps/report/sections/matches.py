"""A few queries of the common test with the pictures that each method takes for their places."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterator
from html import escape
from typing import Any

from PIL import Image

from fedapps.report.arrays import Arrays
from fedapps.report.markup import details, panels
from fedapps.report.markup import section as block
from fedapps.report.places import Matches, read_matches
from fedapps.report.results import last_evaluations
from fedapps.report.run_data import RunData

_OPEN = 4
_PLACES = ("1st", "2nd", "3rd")

ORDER = 120


def section(run: RunData) -> str | None:
    """A panel for each method, four of them open; None for a task without pictures of places."""
    found = {method: of for method in run.methods if (of := _first(run, method))}
    if not found:
        return None
    drawn = [_panel(run, method, *of) for method, of in found.items()]
    _, matches = next(iter(found.values()))
    count, rivals = matches.found.shape[:2]
    lead = (
        f"{count} of the {matches.queries} queries of the common test whose place can be found, evenly spaced over all "
        "of them and the same for every method, whatever came out. Beside each query the "
        f"{f'{rivals} pictures' if rivals > 1 else 'picture'} of the database that the method finds most alike to it, "
        f"the best first. Green and ✓: the same place, at most {matches.radius:g} m away. Orange and ✗: another one."
    )
    more = [details("More methods", panels(drawn[_OPEN:]))] if drawn[_OPEN:] else []
    return block("matches", "What is taken for the same place", panels(drawn[:_OPEN]), *more, lead=lead)


def _first(run: RunData, method: str) -> tuple[str, Matches] | None:
    """The first node of a method that left matches, with them."""
    paths = {node: path for (of, node), path in run.traces.items() if of == method}
    return next(((node, found) for node in sorted(paths) if (found := read_matches(Arrays(paths[node])))), None)


def _panel(run: RunData, method: str, node: str, matches: Matches) -> str:
    count, rivals = matches.found.shape[:2]
    hits = int(matches.right[:, 0].sum())
    record = last_evaluations(run).get(method, {}).get(node)
    whose = f"model of {node}" + (f", cluster {record.cluster}" if record and record.cluster else "")
    heads = ["query", *(_PLACES[place] if place < len(_PLACES) else f"{place + 1}th" for place in range(rivals))]
    cells = [f"<small>{head}</small>" for head in heads]
    cells += [cell for query in range(count) for cell in _row(matches, query)]
    caption = f"<b>{escape(method)}</b>: first match right for {hits} of {count} <small>{escape(whose)}</small>"
    grid = f'<div class="grid" style="grid-template-columns:repeat({rivals + 1},1fr)">{"".join(cells)}</div>'
    return f'<figure class="matches"><figcaption>{caption}</figcaption>{grid}</figure>'


def _row(matches: Matches, query: int) -> Iterator[str]:
    yield f"<div>{_image(matches.asked[query], f'Query {query + 1} of the common test')}</div>"
    answers = zip(matches.found[query], matches.right[query], matches.metres[query], strict=True)
    for place, (pixels, right, metres) in enumerate(answers):
        kind, mark = ("right", "✓") if right else ("wrong", "✗")
        alt = f"Match {place + 1} of query {query + 1}: {kind}, {away(metres)}"
        yield f'<div class="{kind}">{_image(pixels, alt)}<span><b>{mark}</b> {away(metres)}</span></div>'


def away(metres: float) -> str:
    """How far a match is from its query, as people say it."""
    if not math.isfinite(metres):
        return "another city"
    if metres < 1000:
        return f"{metres:.0f} m"
    return f"{metres / 1000:.3g} km" if metres < 1e6 else f"{metres / 1000:,.0f} km"


def _image(pixels: Any, alt: str) -> str:
    """An image in the page, in whichever of the two usual formats takes less room."""
    coded = []
    for kind, how in (("png", {"optimize": True}), ("jpeg", {"quality": 88})):
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, format=kind, **how)
        coded.append((kind, stream.getvalue()))
    kind, content = min(coded, key=lambda item: len(item[1]))
    return f'<img alt="{escape(alt)}" src="data:image/{kind};base64,{base64.b64encode(content).decode("ascii")}">'
