"""The signals of logs: units, frames and orientations, and sessions that never bridge a gap or a jump of a clock."""

from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from fedapps.tasks.base import DataError
from fedapps.tasks.logs.folder import ImportSettings
from fedapps.tasks.logs.mapping import MOTION, Field, Signal, read_mapping
from fedapps.tasks.logs.readers import open_log
from fedapps.tasks.logs.signals import Gathered, Series, checked_velocity, gather, sessions
from hypothesis import given
from robot_logs import Messages, write_bag

SIGNALS = {"robot": Signal("the robot", MOTION), "people": Signal("the people", MOTION, many=True)}
LINE = {"speed": Signal("a speed", {"v": Field("speed")})}
ROBOT = """
[signals.robot]
topic = "/odom"
frame = "odom"
time = { column = "header.stamp", unit = "s" }
x = { column = "pose.pose.position.x", unit = "m" }
y = { column = "pose.pose.position.y", unit = "m" }
heading = { column = "pose.pose.orientation", unit = "quaternion" }
"""
PEOPLE = """
[signals.people]
topic = "/people"
frame = "odom"
time = { column = "header.stamp", unit = "s" }
each = "people"
id = "name"
x = { column = "position.x", unit = "m" }
y = { column = "position.y", unit = "m" }
"""


def read(folder: Path, mapping: str, signals: dict[str, Signal], log: Path) -> Gathered:
    path = folder / "mapping.toml"
    path.write_text(mapping)
    return gather(open_log(log), read_mapping(path, signals, ImportSettings))


def table(folder: Path, text: str, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(("unit", "value"), [("m/s", 36.0), ("cm/s", 0.36), ("km/h", 10.0)])
@pytest.mark.parametrize(("time", "last"), [("s", 2.0), ("ms", 2e-3), ("ns", 2e-9)])
def test_units_are_those_of_the_mapping(tmp_path: Path, unit: str, value: float, time: str, last: float) -> None:
    mapping = f"""[signals.speed]
topic = "t"
time = {{ column = "time", unit = "{time}" }}
v = {{ column = "v", unit = "{unit}" }}
"""
    log = table(tmp_path, "time,v\n1,0\n2,36\n")
    series = read(tmp_path, mapping, LINE, log).series["speed"][""]
    assert series.values["v"][1] == pytest.approx(value)
    assert series.time[1] == pytest.approx(last, rel=1e-12)


def test_all_errors_of_a_mapping_are_named_at_once(tmp_path: Path) -> None:
    path = table(
        tmp_path,
        """
speed = 1
settings = 3
signals.lamp = "/lamp"
[signals.robto]
[signals.robot]
topic = "?"
id = "name"
each = "robots"
least = 0.5
frame = "odom"
x = { column = "x", unit = "inch" }
y = "y"
heading = { column = "a,b", unit = "quaternion" }
velocity = "body"
[signals.people]
topic = "p"
frame = "map"
id = ""
relativ = true
x = { column = "?", unit = "m" }
y = { column = "y", unit = "m", factor = 2 }
least = "x"
""",
    )
    with pytest.raises(DataError) as caught:
        read_mapping(path, SIGNALS, ImportSettings)
    head, *lines = str(caught.value).splitlines()
    assert head == f"{path}: the mapping has {len(lines)} errors:"
    text = "\n".join(lines)
    for part in (
        "  speed: unknown key; known keys: settings, signals",
        "  settings = 3: must be a table [settings]",
        "  signals.lamp = '/lamp': must be a table [signals.lamp]",
        "  signals.lamp: unknown signal; the task needs robot, people",
        "  signals.robot.id: is for the signals of several people or cars; remove it",
        "  signals.robot.each: is for the signals",
        "  signals.robot.least = 0.5: name the column that it limits in signals.robot.valid",
        "  signals.robto: unknown signal; did you mean 'robot'?; the task needs robot, people",
        "  signals.robot.topic: must be the topic of the robot, as the log has it",
        "  signals.robot.x: unit 'inch'; expected one of m, cm, mm, km",
        "  signals.robot.y: unit ''; expected one of m, cm, mm, km",
        "  signals.robot.heading = {'column': 'a,b', 'unit': 'quaternion'}: must be { column = NAME, unit = UNIT }",
        "  signals.robot.velocity = 'body': needs vx, vy and heading; name their columns",
        "  signals.people.id: must be the id of the people, as the log has it",
        "  signals.people.relativ: unknown key; did you mean 'signals.people.relative'?",
        "  signals.people.x = {'column': '?', 'unit': 'm'}: must be { column = NAME, unit = UNIT }",
        "  signals.people.y.factor: unknown key; known keys: ",
        "  signals.people.least = 'x': must be a number",
        "  frame: map, odom; transform all positions into one frame, such as map",
    ):
        assert part in text
    assert len(lines) == 19


def test_a_missing_signal_says_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"signals\.speed: missing; name the topic and the columns of a speed"):
        read_mapping(table(tmp_path, ""), LINE, ImportSettings)
    with pytest.raises(
        DataError, match=r"2 errors:\n  signals = 3: must be a table \[signals\]\n  signals\.speed: missing"
    ):
        read_mapping(table(tmp_path, "signals = 3"), LINE, ImportSettings)
    with pytest.raises(DataError, match=r"signals\.speed\.relative: is for the signals of several people"):
        read_mapping(table(tmp_path, "[signals.speed]\nrelative = true"), LINE, ImportSettings)
    with pytest.raises(DataError, match=r"1 errors:\n  signals\.robot: missing"):
        read_mapping(table(tmp_path, PEOPLE + "relative = true"), SIGNALS, ImportSettings)


