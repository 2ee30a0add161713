"""The dry run of a recipe: what it prints, and what it counts exactly."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from fedapps.tasks.base import NodeData
from toys import same_bits

from fedapps.cli.commands import main
from fedapps.config.parsing import Config, parse
from fedapps.launch.estimate import DryRun, Estimate, faster_engine
from fedapps.launch.launch import Simulation, launch
from fedapps.runs.checkpoints import read_snapshot

TINY = {
    "task": "lqr", "num-nodes": 3, "rounds": 4, "epochs": 2, "batch-size": 32, "evaluate-every": 2, "collect-after": 0,
    "lqr.trajectories": 4, "lqr.horizon": 20, "lqr.test-fraction": 0.25,
}  # fmt: skip


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


def test_all_rounds_count_the_examples_of_all_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Digits by Dirichlet, α = .1: nodes of very different sizes. A message takes 1 s, a further step 1 s."""

    def dry_run(config: Config, label: str, data: NodeData, *others: object) -> DryRun:
        return DryRun(label, data, steps=1, train_seconds=[9.0, 1.0, 2.0])

    monkeypatch.setattr(DryRun, "of", dry_run)
    given = {"task": "images", "methods": "fedavg", "num-nodes": 5, "epochs": 2, "batch-size": 20, "collect-after": 0}
    config = parse(given | {"rounds": 3, "images.partition": "dirichlet", "images.alpha": 0.1})
    sources = (config.run.source(config.task, {"partition-id": i, "num-partitions": 5}) for i in range(5))
    examples = [source.load(config.task).count("train") for source in sources]
    assert max(examples) > 2 * min(examples)
    steps = sum(2 * -(-count // 20) for count in examples)
    assert Estimate.of(config, "fedavg", tmp_path).run_seconds == pytest.approx(3 * steps)


@pytest.mark.parametrize(
    ("changes", "trained", "evaluated"),
    [
        ({"fraction-train": 0.2, "fraction-evaluate": 0.4}, 1, 2),  # 1.2 and 2.4 of six nodes, rounded
        ({"held-out-nodes": "0.34"}, 4, 4),
        ({"fraction-train": 0.5, "over-selection": 1.3}, 4, 6),  # 3.9 nodes are asked
        ({"fraction-train": 0.5, "mode": "async", "buffer": 2}, 2, 6),
        ({"methods": "centralized"}, 1, 6),
    ],
)
def test_the_messages_of_a_run(
    changes: dict[str, float | str], trained: int, evaluated: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five rounds, of which the second, the fourth and the last evaluate; training takes 1 s, evaluation 10 s."""

    def dry_run(config: Config, label: str, data: NodeData, *others: object) -> DryRun:
        return DryRun(label, data, steps=1, train_seconds=[9.0, 1.0, 1.0], evaluate_seconds=10.0)

    monkeypatch.setattr(DryRun, "of", dry_run)
    given = {"methods": "fedavg", "num-nodes": 6, "rounds": 5, "cache-dir": str(tmp_path / "worlds")}
    config = parse(TINY | given | changes)
    found = Estimate.of(config, next(iter(config.methods)), tmp_path)
    assert found.messages == 5 * trained + 3 * evaluated
    assert found.run_seconds == pytest.approx(5 * trained + 30 * evaluated)


@pytest.fixture
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with four cores."""
    monkeypatch.setattr("fedapps.launch.estimate.usable_cores", lambda: 4)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


@pytest.mark.usefixtures("four_cores")
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, "about .* in this process, .* in Ray with 3 at once"),
        ({"node-batch": 3}, "node-batch = 3 trains nodes at once"),
        ({"node-cpus": 3}, "nodes cannot work at once on this machine"),
        ({"fraction-train": 0.3}, "nodes work one after another"),
        ({"in-flight": 1}, "nodes work one after another"),
    ],
)
def test_one_process_is_faster_for_a_small_job_and_where_nodes_cannot_work_at_once(
    changes: dict[str, int | float], reason: str, tmp_path: Path
) -> None:
    config = parse(TINY | {"methods": "fedavg,local", "cache-dir": str(tmp_path / "worlds")} | changes)
    chosen, because = faster_engine(config)
    assert chosen == "inline"
    assert re.fullmatch(f"{reason}.*", because), because


@pytest.mark.usefixtures("four_cores")
def test_ray_is_faster_for_a_job_of_hours_and_taken_where_a_cluster_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = parse(TINY | {"methods": "fedavg", "cache-dir": str(tmp_path / "worlds")})
    hours = replace(Estimate.of(config, "fedavg", tmp_path / "state"), run_seconds=7200.0, messages=100)
    monkeypatch.setattr(Estimate, "of", lambda *arguments: hours)
    monkeypatch.setattr("fedapps.app.node.has_gpus", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)  # which the nodes share
    # 20 s, and a third of 7,200 s and of 100 messages of 0.1 s
    assert faster_engine(config) == ("ray", "about 2 h 00 min in this process, 40 min 23 s in Ray with 3 at once")
    monkeypatch.setattr(Estimate, "of", lambda *arguments: replace(hours, messages=100_000))
    assert faster_engine(config)[0] == "inline", "the messages take longer than the training"
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert faster_engine(config) == ("ray", "RAY_ADDRESS names the cluster head:6379")


def test_a_run_says_which_engine_it_chose_and_gives_the_numbers_of_that_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    given = TINY | {"methods": "fedavg", "cache-dir": str(tmp_path / "worlds")}
    for engine in ("auto", "inline"):
        launch(given | {"name": engine}, Simulation(engine), str(tmp_path / "runs"))
    out = capsys.readouterr().out
    assert "engine: inline, because" in out
    assert "(--engine ray takes the other one)" in out
    assert out.count("because") == 1, "an engine that was asked for needs no reason"
    last = "checkpoints/fedavg/round-000004.safetensors"
    of_auto, of_inline = (read_snapshot(tmp_path / "runs" / engine / last) for engine in ("auto", "inline"))
    assert same_bits(of_auto.arrays, of_inline.arrays), "the choice draws no random number of the run"


def test_a_dry_run_prints_and_leaves_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [f"--set={key}={value}" for key, value in TINY.items() if key != "task"]
    given += [f"--set=cache-dir={tmp_path / 'worlds'}", "--set=methods=fedavg,cloud"]
    assert main(["run", "lqr", "--dry-run", *given, "--output-dir", str(tmp_path / "runs")]) == 0
    out = capsys.readouterr().out
    assert "train examples" in out
    assert [line.split()[0] for line in out.splitlines() if line.startswith(("fedavg", "cloud"))] == ["fedavg", "cloud"]
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_says_once_what_it_found_in_the_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("train", "test"):
        rows = [f"{'good' if row % 2 else 'bad'} day {row},{'ham' if row % 2 else 'spam'}" for row in range(24)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,label", *rows]), encoding="utf-8")
    given = {
        "data-dir": tmp_path, "text.source": "files", "text.dataset": "mails", "text.global-examples": 0, "num-nodes": 2
    }  # fmt: skip
    assert main(["run", "quickstart", "--dry-run", *(f"--set={key}={value}" for key, value in given.items())]) == 0
    assert capsys.readouterr().err.count("which a deployment lists: --set text.labels=ham,spam") == 1


def test_a_dry_run_needs_a_recipe_and_refuses_what_a_run_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--dry-run"]) == 2
    assert "--dry-run: name a recipe" in capsys.readouterr().err
    assert main(["run", "lqr", "--dry-run", "--set", "rounds=0"]) == 2
    assert "rounds = 0: must be a whole number at least 1" in capsys.readouterr().err
