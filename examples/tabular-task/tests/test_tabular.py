"""The task ``tabular``: partitions, files, model, metrics, and what is wrong with bad input."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from fedapps.clients.settings import LocalTraining
from fedapps.clients.training import Phase, run_plan
from fedapps.tasks.base import DataError
from hypothesis import given, settings
from hypothesis import strategies as st
from tabular_task.options import CLASSES, FEATURES, TabularOptions
from tabular_task.task import TabularTask
from tabular_task.world import LEAST, load_table, partition, synthetic
from torch import nn

QUICK = TabularOptions(dataset="breast-cancer")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    TabularTask(QUICK).make_world(folder, 4, seed=1)
    return folder


@pytest.mark.parametrize("name", ["digits", "breast-cancer"])
def test_the_declared_sizes_are_those_of_the_datasets(name):
    features, labels = load_table(name)
    assert features.shape[1] == FEATURES[name]
    assert set(labels) == set(range(CLASSES[name]))
    spread = features.std(axis=0)
    np.testing.assert_allclose(spread[spread > 0], 1)


@settings(deadline=None, max_examples=10)
@given(st.integers(1, 8), st.floats(0.5, 100), st.sampled_from(["dirichlet", "iid"]), st.integers(0, 9))
def test_every_example_belongs_to_one_node(num_nodes, alpha, kind, seed):
    labels = load_table("breast-cancer")[1]
    parts = partition(labels, num_nodes, replace(QUICK, partition=kind, alpha=alpha), seed)
    assert len(parts) == num_nodes
    assert sorted(np.concatenate(parts)) == list(range(len(labels)))
    assert min(map(len, parts)) >= LEAST


def test_a_small_alpha_gives_few_labels_per_node():
    labels = load_table("digits")[1]

    def largest_share(alpha):
        parts = partition(labels, 10, TabularOptions(alpha=alpha), 0)
        return np.mean([np.bincount(labels[part]).max() / len(part) for part in parts])

    assert largest_share(0.1) > 0.5 > 0.2 > largest_share(1000)


def test_the_same_seed_writes_the_same_files(world, tmp_path):
    TabularTask(QUICK).make_world(tmp_path, 4, seed=1)
    names = sorted(path.name for path in world.iterdir())
    assert names == sorted(f"node-00{node}-{split}.csv" for node in range(4) for split in ("train", "test"))
    assert all((world / name).read_bytes() == (tmp_path / name).read_bytes() for name in names)


def test_the_nodes_together_hold_the_table(world):
    task = TabularTask(QUICK)
    nodes = [task.load_node(world, node, 4) for node in range(4)]
    everything = task.load_all(world)
    for split in ("train", "test"):
        assert sum(node.count(split) for node in nodes) == everything.count(split)
    assert everything.count("train") + everything.count("test") == 569
    assert everything.count("test") == pytest.approx(0.25 * 569, abs=4)
    found = torch.cat([everything.splits[split]["x"] for split in ("train", "test")]).double().numpy()
    np.testing.assert_allclose(np.sort(found, axis=None), np.sort(load_table("breast-cancer")[0], axis=None), atol=1e-4)


def test_a_feature_shift_is_affine_and_differs_between_nodes(world, tmp_path):
    shifted = TabularTask(replace(QUICK, shift=0.5))
    shifted.make_world(tmp_path, 4, seed=1)
    slopes = []
    for node in range(2):
        x = TabularTask(QUICK).load_node(world, node, 4).splits["train"]["x"].double().numpy()
        moved = shifted.load_node(tmp_path, node, 4).splits["train"]["x"].double().numpy()
        fits = [np.polyfit(x[:, i], moved[:, i], 1, full=True) for i in range(5)]
        assert all(residual < 1e-3 for _, residual, *_ in fits)
        slopes.append([fit[0][0] for fit in fits])
    assert (np.abs(np.subtract(*slopes)) > 1e-3).all()


def test_synthetic_nodes_have_the_distributions_of_fedprox():
    """The variance of feature j is j^-1.2, that of its mean over nodes 1 + β²."""
    nodes = [synthetic(node, 3, 0.0, 2.0) for node in range(60)]
    assert min(len(x) for x, _ in nodes) >= 50
    large = max(nodes, key=lambda node: len(node[0]))[0]
    np.testing.assert_allclose(large.var(axis=0) / np.arange(1, 61) ** -1.2, 1, atol=0.25)
    centres = np.array([x.mean(axis=0) for x, _ in nodes])
    assert centres.var() == pytest.approx(1 + 2**2, rel=0.5)
    assert {x.shape[1] for x, _ in nodes} == {FEATURES["synthetic"]}
    assert set(np.concatenate([label for _, label in nodes])) <= set(range(CLASSES["synthetic"]))
    x, label = synthetic(1, 3, 0.0, 2.0)
    np.testing.assert_array_equal(x, nodes[1][0])
    np.testing.assert_array_equal(label, nodes[1][1])


def test_a_linear_model_fits_a_synthetic_node_and_not_another(tmp_path):
    task = TabularTask(TabularOptions(dataset="synthetic", hidden=0, test_fraction=0.1))
    task.make_world(tmp_path, 2, seed=1)
    torch.manual_seed(0)
    model, own, other = task.build_model(), task.load_node(tmp_path, 0, 2), task.load_node(tmp_path, 1, 2)
    assert [tuple(p.shape) for p in model.parameters()] == [(10, 60), (10,)]
    plan = [Phase(LocalTraining(epochs=40, learning_rate=0.01, batch_size=10))]
    run_plan(model, plan, lambda size: task.training_batches(model, own, size), task.loss)
    fitted, elsewhere = (task.evaluate(model, data, seed=0, final=True).metrics for data in (own, other))
    assert fitted["train.accuracy"] > 0.9 > elsewhere["train.accuracy"] + 0.2
    assert fitted["train.loss"] < fitted["test.loss"] * 2


def test_batches_of_one_are_left_out_under_batch_norm_only(world):
    for batch_norm in (True, False):
        task = TabularTask(replace(QUICK, batch_norm=batch_norm))
        data = task.load_node(world, 0, 4)
        rows = data.count("train")
        sizes = [len(batch["label"]) for batch in task.training_batches(task.build_model(), data, rows - 1)]
        assert sizes == ([rows - 1] if batch_norm else [rows - 1, 1])


@pytest.mark.parametrize("batch_norm", [True, False])
def test_the_model_learns(world, batch_norm):
    task = TabularTask(replace(QUICK, batch_norm=batch_norm))
    torch.manual_seed(0)
    model, data = task.build_model(), task.load_all(world)
    assert any(isinstance(module, nn.BatchNorm1d) for module in model) == batch_norm
    before = task.evaluate(model.eval(), data, seed=0, final=True).metrics
    plan = [Phase(LocalTraining(epochs=5, learning_rate=0.01, batch_size=32))]
    run_plan(model, plan, lambda size: task.training_batches(model, data, size), task.loss)
    after = task.evaluate(model.eval(), data, seed=0, final=True).metrics
    assert after["test.loss"] < before["test.loss"]
    assert after["test.accuracy"] > 0.93


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: expected the column label and 30 features, found 1 columns"),
        ("label,x0\n1,2\n", "found 2 columns"),
        ("HEADER\n", "expected 31 finite numbers in each of one or more lines"),
        ("HEADER\n1,2\n", "expected 31 finite numbers"),
        ("HEADER\nROWa\n", "not a table of numbers"),
        ("HEADER\nNAN\n", "expected 31 finite numbers"),
        ("HEADER\nCLASS\n", "labels must be whole numbers from 0 to 1"),
    ],
)
@pytest.mark.filterwarnings("ignore:loadtxt")
def test_bad_files_are_refused_by_name(tmp_path, text, said):
    row = ",".join(["1"] + ["0.5"] * 30)
    header = ",".join(["label", *(f"x{index}" for index in range(30))])
    replaced = {"HEADER": header, "ROW": row, "NAN": row.replace("0.5", "nan", 1), "CLASS": row.replace("1", "2", 1)}
    for word, meaning in replaced.items():
        text = text.replace(word, meaning)
    path = tmp_path / "car-train.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match="(?s)car-train.csv.*" + said):
        TabularTask(QUICK).load_own(tmp_path)


def test_missing_data_are_an_error(tmp_path, world):
    with pytest.raises(DataError, match=r"expected files <name>-train.csv and <name>-test.csv, found none"):
        TabularTask(QUICK).load_all(tmp_path)
    with pytest.raises(DataError, match="no tables for node 4 of 5: set num-nodes = 4 or fewer"):
        TabularTask(QUICK).load_node(world, 4, 5)
    with pytest.raises(DataError, match=r"num-nodes|tabular\.alpha"):
        TabularTask(QUICK).make_world(tmp_path, 60, seed=0)
