"""Readers of data sets of places: a table of images, Nordland, the tower building."""

import io
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from fedapps.tasks.base import DataError
from fedapps.tasks.vpr import readers
from fedapps.tasks.vpr.places import EARTH_RADIUS, Track, projected
from fedapps.tasks.vpr.readers import CONTINENTS, continents_of, read_image_table, read_indoor, read_msls, read_nordland
from PIL import Image


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_table_by_hand(tmp_path):
    head = "path,sequence,role,x,y,city,continent,group,colour\n"
    rows = "a/1.png,s1,query,1.5,2,rome,europe,north,red\na/2.png,s1,Gallery,0,0,rome,europe,north,\n"
    write(tmp_path / "list.csv", head + rows)
    (tmp_path / "a").mkdir()
    Image.new("L", (2, 2), 9).save(tmp_path / "a" / "1.png")
    places = read_image_table(tmp_path / "list.csv")
    one, two = Track("rome", "s1", True, "europe", "north"), Track("rome", "s1", False, "europe", "north")
    assert [places.tracks[track] for track in places.track] == [one, two]
    np.testing.assert_array_equal(places.position, [[1.5, 2], [0, 0]])
    assert (places.load_images([0], (2, 2)) == 9).all()


def test_a_table_with_the_fewest_columns(tmp_path):
    write(tmp_path / "list.csv", "path,sequence,role,lon,lat\n1,r,query,10,50\n2,s,database,10,50.001\n")
    places = read_image_table(tmp_path / "list.csv")
    assert set(places.tracks) == {Track("", "r", True), Track("", "s", False)}
    np.testing.assert_allclose(places.position, [[0, -55.6], [0, 55.6]], atol=0.01)
    assert places.cities == ("",)


def test_degrees_are_counted_from_the_middle_of_each_city(tmp_path):
    rows = "1,r,query,10,50,a\n2,s,database,10,50.001,a\n3,r,query,-70,-10,b\n"
    write(tmp_path / "list.csv", "path,sequence,role,lon,lat,city\n" + rows)
    np.testing.assert_allclose(read_image_table(tmp_path / "list.csv").position[:, 1], [-55.6, 55.6, 0], atol=0.01)


def test_degrees_far_from_a_city_change_no_distance_in_it(tmp_path):
    """A tenth of the positions lie 5 degrees off; the projection is that of the others."""
    lat = np.r_[np.full(9, 60.0), 0.5]
    lon = np.r_[np.linspace(10.0, 10.08, 9), 0.5]
    metres = projected(lon, lat)
    assert np.ptp(metres[:9, 0]) == pytest.approx(np.deg2rad(0.04) * EARTH_RADIUS, rel=1e-6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "path,sequence,role,lon,lat\n1,s,query,10,60\n2,s,query,0,0\n3,s,query,10,60\n4,s,query,0,0\n",
            r"line 3, column lon: '0'; lon and lat are 0, as without a GPS fix; .* \(wrong in 2 rows: lines 3, 5\)",
        ),
        (
            "path,sequence,role,lon,lat\n1,s,query,10,60\n2,s,query,12.1,60\n3,s,query,10.1,60\n",
            r"line 3, column lon: '12.1'; more than 1 degree \(111 km\) from the median of its city; remove rows",
        ),
        (
            "path,sequence,role,lon,lat\n1,s,query,179.9,1\n2,s,query,-179.9,2.1\n3,s,query,180,1\n",
            r"line 3, column lat: '2.1'; more than 1 degree",
        ),
        (
            "path,sequence,role,x,y\n1,s,query,500000,5800000\n2,s,query,0,0\n3,s,query,500010,5800000\n",
            r"line 3, column x: '0'; more than 100 km from the median of its city; write metres",
        ),
        (
            "path,sequence,role,x,y\n1,s,query,0,0\n1,s,query,5,0\n",
            r"line 3: path = '1', role = 'query' occurs for the",
        ),
        ("path;sequence;role\n1;s;query\n", r"no column path.* \(separate the columns of a \.csv file by commas"),
        ("path,role,x,y\n1,query,0,0\n", r"no column sequence; found path, role, x, y .*a sequence is a drive"),
        (
            "path,sequence,role,x,y,lon,lat\n1,s,query,0,0,1,1\n",
            r"has both x and y and lon and lat; keep the positions in",
        ),
        ("path,sequence,role,x\n1,s,query,0\n", r"no columns x and y, nor lon and lat; found path, sequence, role, x"),
        ("path,sequence,role,x,y\n1,s,test,0,0\n", r"column role: 'test'; expected one of query, database, gallery"),
        (
            "path,sequence,role,lon,lat\n1,s,query,0,91\n",
            r"line 2, column lat: '91'; expected degrees from -90 to 90; are lon and lat swapped",
        ),
        ("path,sequence,role,x,y,group\n1,s,query,0,0,a\n2,s,query,0,0,b\n", r"sequence s of  has the groups a and b"),
        (
            "path,sequence,role,x,y,city,continent\n1,s,query,0,0,rome,europe\n2,t,query,0,0,rome,asia\n",
            r"city rome has the continents",
        ),
    ],
)
def test_tables_that_are_not_understood(tmp_path, text, message):
    write(tmp_path / "list.csv", text)
    with pytest.raises(DataError, match=message):
        read_image_table(tmp_path / "list.csv")


