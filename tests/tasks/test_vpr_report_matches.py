"""Images of queries and their matches."""

import base64
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedapps.tasks.vpr.report_places import distance_text, read_matches
from PIL import Image
from place_traces import matches, places, section, write_run
from report_pages import save_traces

from fedapps.base.report.sections import Arrays
from fedapps.report import ReportError, write_report


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
        (
            {"found": np.zeros((2, 2, 3, 5, 3), np.uint8)},
            r"found' has shape \(2, 2, 3, 5, 3\); it must be \(2, any, 3",
        ),
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
