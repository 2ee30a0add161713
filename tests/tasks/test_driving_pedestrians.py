"""Recorded pedestrians: windows by hand, and the floors that are known of the published recordings."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fedapps.tasks.base import DataError
from fedapps.tasks.driving import pedestrians
from fedapps.tasks.driving.options import SETTINGS, Options
from fedapps.tasks.driving.pedestrians import (
    constant_velocity,
    errors,
    left_out,
    read_pedestrians,
    read_tracks,
    windows,
)
from fedapps.tasks.driving.task import DrivingTask

RECORDINGS = (
    *("biwi_eth", "biwi_hotel", "crowds_zara01", "crowds_zara02", "crowds_zara03"),
    *("students001", "students003", "uni_examples"),
)
OPTIONS = Options(scenario="pedestrians", history=3, min_history=3, horizon=2, hidden=4, latent=2, samples=3)


def write(path: Path, rows: list[tuple[int, int, float, float]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{frame}\t{person}\t{x}\t{y}\n" for frame, person, x, y in rows))
    return path


def straight(person: int, steps: int, y: float = 0.0, speed: float = 0.4) -> list[tuple[int, int, float, float]]:
    return [(780 + 10 * step, person, step * speed, y) for step in range(steps)]


def tracks(folder: Path, rows: list[tuple[int, int, float, float]]) -> np.ndarray:
    return read_tracks(write(folder / "a.txt", rows))[1]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All recordings with two people who walk side by side for 7 steps, which are 6 windows."""
    folder = tmp_path_factory.mktemp("pedestrians")
    for recording in RECORDINGS:
        for path in (f"all/{recording}", f"train/{recording}_train", f"val/{recording}_val"):
            write(folder / f"{path}.txt", straight(1, 7) + straight(2, 7, 1.0))
    return folder


def test_a_window_is_turned_to_the_way_of_the_person_with_the_nearest_other_beside(tmp_path: Path) -> None:
    # person 1 walks east 1 m a step and then turns north; person 2 walks 2 m to the left of it, person 3 is far away
    way = [(0, 0), (1, 0), (2, 0), (2, 1), (2, 2)]
    rows = [(10 * step, 1, float(x), float(y)) for step, (x, y) in enumerate(way)]
    rows += [(10 * step, 2, float(step), 2.0) for step in range(5)] + [(10 * step, 3, 50.0, 0.0) for step in range(5)]
    first, *others = windows(tracks(tmp_path, rows), OPTIONS, "train")
    assert len(others) == 2
    np.testing.assert_allclose(first.states[:, 1, :2], [[0, -2], [0, -1], [0, 0], [-1, 0], [-2, 0]], atol=1e-12)
    np.testing.assert_allclose(first.states[:3, 0, :2], [[-2, -2], [-2, -1], [-2, 0]], atol=1e-12)
    np.testing.assert_allclose(first.states[2, :, 2:], [[0, 2.5], [0, 2.5]], atol=1e-12)
    np.testing.assert_allclose(first.controls[3, 1], [-6.25, -6.25], atol=1e-12)
    # forecasts do not see where the other goes
    np.testing.assert_array_equal(first.states[3:, 0, :2], first.states[[2, 2], 0, :2])
    np.testing.assert_array_equal(first.controls[3:, 0], 0)


def test_somebody_ahead_stands_in_where_nobody_else_is_seen(tmp_path: Path) -> None:
    (alone,) = windows(tracks(tmp_path, straight(1, 5)), OPTIONS, "train")
    np.testing.assert_allclose(alone.states[2, 0], [0, 10, 0, 1], atol=1e-12)


def test_only_people_at_consecutive_steps_have_windows(tmp_path: Path) -> None:
    rows = [row for row in straight(1, 11) if row[0] != 780 + 50]
    assert [len(session.states) for session in windows(tracks(tmp_path, rows), OPTIONS, "train")] == [5, 5]


