"""The report on places: queries with their matches as pictures."""

import base64
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from places_left import matches, places, save, section, write_run

from fedapps.report import ReportError, write_report
from fedapps.report.arrays import Arrays
from fedapps.report.places import read_matches
from fedapps.report.sections.matches import away


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_run(tmp_path)
    return tmp_path


def test_right_and_wrong_matches_are_framed_marked_and_measured(folder: Path) -> None:
    save(folder, "fedavg", "a", matches())
    shown = section(folder, "matches")
    found = re.findall(
        r'<div class="(\w+)"><img alt="([^"]*)" src="[^"]*"><span><b>(.)</b> ([^<]*)</span></div>', shown
    )
    assert found == [
        ("right", "Match 1 of query 1: right, 12 m", "✓", "12 m"),
        ("wrong", "Match 2 of query 1: wrong, another city", "✗", "another city"),
        ("wrong", "Match 1 of query 2: wrong, 1.5 km", "✗", "1.5 km"),
        ("right", "Match 2 of query 2: right, 25 m", "✓", "25 m"),
    ]
    assert "<b>fedavg</b>: first match right for 1 of 2 <small>model of a</small>" in shown
    assert "2 of the 9 queries" in shown
    assert "evenly spaced" in shown
    assert "at most 25 m away" in shown


def test_pictures_are_those_that_were_left(folder: Path) -> None:
    """In the order of the page: query, its matches."""
    save(folder, "fedavg", "a", matches())
    shown = section(folder, "matches")
    pictures = [
        Image.open(io.BytesIO(base64.b64decode(code))) for code in re.findall(r"data:image/\w+;base64,([^\"]*)", shown)
    ]
    assert [picture.getpixel((0, 0)) for picture in pictures] == [(v, v, v) for v in (0, 100, 150, 50, 200, 250)]
    assert {picture.size for picture in pictures} == {(4, 3)}


def test_a_picture_that_png_cannot_make_small_is_coded_otherwise(folder: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (2, 72, 96, 3), dtype=np.uint8)
    save(folder, "fedavg", "a", matches(asked=noise, found=np.zeros((2, 2, 72, 96, 3), dtype=np.uint8)))
    shown = section(folder, "matches")
    assert shown.count("data:image/jpeg") == 2
    assert shown.count("data:image/png") == 4


def test_the_first_node_that_has_matches_speaks_for_a_method(folder: Path) -> None:
    save(folder, "h-fl", "a", matches())
    save(folder, "h-fl", "b", matches())
    save(folder, "fedavg", "a", places())
    save(folder, "fedavg", "b", matches())
    shown = section(folder, "matches")
    assert re.findall(r"<small>(model[^<]*)</small>", shown) == ["model of b", "model of a, cluster EU/&lt;Bonn&gt;"]


def test_further_methods_are_behind_a_click(folder: Path) -> None:
    for method in ("cloud", "m-5", "m-4", "m-3", "h-fl", "fedavg", "elsewhere"):
        save(folder, method, "a", matches())
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
def test_distances_as_people_say_them(metres: float, said: str) -> None:
    assert away(metres) == said


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
def test_without_pictures_there_are_no_matches(folder: Path, arrays: dict[str, Any]) -> None:
    save(folder, "fedavg", "a", arrays)
    assert section(folder, "matches") == ""


def test_what_another_task_left_is_no_place_and_places_are_no_paths(folder: Path) -> None:
    path = np.stack([np.zeros(5), np.arange(5.0)], axis=1)
    save(folder, "fedavg", "a", {"trace.0.robot": path, "trace.0.human": path + 1})
    text = write_report(folder).read_text(encoding="utf-8")
    assert re.findall(r'<section id="(\w+)"', text) == ["result", "paths", "config"]
    save(folder, "fedavg", "b", matches() | places())
    text = write_report(folder).read_text(encoding="utf-8")
    assert re.findall(r'<section id="(\w+)"', text) == ["result", "paths", "matches", "map", "config"]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            {"found": np.zeros((2, 2, 3, 5, 3), np.uint8)},
            r"found' has the shape \(2, 2, 3, 5, 3\); it must be \(2, any, 3",
        ),
        ({"right": np.zeros((2, 1), bool)}, r"right' has the shape \(2, 1\); it must be \(2, 2\)"),
        ({"right": np.full((2, 2), 2)}, r"right' must hold whole numbers from 0 to 1"),
        ({"asked": np.full((2, 3, 4, 3), 256)}, r"asked' must hold whole numbers from 0 to 255"),
        ({"asked": np.full((2, 3, 4, 3), 0.5)}, r"asked' must hold whole numbers from 0 to 255"),
        ({"metres": np.full((2, 2), np.nan)}, r"metres' must be 0 or more"),
        ({"radius": np.array(-1.0)}, r"radius' must be 0 or more"),
        ({"queries": np.array(np.nan)}, r"queries' must hold whole numbers"),
    ],
)
def test_malformed_matches_are_named(tmp_path: Path, other: dict[str, Any], message: str) -> None:
    path = save(tmp_path, "fedavg", "a", matches(**other))
    with pytest.raises(ReportError, match=rf"^run-1a2b/fedavg/a/traces\.safetensors: 'matches\.{message}"):
        read_matches(Arrays(path))


def test_a_missing_array_is_named(tmp_path: Path) -> None:
    path = save(tmp_path, "fedavg", "a", {"matches.asked": matches()["matches.asked"]})
    with pytest.raises(ReportError, match=r"'matches\.found' is missing"):
        read_matches(Arrays(path))
