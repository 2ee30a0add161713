"""A few queries of the common test, with the database images that each method retrieves."""

from __future__ import annotations

import base64
import io
import math
from typing import Any

from markupsafe import Markup
from PIL import Image

from fedapps.report.arrays import Arrays
from fedapps.report.places import Matches, read_matches
from fedapps.report.rendering import render_section
from fedapps.report.results import last_evaluations
from fedapps.report.run_data import RunData

_OPEN = 4
_RANKS = ("1st", "2nd", "3rd")

ORDER = 120


def section(run: RunData) -> Markup | None:
    """One panel per method, four of them open; None for tasks without place recognition."""
    found = {method: of for method in run.methods if (of := _first(run, method))}
    if not found:
        return None
    _, matches = next(iter(found.values()))
    count, depth = matches.matches.shape[:2]
    return render_section(
        "matches",
        methods=[_retrieved(run, method, *of) for method, of in found.items()],
        shown=_OPEN,
        count=count,
        num_queries=matches.num_queries,
        depth=depth,
        radius=f"{matches.radius:g}",
    )


def _first(run: RunData, method: str) -> tuple[str, Matches] | None:
    """The first node of a method with matches, and its matches."""
    paths = {node: path for (of, node), path in run.traces.items() if of == method}
    return next(((node, found) for node in sorted(paths) if (found := read_matches(Arrays(paths[node])))), None)


def _retrieved(run: RunData, method: str, node: str, matches: Matches) -> dict[str, Any]:
    """What the template shows of a method."""
    depth = matches.matches.shape[1]
    record = last_evaluations(run).get(method, {}).get(node)
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
                    {"image": _image(found), "correct": bool(correct), "distance": distance_text(metres)}
                    for found, correct, metres in zip(*of_query, strict=True)
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