def test_orientations_become_continuous_headings(tmp_path: Path) -> None:
    ros = Messages()
    log = write_bag(tmp_path / "a.mcap", [("/odom", t, ros.odometry(t, 0, heading=3.0 + t)) for t in (0.0, 0.2, 0.4)])
    robot = read(tmp_path, ROBOT, {"robot": SIGNALS["robot"]}, log).series["robot"][""]
    np.testing.assert_allclose(robot.values["heading"], [3.0, 3.2, 3.4])


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (
            "0.6,0,0,0.8",
            r"line 2, column qx,qy,qz,qw: a quaternion that tilts by 74 degrees; expected the order x, y, z, w",
        ),
        ("0,0,90,0", r"line 2, column qx,qy,qz,qw: a quaternion of length 90; expected length 1"),
        ("0,0,nan,1", r"line 2, column qz: 'nan'; expected a finite number"),
    ],
)
def test_quaternions_that_are_none_of_a_robot_on_the_ground_are_refused(
    tmp_path: Path, cells: str, message: str
) -> None:
    log = table(tmp_path, f"t,x,y,qx,qy,qz,qw\n0,0,0,{cells}\n")
    mapping = """[signals.robot]
topic = "t"
frame = "map"
time = { column = "t", unit = "s" }
x = { column = "x", unit = "m" }
y = { column = "y", unit = "m" }
heading = { column = "qx,qy,qz,qw", unit = "quaternion" }
"""
    with pytest.raises(DataError, match=message):
        read(tmp_path, mapping, {"robot": SIGNALS["robot"]}, log)


def test_degrees_that_are_called_radians_are_refused(tmp_path: Path) -> None:
    log = table(tmp_path, "t,a\n0,90\n")
    mapping = '[signals.s]\ntopic = "t"\ntime = {column = "t", unit = "s"}\na = {column = "a", unit = "rad"}\n'
    signals = {"s": Signal("an angle", {"a": Field("angle")})}
    with pytest.raises(DataError, match=r't\.csv, line 2, column a: 90 rad; write unit = "deg" for degrees'):
        read(tmp_path, mapping, signals, log)
    series = read(tmp_path, mapping.replace("rad", "deg"), signals, log).series["s"][""]
    assert series.values["a"][0] == pytest.approx(np.pi / 2)


def test_messages_of_another_frame_are_refused(tmp_path: Path) -> None:
    ros = Messages()
    log = write_bag(
        tmp_path / "a.mcap",
        [("/odom", 0, ros.odometry(0, 0)), ("/people", 0, ros.people(0, {"a": (1, 1)}, "base_link"))],
    )
    with pytest.raises(
        DataError, match=r"topic /people, message 2: frame 'base_link'; signals\.people\.frame says 'odom'"
    ):
        read(tmp_path, ROBOT + PEOPLE, SIGNALS, log)


