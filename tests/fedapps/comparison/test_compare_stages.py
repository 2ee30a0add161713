"""Comparisons of runs with stages: train-test matrices and the tested metrics."""

import json

import pytest

import fedapps.comparison.compare
from fedapps.comparison.compare import run_cell
from fedapps.comparison.summary import metrics_to_test


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_run_with_stages_gives_its_matrices(tmp_path, monkeypatch):
    """Two stages of two rounds; node b missed the first stage's end."""
    monkeypatch.setattr(
        fedapps.comparison.compare, "execute", lambda config, engine: pytest.fail("the run has finished")
    )
    folder = tmp_path / "sfl-0"
    folder.mkdir()
    mean_of = {2: [1.0, 5.0], 3: [9.0, 9.0], 4: [2.0, 3.0]}
    named = {r: {f"stage-{j}.test.mse": v for j, v in enumerate(values, 1)} for r, values in mean_of.items()}
    write_lines(
        folder / "metrics.jsonl", [{"method": "sfl", "round": r, "evaluate": named.get(r, {})} for r in range(1, 5)]
    )
    head = {"method": "sfl", "phase": "evaluate"}
    nodes = [head | {"node": "a", "round": r, "metrics": named[r]} for r in (2, 3, 4)]
    nodes += [head | {"node": "b", "round": r, "metrics": named[r]} for r in (3, 4)]
    write_lines(folder / "nodes.jsonl", nodes)
    summary = {"methods": {"sfl": {"final": {"test.mse": 3.0, "test.amse": 2.0, "test.bwt": 1.0}}}}
    (folder / "summary.json").write_text(json.dumps(summary))
    config = {"task": "lqr", "rounds": 4, "collect-after": 0, "methods": "sfl", "seed": 0, "name": "sfl-0",
              "output-dir": str(tmp_path)}  # fmt: skip
    row = run_cell("sfl", 0, config, "inline")
    assert row["metrics"] == {"mse": 3.0, "amse": 2.0, "bwt": 1.0}
    assert row["matrices"] == {"mse": [[1.0, 5.0], [2.0, 3.0]]}
    assert {(node["node"], node["round"]) for node in row["nodes"]} == {("a", 4), ("b", 4)}


def test_methods_with_stages_are_compared_by_the_average_over_stages():
    rows = [{"metrics": {"mse": 3.0, "amse": 2.0, "bwt": 1.0}}]
    assert metrics_to_test("social", rows) == ["test.amse"]
    assert metrics_to_test("social", [{"metrics": {"mse": 3.0}}]) == ["test.mse"]
