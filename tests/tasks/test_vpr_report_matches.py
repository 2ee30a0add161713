"""Images of queries and their matches."""

import base64
import io
import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import report_pages
from fedapps.tasks.vpr.report_places import distance_text, read_matches, read_positions
from matplotlib.axes import Axes
from PIL import Image
from report_pages import labels, save_traces

from fedapps.base.report.sections import Arrays
from fedapps.report import ReportError, write_report

METHODS = ["fedavg", "h-fl", "m-3", "m-4", "m-5", "cloud"]


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
    arrays = {"cities": np.frombuffer(names.encode(), dtype=np.uint8), "city": city, "position": position} | other
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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_run(tmp_path)
    return tmp_path


def test_matches_show_whether_they_are_correct_and_their_distance(folder: Path) -> None:
    save_traces(folder, "fedavg", "a", matches())
    shown = section(folder, "matches")
    found = re.findall(
        r'<div class="(\w+)"><img alt="([^"]*)" src="[^"]*"><span><b>(.)</b> ([^<]*)</span></div>', shown
    )
    assert found == [
        ("correct", "Match 1 of query 1: correct, 12 m", "✓", "12 m"),
        ("wrong", "Match 2 of query 1: wrong, another city", "✗", "another city"),
        ("wrong", "Match 1 of query 2: wrong, 1.5 km", "✗", "1.5 km"),
        ("correct", "Match 2 of query 2: correct, 25 m", "✓", "25 m"),
    ]
    assert "<b>fedavg</b>: first match correct for 1 of 2 <small>model of a</small>" in shown
    assert "2 of the 9 queries" in shown
    assert "evenly spaced" in shown
    assert "within 25 m" in shown


def test_the_images_are_those_of_the_traces(folder: Path) -> None:
    """In the order of the page: each query, then its matches."""
    save_traces(folder, "fedavg", "a", matches())
    shown = section(folder, "matches")
    pictures = [
        Image.open(io.BytesIO(base64.b64decode(code))) for code in re.findall(r"data:image/\w+;base64,([^\"]*)", shown)
    ]
    assert [picture.getpixel((0, 0)) for picture in pictures] == [(v, v, v) for v in (0, 100, 150, 50, 200, 250)]
    assert {picture.size for picture in pictures} == {(4, 3)}


def test_an_image_is_stored_in_the_smaller_format(folder: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (2, 72, 96, 3), dtype=np.uint8)
    save_traces(folder, "fedavg", "a", matches(asked=noise, found=np.zeros((2, 2, 72, 96, 3), dtype=np.uint8)))
    shown = section(folder, "matches")
    assert shown.count("data:image/jpeg") == 2
    assert shown.count("data:image/png") == 4


def test_a_method_shows_the_matches_of_its_first_node_that_has_some(folder: Path) -> None:
    save_traces(folder, "h-fl", "a", matches())
    save_traces(folder, "h-fl", "b", matches())
    save_traces(folder, "fedavg", "a", places())
    save_traces(folder, "fedavg", "b", matches())
    shown = section(folder, "matches")
    assert re.findall(r"<small>(model[^<]*)</small>", shown) == ["model of b", "model of a, cluster EU/&lt;Bonn&gt;"]


def test_more_than_four_methods_are_collapsed(folder: Path) -> None:
    for method in ("cloud", "m-5", "m-4", "m-3", "h-fl", "fedavg", "elsewhere"):
        save_traces(folder, method, "a", matches())
    shown = section(folder, "matches")
    openly, hidden = shown.split("<summary>More methods</summary>")
    assert re.findall(r"<figcaption><b>([^<]*)</b>", openly) == ["fedavg", "h-fl", "m-3", "m-4"]
    assert re.findall(r"<figcaption><b>([^<]*)</b>", hidden) == ["m-5", "cloud"]


@pytest.mark.parametrize(
    ("metres", "said"),
    [
        (0.0, "0 m"),
        (12.4, "12 m"),
        (999.0, "999 m"),
        (1234.0, "1.23 km"),
        (2.5e6, "2,500 km"),
        (np.inf, "another city"),
    ],
)
def test_distances_as_text(metres: float, said: str) -> None:
    assert distance_text(metres) == said