def test_the_controls_of_a_window_lead_along_its_way(world: Path) -> None:
    task = DrivingTask(OPTIONS)
    batch = task.load_node(world, 0, 7).splits["train"]
    rolled = SETTINGS["pedestrians"].roll_out(batch["current"][:, 1], batch["human_future"])[..., :2]
    torch.testing.assert_close(rolled, batch["human_path"], atol=1e-5, rtol=0)


def test_the_best_forecast_counts_and_its_last_step_alone() -> None:
    path = torch.zeros(1, 2, 2)
    forecasts = torch.tensor([[[[3.0, 4.0], [0.0, 1.0]], [[1.0, 0.0], [2.0, 0.0]]]])
    assert errors(forecasts, path, "a.") == {"a.ade": 1.5, "a.fde": 1.0}


def test_the_place_left_out_is_no_node_and_tests_all_models(world: Path) -> None:
    task = DrivingTask(OPTIONS)
    assert len(read_pedestrians(world, OPTIONS).blocks) == 7
    univ = Options(scenario="pedestrians", history=3, min_history=3, horizon=2, left_out="univ")
    assert len(read_pedestrians(world, univ).blocks) == 6
    assert len(left_out(world, univ)["unseen"]["history"]) == 12
    data = task.load_node(world, 0, 7)
    assert (data.key, data.count("train"), data.count("test")) == ("biwi_hotel", 6, 6)
    torch.manual_seed(0)
    model = task.build_model()
    assert "unseen.ade" not in task.evaluate(model, data, seed=0, final=False).metrics
    metrics = task.evaluate(model, data, seed=0, final=True).metrics
    assert metrics == task.evaluate(model, data, seed=0, final=True).metrics
    assert metrics["unseen.best_ade"] <= metrics["unseen.ade"] + 0.05
    references = task.node_references(world, 7)["constant velocity"]
    assert references[0]["unseen.ade"] == pytest.approx(0, abs=1e-6)
    assert "windows: 42 train, 0 validation, 42 test; left out: eth" in task.describe_data(world)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("1 2 3\n", r"3 columns, or not finite; expected frame, id, x and y"),
        ("1 2 a 4\n", r"expected rows of frame, id"),
        ("\n", r"no rows; expected frame, id, x and y"),
        ("10 1 0 0\n20 1 0 50\n", r"people move at 125 m/s \(median\); expected x and y in metres, 0.4 s a step"),
        ("10 1 0 0\n14 1 0 1\n", r"frame 14 lies between two steps; expected steps of 10 frames"),
        ("10 1 0 0\n10 1 0 1\n", r"a person is twice in one frame"),
        ("0 1 0 0\n1e9 2 0 1\n", r"2 people in 100000001 steps are 200000002 places, at most 50000000 fit; split it"),
    ],
)
def test_malformed_files_are_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "a.txt"
    path.write_text(content)
    with pytest.raises(DataError, match=rf"a\.txt: .*{message}"):
        read_pedestrians(tmp_path, OPTIONS)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "no recordings of pedestrians; expected files NAME.txt, or NAME_train.txt and NAME_val.txt"),
        (["train/a_train.txt"], "the recording a has a_train.txt; expected a.txt, or a_train.txt and a_val.txt"),
        (["a.txt", "a_val.txt"], "the recording a has a.txt, a_val.txt; expected a.txt"),
        (["a.txt", "a.txt.gz"], "a.txt.gz: the same file twice, plain and compressed"),
        (["a.txt", "train/a.txt"], "train/a.txt: the recording a is also in .*a.txt; keep one of them"),
        (["a.txt"], r"0 files biwi_eth.txt, .* \(driving.left-out = 'eth', or 'none'\)"),
    ],
)
def test_folders_with_missing_or_ambiguous_files_are_refused(tmp_path: Path, files: list[str], message: str) -> None:
    for name in files:
        write(tmp_path / name, straight(1, 40))
    with pytest.raises(DataError, match=message):
        DrivingTask(OPTIONS).load_own(tmp_path)


