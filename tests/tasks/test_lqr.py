"""The LQR task: loss, metrics, batches and data."""

import gzip

import pytest
import torch
from fedapps.tasks.base import DataError, Task
from fedapps.tasks.lqr import world as lqr
from fedapps.tasks.lqr.task import LqrModel, LqrOptions, LqrTask, LqrTrained, robot_files
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from toys import learn

TINY = LqrOptions(trajectories=4, horizon=5)
HEADER = ",".join(lqr.COLUMNS)


def model_with(A, B, K):
    model = LqrModel()
    values = {"dynamics.A": A, "dynamics.B": B, "policy.K": K}
    model.load_state_dict({name: torch.tensor(value) for name, value in values.items()})
    return model


def true_model(control_weight):
    return model_with(lqr.A.tolist(), lqr.B.tolist(), [list(map(float, lqr.optimal_gain(float(control_weight))))])


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lqr")
    LqrTask().make_world(folder, 3, seed=0)
    return folder


def test_loss_by_hand():
    # x = (1, 2), u = 3: A x + B u = (3, 5), the next state is (4, 3): errors 1 and 4, mean 2.5.
    # -K x = -0.5 - 2 = -2.5 against 3: error 30.25.
    model = model_with([[1.0, 1.0], [0.0, 1.0]], [[0.0], [1.0]], [[0.5, 1.0]])
    batch = {"inputs": torch.tensor([[1.0, 2.0, 3.0]]), "targets": torch.tensor([[4.0, 3.0, 3.0]])}
    assert LqrTask().loss(model, batch).item() == pytest.approx(2.5 + 30.25)


def test_a_trained_model_controls_and_predicts_by_hand():
    # -K x for x = (1, 2) and K = (0.5, 1): -2.5; A x + B u = (1 + 2, 2 - 2.5)
    model = LqrTrained(LqrTask(), model_with([[1.0, 1.0], [0.0, 1.0]], [[0.0], [1.0]], [[0.5, 1.0]]))
    assert model.gain.tolist() == [[0.5, 1.0]]
    assert [matrix.tolist() for matrix in model.dynamics] == [[[1.0, 1.0], [0.0, 1.0]], [[0.0], [1.0]]]
    assert model.control([1, 2]).tolist() == [-2.5]
    assert model.step([1, 2]).tolist() == [3.0, -0.5]
    assert model.step([[1, 2], [0, 0]]).tolist() == [[3.0, -0.5], [0.0, 0.0]]
    for wrong in (1.0, [1.0], [[[1.0, 2.0]]]):
        with pytest.raises(ValueError, match=r"state: must have the shape \[2\] or \[n, 2\], not "):
            model.control(wrong)


def test_the_trained_closed_loop_is_that_of_the_network():
    model = LqrTrained(LqrTask(), true_model(50))
    states = torch.tensor([[1.0, -2.0], [3.0, 0.5]])
    control = torch.tensor(model.control(states), dtype=torch.float32)
    following, imitated = model.network().module(torch.cat((states, control), dim=1))
    assert imitated.detach().numpy() == pytest.approx(model.control(states), rel=1e-6)
    assert following.detach().numpy() == pytest.approx(model.step(states), rel=1e-5)


