"""ImageSet of places, as the files of the data sets have them."""

import io
import os
import pickle
import tarfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tasks.base import DataError
from tasks.vpr.image_table import read_image_table
from tasks.vpr.images import ImageArray, ImageFiles, ImageStore
from tasks.vpr.indoor import read_indoor
from tasks.vpr.msls import CONTINENTS, continents_of, read_msls
from tasks.vpr.nordland import read_nordland
from tasks.vpr.places import EARTH_RADIUS, Track, build_places, projected

REAL = pytest.mark.skipif("FEDAPPS_DATA" not in os.environ, reason="FEDAPPS_DATA names no folder of real data")

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


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def image(colour, size=(8, 6)):
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, "jpeg")
    return file.getvalue()


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


def small_places(positions, queries, cities=None, source=None):
    """A sequence for each image."""
    count = len(positions)
    tracks = [Track("" if cities is None else cities[i], f"s{i:03d}", bool(queries[i])) for i in range(count)]
    store = ImageStore(source or ImageArray(np.zeros((count, 2, 2), dtype=np.uint8)))
    return build_places(store, tracks, np.array(positions, dtype=float).reshape(count, 2), np.zeros(count))


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
    np.testing.assert_array_equal(places.frame, [2, 1, 7, 1, 1])
    np.testing.assert_array_equal(places.heading, [90.5, np.nan, 180, 0, 0])
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
    assert read_msls(tmp_path, ["cph"]).cities == ("cph",)
    assert len(read_msls(tmp_path).of_city("manila", "cph")) == 10
    with pytest.raises(DataError, match="no positions for miami; available: cph, manila, mirage"):
        read_msls(tmp_path, ["cph", "miami"])
    with pytest.raises(DataError, match="no city selected; available: cph, manila, mirage"):
        read_msls(tmp_path, [])
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


def test_cities_never_touch_however_their_positions_are_counted():
    places = small_places([(0, 0), (5, 0), (0, 0), (9, 1)], [True, False, False, True], ["a", "a", "b", "b"])
    moved = places.position_apart
    distances = np.linalg.norm(moved[:, None] - moved[None], axis=2)
    assert distances[0, 1] == 5
    assert distances[2, 3] == pytest.approx(np.sqrt(82))
    assert distances[:2, 2:].min() >= 1e6
    np.testing.assert_array_equal(places.position[:, 0], [0, 5, 0, 9])


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (
            "raw.csv",
            "pano",
            "panorama",
            r"raw.csv, line 1: no column pano; found key, lon, lat, ca, captured_at, p",
        ),
        ("postprocessed.csv", "easting", "utm", r"no column easting; found key, utm, northing, unique_cluster"),
        ("seq_info.csv", "sequence_key", "track", r"no column sequence_key; found key, track, frame_number"),
        ("seq_info.csv", "q1", "q9", r"seq_info.csv: no row with the key 'q1', which raw.csv has"),
        ("raw.csv", "True", "yes", r"raw.csv, line 4, column pano: 'yes'; expected one of true, 1, false, 0"),
        ("postprocessed.csv", "90.5", "east", r"line 4, column easting: 'east'; expected a finite number"),
        ("postprocessed.csv", "90.5", "nan", r"line 4, column easting: 'nan'; expected a finite number"),
        ("seq_info.csv", "seqA,1", "seqA,1.5", r"line 4, column frame_number: '1.5'; expected a whole number"),
        ("seq_info.csv", "seqA,1", "seqA", r"seq_info.csv, line 4: 3 cells; expected 4, as in the header"),
    ],
)
def test_damaged_tables_are_named(tmp_path, file, old, new, message):
    write_city(tmp_path / "train_val" / "goa")
    path = tmp_path / "train_val" / "goa" / "query" / file
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(DataError, match=message):
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