def test_the_frame_of_each_marker_is_checked(tmp_path: Path) -> None:
    ros = Messages()
    markers = [("/people", 0.1 * row, ros.marker(0.1 * row, frame)) for row, frame in enumerate(("odom", "base_link"))]
    log = write_bag(tmp_path / "a.mcap", [("/odom", 0, ros.odometry(0, 0)), *markers])
    mapping = PEOPLE.replace('time = { column = "header.stamp", unit = "s" }', "")
    mapping = mapping.replace('"people"', '"markers"').replace('"name"', '"id"')
    with pytest.raises(DataError, match=r"topic /people, message 3: frame 'base_link'; signals\.people\.frame says"):
        read(tmp_path, ROBOT + mapping, SIGNALS, log)


def test_a_frame_is_the_same_with_a_slash_before_it(tmp_path: Path) -> None:
    ros = Messages()
    odometry = ros.odometry(0, 0)
    odometry.header.frame_id = "/odom"
    log = write_bag(tmp_path / "a.mcap", [("/odom", 0, odometry), ("/people", 0, ros.people(0, {"a": (1, 1)}))])
    for mapping in (ROBOT + PEOPLE, ROBOT.replace('"odom"', '"/odom"') + PEOPLE):
        assert read(tmp_path, mapping, SIGNALS, log).series.keys() == SIGNALS.keys()


def test_people_relative_to_the_robot_are_placed_in_its_frame(tmp_path: Path) -> None:
    ros = Messages()
    log = write_bag(
        tmp_path / "a.mcap",
        [
            ("/people", 0.1, ros.people(0.0, {"a": (9.0, 9.0)}, "base_link")),  # before the pose of the robot is known
            ("/odom", 0.2, ros.odometry(0.2, 1.0, 5.0, heading=np.pi / 2)),
            ("/odom", 0.4, ros.odometry(0.4, 3.0, 5.0, heading=np.pi / 2)),
            ("/people", 0.5, ros.people(0.3, {"a": (4.0, 1.0)}, "base_link")),
        ],
    )
    people = PEOPLE.replace('frame = "odom"', 'frame = "base_link"\nrelative = true')
    person = read(tmp_path, ROBOT + people, SIGNALS, log).series["people"]["a"]
    # the robot is at (2, 5) and faces +y: 4 m ahead is y = 9, 1 m to the left is x = 1
    np.testing.assert_allclose(person.time, [0.3])
    np.testing.assert_allclose([person.values["x"][0], person.values["y"][0]], [1.0, 9.0], atol=1e-9)
    with pytest.raises(DataError, match=r"relative: needs the direction of the robot; name signals\.robot\.heading"):
        read(tmp_path, "\n".join(ROBOT.splitlines()[:-1]) + people, SIGNALS, log)


def test_velocities_along_the_axes_of_the_robot_are_turned_into_its_frame(tmp_path: Path) -> None:
    ros = Messages()
    log = write_bag(tmp_path / "a.mcap", [("/odom", 0.0, ros.odometry(0, 0, speed=2.0, heading=np.pi / 2))])
    mapping = (
        ROBOT
        + """
vx = { column = "twist.twist.linear.x", unit = "m/s" }
vy = { column = "twist.twist.linear.y", unit = "m/s" }
velocity = "body"
"""
    )
    robot = read(tmp_path, mapping, {"robot": SIGNALS["robot"]}, log).series["robot"][""]
    np.testing.assert_allclose([robot.values["vx"][0], robot.values["vy"][0]], [0.0, 2.0], atol=1e-9)


def test_messages_below_the_least_value_of_a_column_are_left_out(tmp_path: Path) -> None:
    log = table(tmp_path, "t,v,status\n0,1,0\n1,nan,-1\n2,3,1\n")
    mapping = '[signals.speed]\ntopic = "t"\nvalid = "status"\nleast = 0\ntime = {column = "t", unit = "s"}\n'
    mapping += 'v = {column = "v", unit = "m/s"}\n'
    gathered = read(tmp_path, mapping, LINE, log)
    assert gathered.series["speed"][""].values["v"].tolist() == [1, 3]
    assert gathered.invalid == 1
    with pytest.raises(DataError, match=r"no message of signals\.speed is left; lower signals\.speed\.least"):
        read(tmp_path, mapping.replace("least = 0", "least = 9"), LINE, log)


