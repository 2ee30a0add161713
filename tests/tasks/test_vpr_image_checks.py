"""Which images can be read, judged by their first and last bytes."""

import csv
import io
import tarfile

import numpy as np
import pytest
from fedapps.tasks.base import DataError
from fedapps.tasks.vpr.datasets import damaged, read_dataset
from fedapps.tasks.vpr.images import ImageFiles, ImageTar
from fedapps.tasks.vpr.options import Options
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image


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
