"""Images from files and arrays: decoding, sizes, and the cache."""

import pickle
from dataclasses import dataclass, field

import numpy as np
import pytest
from fedapps.tasks.vpr.images import ImageArray, ImageFiles, ImageStore
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
