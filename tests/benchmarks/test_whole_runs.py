"""The benchmark of whole runs."""

import pytest

from benchmarks.whole_runs import main


@pytest.mark.slow
@pytest.mark.subprocesses
def test_a_row_with_both_sides_and_their_difference(tmp_path, capsys):
    sizes = ["num-nodes=2", "methods=sfl", "rounds=1", "epochs=1", f"cache-dir={tmp_path}"]
    settings = [word for size in sizes for word in ("--set", size)]
    json = tmp_path / "bench.json"
    sides = ["--ours", "node-batch=2", "--reference", "node-batch=1"]
    assert main(["--recipe", "lqr", *settings, *sides, "--pairs", "1", "--json", str(json)]) == 0
    header, _, row, last = capsys.readouterr().out.strip().splitlines()[-4:]
    assert header.split()[0] == "name"
    assert row.startswith("run of lqr [s]  node-batch=1")
    assert 0 <= float(last.removeprefix("largest difference of a parameter: ")) < 1e-5
    assert "node-batch=2: 2 nodes" in json.read_text()


def test_settings_that_cannot_work_are_told(capsys):
    sides = ["--ours", "node-batch=20", "--reference", "node-batch=1"]
    assert main(["--recipe", "lqr", "--set", "timings=true", *sides]) == 2
    assert "node-batch = 20: must be 1 with timings = true" in capsys.readouterr().err