@settings(deadline=None)
@given(arrays.arrays("float32", (5, 6), elements=st.floats(-8, 8, width=16)))
def test_loss_is_the_mean_over_examples(values):
    model, task = true_model(1.0), LqrTask()
    inputs, targets = torch.from_numpy(values).split(3, dim=1)
    one_by_one = [task.loss(model, {"inputs": x[None], "targets": y[None]}) for x, y in zip(inputs, targets)]  # noqa: B905
    whole = task.loss(model, {"inputs": inputs, "targets": targets})
    torch.testing.assert_close(whole, torch.stack(one_by_one).mean(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("partition", [0, 1, 2])
def test_the_truth_has_no_excess_and_the_noise_as_its_loss(world, partition):
    data = LqrTask().load_node(world, partition, 3)
    assert (data.count("train"), data.count("test"), data.count("validation")) == (1080, 120, 0)
    metrics = LqrTask().evaluate(true_model(lqr.PAPER_WEIGHTS[partition]), data, seed=0, final=True).metrics
    assert metrics["test.excess"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["test.dynamics_distance"] == 0.0
    assert metrics["test.gain_distance"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["test.state_loss"] == pytest.approx(0.01, rel=0.4)  # variance per component, not the norm
    assert metrics["test.control_loss"] == pytest.approx(0.01, rel=0.5)
    assert metrics["test.total_loss"] == metrics["test.state_loss"] + metrics["test.control_loss"]


def test_distances_by_hand(world):
    task, data, truth = LqrTask(), LqrTask().load_node(world, 0, 3), true_model(lqr.PAPER_WEIGHTS[0])
    other = model_with([[1.0, 1.0], [0.0, 1.0]], [[3.0], [5.0]], [list(lqr.optimal_gain(1.0))])
    metrics, least = (task.evaluate(model, data, seed=0, final=False).metrics for model in (other, truth))
    assert metrics["test.dynamics_distance"] == pytest.approx(5.0)  # B is off by (3, 4)
    assert metrics["test.gain_distance"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["test.excess"] == pytest.approx(metrics["test.total_loss"] - least["test.total_loss"], rel=1e-4)


def test_pooled_data_are_measured_against_each_robots_own_truth(world):
    task, model = LqrTask(), true_model(50.0)
    pooled = task.load_all(world)
    assert pooled.key == "robot-00+robot-01+robot-02"
    assert pooled.count("train") == 3 * 1080
    whole = task.evaluate(model, pooled, seed=0, final=True).metrics
    parts = [task.evaluate(model, task.load_node(world, k, 3), seed=0, final=True).metrics for k in range(3)]
    for name, value in whole.items():
        assert value == pytest.approx(sum(part[name] for part in parts) / 3, rel=1e-5, abs=1e-9)


def test_a_folder_with_one_robot_is_that_robot(tmp_path):
    LqrTask(TINY).make_world(tmp_path, 1, seed=0)
    data = LqrTask().load_all(tmp_path)
    assert (data.key, dict(data.groups)) == ("robot-00", {"control-weight": "1"})


def test_batches_are_those_of_any_task(world):
    task = LqrTask()
    data = task.load_node(world, 0, 3)
    torch.manual_seed(1)
    ours = list(task.batches(data, "train", 32))
    torch.manual_seed(1)
    plain = list(Task.batches(task, data, "train", 32))
    assert [len(batch["inputs"]) for batch in ours] == [32] * 33 + [24]
    for mine, theirs in zip(ours, plain, strict=True):
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_plain_training_finds_the_truth(world):
    torch.manual_seed(0)
    task = LqrTask()
    model, data = task.build_model(), task.load_node(world, 2, 3)
    learn(task, model, data, epochs=40, rate=0.01, batch_size=64)
    metrics = task.evaluate(model, data, seed=0, final=True).metrics
    assert metrics["test.gain_distance"] < 0.02
    assert metrics["test.excess"] < 0.02  # what the jitter of minibatch Adam leaves


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("split,y,v,u\n", "line 1: no column next_y, next_v, control_weight; found split, y, v, u"),
        (HEADER + "\n0,1,validation,0,0,1,1,1,1,1\n", "expected rows of split train or test"),
        (HEADER + "\n0,1,train,0,0,1,one,1,1,1\n", "line 2, column v: 'one'; expected a finite number"),
        (HEADER + "\n0,1,dev,0,0,1,1,1,1,1\n", "line 2, column split: 'dev'; expected one of train"),
        (HEADER + "\n0,-1,train,0,0,1,1,1,1,1\n", "line 2, column control_weight: '-1'; expected a number above 0"),
    ],
)
def test_malformed_files_are_named(tmp_path, text, complaint):
    (tmp_path / "robot-00.csv").write_text(text)
    with pytest.raises(DataError, match=r"robot-00\.csv") as raised:
        LqrTask().load_all(tmp_path)
    assert complaint in str(raised.value)


def test_a_robot_that_is_there_twice_is_refused(tmp_path):
    for name in ("robot-a.csv", "._robot-a.csv"):
        (tmp_path / name).touch()
    assert robot_files(tmp_path) == [tmp_path / "robot-a.csv"]
    (tmp_path / "robot-a.csv.xz").touch()
    with pytest.raises(DataError, match="the same file twice, plain and compressed"):
        robot_files(tmp_path)


def test_missing_robots_are_an_error(tmp_path):
    with pytest.raises(DataError, match=r"expected files robot-\*\.csv"):
        LqrTask().load_all(tmp_path)
    LqrTask(TINY).make_world(tmp_path, 2, seed=0)
    with pytest.raises(DataError, match=r"holds 2 files .*, but num-nodes is 3; set num-nodes = 2 or fewer"):
        LqrTask().load_node(tmp_path, 2, 3)
    with pytest.raises(DataError, match="node 2 of 2: expected an index from 0 to 1"):
        LqrTask().load_node(tmp_path, 2, 2)


def test_robots_have_keys_of_their_own_also_with_dots_in_their_names(tmp_path):
    LqrTask(TINY).make_world(tmp_path, 2, seed=0)
    for number, name in enumerate(("robot-1.5.csv", "robot-1.7.csv.gz")):
        content = (tmp_path / f"robot-0{number}.csv").read_bytes()
        (tmp_path / f"robot-0{number}.csv").unlink()
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert [LqrTask().node_profile(tmp_path, node, 2).key for node in range(2)] == ["robot-1.5", "robot-1.7"]


def test_a_task_that_only_learns_from_given_data_cannot_collect(world):
    task = LqrTask()
    with pytest.raises(NotImplementedError, match="lqr"):
        task.collect(task.build_model(), task.load_node(world, 0, 3), seed=0)
