"""The sections of the report on driving: closed loop and paths."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_pages import node_line, page, save_traces, section_names, write_finished_run, write_lines

from fedapps.report import ReportError, write_report


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_finished_run(tmp_path)


def test_lane_change_measures_use_only_sessions_with_a_lane_change(folder: Path) -> None:
    loop = {
        "closed_loop.cost": [10.0, 30.0],
        "closed_loop.time_to_lane_change": [4.0, 100.0],
        "closed_loop.started": [1, 0],
        "non_proactive.cost": [50.0, 70.0],
    }
    write_lines(folder / "nodes.jsonl", [node_line(m, "a", 0.1, **loop) for m in ("sfl", "apfl")])
    text = page(folder)
    assert "driving" in section_names(text)
    assert "lane change [s], medians: sfl 4, apfl 4" in text
    assert "cost of a session, medians: sfl 20, apfl 20, non-proactive 60" in text
    assert "sfl 1 of 2" in text


def trace(steps: int = 12) -> dict[str, Any]:
    path = np.stack([np.zeros(steps), np.arange(steps) * 2.0], axis=1)
    return {
        "trace.0.robot": path,
        "trace.0.human": path + np.array([3.5, 5.0]),
        "trace.0.gray": path + np.array([3.5, 20.0]),
        "trace.0.predicted": np.ones((2, 3, 20, 2)),
        "trace.0.predicted_at": np.array([0, 9]),
        "trace.0.lane_change_start": np.array(7),
    }


def test_paths_of_a_session_are_drawn_for_each_method(folder: Path) -> None:
    save_traces(folder, "apfl", "driver-00", trace())
    save_traces(folder, "sfl", "driver-00", {k: v for k, v in trace().items() if k.endswith(("robot", "human"))})
    text = page(folder)
    assert "driver-00 under apfl; the lane change starts at step 7." in text
    assert "driver-00 under sfl; the lane change never starts." in text


def test_a_trace_with_a_wrong_shape_is_reported(folder: Path) -> None:
    save_traces(folder, "apfl", "driver-00", trace() | {"trace.0.human": np.zeros((5, 2))})
    expected = r"run-1a2b/apfl/driver-00/traces.safetensors: 'trace.0.human' has shape \(5, 2\); it must be \(12, 2\)"
    with pytest.raises(ReportError, match=expected):
        write_report(folder)
