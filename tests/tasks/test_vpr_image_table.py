"""Tables that list images: columns, degrees and metres, and tables that are wrong."""

import numpy as np
import pytest
from fedapps.tasks.base import DataError
from fedapps.tasks.vpr.places import EARTH_RADIUS, Track, projected
from fedapps.tasks.vpr.readers import read_image_table
from PIL import Image


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


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
        ("path,sequence,role,x,y,x\n1,s,query,0,0,9\n", r"line 1: column x occurs twice"),
        (
            "path,sequence,role,x,y,heading\n1,s,query,0,0,361\n",
            r"column heading: '361'; expected degrees from -360 to",
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
        (
            "path,sequence,role,x,y,group\n1,s,query,0,0,a\n2,s,query,0,0,b\n",
            r"sequence s of  has the groups a and b",
        ),
        (
            "path,sequence,role,x,y,city,continent\n1,s,query,0,0,rome,europe\n2,t,query,0,0,rome,asia\n",
            r"city rome has the continents",
        ),
        ("", r"no column path, sequence, role; found none \(the first line"),
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
