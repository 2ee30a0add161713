"""The task "images": the parts of nodes, common and own tests, metrics by hand, and what cannot be."""

import io
import os
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from fedapps.tasks.base import DataError, NodeData, normalisation_names
from fedapps.tasks.images import formats, image_set, partition
from fedapps.tasks.images.image_set import ArrayImages, ImageSet
from fedapps.tasks.images.options import Options
from fedapps.tasks.images.partition import all_images, node_images, own_images
from fedapps.tasks.images.task import ImagesTask, augmentation_of
from hypothesis import given, settings
from hypothesis import strategies as st
from image_files import drawn, write_folders
from PIL import Image
from torch import nn

SPLITS = ("train", "validation", "test")


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    ImagesTask().make_world(folder, 1, seed=0)
    return folder


def rows_of(folder, options, nodes):
    """The images of every node, as numbers in the file, and those of the common test."""
    divided = [node_images(folder, options, node, nodes) for node in range(nodes)]
    return [{split: numbers_of(images) for split, images in node.splits.items()} for node in divided], numbers_of(
        divided[0].common
    )


def numbers_of(images):
    """The numbers of images in their file."""
    return np.array([number for _, number in images.pictures])


@settings(max_examples=15)
@given(
    partition=st.sampled_from(["dirichlet", "pathological", "iid"]),
    nodes=st.integers(10, 20),
    alpha=st.floats(0.3, 100),
    validation=st.floats(0, 0.4),
    seed=st.integers(0, 5),
)
def test_every_image_is_used_exactly_once(digits, partition, nodes, alpha, validation, seed):
    options = Options(
        partition=partition, alpha=alpha, validation_share=validation, partition_seed=seed, min_examples=3
    )
    parts, common = rows_of(digits, options, nodes)
    used = np.concatenate([common, *(rows for part in parts for rows in part.values())])
    assert np.array_equal(np.sort(used), np.arange(1797))
    assert len(common) == 359  # ⌊.2 · 1797⌋
    for part in parts:
        count = sum(map(len, part.values()))
        assert count >= 3
        assert len(part.get("test", ())) == int(0.2 * count)
        assert len(part.get("validation", ())) == int(validation * count)


