"""A few queries of the common test, with the database images that each method retrieves."""

from __future__ import annotations

import base64
import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup
from PIL import Image

from fedapps.base.report.sections import Array, Arrays, ReportedRun, section_markup

_OPEN = 4
_RANKS = ("1st", "2nd", "3rd")

ORDER = 120


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
