"""Images are read alike from folders of classes, NumPy archives, Parquet files and the hub's library."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from fedapps.tasks.base import DataError
from fedapps.tasks.images.formats import read_folder
from fedapps.tasks.images.options import PUBLISHED, Columns, Options, fetch
from fedapps.tasks.images.task import ImagesTask
from image_files import CLASSES, drawn, png, write_folders, write_parquet

from fedapps.launch.inputs import resolve

PETS = Options(dataset="pets", classes=3, height=6, width=5)
LAYOUT = PETS.layout()
TRAIN, TEST = drawn(9), drawn(6, seed=1)


def folders(folder):
    for split, examples in (("train", TRAIN), ("test", TEST)):
        write_folders(folder / split, *examples)


def archives(folder):
    for split, (pixels, labels) in (("train", TRAIN), ("test", TEST)):
        np.savez(folder / f"{split}.npz", images=pixels, labels=np.array(CLASSES)[labels])


def keras(folder):
    np.savez(folder / "pets.npz", x_train=TRAIN[0], y_train=TRAIN[1][:, None], x_test=TEST[0] / 255, y_test=TEST[1])


def channels_first(folder):
    for split, (pixels, labels) in (("train", TRAIN), ("test", TEST)):
        np.savez(folder / f"{split}.npz", x=pixels.transpose(0, 3, 1, 2), y=labels)


def hub(folder):
    for split, examples in (("train", TRAIN), ("test", TEST)):
        write_parquet(folder / "data" / f"{split}-00000-of-00001.parquet", *examples)


def hub_file(folder):
    write_parquet(folder / "train-00000-of-00001.parquet", *TRAIN)


def lists(folder):
    """A line for each image file, in another format for each split."""
    for split, (pixels, labels) in (("train", TRAIN), ("test", TEST)):
        write_folders(folder / "photos" / split, pixels, labels)
        names = [f"photos/{split}/{CLASSES[label]}/{place:05d}.png" for place, label in enumerate(labels)]
        rows = [{"image": name, "label": CLASSES[label]} for name, label in zip(names, labels, strict=True)]
        if split == "train":
            lines = ["image,label", *(f"{row['image']},{row['label']}" for row in rows)]
            (folder / "train.csv").write_text("\n".join(lines))
        else:
            (folder / "test.jsonl").write_text("\n".join(map(json.dumps, rows)))


def downloaded(folder):
    """What the library datasets reads from a local copy of a data set of the hub, as from the hub itself."""
    hub(folder / "copy")
    (folder / "world").mkdir()
    fetch(str(folder / "copy"), Columns("image", "label"), folder / "world")
    return folder / "world"


@pytest.mark.parametrize("write", [folders, archives, keras, channels_first, hub, downloaded, lists])
def test_all_formats_give_the_same_images(write, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    read = read_folder(write(tmp_path) or tmp_path, LAYOUT)
    assert read.classes in (CLASSES, ("0", "1", "2"))
    assert read_folder(tmp_path / "world" if write is downloaded else tmp_path, LAYOUT) is read
    for split, (pixels, labels) in (("train", TRAIN), ("test", TEST)):
        found = read.splits[split]
        images = found.pixels(LAYOUT.size).transpose(0, 2, 3, 1)
        order = np.lexsort((images.reshape(len(images), -1)[:, 0], found.labels))
        expected = np.lexsort((pixels.reshape(len(pixels), -1)[:, 0], labels))
        assert np.array_equal(images[order], pixels[expected])
        assert np.array_equal(found.labels[order], labels[expected])


def test_images_are_resized_and_made_grey(tmp_path):
    pixels = np.full((2, 4, 4, 3), 100, dtype=np.uint8)
    write_folders(tmp_path, pixels, np.array([0, 1]))
    options = Options(dataset="pets", classes=2, height=8, width=4, channels=1)
    found = read_folder(tmp_path, options.layout()).splits["train"].pixels((8, 4, 1))
    assert found.shape == (2, 1, 8, 4)
    assert (found == 100).all()


def keys_of(folder, **values):
    return ImagesTask.found_keys({"dataset": "pets", **values}, folder)


@pytest.mark.parametrize("write", [folders, archives, hub, lists])
def test_classes_and_size_of_an_own_folder_are_taken_from_it(write, tmp_path, capsys):
    write(tmp_path)
    keys, line = keys_of(tmp_path)
    assert keys == {"labels": "cat,dog,owl", "height": 6, "width": 5}
    assert line == (
        f"3 classes (cat, dog, owl) and 6x5 pixels in 9 of 9 images in {tmp_path}, which a deployment lists: "
        "--set images.labels=cat,dog,owl --set images.height=6 --set images.width=5"
    )
    node = ImagesTask(Options(dataset="pets", min_examples=1, **keys)).load_node(tmp_path, 0, 2)
    assert node.splits["train"]["image"].shape[1:] == (3, 6, 5)
    resolved = resolve({"task": "images", "images.dataset": "pets", "data-dir": str(tmp_path)}, "runs")
    assert (resolved["images.labels"], resolved["images.height"]) == ("cat,dog,owl", 6)
    assert capsys.readouterr().err.endswith(f"{line}\n")


def test_only_what_is_not_given_is_taken_and_large_images_are_made_smaller(tmp_path):
    write_folders(tmp_path, *drawn(2, 300, 20))
    write_folders(tmp_path / "more", *drawn(1, 8, 8))
    (tmp_path / "more" / "cat" / "00000.png").rename(tmp_path / "cat" / "a.png")
    assert keys_of(tmp_path, labels="cat,dog")[0] == {"height": 224, "width": 20}
    assert "300x20 pixels in 2 of 3 images" in keys_of(tmp_path)[1]
    assert keys_of(tmp_path, height=9)[0] == {"labels": "cat,dog"}
    assert keys_of(tmp_path, height=9, classes=2) == keys_of(tmp_path, dataset="cifar10") == ({}, "")
    (tmp_path / "dog").rename(tmp_path / "dog, wet")
    assert keys_of(tmp_path, height=9)[0] == {"classes": 2}
    with pytest.raises(DataError, match=r"data-dir = '.*none': no such folder"):
        keys_of(tmp_path / "none")


def test_the_columns_and_names_of_classes_of_known_data_sets(tmp_path):
    cifar = PUBLISHED["cifar100"]
    names = [*cifar.labels]
    names[cifar.labels.index("crab")] = "cra"  # as on the hub: numbers count there, not names
    write_parquet(tmp_path / "train.parquet", *drawn(4, 32, 32), classes=names, image="img", label="fine_label")
    read = read_folder(tmp_path, Options(dataset="cifar100").layout())
    assert read.classes == cifar.labels
    assert read.splits["train"].labels.tolist() == [0, 1, 2, 0]
    femnist = tmp_path / "femnist"
    groups = ["f0000_14", "f0001_41", "f0000_14"]
    write_parquet(
        femnist / "train.parquet", *drawn(3, 28, 28), classes=PUBLISHED["femnist"].labels, groups=groups,
        label="character",
    )  # fmt: skip
    assert read_folder(femnist, Options(dataset="femnist").layout()).splits["train"].groups.tolist() == groups


def test_named_classes_of_a_file_have_the_order_of_the_option(tmp_path):
    write_parquet(tmp_path / "train.parquet", *drawn(3), classes=("owl", "dog", "cat"))
    labels = Options(dataset="pets", labels="dog,cat,owl,fox", height=6).layout()
    assert read_folder(tmp_path, labels).splits["train"].labels.tolist() == [2, 0, 1]


# -- what is refused ---------------------------------------------------------------------------------------------


def single(folder, **arrays):
    np.savez(folder / "train.npz", **{"images": TRAIN[0], "labels": TRAIN[1], **arrays})


def parquet(folder, **named):
    write_parquet(folder / "train.parquet", *TRAIN, **named)


def parquet_of_bytes(folder):
    """The name of a column is not UTF-8."""
    parquet(folder)
    (path,) = folder.iterdir()
    path.write_bytes(path.read_bytes().replace(b"image", b"\x80mage"))


@pytest.mark.parametrize(
    ("write", "options", "said"),
    [
        (lambda folder: None, {}, r"no images; expected train/CLASS/\*\.png .*train\*\.parquet"),
        (lambda folder: write_folders(folder, TRAIN[0][:1], [0]), {}, r"1 classes \(cat\), but images\.classes = 3"),
        (folders, {"labels": "cat,dog,fox"}, r"label 'owl'; expected one of cat, dog, fox, .* own for images\.dataset"),
        (lambda folder: single(folder, labels=TRAIN[1] + 1), {"labels": "a,b,c"}, r"image 2: label '3'; expected one"),
        (lambda folder: single(folder, labels=np.ones(9) / 2), {}, r"train\.npz, labels: type float64; expected whole"),
        (lambda folder: np.savez(folder / "train.npz", photos=TRAIN[0]), {}, r"has the arrays photos; expected images"),
        (lambda folder: [np.savez(folder / name) for name in ("a.npz", "b.npz")], {}, r"2 files \.npz; name them"),
        (lambda folder: parquet(folder, image="photo"), {}, r"no column image; found photo.*\.image-column"),
        (lambda folder: parquet(folder, label="kind"), {}, r"no column label; found image.*\.label-column"),
        (lambda folder: parquet(folder), {"labels": "a,b,c"}, r"image 0: label 'cat'; expected one of a, b, c"),
        (
            lambda folder: (folder / "train.csv").write_text("image,label\na.png,cat\nb.png, \n"),
            {},
            r"train\.csv, line 3, column label: ' '; expected the label of the image",
        ),
        (parquet_of_bytes, {}, r"train\.parquet: cannot be read as a Parquet file: 'utf-8' codec"),
    ],
)  # fmt: skip
def test_folders_that_cannot_be_read(write, options, said, tmp_path):
    write(tmp_path)
    layout = Options(**{"dataset": "pets", "classes": 0 if options else 3, "height": 6, **options}).layout()
    with pytest.raises(DataError, match=said):
        read_folder(tmp_path, layout)


def keras_and_single(folder):
    np.savez(folder / "train.npz", x_train=TRAIN[0], y_train=TRAIN[1], images=TRAIN[0], labels=TRAIN[1])


def labels_twice(folder):
    table = pq.read_table(write_parquet(folder / "train.parquet", *TRAIN) or folder / "train.parquet")
    pq.write_table(table.append_column("target", table.column("label")), folder / "train.parquet")


@pytest.mark.parametrize(
    ("write", "said"),
    [
        ((folders, parquet), r"has tables and folders of classes, and could be read in 2 ways; keep the files"),
        ((archives, parquet), r"has tables and archives \.npz, and could be read in 2 ways"),
        ((lambda folder: write_folders(folder / "training", *TRAIN),), r"training: could be a split or a class"),
        ((lambda folder: write_folders(folder / "Test", *TEST), folders), r"Test: could be a split or a class; rename"),
        (
            (lambda folder: write_folders(folder / "rome" / "train", *TRAIN),),
            r"rome/train has folders of classes, so rome could be the folder of a node.*--node-data",
        ),
        ((folders, lambda folder: write_folders(folder, *TRAIN)), r": cat, dog, owl hold images beside .*; move"),
        ((lambda folder: write_folders(folder, TRAIN[0], [0] * 9, ("train",)),), r"train: its images lie in no folder"),
        (
            [lambda folder, name=name: write_folders(folder / name, *TEST) for name in ("train", "val", "valid")],
            r"has val and valid, and could be read in 2 ways; keep one of them for the split validation",
        ),
        ((archives, keras), r"3 files \.npz; name them train\.npz"),
        ((keras_and_single,), r"several arrays could be the images and labels \(x_train, y_train; images, labels\)"),
        ((lambda folder: single(folder, label=TRAIN[1]),), r"several arrays .*\(images, label; images, labels\); name"),
        ((parquet, hub_file), r"has train\.parquet and train-00000-of-00001\.parquet, and each could be meant"),
        ((labels_twice,), r"train\.parquet: label and target could be the labels; name one of them"),
    ],
)  # fmt: skip
def test_folders_that_can_be_read_in_two_ways(write, said, tmp_path):
    for each in write:
        each(tmp_path)
    with pytest.raises(DataError, match=said):
        read_folder(tmp_path, LAYOUT)


@pytest.mark.parametrize("write", [labels_twice, lambda folder: single(folder, label=TRAIN[1])])
def test_the_option_names_one_of_two_columns_of_labels(write, tmp_path):
    write(tmp_path)
    layout = Options(dataset="pets", classes=3, height=6, label_column="label").layout()
    assert len(read_folder(tmp_path, layout).splits["train"]) == 9


def test_a_line_says_what_was_taken_for_what(tmp_path):
    folders(tmp_path)
    said = "images, train: 9 from train; test: 6 from test; classes 0 cat, 1 dog, 2 owl; resized to 6x5 with 3 channels"
    assert ImagesTask(PETS).describe_data(tmp_path) == said
    other = tmp_path / "other"
    other.mkdir()
    keras(other)
    assert "train: 9 from pets.npz, y_train; test: 6 from pets.npz, y_test" in ImagesTask(PETS).describe_data(other)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (png(TRAIN[0][0])[:60], r"00000\.png: not an image, or damaged: .*; replace it, or remove it"),
        (b"no image", r"00000\.png: not an image, or damaged"),
        (None, r"00000\.png: cannot be read: No such file"),
    ],
)
def test_a_damaged_image_is_named(content, said, tmp_path):
    write_folders(tmp_path, *TRAIN)
    path = tmp_path / "cat" / "00000.png"
    path.unlink()
    if content is None:
        path.symlink_to("moved.png")
    else:
        path.write_bytes(content)
    found = read_folder(tmp_path, LAYOUT).splits["train"]
    with pytest.raises(DataError, match=said):
        found.pixels(LAYOUT.size)
    with pytest.raises(DataError, match=r"1 of \d images cannot be read: .*00000\.png \(.*\); replace or remove"):
        ImagesTask(PETS).own_profile(tmp_path)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"images": TRAIN[0].astype(np.int64)}, r"pixels of type int64; expected uint8, or floats from 0 to 1"),
        ({"images": TRAIN[0] / 100}, r"pixels of type float64"),
        ({"images": TRAIN[0][..., :2]}, r"shape \[9, 6, 5, 2\]; expected \[n, H, W\]"),
        ({"images": TRAIN[0][:4]}, r"4 images and 9 labels; expected one label for each"),
    ],
)
def test_arrays_that_are_no_images(arrays, said, tmp_path):
    single(tmp_path, **arrays)
    with pytest.raises(DataError, match=said):
        read_folder(tmp_path, LAYOUT).splits["train"].pixels(LAYOUT.size)


def test_an_unreachable_hub_says_what_to_do(tmp_path):
    with pytest.raises(DataError, match=r"images\.dataset: '.*none' cannot be downloaded .*set data-dir"):
        fetch(str(tmp_path / "none"), Columns("image", "label"), tmp_path)


def test_classes_that_differ_in_case_or_blanks_are_refused(tmp_path):
    for name in ("cat", "Cat", "dog"):
        (tmp_path / "train" / name).mkdir(parents=True)
        (tmp_path / "train" / name / "1.png").write_bytes(png(np.zeros((8, 8, 3), dtype=np.uint8)))
    options = Options(dataset="pets", classes=3, height=8)
    with pytest.raises(DataError, match=r"differ only in case or blanks: 'Cat' \(1 rows\) and 'cat' \(1 rows\)"):
        read_folder(tmp_path, options.layout())
