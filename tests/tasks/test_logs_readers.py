"""The readers of logs: files that the libraries of their formats wrote give the same messages."""

from math import nan
from pathlib import Path

import numpy as np
import pytest
from fedapps.tasks.base import DataError
from fedapps.tasks.logs.readers import Log, columns_of, image_of, open_log, value_at
from PIL import Image
from robot_logs import PEOPLE, ROS1, ROS2, Messages, png, write_bag, write_lerobot

PIXELS = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)


def rows(log: Log, wanted: dict[str, list[str]]) -> list[tuple[object, ...]]:
    """The topic, time and wanted columns of each message."""
    return [
        (
            topic,
            round(time, 6) if time == time else nan,
            *(value_at(content, column, where) for column in wanted[topic]),
        )
        for topic, time, content, _, where in log.messages(wanted)
    ]


@pytest.mark.parametrize("name", ["drive.bag", "drive.mcap", "drive"])
def test_bags_of_all_kinds_give_the_messages_of_some_topics_in_the_recorded_order(tmp_path: Path, name: str) -> None:
    ros = Messages(ROS1 if name.endswith(".bag") else ROS2)
    messages = [
        ("/odom", 10.0, ros.odometry(9.5, 1.0)),
        ("/cmd_vel", 10.25, ros.twist(0.5)),
        ("/other", 10.3, ros.number(1.0)),
        ("/odom", 10.5, ros.odometry(10.0, 2.0)),
    ]
    log = open_log(write_bag(tmp_path / name, messages))
    wanted = {"/odom": ["pose.pose.position.x", "header.frame_id", "pose.covariance[35]"], "/cmd_vel": ["linear.x"]}
    assert rows(log, wanted) == [
        ("/odom", 10.0, 1.0, "odom", 0.0),
        ("/cmd_vel", 10.25, 0.5),
        ("/odom", 10.5, 2.0, "odom", 0.0),
    ]
    assert rows(log, {}) == []
    topics = log.topics()
    assert list(topics) == ["/cmd_vel", "/odom", "/other"]
    assert topics["/odom"].kind == "nav_msgs/msg/Odometry"
    columns = dict(columns_of(topics["/odom"].example))
    assert columns["header.stamp"] == 9.5
    assert columns["pose.pose.orientation"] == "a quaternion"
    assert columns["pose.pose.orientation.w"] == 1.0


def test_a_bag_that_was_not_closed_names_the_file_and_how_to_repair_it(tmp_path: Path) -> None:
    path = write_bag(tmp_path / "drive.mcap", [("/odom", 1.0, Messages().odometry(1.0, 0.0))])
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(
        DataError, match=r"drive\.mcap: .*the bag is damaged or was not closed: repair it .*mcap recover"
    ):
        open_log(path).topics()


def test_a_topic_of_a_type_without_definition_is_refused_and_the_others_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ros = Messages()
    messages = [("/people", 1.0, ros.people(1.0, {"a": (1, 2)})), ("/odom", 2.0, ros.odometry(2.0, 3.0))]
    # before Iron, bags of SQLite had no definitions
    monkeypatch.setattr("rosbags.rosbag2.storage_sqlite3.Sqlite3Writer.add_msgtype", lambda *arguments: None)
    log = open_log(write_bag(tmp_path / "drive", messages))
    assert rows(log, {"/odom": ["pose.pose.position.x"]}) == [("/odom", 2.0, 3.0)]
    assert log.topics()["/people"].example == {}
    with pytest.raises(DataError, match=rf"topic /people: the bag has no definition of {PEOPLE}; convert it"):
        rows(log, {"/people": []})


