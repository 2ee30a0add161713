"""Images from files and arrays: decoding, sizes, and the cache."""

import csv
import io
import pickle
import tarfile
from dataclasses import dataclass, field

import numpy as np
import pytest
from fedapps.tasks.base import DataError
from fedapps.tasks.vpr.datasets import damaged, read_dataset
from fedapps.tasks.vpr.images import ImageArray, ImageFiles, ImageStore, ImageTar
from fedapps.tasks.vpr.options import Options
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image


@dataclass
class Counting:
    """Six images of 2 × 2 pixels of the value of their number, and which were decoded."""

    decoded: list[int] = field(default_factory=list)

    def __len__(self):
        return 6

    def decode(self, index):
        self.decoded.append(index)
        return Image.new("RGB", (2, 2), (index, index, index))


def test_pictures_are_decoded_once_while_there_is_room():
    store = ImageStore(Counting(), capacity=2 * 12)  # two images of 3 × 2 × 2 bytes
    np.testing.assert_array_equal(store.load([4, 1, 4], (2, 2))[:, 0, 0, 0], [4, 1, 4])
    assert store.source.decoded == [4, 1]
    store.load([2], (2, 2))  # 1 was asked for longest ago
    assert store.source.decoded == [4, 1, 2]
    store.load([4, 1], (2, 2))
    assert store.source.decoded == [4, 1, 2, 1]
    store.load([4], (4, 4))  # another size is another image, too large to be kept
    store.load([4], (2, 2))
    assert store.source.decoded == [4, 1, 2, 1, 4]
    other = pickle.loads(pickle.dumps(store))
    other.load([4], (2, 2))
    assert other.source.decoded[-1] == 4
    assert store.load([], (2, 2)).shape == (0, 3, 2, 2)


def test_a_picture_that_was_handed_out_can_be_changed():
    store = ImageStore(Counting())
    store.load([3], (2, 2)).zero_()
    assert store.load([3], (2, 2)).min() == 3


def test_gray_and_coloured_arrays_become_rgb_of_the_size():
    gray = ImageStore(ImageArray(np.array([[[0, 100]], [[7, 7]]], dtype=np.uint8)))
    images = gray.load([0, 1], (1, 4))
    assert images.shape == (2, 3, 1, 4)
    assert (images[:, 0] == images[:, 2]).all()
    np.testing.assert_array_equal(images[0, 0, 0], [0, 25, 75, 100])  # bilinear, half-pixel centres
    coloured = np.array([[[[1, 2, 3], [4, 5, 6]]]], dtype=np.uint8)
    np.testing.assert_array_equal(ImageStore(ImageArray(coloured)).load([0], (1, 2))[0, :, 0].T, coloured[0, 0])


def test_files_are_read_below_their_folder(tmp_path):
    Image.new("RGB", (1, 1), (1, 2, 3)).save(tmp_path / "x.png")
    np.testing.assert_array_equal(ImageStore(ImageFiles(tmp_path, ["x.png"])).load([0], (1, 1)).ravel(), [1, 2, 3])


@pytest.mark.parametrize("size", [(6, 8), (48, 64), (13, 37), (96, 128), (7, 300)])
def test_resized_pictures_are_those_of_pillow(size):
    """At most one of 255 levels apart, whether they shrink, grow or both."""
    drawn = np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8)
    found = ImageStore(ImageArray(drawn[None])).load([0], size)[0].permute(1, 2, 0).numpy()
    expected = np.array(Image.fromarray(drawn).resize(size[::-1], Image.Resampling.BILINEAR))
    assert np.abs(found.astype(int) - expected.astype(int)).max() <= 1
    if size == (48, 64):
        np.testing.assert_array_equal(found, drawn)


# Which images can be read, judged by their first and last bytes.


def image(kind, seed=0):
    file = io.BytesIO()
    colours = np.random.default_rng(seed).integers(0, 256, (24, 32, 3), dtype=np.uint8)
    Image.fromarray(colours).save(file, kind)
    return file.getvalue()


@given(st.sampled_from(["JPEG", "PNG"]), st.floats(0, 1), st.binary(max_size=30))
def test_of_pictures_cut_short_or_longer_a_look_says_what_decoding_says(tmp_path_factory, kind, share, more):
    folder = tmp_path_factory.getbasetemp()
    whole = image(kind)
    source = ImageFiles(folder, ["cut.image", "longer.image"])
    (folder / source.names[0]).write_bytes(whole[: int(share * (len(whole) - 1))])
    (folder / source.names[1]).write_bytes(whole + more)
    assert list(damaged(source, np.arange(2))) == [row for row in range(2) if not decodes(source, row)]
    assert decodes(source, 1)


def test_a_name_that_is_too_long_is_that_of_a_missing_picture(tmp_path):
    source = ImageFiles(tmp_path, ["a" * 300])
    assert source.absent() == [0]
    assert list(damaged(source, np.arange(1))) == [0]
    with pytest.raises(DataError, match="cannot be read: File name too long"):
        source.decode(0)


def decodes(source, row):
    try:
        source.decode(row)
    except DataError:
        return False
    return True


def test_a_picture_damaged_in_between_says_so_when_it_is_decoded(tmp_path):
    whole = bytearray(image("PNG"))
    whole[len(whole) // 2] ^= 255
    (tmp_path / "a.png").write_bytes(whole)
    source = ImageFiles(tmp_path, ["a.png"])
    assert damaged(source, np.arange(1)) == {}
    with pytest.raises(DataError) as error:
        source.decode(0)
    assert str(error.value).startswith(f"{tmp_path / 'a.png'}: not an image, or damaged: ")
    assert "vpr.skip-unreadable only detects damage in the first and last bytes" in str(error.value)


def write_tower(folder):
    """Two areas of a floor, a query and two gallery images in each."""
    rows = []
    with tarfile.open(folder / "images_128x96.tar", "w") as archive:
        for area in ("hall", "lift"):
            for video in range(2):
                for frame in range(3):
                    content = image("JPEG", seed=len(rows)) if (area, video, frame) != ("hall", 0, 2) else b"sorry"
                    rows.append((f"{area}-{video}-{frame}", area, f"{area}-{video}", frame))
                    if (area, video, frame) != ("lift", 1, 1):
                        member = tarfile.TarInfo(f"{rows[-1][0]}.jpg")
                        member.size = len(content)
                        archive.addfile(member, io.BytesIO(content))
    with (folder / "metadata.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "floor", "split", "area", "section", "floor_range", "video", "frame"])
        for name, area, video, frame in rows:
            split = "gallery" if frame else "query"
            writer.writerow([name, "floor1", split, area, "above-ground", "lowrise", video, frame])


def test_pictures_of_an_archive(tmp_path):
    write_tower(tmp_path)
    with pytest.raises(
        DataError, match=r"2 of 12 images .*:\n  hall-0-2\.jpg \(not an image\)\n  lift-1-1\.jpg \(no such file\)"
    ):
        read_dataset(tmp_path, Options())
    assert len(read_dataset(tmp_path, Options(skip_unreadable=True)).training) == 10
    source = ImageTar.of(tmp_path / "images_128x96.tar", ["hall-0-2.jpg", "lift-1-1.jpg", "lift-0-1.jpg"])
    assert damaged(source, np.arange(3)) == {0: "not an image", 1: "no such file"}
    source.path.unlink()
    source.path.mkdir()
    with pytest.raises(DataError, match=r"images_128x96\.tar, lift-0-1\.jpg: cannot be read: Is a directory"):
        source.decode(2)
