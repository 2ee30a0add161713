"""The floors of a tower building: areas, positions, and the published archive."""

import io
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from fedapps.tasks.base import DataError
from fedapps.tasks.vpr.places import Track
from fedapps.tasks.vpr.readers import read_indoor
from PIL import Image

REAL = pytest.mark.skipif("FEDAPPS_DATA" not in os.environ, reason="FEDAPPS_DATA names no folder of real data")


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def image(colour, size=(8, 6)):
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, "jpeg")
    return file.getvalue()


def write_indoor(folder, rows):
    with tarfile.open(folder / "images_128x96.tar", "w") as archive:
        for number, row in enumerate(rows):
            content = image((20 * number, 0, 0))
            member = tarfile.TarInfo(f"{row.split(',')[0]}.jpg")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    head = "id,floor,split,area,section,floor_range,video,frame"
    write(folder / "metadata.csv", "\n".join([head, *rows]))


INDOOR = [
    "v1_1,basement2,gallery,lift,basement,basement,v1,1",
    "v1_2,basement2,query,lift,basement,basement,v1,2",
    "v2_1,basement2,gallery,hall,basement,basement,v2,1",
    "v3_1,floor12,gallery,lift,above-ground,midrise,v3,1",
]


def test_floors_by_hand(tmp_path):
    write_indoor(tmp_path, INDOOR)
    places = read_indoor(tmp_path)
    assert [places.tracks[track] for track in places.track] == [
        Track("basement", "v1", False, "basement", "basement2"),
        Track("basement", "v1", True, "basement", "basement2"),
        Track("basement", "v2", False, "basement", "basement2"),
        Track("midrise", "v3", False, "above-ground", "floor12"),
    ]
    np.testing.assert_array_equal(places.position, [[100, -20000], [100, -20000], [0, -20000], [0, 120000]])
    np.testing.assert_array_equal(places.frame, [1, 2, 1, 1])
    assert places.queries_with_positive(25).tolist() == [1]
    reds = places.load_images([3, 1], (6, 8))[:, 0].float().mean((1, 2))
    assert (reds - torch.tensor([60.0, 20.0])).abs().max() < 4


def test_floors_that_are_not_understood(tmp_path):
    write_indoor(tmp_path, [INDOOR[0].replace("basement2", "attic")])
    with pytest.raises(DataError, match=r"line 2, column floor: 'attic'; expected a name like floor12 or basement2"):
        read_indoor(tmp_path)
    write_indoor(tmp_path, INDOOR)
    (tmp_path / "metadata.csv").write_text((tmp_path / "metadata.csv").read_text().replace("v3_1", "v3_9"))
    with pytest.raises(DataError, match=r"images_128x96\.tar, v3_9\.jpg: no such member, although a table lists it"):
        read_indoor(tmp_path).load_images([3], (4, 4))
    (tmp_path / "images_128x96.tar").unlink()
    with pytest.raises(DataError, match=r"images_128x96\.tar: cannot be read as an uncompressed tar archive"):
        read_indoor(tmp_path)


@REAL
def test_the_published_tower():
    places = read_indoor(Path(os.environ["FEDAPPS_DATA"]) / "vpr" / "ietower")
    assert (len(places.queries), len(places.database)) == (504, 2373)
    assert len({track.group for track in places.tracks}) == 25
    assert len({track.name for track in places.tracks}) == 124
    assert len(np.unique(places.position, axis=0)) == 102
    assert len(places.queries_with_positive(25)) == 504
    assert places.load_images([0, 2876], (96, 128)).shape == (2, 3, 96, 128)
