"""Images that are not 8-bit RGB: scaled where the file says how, refused by name otherwise, in every container."""

import io
import tarfile

import numpy as np
import pytest
from fedapps.tasks.vpr.datasets import damaged
from fedapps.tasks.vpr.given_images import in_hand
from fedapps.tasks.vpr.images import ImageArray, ImageFiles, ImageStore, ImageTar
from fedapps.tasks.vpr.readers import read_nordland
from PIL import Image

from fedapps.base.errors import DataError

#: 64 steps from black to white, in 16 bits, and what they are in 8.
STEPS = (np.arange(64) * 65535 // 63).astype(np.uint16).reshape(8, 8)
GREY = np.round(STEPS / 257).astype(np.uint8)
RGBA = np.full((2, 2, 4), 200, dtype=np.uint8)


def saved(image, kind, **how):
    file = io.BytesIO()
    image.save(file, kind, **how)
    return file.getvalue()


def array(values, kind, **how):
    return saved(Image.fromarray(np.asarray(values)), kind, **how)


def frames(kind):
    pictures = [Image.new("RGB", (2, 2), (100 * number, 0, 0)) for number in range(2)]
    return saved(pictures[0], kind, save_all=True, append_images=pictures[1:])


def pixels(content, folder):
    (folder / "a.image").write_bytes(content)
    return np.array(ImageFiles(folder, ["a.image"]).decode(0))


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_sixteen_bits_of_grey_keep_their_steps(tmp_path, kind):
    found = pixels(array(STEPS, kind), tmp_path)
    assert found.shape == (8, 8, 3)
    np.testing.assert_array_equal(found[..., 0], GREY)
    assert damaged(ImageFiles(tmp_path, ["a.image"]), np.arange(1)) == {}


def test_palettes_single_bits_and_an_opaque_channel(tmp_path):
    colours = Image.fromarray(np.array([[[10, 20, 30], [200, 100, 0]]], dtype=np.uint8))
    expected = np.array(colours)
    np.testing.assert_array_equal(pixels(saved(colours.quantize(2), "PNG"), tmp_path), expected)
    np.testing.assert_array_equal(pixels(saved(Image.new("1", (2, 1), 1), "PNG"), tmp_path), 255)
    colours.putalpha(255)
    np.testing.assert_array_equal(pixels(saved(colours, "PNG"), tmp_path), expected)


REFUSED = {
    "float": (array(np.float32([[0, 1]]), "TIFF"), r"has floating-point pixels \(mode F\), .* save it as 8-bit"),
    "32 bits": (array(np.int32([[0, 70000]]), "TIFF"), r"has 32-bit or signed pixels \(mode I\)"),
    "printer": (saved(Image.new("CMYK", (2, 2)), "JPEG"), r"has colours of a printer \(mode CMYK\)"),
    "transparent": (array(RGBA, "PNG"), r"has transparent pixels \(mode RGBA\): put it on a background"),
    "GIF": (frames("GIF"), r"has 2 pictures \(GIF\): save each as a file"),
    "APNG": (frames("PNG"), r"has 2 pictures \(PNG\)"),
    "pages": (frames("TIFF"), r"has 2 pictures \(TIFF\)"),
}


@pytest.mark.parametrize(("content", "message"), REFUSED.values(), ids=REFUSED)
def test_what_has_no_defined_range_is_refused_before_and_while_it_is_read(tmp_path, content, message):
    with pytest.raises(DataError, match=rf"a\.image: {message}"):
        pixels(content, tmp_path)
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(tmp_path / "a.image", "a.image")
    for source in (ImageFiles(tmp_path, ["a.image"]), ImageTar.of(tmp_path / "a.tar", ["a.image"])):
        (problem,) = damaged(source, np.arange(1)).values()
        with pytest.raises(DataError, match=message):
            raise DataError(problem)
    with pytest.raises(DataError, match=rf"image 0 {message}"):
        in_hand([Image.open(io.BytesIO(content))]).store.load([0], (2, 2))


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 2 2\n%%EndComments\nshowpage\n"


def test_a_picture_that_a_program_would_have_to_draw_is_not_opened(tmp_path, monkeypatch):
    """Pillow hands an EPS to Ghostscript, whatever the name of the file."""

    def started(*_, **__):
        raise AssertionError("Ghostscript was started")

    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", started)
    (tmp_path / "a.image").write_bytes(EPS)
    with pytest.raises(DataError, match=r"a\.image: not an image, or damaged: it has no known format"):
        ImageFiles(tmp_path, ["a.image"]).decode(0)
    assert damaged(ImageFiles(tmp_path, ["a.image"]), np.arange(1)) == {0: "not an image"}
    with pytest.raises(DataError, match=r"image 0 has the format EPS: only JPEG, .* save it as 8-bit"):
        in_hand([Image.open(io.BytesIO(EPS))]).store.load([0], (2, 2))


def test_arrays(tmp_path):
    images = ImageStore(ImageArray(STEPS[None])).load([0], (8, 8))
    np.testing.assert_array_equal(images[0, 0], GREY)
    for wrong in (np.zeros((1, 2, 2), dtype=np.float32), np.zeros((1, 2, 2), dtype=np.int64)):
        np.savez(tmp_path / "a.npz", summer=wrong, winter=wrong, usable=[True])
        with pytest.raises(DataError, match=r"a\.npz: summer .*; expected grey values, uint8 or uint16"):
            read_nordland(tmp_path / "a.npz", stretches=1, regions=1)


def test_a_small_file_of_a_huge_picture_is_refused_by_its_first_bytes(tmp_path):
    """9,000 x 9,000 grey pixels of one value are 10 kB, and took 1.5 GB."""
    huge = saved(Image.new("1", (9_000, 9_000)), "PNG")
    assert len(huge) < 20_000
    said = "has 9000 x 9000 = 81,000,000 pixels: at most 50,000,000 are accepted (vpr.max-pixels)"
    (tmp_path / "a.image").write_bytes(huge)
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(tmp_path / "a.image", "a.image")
    for source in (ImageFiles(tmp_path, ["a.image"]), ImageTar.of(tmp_path / "a.tar", ["a.image"])):
        with pytest.raises(DataError, match="has 9000 x 9000"):
            source.decode(0)
        assert said in damaged(source, np.arange(1))[0]
    with pytest.raises(DataError, match="has 9000 x 9000"):
        in_hand([Image.open(io.BytesIO(huge))]).store.load([0], (2, 2))


@pytest.mark.parametrize("source", [ImageFiles, ImageTar])
def test_the_limit_of_pixels_is_that_of_the_options(tmp_path, source):
    (tmp_path / "a.image").write_bytes(array(np.zeros((3, 4), np.uint8), "PNG"))
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(tmp_path / "a.image", "a.image")
    made = source(tmp_path, ["a.image"]) if source is ImageFiles else source.of(tmp_path / "a.tar", ["a.image"])
    store = ImageStore(made)
    store.limit(12)
    assert store.load([0], (3, 4)).shape == (1, 3, 3, 4)
    store = ImageStore(made)
    store.limit(11)
    with pytest.raises(DataError, match="at most 11 are accepted"):
        store.load([0], (3, 4))
