"""The progress of a comparison: bars in a terminal, lines elsewhere."""

import json
from pathlib import Path

from fedapps.launch.progress import MatrixProgress, folder_of, label_of, log_of


def cell(folder, method, seed=0, **more):
    config = {"output-dir": str(folder), "name": f"{method}-{seed}", "rounds": 4}
    return {"method": method, "seed": seed, "config": config, "engine": "inline", **more}


def finish(of, rounds):
    folder = folder_of(of)
    folder.mkdir(exist_ok=True)
    with (folder / "metrics.jsonl").open("a") as lines:
        lines.write((json.dumps({"method": of["method"]}) + "\n") * rounds)
    (folder / "summary.json").write_text("{}")


def test_a_line_after_each_run_and_one_a_minute_between_them(tmp_path, clock, screen):
    printed = screen(width=40)
    first, second, third = (cell(tmp_path, "fedavg", seed) for seed in range(3))
    with MatrixProgress(3) as progress:
        progress.begin(first)
        progress.begin(second)
        clock[0] = 30.0
        finish(first, 3)
        progress.tick()
        assert printed.getvalue() == ""
        clock[0] = 60.0
        finish(second, 1)
        progress.tick()
        progress.tick()
        clock[0] = 80.0
        finish(first, 1)
        progress.end(first)
        progress.begin(third)
        progress.end(third)
    assert printed.getvalue().splitlines() == [
        "[0/3] fedavg, seed 0: round 4 of 4; fedavg, seed 1: round 2 of 4; 1 min 00 s spent, about 2 min 00 s to go",
        "[1/3] fedavg, seed 0: finished; 1 min 20 s spent, about 1 min 52 s to go",
        "[2/3] fedavg, seed 2: failed; 1 min 20 s spent, about 48 s to go",
    ]


def test_runs_that_had_finished_before_do_not_shorten_the_estimate(tmp_path, clock, screen):
    done, new, printed = cell(tmp_path, "fedavg"), cell(tmp_path, "local"), screen()
    finish(done, 4)
    progress = MatrixProgress(2)
    progress.begin(done)
    clock[0] = 10.0
    progress.end(done)
    assert printed.getvalue() == "[1/2] fedavg, seed 0: finished; 10 s spent\n"
    progress.begin(new)
    finish(new, 2)
    clock[0] = 30.0
    assert [bar.to_go for bar in progress.bars()] == ["about 20 s to go", "about 30 s to go"]


def test_a_terminal_shows_a_bar_for_each_run_and_one_for_all(tmp_path, clock, screen):
    printed, run = screen(force_terminal=True, width=120), cell(tmp_path, "fedavg", 7)
    with MatrixProgress(5) as progress:
        progress.begin(run)
        finish(run, 1)
        clock[0] = 5.0
        progress.tick()
    assert [(bar.label, bar.fraction, bar.position, bar.to_go) for bar in progress.bars()] == [
        ("fedavg, seed 7", 0.25, "round 2 of 4", "about 15 s to go"),
        ("all", 0.05, "0 of 5 runs", "about 1 min 35 s to go"),
    ]
    assert "fedavg, seed 7" in printed.getvalue()
    assert "0 of 5 runs" in printed.getvalue()


def test_a_run_that_stops_early_is_a_whole_one(tmp_path, clock, screen):
    first, second, printed = cell(tmp_path, "fedavg"), cell(tmp_path, "local"), screen()
    progress = MatrixProgress(2)
    progress.begin(first)
    finish(first, 1)
    clock[0] = 10.0
    progress.end(first)
    progress.begin(second)
    assert printed.getvalue() == "[1/2] fedavg, seed 0: finished; 10 s spent, about 10 s to go\n"


def test_rounds_are_those_of_total_steps(tmp_path):
    run = cell(tmp_path, "fedavg")
    run["config"] |= {"total-steps": 16, "steps": 2, "rounds": 40}
    progress = MatrixProgress(1)
    progress.begin(run)
    assert [bar.position for bar in progress.bars()] == ["round 1 of 8", "0 of 1 runs"]


def test_labels_name_what_differs_and_logs_lie_beside_the_run_folders(tmp_path):
    run = cell(tmp_path, "fedprox(mu=0.1)", 2, at="rounds = 4")
    assert label_of(run) == "fedprox(mu=0.1), rounds = 4, seed 2"
    assert label_of(cell(tmp_path, "apfl", trial="3 of 9")) == "apfl, seed 0, trial 3 of 9"
    assert log_of(run) == Path(tmp_path, "logs", "fedprox(mu=0.1)-2.log")