@pytest.mark.parametrize(
    "arrays",
    [
        {"trace.0.other": np.zeros(3)},
        {"scene.other": np.zeros(3)},
        places(),
        matches(
            asked=np.zeros((0, 3, 4, 3), np.uint8),
            found=np.zeros((0, 2, 3, 4, 3), np.uint8),
            metres=np.zeros((0, 2)),
            right=np.zeros((0, 2), bool),
        ),
    ],
)
def test_there_is_no_section_without_matches(folder: Path, arrays: dict[str, Any]) -> None:
    save_traces(folder, "fedavg", "a", arrays)
    assert section(folder, "matches") == ""


def test_traces_of_different_tasks_are_told_apart(folder: Path) -> None:
    path = np.stack([np.zeros(5), np.arange(5.0)], axis=1)
    save_traces(folder, "fedavg", "a", {"trace.0.robot": path, "trace.0.human": path + 1})
    text = write_report(folder).read_text(encoding="utf-8")
    assert re.findall(r'<section id="(\w+)"', text) == ["result", "paths", "config"]
    save_traces(folder, "fedavg", "b", matches() | places())
    text = write_report(folder).read_text(encoding="utf-8")
    assert re.findall(r'<section id="(\w+)"', text) == ["result", "paths", "matches", "map", "config"]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"found": np.zeros((2, 2, 3, 5, 3), np.uint8)}, r"found' has shape \(2, 2, 3, 5, 3\); it must be \(2, any, 3"),
        ({"right": np.zeros((2, 1), bool)}, r"right' has shape \(2, 1\); it must be \(2, 2\)"),
        ({"right": np.full((2, 2), 2)}, r"right' must hold whole numbers from 0 to 1"),
        ({"asked": np.full((2, 3, 4, 3), 256)}, r"asked' must hold whole numbers from 0 to 255"),
        ({"asked": np.full((2, 3, 4, 3), 0.5)}, r"asked' must hold whole numbers from 0 to 255"),
        ({"metres": np.full((2, 2), np.nan)}, r"metres' must be 0 or more"),
        ({"radius": np.array(-1.0)}, r"radius' must be 0 or more"),
        ({"queries": np.array(np.nan)}, r"queries' must hold whole numbers"),
    ],
)
def test_malformed_matches_are_reported(tmp_path: Path, other: dict[str, Any], message: str) -> None:
    path = save_traces(tmp_path, "fedavg", "a", matches(**other))
    with pytest.raises(ReportError, match=rf"^run-1a2b/fedavg/a/traces\.safetensors: 'matches\.{message}"):
        read_matches(Arrays(path))


def test_a_missing_array_is_reported(tmp_path: Path) -> None:
    path = save_traces(tmp_path, "fedavg", "a", {"matches.asked": matches()["matches.asked"]})
    with pytest.raises(ReportError, match=r"'matches\.found' is missing"):
        read_matches(Arrays(path))


# Maps of image positions.


@pytest.fixture
def plotted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any, str]]:
    """The coordinates and the colour of everything that is drawn."""
    drawn: list[tuple[Any, Any, str]] = []
    plot = Axes.plot

    def watched(axes: Axes, x: Any, y: Any, *args: Any, **how: Any) -> Any:
        drawn.append((np.asarray(x).tolist(), np.asarray(y).tolist(), how["color"]))
        return plot(axes, x, y, *args, **how)

    monkeypatch.setattr(Axes, "plot", watched)
    return drawn


def test_each_city_has_a_map_and_each_node_a_colour(folder: Path, plotted: list[tuple[Any, Any, str]]) -> None:
    test = places("Oslo", "common")
    save_traces(folder, "fedavg", "Bonn-00", places() | test)
    save_traces(folder, "fedavg", "Bonn-01", places(position=np.array([[0, 0], [9, 9], [9, 0], [1000, 500.0]])) | test)
    save_traces(folder, "fedavg", "both", places("Bonn\nKöln"))
    shown = unescape(section(folder, "map"))
    assert "3 nodes in 2 areas." in shown
    assert "Bonn: 3 nodes within 1 km; Köln: 1 node within 200 m; Oslo: common test within 200 m" in shown
    # The line after the points of a city is its scale bar: at most two fifths of 1000 and 200 m.
    square = [0, 200, 200, 0]
    assert [(x, colour) for x, _, colour in plotted] == [
        (square, "#0072B2"), ([0, 9, 9, 1000], "#E69F00"), (square, "#009E73"), ([0, 200], "#1f2937"),
        (square, "#009E73"), ([0, 50], "#1f2937"),
        (square, "#6b7280"), ([0, 50], "#1f2937"),
    ]  # fmt: skip
    assert {"00", "01", "both", "200 m", "50 m", "Oslo: common test"} <= set(labels(shown))