def test_cities_that_differ_in_case_or_blanks_are_refused(tmp_path):
    rows = "1,r,query,0,0,Oslo\n2,s,database,1,0,oslo \n"
    write(tmp_path / "list.csv", "path,sequence,role,x,y,city\n" + rows)
    with pytest.raises(DataError, match=r"list\.csv, column city: labels differ only in case or blanks: 'Oslo' \(1"):
        read_image_table(tmp_path / "list.csv")


REAL = pytest.mark.skipif("FEDAPPS_DATA" not in os.environ, reason="FEDAPPS_DATA names no folder of real data")


def test_the_line_by_hand(tmp_path, monkeypatch):
    """12 frames in 2 stretches: sequences of 4 and of 2 frames; frame 7 is not usable."""
    summer = np.arange(12, dtype=np.uint8)[:, None, None] * np.ones((1, 2, 2), dtype=np.uint8)
    usable = np.arange(12) != 7
    np.savez(tmp_path / "nordland_64x32.npz", summer=summer, winter=summer + 100, usable=usable)
    monkeypatch.setattr(readers, "SEQUENCE_FRAMES", 4)
    places = read_nordland(tmp_path, stretches=2, regions=1, metres_per_frame=100)
    assert len(places.queries) == len(places.database) == 11
    own = places.select(places.queries)
    np.testing.assert_array_equal(own.position[:, 0], 100 * np.array([0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11]))
    assert not own.position[:, 1].any()
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
    with pytest.raises(DataError, match=r"5 stretches in 1 regions; .* <= 4 frames"):
        read_nordland(tmp_path / "a.npz", stretches=5, regions=1)


@REAL
def test_the_published_railway():
    places = read_nordland(Path(os.environ["FEDAPPS_DATA"]) / "vpr" / "nordland")
    assert len(places.queries) == len(places.database) == 2975
    assert len({track.group for track in places.tracks}) == 30
    assert len(places.queries_with_positive(25)) == 2975
    np.testing.assert_allclose(np.diff(places.position[:2, 0]), 203.9, atol=0.1)
    assert places.load_images(places.queries[:3], (32, 64)).shape == (3, 3, 32, 64)


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


# Mapillary Street-Level Sequences: cities, continents, and files that are wrong or missing.


#: key, easting, northing, sequence, frame, heading, panorama
PICTURES = {
    "query": [
        ("q1", 100.5, 200.0, "seqA", 2, "90.5", "False"),
        ("q0", 90.5, 200.0, "seqA", 1, "", "False"),
        ("qp", 95.0, 200.0, "seqA", 3, "10", "True"),
        ("q2", 500.0, 200.0, "seqB", 7, "180", "False"),
    ],
    "database": [("d0", 93.5, 204.0, "seqC", 1, "0", "False"), ("d1", 520.0, 200.0, "seqD", 1, "0", "False")],
}


