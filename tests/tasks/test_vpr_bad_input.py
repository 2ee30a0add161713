"""What is wrong with the data of visual place recognition is said before anything is trained on it."""

import csv
import logging
import shutil

import numpy as np
import pytest
import torch
from fedapps.tasks.base import DataError
from fedapps.tasks.vpr.datasets import read_dataset
from fedapps.tasks.vpr.images import ImageFiles
from striped_places import SIZE, write_places
from striped_tasks import OPTIONS, task_with

pytestmark = pytest.mark.usefixtures("tiny_network")
CITIES, SPOTS = 3, 4
PICTURES = CITIES * 4 * SPOTS  # city-2 is the test


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    write_places(folder, cities=CITIES, spots=SPOTS)
    return folder


@pytest.fixture(scope="module")
def streets(tmp_path_factory):
    """Two cities to train in and one of the test, in the format of Mapillary Street-Level Sequences."""
    folder = tmp_path_factory.mktemp("streets")
    world = {"world_cities": 2, "world_test_cities": 1, "world_metres": 60.0, "world_spacing": 20.0}
    task_with(source="simulated", height=16, width=24, **world).make_world(folder, 2, seed=0)
    return folder


@pytest.fixture
def places(table, tmp_path):
    """A table of places to damage."""
    return shutil.copytree(table, tmp_path / "places")


@pytest.fixture
def msls(streets, tmp_path):
    return shutil.copytree(streets, tmp_path / "msls")


def about_data(caplog):
    """What was logged, but for the weights, which are drawn here."""
    return [said for said in caplog.messages if not said.startswith("vpr.weights")]


def load(folder, partition=0, num_nodes=2, **changes):
    return task_with(**changes).load_node(folder, partition, num_nodes)


def rewrite(path, change):
    """Put ``change(row)``, a dictionary, in place of each row of a CSV file, ``None`` for no row."""
    with path.open(newline="") as file:
        rows = [new for row in csv.DictReader(file) if (new := change(row)) is not None]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def message_of(call, *arguments, **options):
    with pytest.raises(DataError) as error:
        call(*arguments, **options)
    return str(error.value)


# -- images that are missing or damaged ----------------------------------------------------------------


def test_missing_pictures_of_any_node_are_named_with_those_that_are_none(places):
    for name in ("0-query-0-1.png", "2-query-0-0.png"):
        (places / name).unlink()
    (places / "1-database-1-2.png").write_text("sorry")
    assert message_of(load, places).splitlines() == [
        f"{places}: 3 of {PICTURES} images cannot be read:",
        "  0-query-0-1.png (no such file)",
        "  1-database-1-2.png (not an image)",
        "  2-query-0-0.png (no such file)",
        "replace them, remove them from the tables, or set vpr.skip-unreadable = true to exclude them",
    ]


def test_of_many_missing_pictures_the_first_are_named(places):
    for path in places.glob("0-*.png"):
        path.unlink()
    lines = message_of(load, places).splitlines()
    assert lines[0].endswith(f"16 of {PICTURES} images cannot be read:")
    assert len(lines) == 1 + 10 + 1 + 1
    assert lines[-2] == "  and 6 more"


def test_a_folder_of_pictures_that_is_missing(msls):
    city = next((msls / "train_val").glob("*"))
    shutil.rmtree(city / "query" / "images")
    assert f"train_val/{city.name}/query/images/" in message_of(load, msls, num_nodes=1)


def test_a_node_looks_at_its_own_pictures_and_the_common_ones(places):
    (places / "1-query-0-1.png").write_bytes(b"")
    load(places, 0)
    assert "1-query-0-1.png (not an image)" in message_of(load, places, 1)
    (places / "2-query-0-1.png").write_text("sorry")
    assert "2-query-0-1.png (not an image)" in message_of(load, places, 0, margin=0.2)  # read anew


def test_one_damaged_picture_is_reason_to_look_for_all(places):
    for name in ("0-query-0-1.png", "1-query-0-1.png"):
        (places / name).write_text("sorry")
    assert f"2 of {PICTURES} images cannot be read:" in message_of(load, places, 0)