@given(
    st.lists(
        st.tuples(st.integers(-20, 20), st.integers(-20, 20), st.booleans(), st.sampled_from(["a", "b"])), min_size=1
    ),
    st.sampled_from([0.0, 3.0, 10.0]),
)
def test_positives_are_those_of_a_search_through_all_pairs(rows, radius):
    places = small_places([row[:2] for row in rows], [row[2] for row in rows], [row[3] for row in rows])
    expected = [
        i
        for i, (x, y, query, city) in enumerate(rows)
        if query
        and any(
            not other[2] and other[3] == city and (x - other[0]) ** 2 + (y - other[1]) ** 2 <= radius**2
            for other in rows
        )
    ]
    assert places.queries_with_positive(radius).tolist() == expected


def test_a_selection_keeps_order_and_sequences():
    places = small_places([(0, 0), (1, 0), (2, 0)], [True, False, True])
    chosen = places.select(np.array([2, 0]))
    assert len(chosen) == 2
    assert chosen.tracks is places.tracks
    assert chosen.store is places.store
    np.testing.assert_array_equal(chosen.position[:, 0], [2, 0])
    np.testing.assert_array_equal(chosen.present, [0, 2])
    np.testing.assert_array_equal(places.of_tracks([2, 1]).position[:, 0], [1, 2])
    assert len(places.of_tracks([])) == 0
    for tracks in ([], [0], [1]):
        assert places.of_tracks(tracks).queries_with_positive(1.0).tolist() == []


@dataclass
class Counting:
    """Six images of 2 × 2 pixels of the value of their number, and which were decoded."""

    decoded: list[int] = field(default_factory=list)

    def __len__(self):
        return 6

    def decode(self, index):
        self.decoded.append(index)
        return Image.new("L", (2, 2), index)


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


def test_degrees_become_metres():
    """At 60 degrees of latitude a degree of longitude is half as long as one of latitude."""
    degree = EARTH_RADIUS * np.pi / 180
    metres = projected(np.array([10.0, 10.002, 10.001]), np.array([60.0, 60.0, 60.0]))
    np.testing.assert_allclose(metres / degree, [[-0.0005, 0], [0.0005, 0], [0, 0]], atol=1e-9)
    metres = projected(np.array([179.999, -179.999]), np.array([-0.001, 0.001]))
    np.testing.assert_allclose(metres / degree, [[-0.001, -0.001], [0.001, 0.001]], atol=1e-9)


@given(st.floats(-60, 60), st.floats(-180, 180), st.lists(st.floats(-0.1, 0.1), min_size=4, max_size=4))
def test_distances_within_a_city_are_those_on_the_globe(lat0, lon0, steps):
    lon = lon0 + np.array(steps[:2])
    lat = lat0 + np.array(steps[2:])
    one, other = projected((lon + 180) % 360 - 180, lat)
    a, b, d = np.deg2rad(lat[0]), np.deg2rad(lat[1]), np.deg2rad(lon[1] - lon[0])
    haversine = np.sin((b - a) / 2) ** 2 + np.cos(a) * np.cos(b) * np.sin(d / 2) ** 2
    globe = 2 * EARTH_RADIUS * np.arcsin(np.sqrt(haversine))
    assert np.linalg.norm(one - other) == pytest.approx(globe, rel=2e-3, abs=1e-3)


def test_a_table_by_hand(tmp_path):
    head = "path,sequence,role,x,y,city,continent,group,frame,heading\n"
    rows = "a/1.png,s1,query,1.5,2,rome,europe,north,4,90\na/2.png,s1,Gallery,0,0,rome,europe,north,5,\n"
    write(tmp_path / "list.csv", head + rows)
    (tmp_path / "a").mkdir()
    Image.new("L", (2, 2), 9).save(tmp_path / "a" / "1.png")
    places = read_image_table(tmp_path / "list.csv")
    one, two = Track("rome", "s1", True, "europe", "north"), Track("rome", "s1", False, "europe", "north")
    assert [places.tracks[track] for track in places.track] == [one, two]
    np.testing.assert_array_equal(places.position, [[1.5, 2], [0, 0]])
    np.testing.assert_array_equal(places.frame, [4, 5])
    np.testing.assert_array_equal(places.heading, [90, np.nan])
    assert (places.load_images([0], (2, 2)) == 9).all()


