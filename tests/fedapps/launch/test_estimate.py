"""The dry run of a recipe: what it prints, and what it counts exactly."""

from pathlib import Path

import pytest

from fedapps.cli.commands import main
from fedapps.config.parsing import parse
from fedapps.launch.estimate import Estimate, inline_advice

TINY = {
    "task": "lqr",
    "num-nodes": 3,
    "rounds": 4,
    "epochs": 2,
    "batch-size": 32,
    "evaluate-every": 2,
    "collect-after": 0,
}
TINY |= {"lqr.trajectories": 4, "lqr.horizon": 20, "lqr.test-fraction": 0.25}


def test_the_estimate_counts_parameters_steps_and_rounds(tmp_path: Path) -> None:
    """A node has 3 x 20 = 60 training rows: 2 batches, so 4 steps. LQR has 8 float32 parameters and 2 snapshots."""
    config = parse(TINY | {"methods": "fedavg,local", "cache-dir": str(tmp_path / "worlds")})
    found = Estimate.of(config, "fedavg", tmp_path / "state")
    assert (found.dry_run.shared_parameters, found.dry_run.shared_bytes) == (8, 8 * 4 + 3 * 128)
    assert found.dry_run.steps == 4
    rounds = 4 * 3 * found.train_seconds + 2 * 3 * found.dry_run.evaluate_seconds
    assert found.run_seconds == pytest.approx(rounds)
    alone = Estimate.of(config, "local", tmp_path / "state")
    assert (alone.dry_run.shared_parameters, alone.dry_run.bytes_down < found.dry_run.bytes_down) == (0, True)
    assert alone.disk_bytes > 3 * 8 * 4, "the private models of three nodes"


def test_a_run_that_took_longer_in_ray_than_in_one_process_says_so(tmp_path: Path) -> None:
    config = parse(TINY | {"methods": "fedavg,local", "cache-dir": str(tmp_path / "worlds")})
    assert inline_advice(config, 60.0).endswith("Add --engine inline")
    assert "in Ray they took 1 min 00 s" in inline_advice(config, 60.0)
    assert inline_advice(config, 10.0) == "", "too short to matter"
    assert inline_advice(parse(TINY | {"rounds": 999_999}), 60.0) == "", "one process would take hours"


def test_a_dry_run_prints_and_leaves_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [f"--set={key}={value}" for key, value in TINY.items() if key != "task"]
    where = [
        "--output-dir",
        str(tmp_path / "runs"),
        f"--set=cache-dir={tmp_path / 'worlds'}",
        "--set=methods=fedavg,cloud",
    ]
    assert main(["run", "lqr", "--dry-run", *given, *where]) == 0
    out = capsys.readouterr().out
    assert "train examples" in out
    assert [line.split()[0] for line in out.splitlines() if line.startswith(("fedavg", "cloud"))] == ["fedavg", "cloud"]
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_says_once_what_it_found_in_the_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("train", "test"):
        rows = [f"{'good' if row % 2 else 'bad'} day {row},{'ham' if row % 2 else 'spam'}" for row in range(24)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,label", *rows]), encoding="utf-8")
    given = {
        "data-dir": tmp_path,
        "text.source": "files",
        "text.dataset": "mails",
        "text.global-examples": 0,
        "num-nodes": 2,
    }
    assert main(["run", "quickstart", "--dry-run", *(f"--set={key}={value}" for key, value in given.items())]) == 0
    assert capsys.readouterr().err.count("which a deployment lists: --set text.labels=ham,spam") == 1


def test_a_dry_run_needs_a_recipe_and_refuses_what_a_run_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--dry-run"]) == 2
    assert "--dry-run: name a recipe" in capsys.readouterr().err
    assert main(["run", "lqr", "--dry-run", "--set", "rounds=0"]) == 2
    assert "rounds = 0: must be a whole number at least 1" in capsys.readouterr().err