def test_pictures_that_say_what_they_look_like_are_looked_at_before(places):
    (places / "1-query-0-1.png").write_text("sorry")
    assert "1-query-0-1.png (not an image)" in message_of(load, places, 0, split="clustering")


def test_a_picture_is_looked_at_once_per_process(places, monkeypatch):
    looked = []
    opened = ImageFiles.open
    monkeypatch.setattr(ImageFiles, "open", lambda self, index: looked.append(index) or opened(self, index))
    for partition in (0, 1, 0, 1):
        load(places, partition)
    assert sorted(looked) == list(range(PICTURES))


def test_what_is_skipped_might_as_well_not_be_in_the_table(places, tmp_path, caplog):
    """Missing, empty, cut short: nodes have what they would have without these lines."""
    bad = ["0-query-0-1.png", "1-database-1-2.png", "2-query-0-0.png"]
    (places / bad[0]).unlink()
    (places / bad[1]).write_bytes(b"")
    (places / bad[2]).write_bytes((places / bad[2]).read_bytes()[:-60])
    with caplog.at_level(logging.WARNING):
        skipped = [load(places, partition, skip_unreadable=True) for partition in range(2)]
    assert [said.partition(": ")[2] for said in about_data(caplog)] == [
        f"vpr.skip-unreadable excludes 3 of {PICTURES} images: 0-query-0-1.png (no such file), "
        "1-database-1-2.png (not an image), 2-query-0-0.png (image file is truncated)"
    ]
    rewrite(places / "places.csv", lambda row: None if row["path"] in bad else row)
    for node, partition in zip(skipped, range(2), strict=True):
        expected = load(places, partition)
        assert (node.key, node.count("train")) == (expected.key, expected.count("train"))
        for name in ("training", "test"):
            one, other = (
                (some.extra[name] if name == "training" else some.extra["common"][name]).images.places
                for some in (node, expected)
            )
            np.testing.assert_array_equal(one.position, other.position)
            assert [one.tracks[track] for track in one.track] == [other.tracks[track] for track in other.track]
            rows = np.arange(len(one))
            assert torch.equal(one.load_images(rows, SIZE), other.load_images(rows, SIZE))


def test_a_city_that_was_skipped_whole_is_no_city(places):
    for path in places.glob("1-*.png"):
        path.unlink()
    assert load(places, num_nodes=1, skip_unreadable=True).groups["city"] == "city-0"
    for path in places.glob("*.png"):
        path.unlink()
    assert f"{PICTURES} of {PICTURES} images cannot be read" in message_of(
        load, places, skip_unreadable=True, margin=0.2
    )


# -- positions -------------------------------------------------------------------------------------------------


def in_degrees(east):
    """As longitude, about Rome."""
    return 12.5 + float(east) / 82_900


def test_positions_that_are_missing_are_counted(places):
    rewrite(places / "places.csv", lambda row: row | {"x": "" if row["path"].startswith("0-query-0") else row["x"]})
    assert message_of(load, places).endswith(
        "places.csv, line 2, column x: ''; expected a finite number (wrong in 4 rows: lines 2, 3, 4, 5)"
    )


def test_degrees_in_the_columns_of_metres(places):
    rewrite(places / "places.csv", lambda row: row | {"x": in_degrees(row["x"]), "y": 41.9})
    assert message_of(load, places) == (
        f"{places}: columns x and y of places.csv: values from 12.5 to 12.5018 and from 41.9 to 41.9, within 0.0018 "
        "in a city, which looks like degrees; expected metres east and north: name the columns lon and lat"
    )
    rewrite(places / "places.csv", lambda row: {{"x": "lon", "y": "lat"}.get(name, name): row[name] for name in row})
    assert load(places).count("train") == 2 * SPOTS