@pytest.mark.parametrize("videos", [False, True])
def test_the_episodes_of_a_lerobot_data_set_are_parts_with_images(tmp_path: Path, videos: bool) -> None:
    shades = np.array([0, 80, 160, 240])
    images = np.broadcast_to(shades[:, None, None, None], (4, 32, 48, 3)).astype(np.uint8)
    episodes = [
        {"state": np.array([[0.5, 1.0], [1.5, 2.0]]), "action": np.zeros((2, 1)), "images": images[:2]},
        {"state": np.array([[2.5, 3.0], [3.5, 4.0]]), "action": np.ones((2, 1)), "images": images[2:]},
    ]
    log = open_log(write_lerobot(tmp_path, episodes, videos=videos))
    messages = list(log.messages({"frames": ["observation.state", "observation.image"]}))
    assert [message.part for message in messages] == [0, 0, 1, 1]
    np.testing.assert_allclose([message.recorded for message in messages], [0, 0.1, 0, 0.1], atol=1e-6)
    assert [value_at(m.content, "observation.state[0]", "") for m in messages] == [0.5, 1.5, 2.5, 3.5]
    for message, shade in zip(messages, shades, strict=True):
        content, ending = image_of(message.content["observation.image"], tmp_path, "")
        assert ending == ".png"
        (tmp_path / "x.png").write_bytes(content)
        np.testing.assert_allclose(np.asarray(Image.open(tmp_path / "x.png")), np.full((32, 48, 3), shade), atol=4)
    (topic,) = log.topics().values()
    assert dict(columns_of(topic.example))["observation.image"] == ("a frame of a video" if videos else "an image")


@pytest.mark.parametrize(
    ("frames", "place"), [((2,), "0.parquet, row 3"), ((2, 4), "0.parquet, row 3"), ((4, 3), "1.parquet, row 2")]
)
def test_a_video_with_other_frames_than_rows_gives_no_row_the_frame_of_another(
    tmp_path: Path, frames: tuple[int, ...], place: str
) -> None:
    episodes = [
        {"state": np.zeros((3, 1)), "action": np.zeros((3, 1)), "images": np.zeros((count, 32, 32, 3), np.uint8)}
        for count in frames
    ]
    log = open_log(write_lerobot(tmp_path, episodes, videos=True))
    with pytest.raises(DataError, match=rf"{place}: the videos of observation\.image have other frames than the data"):
        list(log.messages({"frames": ["observation.image"]}))


def test_a_folder_of_tables_has_a_topic_for_each(tmp_path: Path) -> None:
    (tmp_path / "robot.1.csv").write_text("t,x [m]\n0,1.5\n1,2.5\n")
    (tmp_path / "robot.2.csv").write_text("t\n0\n")
    (tmp_path / "people.jsonl").write_text('{"t": 0, "id": "a", "x": 3}\n')
    log = open_log(tmp_path)
    assert not log.ordered
    wanted = {"robot.1": ["x [m]"], "people": ["x"]}
    assert rows(log, wanted) == [("people", nan, 3), ("robot.1", nan, "1.5"), ("robot.1", nan, "2.5")]
    assert [message.location for message in log.messages(wanted)][1] == f"{tmp_path / 'robot.1.csv'}, line 2"
    assert {name: topic.kind for name, topic in log.topics().items()} == {
        "people": ".jsonl",
        "robot.1": ".csv",
        "robot.2": ".csv",
    }
    assert open_log(tmp_path / "robot.1.csv").ordered
    (tmp_path / "people.csv.gz").touch()
    with pytest.raises(DataError, match=r"people\.csv\.gz and people\.jsonl: tables of one name; rename or remove one"):
        log.topics()


def test_a_table_with_a_column_twice_or_with_semicolons_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x,y,x\n0,1,2\n")
    assert rows(open_log(tmp_path / "t.csv"), {"t": ["y"]}) == [("t", nan, "1")]
    with pytest.raises(DataError, match=r"t\.csv, line 1: column x occurs twice; keep or rename one of the two"):
        rows(open_log(tmp_path / "t.csv"), {"t": ["x"]})
    (tmp_path / "t.csv").write_text("x;y\n0,5;1,5\n")
    with pytest.raises(DataError, match=r"line 2: 3 cells; expected 1, .* \(separate the columns of a \.csv file by"):
        rows(open_log(tmp_path / "t.csv"), {"t": ["x"]})


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    for name in ("drive.bag", "drive.csv", "empty"):
        with pytest.raises(DataError, match=rf"{name}: no such file or folder; expected a ROS bag"):
            open_log(tmp_path / name)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty: no log of a known kind; expected a ROS bag"):
        open_log(tmp_path / "empty")


