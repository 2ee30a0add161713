"""The benchmark of the engine: its table, and pfl-research as a side in another process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import engine, environments, pfl

pytestmark = pytest.mark.subprocesses

SIZES = ["--clients", "3", "--widths", "8", "--pairs", "1"]
WORKER = """
import sys
assert sys.argv[1:] == ["8", "3", "10"]
for line in sys.stdin:
    print({"time": 7.5, "memory": 40.0}[line.strip()], flush=True)
"""


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program in place of pfl, which always answers the same."""
    (tmp_path / "worker.py").write_text(WORKER)
    monkeypatch.setattr(pfl, "_WORKER", tmp_path / "worker.py")
    monkeypatch.setattr(engine, "pfl_python", lambda: Path(sys.executable))


@pytest.mark.slow
def test_rows_of_all_sides_with_their_memory(tmp_path: Path, worker: None) -> None:
    path = tmp_path / "bench.json"
    assert engine.main([*SIZES, "--json", str(path)]) == 0
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(row["name"].partition(",")[0], row["side"]) for row in rows] == [
        ("client", "Flower's FedAvg"),
        ("client", "plain loop"),
        ("client", "pfl-research"),
        ("beyond the loop", "Flower's FedAvg"),
        ("beyond the loop", "pfl-research"),
    ]
    assert rows[2]["reference"] == 7.5
    assert rows[4]["reference"] == pytest.approx(7.5 - rows[1]["reference"])
    if sys.platform == "linux":
        assert rows[2]["reference_megabytes"] == 40
        assert all(row["ours_megabytes"] >= 0 for row in rows)


def test_a_process_of_pfl_that_ends_is_an_error(
    tmp_path: Path, worker: None, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "worker.py").write_text("raise SystemExit(3)")
    assert engine.main(SIZES) == 2
    assert "pfl failed: exit status 3" in capsys.readouterr().err


def test_an_environment_that_cannot_be_built_names_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = subprocess.CompletedProcess([], 1, "", "ERROR: No matching distribution found for pfl")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(environments.subprocess, "run", lambda *_, **__: failed)
    assert engine.main(SIZES) == 2
    said = capsys.readouterr().err
    assert "No matching distribution found for pfl" in said
    assert "--skip-pfl" in said