@pytest.mark.parametrize(("stages", "order"), [(5, "classes"), (2, "drawn"), (10, "drawn")])
def test_every_image_is_in_exactly_one_stage_and_no_class_in_two(digits, stages, order):
    plain = ImagesTask(Options(alpha=10.0))
    task = ImagesTask(Options(alpha=10.0, stages=stages, stage_order=order))
    assert task.num_stages == stages
    assert (task.stage_of.tolist() == np.arange(10).tolist()) is (order == "classes" and stages == 10)
    for node in range(2):
        whole, staged = (one.load_node(digits, node, 3) for one in (plain, task))
        assert staged.splits is staged.stages[0]
        assert (len(whole.stages), len(staged.stages)) == (0, stages)
        classes = [set(stage["train"]["label"].tolist()) for stage in staged.stages]
        assert [len(of_stage) for of_stage in classes] == [10 // stages] * stages
        assert set.union(*classes) == set(range(10))
        for split, examples in whole.splits.items():
            for stage, of_stage in zip(staged.stages, classes, strict=True):
                rows = torch.isin(examples["label"], torch.tensor([*of_stage]))
                assert torch.equal(stage[split]["image"], examples["image"][rows])
        profile = task.node_profile(digits, node, 3)
        assert profile.num_examples == len(staged.stages[0]["train"]["label"])
        assert profile == task.outline_node(digits, node, 3).profile() == staged.profile()


def test_a_natural_partition_has_the_images_of_each_writer(tmp_path):
    pixels, labels = drawn(30)
    writers = np.array(["b", "a", "b", "c", "a", "b"] * 5)
    np.savez(tmp_path / "train.npz", images=pixels, labels=labels, writer=writers)
    options = Options(
        dataset="pets", classes=3, height=6, partition="natural", group_column="writer", global_share=0.0,
        min_examples=6,
    )  # fmt: skip
    nodes = [node_images(tmp_path, options, node, 2) for node in range(2)]
    assert [node.key for node in nodes] == ["a", "b"]  # c has 5 images
    for node in nodes:
        rows = np.sort(np.concatenate([numbers_of(images) for images in node.splits.values()]))
        assert np.array_equal(rows, np.flatnonzero(writers == node.key))
    with pytest.raises(DataError, match=r"num-nodes = 3: the column writer has 3 values, of which 2 have at least"):
        node_images(tmp_path, options, 0, 3)


@pytest.mark.parametrize(("rotations", "turns"), [(2, (0, 2, 0, 2)), (4, (0, 1, 2, 3))])
def test_groups_of_nodes_have_all_their_images_turned_alike(digits, rotations, turns):
    upright = Options(partition="iid")
    turned = replace(upright, rotations=rotations)
    for node, count in enumerate(turns):
        plain = ImagesTask(upright).load_node(digits, node, 4)
        found = ImagesTask(turned).load_node(digits, node, 4)
        assert found.groups["rotation"] == str(90 * count)
        pairs = [(found.splits[split], plain.splits[split]) for split in found.splits]
        for here, there in [*pairs, (found.extra["common"], plain.extra["common"])]:
            assert torch.equal(here["image"], torch.rot90(there["image"], count, (2, 3)))
            assert torch.equal(here["label"], there["label"])
    assert "rotation" not in plain.groups
    with pytest.raises(DataError, match="one node with all images has no rotation"):
        all_images(digits, turned)


def test_one_node_has_the_images_of_centralised_training(digits):
    task = ImagesTask(Options(partition="iid", normalise="data"))
    one, pooled = task.load_node(digits, 0, 1), task.load_all(digits)
    assert pooled.extra["statistics"] == one.extra["statistics"]
    for split in SPLITS:
        assert torch.equal(one.splits[split]["image"], pooled.splits[split]["image"])
        assert torch.equal(one.splits[split]["label"], pooled.splits[split]["label"])
    assert torch.equal(one.extra["common"]["label"], pooled.extra["common"]["label"])


def test_test_files_are_the_common_test(tmp_path):
    for split, count in (("train", 60), ("val", 12), ("test", 9)):
        write_folders(tmp_path / split, *drawn(count))
    task = ImagesTask(Options(dataset="pets", classes=3, height=6, global_examples=4))
    nodes = [task.load_node(tmp_path, node, 3) for node in range(3)]
    assert sum(node.count(split) for node in nodes for split in SPLITS) == 72  # train and val are divided
    assert {len(node.extra["common"]["label"]) for node in nodes} == {4}
    assert nodes[0].extra["common"] is nodes[1].extra["common"]


def test_a_deployed_node_keeps_the_splits_of_its_folder_and_holds_out_the_others(tmp_path):
    folder = tmp_path / "robot-7"
    for split, count in (("train", 20), ("test", 5), ("common", 4)):
        write_folders(folder / split, *drawn(count, classes=2))
    task = ImagesTask(Options(dataset="pets", labels="cat,dog,owl", height=6))
    node = task.load_own(folder)
    assert node.key == "robot-7"
    assert node.count("train") + node.count("validation") == 20
    assert (node.count("validation") > 0, node.count("test")) == (True, 5)
    assert len(node.extra["common"]["label"]) == 4
    assert node.extra["classes"] == ("cat", "dog", "owl")
    assert task.own_profile(folder) == node.profile()
    assert task.has_common_test(folder)
    shutil.rmtree(folder / "common")
    assert not task.has_common_test(folder)
    (folder / "test").rename(tmp_path / "elsewhere")
    counts = [task.load_own(folder).count(split) for split in SPLITS]
    assert sum(counts) == 20
    assert min(counts) > 0


def write_archive(folder, pixels, labels):
    folder.mkdir(exist_ok=True)
    np.savez(folder / "train.npz", images=pixels, labels=labels)


@pytest.mark.parametrize("write", [write_folders, write_archive])
def test_no_image_that_trained_is_held_out_once_the_folder_of_a_node_has_grown(tmp_path, write):
    """Images are sorted by class, so new images stand between those of earlier weeks."""
    pixels, labels = drawn(240)

    def contents(folder):
        splits = own_images(folder, Options(dataset="pets", labels="cat,dog,owl", height=6)).splits
        return {
            split: {np.asarray(splits[split][row]).tobytes() for row in range(len(splits[split]))} for split in SPLITS
        }

    weeks = []
    for count in (40, 60, 240):
        write(tmp_path / "robot", pixels[:count], labels[:count])
        weeks.append(contents(tmp_path / "robot"))
        assert sum(map(len, weeks[-1].values())) == count
    for before, after in pairwise(weeks):
        assert all(before[split] <= after[split] for split in SPLITS)
    assert [len(weeks[-1][split]) / 240 for split in SPLITS] == pytest.approx([0.7, 0.1, 0.2], abs=0.06)
    shutil.copytree(tmp_path / "robot", tmp_path / "mount" / "robot")
    assert contents(tmp_path / "mount" / "robot") == weeks[-1], "wherever the folder is"


@settings(max_examples=50)
@given(count=st.integers(1, 40), test=st.floats(0, 0.45), validation=st.floats(0, 0.45), seed=st.integers(0, 2**31))
def test_a_small_folder_has_an_image_of_each_split_whose_share_is_that_of_one(count, test, validation, seed):
    images = ImageSet([(ArrayImages("train.npz", "images", count), row) for row in range(count)], np.zeros(count, int))
    options = Options(test_share=test, validation_share=validation, partition_seed=seed)
    splits = partition._held_out_by_name(images, options, Path("robot"), ["train"])
    assert sorted(row for part in splits.values() for row in numbers_of(part)) == [*range(count)]
    shares = {"test": test, "validation": validation}
    assert splits.keys() >= {"train", *(split for split, share in shares.items() if int(share * count))}


def test_the_floor_is_the_most_frequent_class(tmp_path):
    pixels = drawn(30)[0]
    np.savez(tmp_path / "train.npz", images=pixels, labels=np.array([0] * 18 + [1] * 12), writer=np.arange(30) // 15)
    np.savez(tmp_path / "test.npz", images=pixels[:4], labels=np.array([0, 0, 0, 1]))
    options = Options(dataset="pets", classes=2, height=6, partition="natural", group_column="writer", test_share=0.4)
    found = ImagesTask(options).node_references(tmp_path, 2)["most frequent class"]
    assert [metrics["test.global_accuracy"] for metrics in found] == [0.75, 0.75]
    tests = [ImagesTask(options).load_node(tmp_path, node, 2).splits["test"]["label"] for node in range(2)]
    assert [metrics["test.local_accuracy"] for metrics in found] == [
        pytest.approx(float((labels == node).float().mean())) for node, labels in enumerate(tests)
    ]


# -- metrics -----------------------------------------------------------------------------------------------------


class Says(nn.Module):
    """A classifier that takes the value of the first pixel for the class, with a logit of log 2."""

    def __init__(self, classes=3):
        super().__init__()
        self.classes = classes
        self.scale = nn.Parameter(torch.tensor(2.0).log())

    def forward(self, images):
        return self.scale * nn.functional.one_hot(images[:, 0, 0, 0].long(), self.classes).float()


def examples(pixels, labels):
    return {"image": torch.tensor(pixels, dtype=torch.uint8).view(-1, 1, 1, 1), "label": torch.tensor(labels)}


def test_metrics_by_hand():
    task = ImagesTask(Options(dataset="pets", classes=3, height=6))
    common = examples([0, 0, 1, 2], [0, 0, 1, 1])  # class 0: 2 of 2, class 1: 1 of 2, class 2: no image
    data = NodeData("a", {"test": examples([2, 0], [2, 1])}, extra={"common": common})
    metrics = task.evaluate(Says(), data, seed=0, final=False).metrics
    right, wrong = np.log(4) - np.log(2), np.log(4)  # logits log 2, 0, 0: shares 2/4, 1/4, 1/4
    assert metrics == pytest.approx(
        {
            "test.global_accuracy": 0.75, "test.global_accuracy.count": 4,
            "test.global_loss": (3 * right + wrong) / 4, "test.global_loss.count": 4,
            "test.global_macro_accuracy": 0.75, "test.global_worst_class_accuracy": 0.5,
            "test.local_accuracy": 0.5, "test.local_accuracy.count": 2,
            "test.local_loss": (right + wrong) / 2, "test.local_loss.count": 2,
        }
    )  # fmt: skip
    assert task.evaluate(Says(), task.without_test(data), seed=0, final=False).metrics == {}


def test_a_stage_is_tested_on_its_classes_among_all_classes_and_among_its_own():
    """Of the last three common images, those of the second stage, one is right; one is said to be of the first stage,
    so that among its own classes the first of them, 2, counts: it is right.
    """
    task = ImagesTask(Options(dataset="pets", classes=4, height=6, stages=2))
    common = examples([0, 2, 2, 1, 2], [0, 1, 2, 2, 3])
    data = NodeData("a", {"train": examples([2], [2]), "test": examples([0, 3], [3, 3])}, extra={"common": common})
    metrics = task.evaluate(Says(4), data, seed=0, final=False).metrics
    assert metrics["test.global_accuracy.count"] == 3
    assert metrics["test.global_accuracy"] == pytest.approx(1 / 3)
    assert metrics["test.global_stage_accuracy"] == pytest.approx(2 / 3)
    assert (metrics["test.local_accuracy"], metrics["test.local_stage_accuracy"]) == (0.5, 0.5)


def test_a_floor_of_each_stage_is_that_of_its_most_frequent_class(tmp_path):
    labels = np.array([0] * 6 + [1] * 4 + [2] * 2 + [3] * 8)
    np.savez(tmp_path / "train.npz", images=drawn(20)[0], labels=labels)
    np.savez(tmp_path / "test.npz", images=drawn(5)[0], labels=np.array([0, 1, 1, 1, 3]))
    options = Options(dataset="pets", classes=4, height=6, partition="iid", stages=2, test_share=0.0)
    (floor,) = ImagesTask(options).node_references(tmp_path, 1)["most frequent class"]
    assert {name: value for name, value in floor.items() if not name.endswith("count")} == {
        "stage-1.test.global_accuracy": 0.25,
        "stage-2.test.global_accuracy": 1.0,
    }


def test_statistics_of_the_data_by_hand(tmp_path):
    pixels = np.zeros((4, 4, 4, 3), dtype=np.uint8)
    pixels[:2] = (255, 51, 0)  # half of all pixels
    np.savez(tmp_path / "train.npz", images=pixels, labels=np.arange(4) % 2)
    options = Options(dataset="pets", classes=2, height=4, normalise="data", global_share=0.0, min_examples=1)
    task = ImagesTask(options)
    node = task.load_node(tmp_path, 0, 1)
    mean, deviation = node.extra["statistics"]
    assert mean == pytest.approx((0.5, 0.1, 0.0))
    assert deviation == pytest.approx((0.5, 0.1, 1.0))  # a constant channel is divided by 1
    model = task.build_model_for(node)
    again = task.model_of(task.facts(node), None)
    again.load_state_dict(model.state_dict())
    images = node.splits["train"]["image"]
    assert torch.equal(model(images), again(images))
    with pytest.raises(DataError, match=r"images\.normalise to 'published' or 'image'"):
        task.facts(None)


# -- training ----------------------------------------------------------------------------------------------------


def test_training_images_are_shifted_and_mirrored_and_others_are_not(digits):
    task = ImagesTask(Options(augment="crop-flip"))
    plain = ImagesTask()
    data = plain.load_node(digits, 0, 10)

    def epoch(task, split, seed):
        torch.manual_seed(seed)
        return [batch["image"] for batch in task.batches(data, split, 16)]

    changed, same, fixed = epoch(task, "train", 0), epoch(task, "train", 0), epoch(plain, "train", 0)
    assert all(torch.equal(one, other) for one, other in zip(changed, same, strict=True))
    assert changed[0].shape == fixed[0].shape
    assert not torch.equal(changed[0], fixed[0])
    assert all(
        torch.equal(one, other) for one, other in zip(epoch(task, "test", 0), epoch(plain, "test", 0), strict=True)
    )
    one = torch.arange(64, dtype=torch.uint8).view(1, 1, 8, 8)
    flipped = ImagesTask(Options(augment="flip"))
    seen = {
        tuple((255 * batch["image"]).round().int().reshape(-1).tolist())
        for _ in range(20)
        for batch in flipped.batches(NodeData("a", {"train": {"image": one, "label": torch.zeros(1)}}), "train", 1)
    }
    assert seen == {tuple(one.reshape(-1).tolist()), tuple(one.flip(3).reshape(-1).tolist())}


@pytest.mark.parametrize("model", ["cnn", "resnet8"])
def test_the_head_is_the_last_linear_layer_and_the_features_are_its_input(digits, model):
    task = ImagesTask(Options(model=model, norm="batch"))
    data = task.load_node(digits, 0, 10)
    network = task.build_model_for(data).eval()
    batch = next(task.examples(data, "train", 8))
    features = task.features(network, batch)
    assert features.shape == (8, network.head.in_features)
    assert torch.equal(network.head(features), network(batch["image"]))
    names = set(dict(network.named_parameters()))
    assert {name for name in names if name.startswith("head.")} == {"head.weight", "head.bias"}
    assert all(name.startswith(("head.", "body.")) for name in names)
    assert bool(normalisation_names(task)) is (model == "resnet8")


# -- options that cannot be --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dataset": "cifar-10"}, r"'cifar-10' is not one of .*did you mean 'cifar10'\?: list its classes, at least 2"),
        ({"dataset": "pets", "classes": 1, "height": 8}, r"list its classes, at least 2, in images\.labels"),
        ({"dataset": "pets", "classes": 3}, r"set images\.height, and images\.width and images\.channels"),
        ({"labels": "a,b,a"}, r"images\.labels = 'a,b,a': a label occurs twice"),
        ({"classes": 3}, r"images\.classes = 3: there are 10 labels"),
        ({"height": 3}, r"images of 3x3 with 1 channels: .*at least 4"),
        ({"channels": 2}, r"images\.channels 1 or 3"),
        ({"validation_share": 0.5, "test_share": 0.5}, r"leave at least 0\.1 of a node's images for training"),
        ({"partition": "pathological", "classes_per_node": 11}, r"images\.classes-per-node = 11: must be at most 10"),
        ({"stages": 3}, r"images\.stages = 3: must divide the 10 classes evenly \(1, 2, 5, 10\)"),
        ({"stages": 20}, r"images\.stages = 20: must divide the 10 classes evenly"),
        ({"partition": "natural"}, r"images\.partition = 'natural': name the column of the nodes"),
        ({"rotations": 3}, r"images\.rotations = 3: must be 1, 2 or 4"),
        ({"rotations": 2, "width": 9, "height": 8}, r"images\.rotations = 2: images must be square"),
    ],
)  # fmt: skip
def test_options_that_cannot_be(options, said):
    with pytest.raises(DataError, match=said):
        ImagesTask(Options(**options))