def test_messages_whose_column_of_validity_is_no_number_are_left_out(tmp_path: Path) -> None:
    log = table(tmp_path, "t,v,status\n0,1,0\n1,2,\n2,3,nan\n3,4,lost\n4,5,inf\n")
    mapping = '[signals.speed]\ntopic = "t"\nvalid = "status"\nleast = 0\ntime = {column = "t", unit = "s"}\n'
    gathered = read(tmp_path, mapping + 'v = {column = "v", unit = "m/s"}\n', LINE, log)
    assert gathered.series["speed"][""].values["v"].tolist() == [1, 5]
    assert gathered.invalid == 3


def test_a_topic_that_the_log_lacks_is_named_with_those_that_it_has(tmp_path: Path) -> None:
    log = table(tmp_path, "t,v\n0,1\n")
    mapping = '[signals.speed]\ntopic = "u*"\ntime = {column = "t", unit = "s"}\nv = {column = "v", unit = "m/s"}\n'
    with pytest.raises(DataError, match=r"signals\.speed\.topic = 'u\*' is the name of 0 topics; expected one of t"):
        read(tmp_path, mapping, LINE, log)
    without = mapping.replace("u*", "*").replace('time = {column = "t", unit = "s"}\n', "")
    with pytest.raises(DataError, match=r"line 2: no time; name the column with signals\.speed\.time = "):
        read(tmp_path, without, LINE, log)


def times(found: Gathered, gap: float = 0.5, step: float = 0.5) -> list[list[float]]:
    return [session.time.tolist() for session in sessions([found.series["speed"][""]], [False], step, gap)]


def test_gaps_and_jumps_of_the_clock_cut_sessions(tmp_path: Path) -> None:
    stamps = [0.0, 0.5, 1.0, 2.5, 3.0, 1.0, 1.5]  # a gap of 1.5 s, then the clock goes back by 2 s
    log = table(tmp_path, "t,v\n" + "".join(f"{stamp},{10 * row}\n" for row, stamp in enumerate(stamps)))
    mapping = '[signals.speed]\ntopic = "t"\ntime = {column = "t", unit = "s"}\nv = {column = "v", unit = "m/s"}\n'
    gathered = read(tmp_path, mapping, LINE, log)
    assert gathered.jumps == 1
    assert times(gathered) == [[0.0, 0.5, 1.0], [2.5, 3.0], [1.0, 1.5]]
    (last,) = [*sessions([gathered.series["speed"][""]], [False], 0.25, 0.5)][2].values
    assert last["v"].tolist() == [50, 55, 60]