def test_a_missing_column_is_named_with_those_of_the_message() -> None:
    message = Messages().people(1.0, {"a": (1, 2)})
    assert value_at(message, ".", "") is message
    for column in ("people[1]", "people.x", "header.time", "people[x]"):
        with pytest.raises(DataError, match=r"here: no column '.*'; it has header\.stamp, .*people\[\]\.position\.x"):
            value_at(message, column, "here")


def test_an_identical_log_has_the_same_digest_wherever_it_lies(tmp_path: Path) -> None:
    for name, text in (("a", "t\n1\n"), ("b", "t\n1\n"), ("c", "t\n2\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "robot.csv").write_text(text)
    first, second, other = (open_log(tmp_path / name).digest() for name in "abc")
    assert first == second != other
    assert open_log(tmp_path / "a" / "robot.csv").digest() == open_log(tmp_path / "b" / "robot.csv").digest()


@pytest.mark.parametrize("name", ["drive.bag", "drive.mcap", "drive"])
def test_a_bag_that_has_grown_is_told_from_another_one(tmp_path: Path, name: str) -> None:
    ros = Messages(ROS1 if name.endswith(".bag") else ROS2)

    def bag(folder: str, start: float, count: int) -> Log:
        (tmp_path / folder).mkdir()
        messages = [("/odom", start + row, ros.odometry(start + row, row)) for row in range(count)]
        return open_log(write_bag(tmp_path / folder / name, messages))

    old = bag("old", 10.0, 3).beginning()
    assert bag("grown", 10.0, 300).continues(old)
    assert not bag("shorter", 10.0, 2).continues(old)
    assert not bag("other", 10.5, 300).continues(old)


def test_tables_and_data_sets_that_have_grown_are_told_from_others(tmp_path: Path) -> None:
    def tables(folder: str, *rows: str) -> Log:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "plan.csv").write_text("t,v\n0,1\n")
        (tmp_path / folder / "robot.csv").write_text("t,x\n" + "\n".join(rows))
        return open_log(tmp_path / folder)

    old = tables("old", "0,1", "1,").beginning()
    assert tables("grown", "0,1", "1,2", "2,3").continues(old)
    assert not tables("other", "0,2", "1,2", "2,3").continues(old)
    (tmp_path / "grown" / "plan.csv").unlink()
    assert not open_log(tmp_path / "grown").continues(old)

    def data_set(folder: str, *states: float) -> Log:
        episodes = [{"state": np.full((3, 2), state), "action": np.zeros((3, 2))} for state in states]
        return open_log(write_lerobot(tmp_path / folder, episodes))

    old = data_set("one", 1.0).beginning()
    assert data_set("two", 1.0, 2.0).continues(old)
    assert not data_set("others", 3.0, 2.0).continues(old)


@pytest.mark.parametrize("encoding", ["rgb8", "bgr8", "mono8", "png"])
def test_images_of_ros_keep_their_pixels(tmp_path: Path, encoding: str) -> None:
    ros = Messages()
    message = ros.compressed(0.0, PIXELS) if encoding == "png" else ros.image(0.0, PIXELS, encoding)
    expected = PIXELS[..., ::-1] if encoding == "bgr8" else PIXELS
    if encoding == "mono8":
        message = ros.image(0.0, PIXELS[..., :1], encoding)
        expected = PIXELS[..., 0]
    (tmp_path / "x.png").write_bytes(image_of(message, tmp_path, "")[0])
    np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / "x.png")), expected)


def test_what_is_no_image_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"here: encoding '16UC1'; expected one of rgb8, bgr8, rgba8, bgra8, mono8"):
        image_of(Messages().image(0.0, PIXELS, "16UC1"), tmp_path, "here")
    (tmp_path / "a.png").write_bytes(png(PIXELS))
    assert image_of("a.png", tmp_path, "") == (png(PIXELS), ".png")
    with pytest.raises(DataError, match=r"here: .*b\.png: No such file or directory; correct the path"):
        image_of("b.png", tmp_path, "here")
    for value in (3.5, None, b"GIF89a", Messages().word("x")):
        with pytest.raises(DataError, match=r"here: .*; expected an image in JPEG or PNG, or the path of one"):
            image_of(value, tmp_path, "here")