def test_a_recording_without_a_window_is_refused_by_its_name(tmp_path: Path) -> None:
    for name, steps in (("hall", 4), ("yard", 40)):
        write(tmp_path / f"{name}.txt", straight(1, steps))
    with pytest.raises(DataError, match="nobody in the recording hall is seen in 5 steps in a row"):
        DrivingTask(replace(OPTIONS, left_out="none")).node_profile(tmp_path, 0, 2)


def test_a_recording_of_ones_own_is_a_node_whose_last_fifth_is_the_test(tmp_path: Path) -> None:
    task = DrivingTask(replace(OPTIONS, left_out="none"))
    write(tmp_path / "hall.txt", straight(1, 40))
    data = task.load_own(tmp_path)
    # 32 and 8 steps, in windows of 5
    assert (data.key, data.count("train"), data.count("test")) == ("hall", 28, 4)
    assert task.own_profile(tmp_path) == data.profile()
    torch.manual_seed(0)
    assert "unseen.ade" not in task.evaluate(task.build_model(), data, seed=0, final=True).metrics
    write(tmp_path / "yard.txt", straight(1, 40))
    assert task.load_own(tmp_path).key == "hall+yard"
    assert task.load_all(tmp_path).key == "pooled"


def test_each_recording_is_read_once_for_all_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count, read = 35, []
    for number in range(count):
        write(tmp_path / f"{number:02}.txt", straight(1, 7))
    monkeypatch.setattr(pedestrians, "read_tracks", lambda path: read.append(path) or read_tracks(path))
    task = DrivingTask(replace(OPTIONS, left_out="none"))
    assert [task.node_profile(tmp_path, node, count).key for node in range(count)] == [f"{n:02}" for n in range(count)]
    assert len(read) == count


def test_the_files_of_a_node_are_those_that_it_would_have_alone(world: Path, tmp_path: Path) -> None:
    task = DrivingTask(OPTIONS)
    files = task.own_files(world, 6, 7)
    assert [file.name for file in files] == ["uni_examples_train.txt", "uni_examples_val.txt", "biwi_eth.txt"]
    for file in files:
        shutil.copyfile(file, tmp_path / file.name)
    alone, simulated = task.load_own(tmp_path), task.load_node(world, 6, 7)
    assert alone.profile() == simulated.profile()
    for split, batch in {**simulated.splits, **simulated.extra["unseen"]}.items():
        ours = {**alone.splits, **alone.extra["unseen"]}[split]
        assert all(torch.equal(ours[name], tensor) for name, tensor in batch.items())


def test_a_history_that_may_be_shorter_or_has_no_velocity_is_refused() -> None:
    with pytest.raises(DataError, match=r"driving\.min-history = 2: must be driving\.history \(3\) for pedestrians"):
        DrivingTask(replace(OPTIONS, min_history=2))
    with pytest.raises(DataError, match=r"driving.history = 1: must be at least 2 for pedestrians"):
        DrivingTask(replace(OPTIONS, history=1, min_history=1))


@pytest.mark.skipif("FEDAPPS_DATA" not in os.environ, reason="FEDAPPS_DATA is not set")
@pytest.mark.parametrize(
    ("place", "count", "ade", "fde"),
    [("eth", 364, 1.075, 2.282), ("hotel", 1197, 0.319, 0.614), ("zara1", 2356, 0.427, 0.952)],
)
def test_the_floors_of_the_published_recordings(place: str, count: int, ade: float, fde: float) -> None:
    folder = Path(os.environ["FEDAPPS_DATA"]) / "pedestrians"
    options = Options(scenario="pedestrians", history=8, min_history=8, horizon=12, left_out=place)
    batch = left_out(folder, options)["unseen"]
    assert len(batch["history"]) == count
    floor = constant_velocity(SETTINGS["pedestrians"], batch, "unseen")
    assert (round(floor["unseen.ade"], 3), round(floor["unseen.fde"], 3)) == (ade, fde)