def write_city(folder, sequence_column="sequence_key"):
    """The files of a city as in the release, with its nameless first column; those below raw.csv in another order."""
    for role, rows in PICTURES.items():
        raw, placed, ordered = [",key,lon,lat,ca,captured_at,pano"], [], []
        for number, (key, east, north, sequence, frame, heading, pano) in enumerate(rows):
            raw.append(f"{number},{key},4.9,52.3,{heading},2018-01-01,{pano}")
            placed.append(f"{number},{key},{east},{north},7,False,False,Forward")
            ordered.append(f"{number},{key},{sequence},{frame}")
            (folder / role / "images").mkdir(parents=True, exist_ok=True)
            (folder / role / "images" / f"{key}.jpg").write_bytes(image((10 * frame, 200, 30)))
        head = ",key,easting,northing,unique_cluster,control_panel,night,view_direction"
        write(folder / role / "raw.csv", "\n".join(raw))
        write(folder / role / "postprocessed.csv", "\n".join([head, *reversed(placed)]))
        write(folder / role / "seq_info.csv", "\n".join([f",key,{sequence_column},frame_number", *reversed(ordered)]))


@pytest.mark.parametrize("column", ["sequence_key", "sequence_id"])
def test_a_city_of_msls_by_hand(tmp_path, column):
    write_city(tmp_path / "train_val" / "amsterdam", column)
    places = read_msls(tmp_path)
    assert places.tracks == (
        Track("amsterdam", "seqA", True, "europe"),
        Track("amsterdam", "seqB", True, "europe"),
        Track("amsterdam", "seqC", False, "europe"),
        Track("amsterdam", "seqD", False, "europe"),
    )
    np.testing.assert_array_equal(places.position, [[100.5, 200], [90.5, 200], [500, 200], [93.5, 204], [520, 200]])
    assert places.position.dtype == np.float64
    np.testing.assert_array_equal(places.track, [0, 0, 1, 2, 3])
    np.testing.assert_array_equal(places.queries, [0, 1, 2])
    np.testing.assert_array_equal(places.database, [3, 4])
    # q0 is 5 m from d0 (3 and 4), q1 sqrt(7² + 4²) = 8.06 m, q2 20 m from d1
    np.testing.assert_array_equal(places.queries_with_positive(5.0), [1])
    np.testing.assert_array_equal(places.queries_with_positive(10.0), [0, 1])
    np.testing.assert_array_equal(places.queries_with_positive(25.0), [0, 1, 2])
    images = places.load_images([2, 0], (6, 8))
    assert images.dtype == torch.uint8
    assert images.shape == (2, 3, 6, 8)
    expected = torch.tensor([[70, 200, 30], [20, 200, 30]])
    assert (images.float().mean((2, 3)) - expected).abs().max() < 4  # the colours of a JPEG


def test_test_cities_are_read_where_their_positions_are_known(tmp_path):
    for city in ("train_val/manila", "train_val/cph", "test/miami", "test/mirage"):
        write_city(tmp_path / city)
    (tmp_path / "test" / "miami" / "query" / "postprocessed.csv").unlink()
    (tmp_path / "train_val" / "notes").mkdir()
    assert read_msls(tmp_path).cities == ("cph", "manila", "mirage")
    assert len(read_msls(tmp_path).of_city("manila", "cph")) == 10
    with pytest.raises(DataError, match="no images of oslo; available cities: cph, manila, mirage"):
        read_msls(tmp_path).of_city("oslo")


def test_every_city_of_the_release_has_one_continent(tmp_path):
    cities = [city for found in CONTINENTS.values() for city in found]
    assert len(cities) == len(set(cities)) == 30
    assert continents_of(tmp_path)["sf"] == continents_of(tmp_path)["saopaulo"] == "america"


