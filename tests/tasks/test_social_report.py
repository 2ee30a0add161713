"""Social scenes: reading, drawing and malformed traces."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedapps.tasks.social.report_scenes import gaze, read_scene
from matplotlib.axes import Axes
from report_pages import labels, page, save_traces, section, write_lines

from fedapps.report import ReportError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of two methods without traces."""
    (tmp_path / "config.toml").write_text('methods = "stl,fedavg"\n')
    write_lines(tmp_path / "metrics.jsonl", [{"method": method, "round": 1} for method in ("stl", "fedavg")])
    return tmp_path


def scene(**other: Any) -> dict[str, Any]:
    """A room of 2 by 1 metres with its corner at (-0.5, -0.5), and a grid that reaches one metre beyond it."""
    return {
        "scene.room": [[-0.5, -0.5], [1.5, -0.5], [1.5, 0.5], [-0.5, 0.5]],
        "scene.humans": [[1.0, 0.25, 0.5]],
        "scene.objects": [[1.25, -0.25, 0.0]],
        "scene.links": [[0, 1]],
        "scene.x": [-1.0, 0.0, 1.0],
        "scene.y": [0.0, 1.0],
        "scene.score": [[0.95, 0.625, 0.31], [0.0, 1.0, math.nan]],
        "scene.inside": np.array([[False, True, True], [False, False, False]]),
        "scene.truth": np.array(0.75),
        **{f"scene.{name}": value for name, value in other.items()},
    }


def test_a_scene_is_read_as_it_was_written(tmp_path: Path) -> None:
    found = read_scene(save_traces(tmp_path, "stl", "client-1", scene()))
    assert found is not None
    assert (found.at_robot, found.truth) == (0.625, 0.75)
    np.testing.assert_array_equal(found.shown, [[np.nan, 0.625, 0.31], [np.nan] * 3])
    assert found.links.tolist() == [[0, 1]]


def test_people_look_along_their_orientation() -> None:
    """In half turns from straight down, over +x at a half, to straight up at a whole one."""
    people = np.array([[5, 5, 0.0], [5, 5, 0.5], [5, 5, 1.0], [5, 5, -0.5]])
    np.testing.assert_allclose(gaze(people), [[0, -1], [1, 0], [0, 1], [-1, 0]], atol=1e-12)


def test_scenes_are_drawn_for_each_method_with_the_same_scale(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One colour scale: what is drawn lies between .31 and .82, rounded outwards to tenths."""
    scales, draw = [], Axes.pcolormesh

    def watched(axes: Axes, *grid: Any, **how: Any) -> Any:
        if "vmin" in how:  # not that of the colour bar itself
            scales.append((how["vmin"], how["vmax"]))
        return draw(axes, *grid, **how)

    monkeypatch.setattr(Axes, "pcolormesh", watched)
    save_traces(folder, "fedavg", "client-1", scene())
    save_traces(folder, "stl", "client-1", scene(score=[[0.0, 0.5, 0.82], [0.0, 0.0, 0.0]]))
    save_traces(folder, "stl", "client-2", scene(truth=np.array(0.25)))
    shown = section(page(folder), "scenes")
    assert "stl 0.50, fedavg 0.62, rated 0.75" in shown
    assert "A scene of client-2, rated 0.25" in shown
    assert scales == [(0.3, 0.9), (0.3, 0.9), (0.3, 0.7)]
    assert {"stl: 0.50", "fedavg: 0.62", "predicted score", "x [m]", "y [m]"} <= set(labels(shown))


def test_an_empty_room_can_be_drawn(folder: Path) -> None:
    nobody = {"humans": np.zeros((0, 3)), "objects": np.zeros((0, 3)), "links": np.zeros((0, 2), np.int64)}
    save_traces(folder, "stl", "client-1", scene(**nobody))
    assert "stl 0.62, rated 0.75" in section(page(folder), "scenes")


def test_there_is_no_section_without_scenes(folder: Path) -> None:
    save_traces(folder, "stl", "client-1", {"something": np.zeros(3)})
    assert '<section id="scenes"' not in page(folder)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"links": [[0, 2]]}, r"'scene\.links' must hold indices from 0 to 1 of humans and objects"),
        ({"links": [[-1, 0]]}, r"'scene\.links' must hold indices from 0 to 1 of humans and objects"),
        ({"score": [[0.0, 1.0]]}, r"'scene\.score' has shape \(1, 2\); it must be \(2, 3\)"),
        ({"humans": [[0.0, 1.0]]}, r"'scene\.humans' has shape \(1, 2\); it must be \(any, 3\)"),
    ],
)
def test_a_malformed_scene_is_reported(tmp_path: Path, other: dict[str, Any], message: str) -> None:
    with pytest.raises(ReportError, match=rf"^run-1a2b/stl/client-1/traces\.safetensors: {message}"):
        read_scene(save_traces(tmp_path, "stl", "client-1", scene(**other)))