def test_tables_of_one_log_are_refused_if_a_clock_goes_back_because_their_rows_cannot_be_paired(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    table(tmp_path / "log", "t,v\n1,0\n0.5,0\n")
    table(tmp_path / "log", "t,v\n1,0\n", "u.csv")
    mapping = '[signals.speed]\ntopic = "t"\ntime = {column = "t", unit = "s"}\nv = {column = "v", unit = "m/s"}\n'
    with pytest.raises(DataError, match=r"line 3: the time goes back from 1\.000 to 0\.500 s; .* cut all of them"):
        read(tmp_path, mapping, LINE, tmp_path / "log")


def test_silences_of_the_length_of_a_gap_end_no_session() -> None:
    seconds = np.float64(1.7e9) + 0.7 * np.arange(50)  # differences of such times are rounded
    series = Series(np.zeros(50, int), seconds, {"v": np.arange(50.0)})
    assert len([*sessions([series], [False], 0.7, 0.7)]) == 1


def test_values_hold_from_times_that_were_rounded_to_float32_on() -> None:
    exact = np.arange(2000) * 0.1
    series = Series(np.zeros(2000, int), exact.astype(np.float32).astype(float), {"v": np.arange(2000.0)})
    (session,) = sessions([series], [True], 0.1, 0.5)
    np.testing.assert_array_equal(session.values[0]["v"], np.arange(2000))


def test_a_jump_that_two_topics_see_one_after_the_other_pairs_no_old_message_with_a_new_one(tmp_path: Path) -> None:
    ros = Messages()
    messages = []
    for row in range(8):  # the clock goes back by 0.4 s after the fourth message of each topic
        stamp = 10 + 0.1 * row - 0.4 * (row >= 4)
        person = ("/people", 5 + 0.1 * row, ros.people(stamp, {"a": (100.0 + row, 0.0)}))
        robot = ("/odom", 5.01 + 0.1 * row, ros.odometry(stamp, float(row)))
        messages += [robot, person] if row == 4 else [person, robot]
    gathered = read(
        tmp_path, ROBOT + PEOPLE, SIGNALS, write_bag(tmp_path / "a.mcap", sorted(messages, key=lambda m: m[1]))
    )
    (robot,), (person,) = (gathered.series[name].values() for name in ("robot", "people"))
    found = [*sessions([robot, person], [False, False], 0.1, 0.5)]
    for session in found:
        np.testing.assert_allclose(session.values[1]["x"] - session.values[0]["x"], 100.0)
    assert sum(len(session.time) for session in found) == 8


def test_values_are_interpolated_and_those_that_hold_are_not() -> None:
    numbers = Series(np.zeros(3, int), np.array([0.0, 1.0, 2.0]), {"v": np.array([0.0, 10.0, 30.0])})
    words = Series(np.zeros(2, int), np.array([0.25, 1.5]), {"w": np.array(["a", "b"])})
    (session,) = sessions([numbers, words], [False, True], 0.5, 2.0)
    np.testing.assert_allclose(session.time, [0.5, 1.0, 1.5])
    assert session.values[0]["v"].tolist() == [5, 10, 20]
    assert session.values[1]["w"].tolist() == ["a", "a", "b"]


@given(
    steps=st.lists(st.sampled_from([0.01, 0.07, 0.1, 0.3, 0.9, -0.5, -3.0]), min_size=1, max_size=40),
    step=st.sampled_from([0.05, 0.1, 0.25]),
)
def test_every_value_lies_between_two_messages_that_are_no_gap_and_no_jump_apart(
    steps: list[float], step: float
) -> None:
    """The value ``n`` is the number of a message, so that it shows between which messages a step was interpolated."""
    time = np.cumsum([0.0, *steps])
    epoch = np.cumsum([0, *(change < 0 for change in steps)])
    series = Series(epoch, time, {"v": time.copy(), "n": np.arange(len(time)).astype(float)})
    for session in sessions([series], [False], step, 0.5):
        (values,) = session.values
        np.testing.assert_allclose(values["v"], session.time, atol=1e-5)
        for stamp, number in zip(session.time, values["n"], strict=True):
            before, after = int(np.floor(number + 1e-4)), int(np.ceil(number - 1e-4))
            assert epoch[before] == epoch[after]
            assert time[after] - time[before] <= 0.5
            assert time[before] - 1e-5 <= stamp <= time[after] + 1e-5


@pytest.mark.parametrize(("factor", "message"), [(100.0, "by x, y it moves"), (0.2, "by x, y it moves")])
def test_velocities_in_another_unit_than_positions_are_refused(factor: float, message: str) -> None:
    x = np.arange(50) * 0.1
    values = {"x": x, "y": np.zeros(50), "vx": np.full(50, factor), "vy": np.zeros(50)}
    with pytest.raises(DataError, match=rf"here: {message} 4\.9 m, by vx, vy .*correct their units, or write velocity"):
        checked_velocity("here", values, 0.1)
    np.testing.assert_allclose(checked_velocity("here", {**values, "vx": np.ones(50)}, 0.1)[:, 0], 1.0)


def test_without_velocities_they_are_differences_and_nothing_moves_faster_than_a_car() -> None:
    values = {"x": np.array([0.0, 1.0, 3.0]), "y": np.zeros(3)}
    np.testing.assert_allclose(checked_velocity("here", values, 0.5), [[2, 0], [2, 0], [4, 0]])
    one_step = {"x": np.ones(1), "y": np.ones(1)}
    np.testing.assert_allclose(checked_velocity("here", one_step, 0.5), [[0, 0]])
    with pytest.raises(DataError, match=r"here: moves with 400 m/s by its positions; correct"):
        checked_velocity("here", {**values, "x": values["x"] * 100}, 0.5)


@pytest.mark.parametrize("again", [2, 3])
def test_values_at_the_same_time_must_be_the_same(tmp_path: Path, again: int) -> None:
    mapping = """[signals.speed]
topic = "t"
time = { column = "time", unit = "s" }
v = { column = "v", unit = "m/s" }
"""
    log = table(tmp_path, f"time,v\n1,1\n2,2\n2,{again}\n3,3\n")
    if again == 2:  # recorded twice
        assert read(tmp_path, mapping, LINE, log).series["speed"][""].time.tolist() == [1, 2, 3]
    else:
        with pytest.raises(DataError, match=r"line 4: signals.speed has other values at the same time, 2.000 s; give"):
            read(tmp_path, mapping, LINE, log)