@pytest.mark.parametrize(
    ("options", "nodes", "said"),
    [
        ({}, 200, r"num-nodes = 200: 1438 images are fewer than images\.min-examples = 10 for each node"),
        ({"partition": "natural", "group_column": "writer"}, 2, r"the images have no column writer"),
    ],
)
def test_partitions_that_cannot_be(digits, options, nodes, said):
    with pytest.raises(DataError, match=said):
        node_images(digits, Options(**options), 0, nodes)


def test_a_simulation_needs_training_images(tmp_path):
    write_folders(tmp_path / "test", *drawn(4))
    with pytest.raises(DataError, match=r".*/test: only test images; add the training images, as in train/CLASS"):
        node_images(tmp_path, Options(dataset="pets", classes=3, height=6), 0, 2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"partition": "pathological"},
            r"the training images of client-000: no examples of stage 2, the classes 2, 3 ",
        ),
        ({"partition": "iid", "global_examples": 1}, r"the common test: no examples of stage 1, the classes 0, 1 "),
    ],
)
def test_stages_that_a_node_or_the_common_test_lacks(digits, options, said):
    task = ImagesTask(Options(stages=5, **options))
    with pytest.raises(DataError, match=said):
        task.node_profile(digits, 0, 10)
    with pytest.raises(DataError, match=said):
        task.node_references(digits, 10)


