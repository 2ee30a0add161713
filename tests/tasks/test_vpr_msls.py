"""Mapillary Street-Level Sequences: cities, continents, and files that are wrong or missing."""

import io

import numpy as np
import pytest
import torch
from fedapps.tasks.base import DataError
from fedapps.tasks.vpr.places import Track
from fedapps.tasks.vpr.readers import CONTINENTS, continents_of, read_msls
from PIL import Image

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
        ("raw.csv", "q0", "q1", r"raw.csv, line 3: key = 'q1' occurs for the second time \(first in line 2\)"),
        ("postprocessed.csv", "90.5", "2e9", r"column easting: '2000000000.0|'2e9'; more than 100 km from the median"),
        ("seq_info.csv", "seqA,1", "seqA", r"seq_info.csv, line 4: 3 cells; expected 4, as in the header"),
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
