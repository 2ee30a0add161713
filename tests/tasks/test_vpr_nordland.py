"""The Nordland railway line: stretches, regions, sequences, and the published file."""

import os
from pathlib import Path

import numpy as np
import pytest
from fedapps.tasks.base import DataError
from fedapps.tasks.vpr.readers import read_nordland

REAL = pytest.mark.skipif("FEDAPPS_DATA" not in os.environ, reason="FEDAPPS_DATA names no folder of real data")


def test_the_line_by_hand(tmp_path):
    """12 frames in 2 stretches: sequences of 4 and of 2 frames; frame 7 is not usable."""
    summer = np.arange(12, dtype=np.uint8)[:, None, None] * np.ones((1, 2, 2), dtype=np.uint8)
    usable = np.arange(12) != 7
    np.savez(tmp_path / "nordland_64x32.npz", summer=summer, winter=summer + 100, usable=usable)
    places = read_nordland(tmp_path, stretches=2, regions=1, sequence_length=4, metres_per_frame=100)
    assert len(places.queries) == len(places.database) == 11
    own = places.select(places.queries)
    np.testing.assert_array_equal(own.frame, [0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11])
    np.testing.assert_array_equal(own.position, np.stack([100.0 * own.frame, np.zeros(11)], axis=1))
    names = [places.tracks[track].name for track in own.track]
    assert names == ["000-000"] * 4 + ["000-001"] * 2 + ["001-000"] * 3 + ["001-001"] * 2
    assert {(track.city, track.group) for track in places.tracks} == {
        ("region-0", "stretch-000"),
        ("region-0", "stretch-001"),
    }
    assert (places.load_images(places.queries[:1], (2, 2)) == 100).all()
    assert (places.load_images(places.database[[7]], (2, 2)) == 8).all()
    assert len(places.queries_with_positive(99)) == 11


def test_lines_that_are_not_understood(tmp_path):
    with pytest.raises(DataError, match=r"cannot be read as an archive of arrays \(\.npz\)"):
        read_nordland(tmp_path)
    zeros = np.zeros((4, 2, 2), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", summer=zeros, winter=zeros)
    with pytest.raises(DataError, match="no array usable; found summer, winter"):
        read_nordland(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", summer=zeros, winter=zeros[:3], usable=np.ones(4))
    with pytest.raises(DataError, match=r"winter \(3, 2, 2\).* expected \(n, H, W\) twice and \(n,\)"):
        read_nordland(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", summer=zeros, winter=zeros, usable=np.ones(4))
    with pytest.raises(DataError, match=r"5 stretches in 1 regions, in sequences of 2; .* <= 4 frames"):
        read_nordland(tmp_path / "a.npz", stretches=5, regions=1, sequence_length=2)


@REAL
def test_the_published_railway():
    places = read_nordland(Path(os.environ["FEDAPPS_DATA"]) / "vpr" / "nordland")
    assert len(places.queries) == len(places.database) == 2975
    assert len({track.group for track in places.tracks}) == 30
    assert len(places.queries_with_positive(25)) == 2975
    np.testing.assert_allclose(np.diff(places.position[:2, 0]), 203.9, atol=0.1)
    assert places.load_images(places.queries[:3], (32, 64)).shape == (3, 3, 32, 64)
