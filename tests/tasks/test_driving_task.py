"""The task as a whole: worlds, nodes, learning, the closed loop and the second collection."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fedapps.tasks.base import DataError
from fedapps.tasks.driving import planner
from fedapps.tasks.driving.options import Options
from fedapps.tasks.driving.task import DrivingTask
from report_pages import node_line, page, save_traces, section_names, write_finished_run, write_lines
from toys import learn

from fedapps.report import ReportError, write_report

SMALL = Options(sessions_train=3, sessions_test=2, hidden=8, latent=2, samples=2)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Three drivers of the lane swap."""
    folder = tmp_path_factory.mktemp("lane-swap")
    DrivingTask(SMALL).make_world(folder, 3, seed=4)
    return folder


def model_of(task: DrivingTask):
    torch.manual_seed(0)
    return task.build_model()


def test_a_world_of_drivers_who_meet_the_same_starts(world):
    task = DrivingTask(SMALL)
    nodes = [task.load_node(world, k, 3) for k in range(3)]
    assert [node.key for node in nodes] == ["driver-00", "driver-01", "driver-02"]
    assert [node.groups["style"] for node in nodes] == ["-1.00", "+0.00", "+1.00"]
    met = [node.extra["encounters"][0] for node in nodes]
    assert {(len(who.train), len(who.test)) for who in met} == {(3, 2)}
    assert all(torch.equal(who.test.states, met[0].test.states) for who in met)
    assert not torch.equal(nodes[0].splits["train"]["human_path"][:5], nodes[2].splits["train"]["human_path"][:5])
    pooled = task.load_all(world)
    assert pooled.key == "pooled"
    for split in ("train", "test"):
        assert pooled.count(split) == sum(node.count(split) for node in nodes)


def test_a_world_has_its_own_options_alone(world, tmp_path):
    """The options of the model and of the reading of files simulate no other world."""
    reading = replace(SMALL, history=7, min_history=3, window_stride=2, validation_share=0.5)
    task = DrivingTask(replace(reading, posterior="cvae", latent=3, hidden=9, loss="path", samples=4, context="none"))
    assert task.world_options == DrivingTask(SMALL).world_options
    task.make_world(tmp_path, 3, seed=4)
    written = [{path.name: path.read_bytes() for path in folder.iterdir()} for folder in (world, tmp_path)]
    assert written[0] == written[1]
    for other in ({"scenario": "three-cars"}, {"driver_style": "literal"}, {"horizon": 5}, {"candidates": "blocks"}):
        assert DrivingTask(replace(SMALL, **other)).world_options != task.world_options


def test_known_dynamics_turn_the_recorded_controls_into_the_recorded_path(world):
    """What the planner rolls out for a perfect forecast is what happened, up to the files' four decimals."""
    task = DrivingTask(SMALL)
    windows = task.load_all(world).splits["train"]
    rolled = task.setting.roll_out(windows["current"][:, 1], windows["human_future"])[..., :2]
    rolled[..., 0] -= windows["current"][:, None, 1, 0]
    torch.testing.assert_close(rolled, windows["human_path"], atol=0.02, rtol=0)


def test_learning_lowers_the_loss_and_beats_constant_velocity(world):
    task = DrivingTask(replace(SMALL, hidden=16))
    data, model = task.load_node(world, 0, 3), model_of(task)
    before = task.evaluate(model, data, seed=0, final=False).metrics
    learn(task, model, data, epochs=60, rate=5e-3, batch_size=16)
    after = task.evaluate(model, data, seed=0, final=False).metrics
    assert after["test.elbo"] < 0.75 * before["test.elbo"]
    assert after["test.error_1.5s"] < after["test.constant_velocity_1.5s"]
    elbo = after["test.reconstruction"] + 0.05 * after["test.kl"]
    assert after["test.elbo"] == pytest.approx(elbo)


@pytest.mark.parametrize("error", ["controls", "path"])
def test_without_a_weight_on_kl_the_loss_is_the_error(world, error):
    task = DrivingTask(replace(SMALL, kl_weight=0.0, loss=error))
    data, model = task.load_node(world, 0, 3), model_of(task)
    batch = data.splits["train"]
    torch.manual_seed(3)
    loss = task.loss(model, batch)
    torch.manual_seed(3)
    noise = torch.randn(len(batch["history"]), 2)
    controls, _ = model(batch["history"], batch["robot_future"], batch["human_future"], noise)
    assert loss.item() == planner.reconstruction(task.setting, task.options, batch, controls).mean().item()


@pytest.mark.parametrize("posterior", ["literal", "cvae"])
def test_evaluation_repeats_and_leaves_the_generator_alone(world, posterior):
    task = DrivingTask(replace(SMALL, posterior=posterior))
    data, model = task.load_node(world, 1, 3), model_of(task)
    state = torch.get_rng_state()
    first = task.evaluate(model, data, seed=5, final=True)
    assert torch.equal(torch.get_rng_state(), state)
    second = task.evaluate(model, data, seed=5, final=True)
    assert first.metrics == second.metrics
    assert all(np.array_equal(first.traces[name], second.traces[name]) for name in first.traces)