def test_degrees_of_a_whole_country(places):
    """Too wide to be sure of, but no query has negatives."""
    rewrite(places / "places.csv", lambda row: row | {"x": in_degrees(1000 * float(row["x"])), "y": 41.9})
    assert message_of(load, places).endswith(
        "; if the positions are in degrees, convert them to metres, or use a table with columns lon and lat"
    )


def test_degrees_in_the_tables_of_msls(msls):
    for path in msls.glob("*/*/*/postprocessed.csv"):
        rewrite(path, lambda row: row | {"easting": 0.1 + in_degrees(row["easting"]) % 1, "northing": 52.0})
    said = message_of(load, msls)
    assert said.startswith(f"{msls}: easting and northing in postprocessed.csv: values from 0.")
    assert said.endswith("looks like degrees; expected metres east and north: use UTM coordinates, as the release does")


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (
            {"lon": 4.9, "lat": 91},
            "column lat: '91'; expected degrees from -90 to 90; are lon and lat swapped? (wrong in 48 rows: lines 2, 3",
        ),
        (
            {"lon": 500_000, "lat": 41},
            "column lon: '500000'; expected degrees from -180 to 360; write metres in the columns x and y (wrong in 48",
        ),
        ({"lon": "", "lat": 41}, "column lon: ''; expected a finite number (wrong in 48 rows: lines 2, 3"),
    ],
)
def test_longitudes_and_latitudes_that_are_none(places, columns, said):
    rewrite(places / "places.csv", lambda row: {name: row[name] for name in row if name not in ("x", "y")} | columns)
    assert said in message_of(load, places)


# -- cities ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("role", "lack"), [("query", "no queries"), ("database", "no database")])
def test_a_city_that_lacks_a_role_is_left_out_of_training(places, caplog, role, lack):
    def without(*cities):
        return lambda row: None if row["city"] in cities and row["role"] == role else row

    rewrite(places / "places.csv", without("city-1"))
    with caplog.at_level(logging.WARNING):
        assert load(places, num_nodes=1, split="random").extra["training"].images.places.cities == ("city-0",)
    assert about_data(caplog) == [f"{places}: excluded from training: city-1 ({lack})"]
    assert task_with().load_all(places).extra["training"].images.places.cities == ("city-0",)
    rewrite(places / "places.csv", without("city-0"))
    assert message_of(load, places, margin=0.2) == (
        f"{places}: no training city has both queries and a database: city-0 ({lack}), city-1 ({lack}); expected "
        "images of both roles in the same city"
    )


@pytest.mark.parametrize(("role", "lack"), [("query", "no queries"), ("database", "no database")])
def test_a_city_of_the_test_must_have_both(places, role, lack):
    rewrite(places / "places.csv", lambda row: None if (row["city"], row["role"]) == ("city-2", role) else row)
    assert message_of(load, places) == (
        f"{places}: the common test set needs queries and a database in each of its cities: city-2 ({lack}); "
        "add the images, or name other cities in vpr.test-cities"
    )
    said = message_of(load, places, test_cities="city-1", validation_cities="city-2")
    assert "the common validation set needs queries and a database in each of its cities: city-2" in said
    assert said.endswith("vpr.validation-cities")


def test_a_city_of_msls_without_a_folder_of_queries(msls, caplog):
    gone, kept = sorted((msls / "train_val").glob("*"))
    shutil.rmtree(gone / "query")
    with caplog.at_level(logging.WARNING):
        assert read_dataset(msls, OPTIONS).training.cities == (kept.name,)
    assert about_data(caplog) == [f"{msls}: excluded from training: {gone.name} (no queries)"]


# -- networks --------------------------------------------------------------------------------------------------


def test_weights_that_are_missing_or_do_not_fit(places, tmp_path):
    assert "vpr.weights = 'nowhere.pth': no such file" in message_of(load, places, weights="nowhere.pth")
    torch.save({"a": torch.zeros(2)}, tmp_path / "a.pth")
    assert "a.pth': does not fit vpr.backbone = 'tiny@body'\n" in message_of(
        load, places, weights=str(tmp_path / "a.pth")
    )