def test_a_table_with_the_fewest_columns(tmp_path):
    write(tmp_path / "list.csv", "path,sequence,role,lon,lat\n1,r,query,10,50\n2,s,database,10,50.001\n")
    places = read_image_table(tmp_path / "list.csv")
    assert set(places.tracks) == {Track("", "r", True), Track("", "s", False)}
    np.testing.assert_allclose(places.position, [[0, -55.6], [0, 55.6]], atol=0.01)
    np.testing.assert_array_equal(places.frame, [0, 1])
    assert np.isnan(places.heading).all()
    assert places.cities == ("",)


def test_degrees_are_counted_from_the_middle_of_each_city(tmp_path):
    rows = "1,r,query,10,50,a\n2,s,database,10,50.001,a\n3,r,query,-70,-10,b\n"
    write(tmp_path / "list.csv", "path,sequence,role,lon,lat,city\n" + rows)
    np.testing.assert_allclose(read_image_table(tmp_path / "list.csv").position[:, 1], [-55.6, 55.6, 0], atol=0.01)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,role,x,y\n1,query,0,0\n", r"no column sequence; found path, role, x, y"),
        ("path,sequence,role,x\n1,s,query,0\n", r"no columns x and y, nor lon and lat; found path, sequence, role, x"),
        ("path,sequence,role,x,y\n1,s,test,0,0\n", r"column role: 'test'; expected one of query, database, gallery"),
        (
            "path,sequence,role,lon,lat\n1,s,query,0,91\n",
            r"line 2, column lat: '91'; expected degrees from -90 to 90; are lon and lat swapped",
        ),
        (
            "path,sequence,role,x,y,group\n1,s,query,0,0,a\n1,s,query,0,0,b\n",
            r"sequence s of  has the groups a and b",
        ),
        (
            "path,sequence,role,x,y,city,continent\n1,s,query,0,0,rome,europe\n1,t,query,0,0,rome,asia\n",
            r"city rome has the continents",
        ),
        ("", r"no column path, sequence, role; found none$"),
    ],
)
def test_tables_that_are_not_understood(tmp_path, text, message):
    write(tmp_path / "list.csv", text)
    with pytest.raises(DataError, match=message):
        read_image_table(tmp_path / "list.csv")


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
    with pytest.raises(DataError, match=r"cannot be read as an \.npz with summer, winter, usable"):
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


def test_files_are_read_below_their_folder(tmp_path):
    Image.new("RGB", (1, 1), (1, 2, 3)).save(tmp_path / "x.png")
    np.testing.assert_array_equal(ImageStore(ImageFiles(tmp_path, ["x.png"])).load([0], (1, 1)).ravel(), [1, 2, 3])


@REAL
def test_the_published_railway():
    places = read_nordland(Path(os.environ["FEDAPPS_DATA"]) / "vpr" / "nordland")
    assert len(places.queries) == len(places.database) == 2975
    assert len({track.group for track in places.tracks}) == 30
    assert len(places.queries_with_positive(25)) == 2975
    np.testing.assert_allclose(np.diff(places.position[:2, 0]), 203.9, atol=0.1)
    assert places.load_images(places.queries[:3], (32, 64)).shape == (3, 3, 32, 64)


@REAL
def test_the_published_tower():
    places = read_indoor(Path(os.environ["FEDAPPS_DATA"]) / "vpr" / "ietower")
    assert (len(places.queries), len(places.database)) == (504, 2373)
    assert len({track.group for track in places.tracks}) == 25
    assert len({track.name for track in places.tracks}) == 124
    assert len(np.unique(places.position, axis=0)) == 102
    assert len(places.queries_with_positive(25)) == 504
    assert places.load_images([0, 2876], (96, 128)).shape == (2, 3, 96, 128)