def test_the_closed_loop_reports_every_session(world):
    task = DrivingTask(SMALL)
    evaluation = task.evaluate(model_of(task), task.load_node(world, 2, 3), seed=0, final=True)
    for robot in ("closed_loop", "non_proactive"):
        for name in ("cost", "time_to_lane_change", "started", "distance_at_start", "collided"):
            values = evaluation.metrics[f"{robot}.{name}"]
            assert len(values) == 2
            assert np.isfinite(values).all()
        assert evaluation.metrics[f"{robot}.mean_cost"] == pytest.approx(np.mean(evaluation.metrics[f"{robot}.cost"]))
        assert evaluation.metrics[f"{robot}.start_rate"] in (0.0, 0.5, 1.0)
    traces = evaluation.traces
    steps = len(traces["trace.1.robot"])
    assert traces["trace.1.robot"].shape == traces["trace.1.human"].shape == (steps, 2)
    replans = len(traces["trace.1.predicted_at"])
    assert traces["trace.1.predicted"].shape == (replans, 2, 20, 2)
    assert (traces["trace.1.predicted_at"] % 3 == 0).all()
    np.testing.assert_array_equal(traces["trace.1.lanes"], [0.0, 3.5])
    assert "trace.2.robot" not in traces


def test_the_second_collection_adds_windows_to_the_training_split(world):
    task = DrivingTask(SMALL)
    data, model = task.load_node(world, 0, 3), model_of(task)
    collected = task.collect(model, data, seed=1)
    count = len(collected["history"])
    assert count > 0
    grown = task.with_collected(data, collected)
    assert grown.count("train") == data.count("train") + count
    assert grown.count("test") == data.count("test")
    assert torch.equal(grown.splits["train"]["history"][:-count], data.splits["train"]["history"])
    again = task.collect(model, data, seed=1)
    assert all(np.array_equal(collected[name], again[name]) for name in collected)


def test_three_cars(tmp_path):
    task = DrivingTask(replace(SMALL, scenario="three-cars"))
    task.make_world(tmp_path, 2, seed=0)
    data = task.load_node(tmp_path, 1, 2)
    assert data.splits["train"]["current"].shape[1:] == (3, 4)
    evaluation = task.evaluate(model_of(task), data, seed=0, final=True)
    assert len(evaluation.metrics["closed_loop.cost"]) == 2
    assert evaluation.traces["trace.0.gray"].shape == evaluation.traces["trace.0.robot"].shape
    with pytest.raises(DataError, match="holds 3 cars with bicycle dynamics; scenario 'lane-swap' expects 2 cars"):
        DrivingTask(SMALL).load_all(tmp_path)


def test_a_node_that_a_folder_does_not_have(world):
    with pytest.raises(DataError, match=r"holds 3 blocks .*, but num-nodes is 4"):
        DrivingTask(SMALL).load_node(world, 0, 4)
    for partition in (-1, 3):
        with pytest.raises(DataError, match=f"node {partition} of 3: expected an index from 0 to 2"):
            DrivingTask(SMALL).load_node(world, partition, 3)


def test_sessions_default_to_the_papers():
    assert Options().sessions() == (40, 10)
    assert Options(scenario="three-cars").sessions() == (45, 9)
    assert Options(sessions_train=7).sessions() == (7, 10)


def test_trials_are_recorded_not_made(tmp_path):
    with pytest.raises(DataError, match="data-dir"):
        DrivingTask(Options(scenario="trials")).make_world(tmp_path, 7, seed=0)


@pytest.mark.slow
@pytest.mark.skipif("FEDAPPS_DATA" not in os.environ, reason="FEDAPPS_DATA names no folder of real data")
def test_a_pooled_model_of_the_recorded_trials_beats_constant_velocity():
    task = DrivingTask(Options(scenario="trials"))
    data = task.load_all(Path(os.environ["FEDAPPS_DATA"]) / "driving")
    model = model_of(task)
    with pytest.raises(NotImplementedError):
        task.collect(model, data, seed=0)
    learn(task, model, data, epochs=15, rate=3e-3, batch_size=64)
    metrics = task.evaluate(model, data, seed=0, final=True).metrics
    assert metrics["test.error_1.5s"] < 0.9 * metrics["test.constant_velocity_1.5s"]
    assert not [name for name in metrics if name.startswith("closed_loop")]


# The sections of the report on driving: closed loop and paths.


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


@pytest.mark.parametrize(("steps", "human"), [(0, np.zeros((0, 2))), (12, np.full((12, 2), np.nan))])
def test_sessions_without_a_step_or_a_position_are_not_drawn(folder: Path, steps: int, human: np.ndarray) -> None:
    save_traces(folder, "apfl", "driver-00", trace(steps) | {"trace.0.human": human, "trace.0.gray": human})
    assert "paths" not in section_names(page(folder))


def test_a_trace_with_a_wrong_shape_is_reported(folder: Path) -> None:
    save_traces(folder, "apfl", "driver-00", trace() | {"trace.0.human": np.zeros((5, 2))})
    expected = r"run-1a2b/apfl/driver-00/traces.safetensors: 'trace.0.human' has shape \(5, 2\); it must be \(12, 2\)"
    with pytest.raises(ReportError, match=expected):
        write_report(folder)
