"""Who gets which examples."""

import subprocess
import sys

import datasets
import numpy as np
import pytest
import torch
from fedapps.tasks.base import DataError
from fedapps.tasks.partitioners import (
    StageOptions,
    apportion,
    by_stage,
    deal,
    dirichlet_shares,
    flower_partition,
    label_shares,
    right_in_stage,
    topped_up,
)
from fedapps.tasks.text.options import PARTITIONS
from flwr_datasets import partitioner
from hypothesis import given
from hypothesis import strategies as st

labellings = st.lists(st.integers(0, 4), min_size=1, max_size=120).map(np.array)


def dealt(labels, num_nodes, alpha, seed=0):
    rng = np.random.default_rng(seed)
    return deal(labels, dirichlet_shares(labels, 5, num_nodes, alpha, rng), rng)


@pytest.mark.parametrize(
    ("total", "weights", "parts"),
    [
        (10, [0.5, 0.25, 0.25], [5, 3, 2]),  # 5, 2.5, 2.5: of equal remainders the first
        (3, [0.7, 0.2, 0.1], [2, 1, 0]),  # 2.1, 0.6, 0.3
        (0, [0, 0, 0], [0, 0, 0]),
        (4, [0, 7, 1], [0, 4, 0]),  # 3.5 and 0.5
    ],
)
def test_apportioning_by_hand(total, weights, parts):
    np.testing.assert_array_equal(apportion(total, np.array(weights)), parts)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=20), st.floats(0, 1))
def test_no_part_is_larger_than_what_is_left(left, share):
    total = int(share * sum(left))
    parts = apportion(total, np.array(left))
    assert parts.sum() == total
    assert (parts >= 0).all()
    assert (parts <= left).all()


def test_exhausted_labels_are_made_up_for_from_the_rest():
    """Both nodes want label 0 only; the second gets what is left of it, then the others as 2 : 1 are left."""
    labels = np.array([0] * 9 + [1] * 4 + [2] * 2 + [3])
    parts = deal(labels, np.array([[1.0, 0, 0, 0], [1.0, 0, 0, 0]]), np.random.default_rng(0))
    counts = [np.bincount(labels[part], minlength=4).tolist() for part in parts]
    assert counts == [[8, 0, 0, 0], [1, 4, 2, 1]]