def test_validation_data_are_needed_to_choose_settings():
    assert ImagesTask().validation_metric == "validation.accuracy"
    with pytest.raises(DataError, match=r"images\.validation-share = 0\.0: must be above 0"):
        _ = ImagesTask(replace(Options(), validation_share=0.0)).validation_metric


def test_all_images_are_named_by_the_folder(digits):
    assert all_images(digits, Options()).key == digits.name


def parquet(folder, count, damaged=None):
    """Write images of two classes in turn, of which one is cut off."""
    rows = []
    for number in range(count):
        content = io.BytesIO()
        Image.new("RGB", (28, 28), (number % 256, 0, 0)).save(content, "PNG")
        rows.append({"bytes": content.getvalue()[: 50 if number == damaged else None]})
    Dataset.from_dict({"image": rows, "label": [n % 2 for n in range(count)]}).to_parquet(str(folder / "train.parquet"))


OWN = Options(dataset="own", image_column="image", label_column="label", classes=2, height=8, partition="iid")


def test_an_outline_says_what_the_loaded_data_say_and_decodes_one_image_in_64(tmp_path, monkeypatch):
    parquet(tmp_path, 200)
    names = []
    monkeypatch.setattr(image_set, "decoded", lambda content, name: names.append(name) or Image.new("RGB", (8, 8)))
    task = ImagesTask(OWN)
    outlines = [task.outline_node(tmp_path, node, 4) for node in range(4)]
    assert sorted(name.rsplit(maxsplit=1)[1] for name in names) == ["0", "128", "192", "64"]
    for node, outline in enumerate(outlines):
        data = task.load_node(tmp_path, node, 4)
        assert (outline.key, outline.groups, task.sizes(outline)) == (data.key, data.groups, task.sizes(data))
        for split, tensors in data.splits.items():
            assert torch.equal(outline.splits[split]["label"], tensors["label"])
            assert outline.splits[split]["image"].shape == tensors["image"].shape


