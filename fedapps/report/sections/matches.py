"""A few queries of the common test, with the database images that each method retrieves."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterator
from html import escape
from typing import Any

from PIL import Image

from fedapps.report.arrays import Arrays
from fedapps.report.markup import details, panels, render_section
from fedapps.report.places import Matches, read_matches
from fedapps.report.results import last_evaluations
from fedapps.report.run_data import RunData

_OPEN = 4
_RANKS = ("1st", "2nd", "3rd")

ORDER = 120


def section(run: RunData) -> str | None:
    """One panel per method, four of them open; None for tasks without place recognition."""
    found = {method: of for method in run.methods if (of := _first(run, method))}
    if not found:
        return None
    drawn = [_panel(run, method, *of) for method, of in found.items()]
    _, matches = next(iter(found.values()))
    count, depth = matches.matches.shape[:2]
    images = f"the {depth} most similar database images, best first" if depth > 1 else "the most similar database image"
    lead = (
        f"{count} of the {matches.num_queries} queries of the common test that have a correct match in the database. "
        f"They are evenly spaced and the same for every method. Beside each query: {images}. Green with ✓: the same "
        f"place, within {matches.radius:g} m. Orange with ✗: a different place."
    )
    more = [details("More methods", panels(drawn[_OPEN:]))] if drawn[_OPEN:] else []
    return render_section("matches", "Retrieved places", panels(drawn[:_OPEN]), *more, lead=lead)


def _first(run: RunData, method: str) -> tuple[str, Matches] | None:
    """The first node of a method with matches, and its matches."""
    paths = {node: path for (of, node), path in run.traces.items() if of == method}
    return next(((node, found) for node in sorted(paths) if (found := read_matches(Arrays(paths[node])))), None)


def _panel(run: RunData, method: str, node: str, matches: Matches) -> str:
    count, depth = matches.matches.shape[:2]
    hits = int(matches.correct[:, 0].sum())
    record = last_evaluations(run).get(method, {}).get(node)
    whose = f"model of {node}" + (f", cluster {record.cluster}" if record and record.cluster else "")
    heads = ["query", *(_RANKS[rank] if rank < len(_RANKS) else f"{rank + 1}th" for rank in range(depth))]
    cells = [f"<small>{head}</small>" for head in heads]
    cells += [cell for query in range(count) for cell in _row(matches, query)]
    caption = f"<b>{escape(method)}</b>: first match correct for {hits} of {count} <small>{escape(whose)}</small>"
    grid = f'<div class="grid" style="grid-template-columns:repeat({depth + 1},1fr)">{"".join(cells)}</div>'
    return f'<figure class="matches"><figcaption>{caption}</figcaption>{grid}</figure>'


def _row(matches: Matches, query: int) -> Iterator[str]:
    yield f"<div>{_image(matches.queries[query], f'Query {query + 1} of the common test')}</div>"
    answers = zip(matches.matches[query], matches.correct[query], matches.metres[query], strict=True)
    for rank, (pixels, correct, metres) in enumerate(answers):
        kind, mark = ("correct", "✓") if correct else ("wrong", "✗")
        alt = f"Match {rank + 1} of query {query + 1}: {kind}, {distance_text(metres)}"
        yield f'<div class="{kind}">{_image(pixels, alt)}<span><b>{mark}</b> {distance_text(metres)}</span></div>'


def distance_text(metres: float) -> str:
    """The distance of a match from its query as text."""
    if not math.isfinite(metres):
        return "another city"
    if metres < 1000:
        return f"{metres:.0f} m"
    return f"{metres / 1000:.3g} km" if metres < 1e6 else f"{metres / 1000:,.0f} km"


def _image(pixels: Any, alt: str) -> str:
    """An embedded image, as PNG or JPEG, whichever is smaller."""
    coded = []
    for kind, how in (("png", {"optimize": True}), ("jpeg", {"quality": 88})):
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, format=kind, **how)
        coded.append((kind, stream.getvalue()))
    kind, content = min(coded, key=lambda item: len(item[1]))
    return f'<img alt="{escape(alt)}" src="data:image/{kind};base64,{base64.b64encode(content).decode("ascii")}">'