@given(labellings, st.integers(1, 20), st.sampled_from([0.01, 1.0, 100.0]), st.integers(0, 3))
def test_every_example_goes_to_at_most_one_node_and_nodes_are_of_equal_size(labels, num_nodes, alpha, seed):
    if num_nodes > len(labels):
        with pytest.raises(DataError, match=f"examples are too few for {num_nodes} nodes: decrease num-nodes"):
            dealt(labels, num_nodes, alpha, seed)
        return
    parts = dealt(labels, num_nodes, alpha, seed)
    assert {len(part) for part in parts} == {len(labels) // num_nodes}
    together = np.concatenate(parts)
    assert len(set(together.tolist())) == len(together)
    assert all((np.diff(part) > 0).all() for part in parts)
    again = dealt(labels, num_nodes, alpha, seed)
    assert all(np.array_equal(one, other) for one, other in zip(parts, again, strict=True))


def test_a_huge_alpha_gives_every_node_the_labels_of_the_whole():
    labels = np.repeat(np.arange(5), [100, 200, 300, 400, 0])
    shares = label_shares(labels, dealt(labels, 10, 1e9), 5)
    np.testing.assert_allclose(shares, np.tile([0.1, 0.2, 0.3, 0.4, 0], (10, 1)), atol=0.011)


def test_shares_have_the_moments_of_the_dirichlet_distribution():
    """Mean p, variance p (1 - p) / (alpha + 1); a label that nobody has has none."""
    labels = np.repeat([0, 1, 3], [50, 30, 20])
    shares = dirichlet_shares(labels, 4, 20_000, 2.0, np.random.default_rng(0))
    p = np.array([0.5, 0.3, 0, 0.2])
    np.testing.assert_allclose(shares.mean(axis=0), p, atol=0.01)
    np.testing.assert_allclose(shares.var(axis=0), p * (1 - p) / 3, atol=0.005)
    np.testing.assert_allclose(shares.sum(axis=1), 1)


def test_test_examples_are_dealt_as_the_training_examples_were():
    labels, test = np.tile(np.arange(5), 400), np.tile(np.arange(5), 100)
    shares = label_shares(labels, dealt(labels, 10, 0.5), 5)
    np.testing.assert_allclose(label_shares(test, deal(test, shares, np.random.default_rng(1)), 5), shares, atol=0.04)


def test_partitions_that_cannot_be():
    labels = np.zeros(3, dtype=int)
    with pytest.raises(DataError, match=r"text\.partition = 'iid' of 3 examples over 5 nodes"):
        flower_partition("text", "iid", labels, 5, alpha=1.0, classes_per_node=1, seed=0)
    with pytest.raises(DataError, match=r"text\.partition = 'pathological' of 3 examples"):
        flower_partition("text", "pathological", labels, 3, alpha=1.0, classes_per_node=9, seed=0)
    few = r"'dirichlet': 3 examples are too few for 2 nodes with at least 2 each: .* or images\.min-examples"
    with pytest.raises(DataError, match=few):
        flower_partition("images", "dirichlet", labels, 2, alpha=1.0, classes_per_node=1, min_examples=2, seed=0)


def test_nodes_with_too_few_examples_get_some_of_the_largest():
    parts = topped_up([np.arange(6), np.array([6]), np.array([7, 8, 9])], 3, np.random.default_rng(0))
    assert [len(part) for part in parts] == [4, 3, 3]
    assert sorted(np.concatenate(parts).tolist()) == list(range(10))
    assert parts[2].tolist() == [7, 8, 9]


@pytest.mark.parametrize("alpha", [0.01, 0.1, 0.5, 1.0])
def test_a_hundred_nodes_have_enough_of_few_examples(alpha):
    labels = np.repeat(np.arange(10), 144)
    parts = flower_partition(
        "images", "dirichlet", labels, 100, alpha=alpha, classes_per_node=2, min_examples=10, seed=0
    )
    assert min(map(len, parts)) == 10
    assert sorted(np.concatenate(parts).tolist()) == list(range(1440))


def test_a_draw_with_enough_examples_is_left_as_it_is():
    labels = np.repeat(np.arange(4), 50)
    parts, same = (
        flower_partition("images", "dirichlet", labels, 5, alpha=1.0, classes_per_node=2, min_examples=least, seed=3)
        for least in (1, 5)
    )
    assert [part.tolist() for part in parts] == [part.tolist() for part in same]


@pytest.mark.parametrize("name", PARTITIONS[1:])
@pytest.mark.parametrize(("num_nodes", "alpha", "classes"), [(1, 0.3, 1), (5, 0.1, 2), (20, 100.0, 4)])
def test_parts_are_those_of_flower_datasets(name, num_nodes, alpha, classes):
    labels = np.random.default_rng(1).integers(0, 5, size=300)
    order = np.random.default_rng(7).permutation(len(labels))
    theirs = {
        "iid": lambda: partitioner.IidPartitioner(num_nodes),
        "dirichlet": lambda: partitioner.DirichletPartitioner(num_nodes, "label", alpha, min_partition_size=1, seed=7),
        "pathological": lambda: partitioner.PathologicalPartitioner(
            num_nodes, "label", classes, "first-deterministic", seed=7
        ),
        "linear": lambda: partitioner.LinearPartitioner(num_nodes),
    }[name]()
    theirs.dataset = datasets.Dataset.from_dict({"label": labels[order], "row": order})
    parts = flower_partition("text", name, labels, num_nodes, alpha=alpha, classes_per_node=classes, seed=7)
    for node, part in enumerate(parts):
        np.testing.assert_array_equal(part, np.sort(theirs.load_partition(node)["row"]))


ALONE = """
import sys
import numpy as np
from fedapps.tasks.partitioners import flower_partition
flower_partition("text", "iid", np.zeros(4), 2, alpha=1.0, classes_per_node=1, seed=0)
print({"datasets", "flwr_datasets"} & set(sys.modules))
"""


@pytest.mark.slow
@pytest.mark.subprocesses
def test_partitions_import_no_package_of_data_sets():
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_classes_arrive_in_their_order_or_as_drawn():
    assert StageOptions(stages=3).stage_of("images", 6).tolist() == [0, 0, 1, 1, 2, 2]
    drawn = [
        StageOptions(partition_seed=seed, stages=3, stage_order="drawn").stage_of("images", 6).tolist()
        for seed in range(4)
    ]
    assert all(sorted(stages) == [0, 0, 1, 1, 2, 2] for stages in drawn)
    assert len(set(map(tuple, drawn))) > 1


def test_a_single_stage_has_the_splits_as_they_are():
    splits = {"test": {"label": torch.tensor([1])}}
    assert by_stage("a", splits, StageOptions().stage_of("images", 2)) == [splits]


def test_the_right_class_among_those_of_its_stage_by_hand():
    """The largest logit of the stage 2, 3 is that of 3, although 0 and 1 have larger ones."""
    logits = torch.tensor([[9.0, 8.0, 1.0, 2.0]]).repeat(4, 1)
    right = right_in_stage(logits, torch.arange(4), np.array([0, 0, 1, 1]))
    assert right.tolist() == [True, False, False, True]