def test_other_cities_have_the_continents_of_a_file(tmp_path):
    write_city(tmp_path / "train_val" / "atlantis")
    assert {track.continent for track in read_msls(tmp_path).tracks} == {""}
    write(tmp_path / "continents.csv", "city,continent\natlantis,lost\n")
    assert {track.continent for track in read_msls(tmp_path).tracks} == {"lost"}
    assert continents_of(tmp_path)["goa"] == "asia"
    write(tmp_path / "continents.csv", "town,continent\n")
    with pytest.raises(DataError, match=r"continents\.csv, line 1: no column city; found town, continent"):
        read_msls(tmp_path)


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("raw.csv", "pano", "panorama", r"raw.csv, line 1: no column pano; found key, lon, lat, ca, captured_at, p"),
        ("postprocessed.csv", "easting", "utm", r"no column easting; found key, utm, northing, unique_cluster"),
        ("seq_info.csv", "sequence_key", "track", r"no column sequence_key; found key, track, frame_number"),
        ("seq_info.csv", "q1", "q9", r"seq_info.csv: no row with the key 'q1', which raw.csv has"),
        ("raw.csv", "True", "yes", r"raw.csv, line 4, column pano: 'yes'; expected one of true, 1, false, 0"),
        ("postprocessed.csv", "90.5", "east", r"line 4, column easting: 'east'; expected a finite number"),
        ("raw.csv", "q0", "q1", r"raw.csv, line 3: key = 'q1' occurs for the second time \(first in line 2\)"),
        ("postprocessed.csv", "90.5", "2e9", r"column easting: '2000000000.0|'2e9'; more than 100 km from the median"),
    ],
)
def test_damaged_tables_are_named(tmp_path, file, old, new, message):
    write_city(tmp_path / "train_val" / "goa")
    path = tmp_path / "train_val" / "goa" / "query" / file
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(DataError, match=message):
        read_msls(tmp_path)


def test_panoramas_alone_are_no_images(tmp_path, caplog):
    city = tmp_path / "train_val" / "goa"
    write_city(city)
    raw = city / "query" / "raw.csv"
    raw.write_text(raw.read_text().replace("False", "True"))
    assert len(read_msls(tmp_path).queries) == 0
    assert caplog.messages == [f"{city / 'query'}: all 4 images are panoramas, which are left out"]
    raw = city / "database" / "raw.csv"
    raw.write_text(raw.read_text().replace("False", "True"))
    with pytest.raises(DataError, match=r"all images are panoramas \(column pano of raw\.csv\), which are left out"):
        read_msls(tmp_path)


def test_what_archivers_left_is_no_city(tmp_path):
    for name in ("train_val/goa", "train_val/__MACOSX", "train_val/.trash", "test/._sf", "__MACOSX/train_val/goa"):
        write_city(tmp_path / name)
    assert read_msls(tmp_path).cities == ("goa",)
    write_city(tmp_path / "test" / "goa")
    with pytest.raises(DataError, match=r"test/goa: there is also .*train_val/goa|train_val/goa: there is also"):
        read_msls(tmp_path)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(DataError, match="no city found; expected folders like train_val/amsterdam/query"):
        read_msls(tmp_path)
    city = tmp_path / "train_val" / "goa"
    write_city(city)
    places = read_msls(tmp_path)
    (city / "query" / "images" / "q1.jpg").unlink()
    with pytest.raises(DataError, match=r"goa/query/images/q1\.jpg: no such file, although a table lists it"):
        places.load_images([0], (4, 4))
    (city / "query" / "images" / "q0.jpg").write_bytes(b"no jpeg")
    with pytest.raises(DataError, match=r"goa/query/images/q0\.jpg: not an image, or damaged"):
        places.load_images([1], (4, 4))
    full = (city / "database" / "images" / "d0.jpg").read_bytes()
    (city / "database" / "images" / "d0.jpg").write_bytes(full[: len(full) // 2])
    with pytest.raises(DataError, match=r"d0\.jpg: not an image, or damaged"):
        places.load_images([3], (4, 4))
    (city / "database" / "raw.csv").write_text(",key,lon,lat,ca,captured_at,pano\n")
    with pytest.raises(DataError, match=r"database/raw\.csv: has no rows"):
        read_msls(tmp_path)
    (city / "database" / "raw.csv").unlink()
    with pytest.raises(DataError, match=r"database/raw\.csv: no such file; expected one with the columns key, pano"):
        read_msls(tmp_path)