def test_a_railway_is_a_strip(folder: Path, plotted: list[tuple[Any, Any, str]]) -> None:
    test = line(70_000.0, "region-1", "common")
    save_traces(folder, "fedavg", "first", line(5_000.0, "region-0") | test)
    save_traces(folder, "fedavg", "second", line(7_000.0, "region-0") | test)
    shown = unescape(section(folder, "map"))
    assert "region-0: 2 nodes along 2.3 km; region-1: common test along 300 m" in shown
    assert plotted[0][:2] == ([0, 0.1, 0.2, 0.3], [0] * 4)
    assert plotted[1][:2] == ([2, 2.1, 2.2, 2.3], [0] * 4)
    assert plotted[2][:2] == ([0, 0.1, 0.2, 0.3], [1] * 4)
    assert {
        "region-0",
        "region-1",
        "first",
        "second",
        "common test",
        "distance from the start of the line [km]",
    } <= set(labels(shown))


def test_overlapping_names_are_omitted(folder: Path) -> None:
    save_traces(folder, "fedavg", "first", line(0.0))
    save_traces(folder, "fedavg", "second", line(10.0))
    assert not {"first", "second"} & set(labels(section(folder, "map")))


def test_cities_that_are_not_drawn_are_listed(folder: Path) -> None:
    """Of eight cities with nodes, four are drawn; of three cities of the common test, two."""
    test = places("x\ny\nz", "common")
    for number in range(8):
        save_traces(folder, "fedavg", f"client-{number}", places(f"city-{number}") | test)
    save_traces(folder, "fedavg", "client-8", places("city-7"))
    shown = unescape(section(folder, "map"))
    assert "9 nodes in 8 areas." in shown
    drawn = [label.split(":")[0] for label in labels(shown) if ": " in label]
    assert drawn == ["city-0", "city-1", "city-2", "city-7", "x", "y"]
    named = ", ".join(f"city-{number} (1 node)" for number in (3, 4, 5, 6))
    assert f"Not drawn: {named}, z (common test)." in shown


def test_the_method_with_most_nodes_is_drawn(folder: Path) -> None:
    """A method on pooled data has one node that is in every city."""
    save_traces(folder, "cloud", "all", places("Bonn\nOslo"))
    for node in ("a", "b"):
        save_traces(folder, "fedavg", node, places())
    assert "2 nodes in 1 area." in section(folder, "map")


@pytest.mark.parametrize("arrays", [matches(), places(position=np.zeros((0, 2)), city=np.zeros(0)), {"x": np.zeros(1)}])
def test_without_positions_there_is_no_map(folder: Path, arrays: dict[str, Any]) -> None:
    save_traces(folder, "fedavg", "a", arrays)
    assert section(folder, "map") == ""


def test_a_single_image_can_be_drawn(folder: Path) -> None:
    save_traces(folder, "fedavg", "a", places("", position=np.zeros((1, 2)), city=np.zeros(1)))
    assert "all: 1 node along 0 m" in section(folder, "map")


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"city": np.array([0, 0, 0, 1])}, r"'places\.city' must hold whole numbers from 0 to 0"),
        ({"city": np.zeros(3)}, r"'places\.city' has shape \(3,\); it must be \(4\)"),
        ({"position": np.zeros((4, 3))}, r"'places\.position' has shape \(4, 3\); it must be \(any, 2\)"),
        ({"position": np.full((4, 2), np.nan)}, r"'places\.position' must be finite"),
        ({"cities": np.array([255], np.uint8)}, r"'places\.cities' is not UTF-8"),
        ({"cities": np.array([300])}, r"'places\.cities' must hold whole numbers from 0 to 255"),
    ],
)
def test_malformed_positions_are_reported(tmp_path: Path, other: dict[str, Any], message: str) -> None:
    path = save_traces(tmp_path, "fedavg", "a", places(**other))
    with pytest.raises(ReportError, match=rf"^run-1a2b/fedavg/a/traces\.safetensors: {message}"):
        read_positions(Arrays(path), "places")
