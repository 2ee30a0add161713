"""The import of a robot's logs as places of the task vpr."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from fedapps.tasks.vpr.logs import VprImport
from fedapps.tasks.vpr.readers import read_image_table
from robot_logs import Messages, Recorded, import_one, png, write_bag

MAPPING = """[settings]
role = "query"
city = "ulm"
spacing = 5.0
[signals.image]
topic = "/camera"
time = { column = "header.stamp", unit = "s" }
image = { column = "." }
[signals.position]
topic = "/fix"
time = { column = "header.stamp", unit = "s" }
valid = "status.status"
least = 0
lon = { column = "longitude", unit = "deg" }
lat = { column = "latitude", unit = "deg" }
"""
METRE = 360 / (2 * np.pi * 6_371_000)  # degrees of latitude


imported = partial(import_one, VprImport, MAPPING)


def shade(number: int) -> np.ndarray:
    return np.full((4, 4, 3), number, np.uint8)


def test_images_a_distance_apart_get_the_position_between_two_fixes(tmp_path: Path) -> None:
    ros = Messages()
    messages: list[Recorded] = [("/fix", 0.0, ros.fix(0.0, 0.0, 0.0, status=-1))]
    for second in range(8):  # 4 m a second to the north, without a fix from 3 to 6 s
        if not 3 < second < 7:
            messages.append(("/fix", second, ros.fix(second + 0.0, 10.0, 48.4 + 4 * second * METRE)))
        messages.append(("/camera", second + 0.5, ros.compressed(second + 0.5, shade(second))))
    line = imported(tmp_path, write_bag(tmp_path / "a.mcap", messages))
    assert "3 of 8 images, 5 m apart; 5 without a position" not in line
    assert (
        "2 of 8 images, 5 m apart; 5 without a position; 1 gaps of up to 4 s; 1 messages left out as not valid" in line
    )
    table = tmp_path / "out" / "places.csv"
    places = read_image_table(table)
    names = sorted(path.name[-10:] for path in (tmp_path / "out" / "images").iterdir())
    assert names == ["000000.png", "000002.png"]  # at 2, 6 and 10 m: the second lies only 4 m from the first
    assert (tmp_path / "out" / "images").joinpath(f"{table.read_text().splitlines()[1][:20]}-000000.png").exists()
    assert {track.city for track in places.tracks} == {"ulm"}
    rows = [line.split(",") for line in table.read_text().splitlines()]
    assert rows[0] == ["log", "path", "sequence", "role", "city", "frame", "lon", "lat"]
    latitudes = [float(row[-1]) for row in rows[1:]]
    np.testing.assert_allclose([(lat - 48.4) / METRE for lat in latitudes], [2.0, 10.0], atol=0.05)


def test_odometry_and_paths_of_image_files_in_tables(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.mkdir()
    (log / "odom.csv").write_text("ms,x,y\n" + "".join(f"{1000 * t},{1000 * t},0\n" for t in range(5)))
    (log / "frames.csv").write_text("ms,file\n" + "".join(f"{1000 * t},{t}.png\n" for t in range(5)))
    for number in range(5):
        (log / f"{number}.png").write_bytes(png(shade(number)))
    mapping = """[settings]
spacing = 20.0
[signals.image]
topic = "frames"
time = { column = "ms", unit = "ms" }
image = { column = "file" }
[signals.position]
topic = "odom"
frame = "map"
time = { column = "ms", unit = "ms" }
x = { column = "x", unit = "cm" }
y = { column = "y", unit = "cm" }
"""
    assert "3 of 5 images, 20 m apart" in imported(tmp_path, log, mapping)
    rows = [line.split(",") for line in (tmp_path / "out" / "places.csv").read_text().splitlines()[1:]]
    assert [(row[3], float(row[6])) for row in rows] == [("database", 0.0), ("database", 20.0), ("database", 40.0)]
    read_image_table(tmp_path / "out" / "places.csv")
    (log / "4.png").unlink()
    with (log / "odom.csv").open("a") as file:
        file.write("5000,5000,0\n")
    assert r"column file: " in (line := imported(tmp_path, log, mapping))
    assert line.startswith("refused: ")


def test_a_position_is_one_pair_of_columns(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"signals\.position: name lon and lat, or x and y"):
        imported(tmp_path, tmp_path, "\n".join(MAPPING.splitlines()[:-1]))
