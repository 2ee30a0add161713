"""Hand-written traces of the task "vpr": image positions, and images of matches."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import report_pages

METHODS = ["fedavg", "h-fl", "m-3", "m-4", "m-5", "cloud"]


def text_array(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), dtype=np.uint8)


def matches(**other: Any) -> dict[str, Any]:
    """Two of nine queries, two matches each, in plain colours: correct, another city; wrong, correct."""
    asked = np.zeros((2, 3, 4, 3), dtype=np.uint8)
    asked[1] = 50
    found = np.broadcast_to(np.array([100, 150, 200, 250], dtype=np.uint8).reshape(2, 2, 1, 1, 1), (2, 2, 3, 4, 3))
    arrays = {
        "asked": asked,
        "found": found,
        "metres": [[12.4, np.inf], [1500.0, 25.0]],
        "right": np.array([[True, False], [False, True]]),
        "radius": np.array(25.0),
        "queries": np.array(9),
    }
    return {f"matches.{name}": value for name, value in (arrays | other).items()}


def places(names: str = "Bonn", prefix: str = "places", **other: Any) -> dict[str, Any]:
    """In each city (``names`` has one per line), the corners of a square of 200 m."""
    corners = np.array([[0.0, 0.0], [200.0, 0.0], [200.0, 200.0], [0.0, 200.0]])
    count = len(names.split("\n"))
    city, position = np.repeat(np.arange(count, dtype=np.int32), 4), np.tile(corners, (count, 1))
    arrays = {"cities": text_array(names), "city": city, "position": position} | other
    return {f"{prefix}.{name}": value for name, value in arrays.items()}


def line(east: float, cities: str = "Bonn", prefix: str = "places") -> dict[str, Any]:
    """Four positions over 300 m, starting at ``east``."""
    return places(cities, prefix, position=np.array([[east + step, 0.0] for step in (0.0, 100.0, 200.0, 300.0)]))


def write_run(folder: Path) -> None:
    """Write a run of ``METHODS`` without evaluations; one node is in a cluster."""
    (folder / "config.toml").write_text(f'methods = "{",".join(METHODS)}"\n')
    rows = [{"method": method, "round": 1} for method in METHODS]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    node = {"method": "h-fl", "round": 1, "node": "a", "phase": "evaluate", "groups": {"cluster": "EU/<Bonn>"}}
    (folder / "nodes.jsonl").write_text(json.dumps(node) + "\n")


def section(folder: Path, name: str) -> str:
    """The markup of a section of the report; empty if the report does not have it."""
    return report_pages.section(report_pages.page(folder), name)