def test_an_outline_refuses_a_truncated_image(tmp_path):
    parquet(tmp_path, 40, damaged=7)
    with pytest.raises(DataError, match=r"image of image 7: not an image, or damaged"):
        [ImagesTask(OWN).outline_node(tmp_path, node, 2) for node in range(2)]


def test_a_folder_is_listed_once_and_its_common_test_is_checked_once_for_all_nodes(tmp_path, monkeypatch):
    for split, count in (("train", 40), ("test", 6)):
        write_folders(tmp_path / split, *drawn(count, classes=2))
    for path in [tmp_path, *tmp_path.glob("*/**/")]:
        os.utime(path, (1e9, 1e9))  # a folder that changes at this moment is listed again
    listed, checked = [], []
    found_in, problem_in = formats.found_in, image_set.problem_in
    monkeypatch.setattr(
        formats, "found_in", lambda folder, *patterns: listed.append(patterns) or found_in(folder, *patterns)
    )
    monkeypatch.setattr(image_set, "problem_in", lambda file: checked.append(file.name) or problem_in(file))
    task = ImagesTask(replace(OWN, min_examples=1))
    for node in range(4):
        task.outline_node(tmp_path, node, 4)
    assert listed.count(("*/**/*",)) == 3  # of the folder and its two splits
    assert len(checked) == len(set(checked)) == 46
    searched = list[tuple[object, ...]]()
    monkeypatch.setattr(formats, "find_tables", lambda *given: searched.append(given))
    task.outline_node(tmp_path, 0, 4)
    assert not searched
    monkeypatch.undo()
    extra, other = sorted((tmp_path / "train").glob("*/*"))[:2]
    other.rename(extra.parent / "new.png")
    assert "new.png" in {
        path.name for path in formats.read_folder(tmp_path, task.layout).splits["train"].pictures[0][0].paths
    }


def test_images_are_mirrored_and_cropped_each_by_its_own_draws():
    images = torch.arange(1, 1 + 64 * 48, dtype=torch.int32).reshape(64, 3, 4, 4)
    changed = augmentation_of("flip", (4, 4, 3))(images)
    mirrored = [bool((after == before.flip(2)).all()) for before, after in zip(images, changed, strict=True)]
    kept = [bool((after == before).all()) for before, after in zip(images, changed, strict=True)]
    assert all(a != b for a, b in zip(mirrored, kept, strict=True))
    assert 10 < sum(mirrored) < 54
    cropped = augmentation_of("crop-flip", (4, 4, 3))(images)
    edges = {int((after[0] == 0).sum()) for after in cropped}  # a shift by one pixel leaves one black row or column
    assert cropped.shape == images.shape
    assert edges == {0, 4, 7}
    assert augmentation_of("none", (4, 4, 3)) is None
