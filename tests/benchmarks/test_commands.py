"""The table and the file of the rows of benchmarks."""

import json
from pathlib import Path

import pytest

from benchmarks.commands import show, show_methods


def test_rows_are_a_table_and_lines_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"side": "ours", "peak": 12.5, "found": {"left": "out"}},
        {"side": "theirs", "peak": None, "of": ["a", "b"]},
    ]
    for row in rows:
        show([row], str(tmp_path / "rows.json"))
    assert [json.loads(line) for line in (tmp_path / "rows.json").read_text().splitlines()] == rows
    capsys.readouterr()
    show(rows, "")
    head, _, first, second = (line.split() for line in capsys.readouterr().out.splitlines())
    assert (head, first, second) == (["side", "peak", "of"], ["ours", "12.5", "–"], ["theirs", "–", "a,", "b"])


def test_values_over_seeds_are_a_mean_with_half_its_interval(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    methods: dict[str, dict[str, list[float]]] = {"fedavg": {"loss": [0.8, 0.9]}, "local": {"loss": [], "mse": [0.25]}}
    show_methods(methods, str(tmp_path / "rows.json"))
    assert json.loads((tmp_path / "rows.json").read_text()) == {"methods": methods}
    *_, first, second = capsys.readouterr().out.splitlines()
    # t(0.975, 1) = 12.706, times 0.0707 / sqrt(2)
    assert (first.split(), second.split()) == (["fedavg", "0.85", "±", "0.6353", "–"], ["local", "–", "0.25"])
