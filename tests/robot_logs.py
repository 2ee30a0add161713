"""Logs of robots, written by the libraries of their formats: rosbags, and datasets and PyAV for LeRobot data sets."""

import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import av
import datasets
import numpy as np
from fedapps.tasks.logs.folder import LogImport, import_logs
from PIL import Image
from rosbags.rosbag1 import Writer as Writer1
from rosbags.rosbag2 import StoragePlugin
from rosbags.rosbag2 import Writer as Writer2
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

ROS1, ROS2 = get_typestore(Stores.ROS1_NOETIC), get_typestore(Stores.ROS2_HUMBLE)
PEOPLE, MARKERS = "people_msgs/msg/People", "people_msgs/msg/Markers"
for _store in (ROS1, ROS2):
    _store.register(
        {
            **get_types_from_msg(
                "string name\ngeometry_msgs/Point position\nfloat64 reliability", "people_msgs/msg/Person"
            ),
            **get_types_from_msg("std_msgs/Header header\npeople_msgs/Person[] people", PEOPLE),
            **get_types_from_msg(
                "std_msgs/Header header\nint32 id\ngeometry_msgs/Point position", "people_msgs/msg/Marker"
            ),
            **get_types_from_msg("people_msgs/Marker[] markers", MARKERS),
        }
    )
#: Topic, seconds when it was recorded, and the message.
Recorded = tuple[str, float, Any]


def import_one(kind: type[LogImport], given: str, tmp_path: Path, log: Path, mapping: str = "") -> str:
    """Import a log into the folder ``out`` with the mapping that is given, or another one; the line that is said."""
    (tmp_path / "mapping.toml").write_text(mapping or given)
    ((complete, line),) = import_logs(kind, [log], tmp_path / "mapping.toml", tmp_path / "out")
    return line if complete else f"refused: {line}"


class Messages:
    """Messages of a version of ROS."""

    def __init__(self, store: Any = ROS2) -> None:
        self.types = store.types
        self.first = store is ROS1

    def header(self, time: float, frame: str) -> Any:
        stamp = self.types["builtin_interfaces/msg/Time"](sec=int(time), nanosec=round(time % 1 * 1e9))
        further = {"seq": 0} if self.first else {}
        return self.types["std_msgs/msg/Header"](stamp=stamp, frame_id=frame, **further)

    def point(self, x: float, y: float) -> Any:
        return self.types["geometry_msgs/msg/Point"](x=x, y=y, z=0.0)

    def vector(self, x: float = 0.0, y: float = 0.0) -> Any:
        return self.types["geometry_msgs/msg/Vector3"](x=x, y=y, z=0.0)

    def odometry(self, time: float, x: float, y: float = 0.0, speed: float = 0.0, heading: float = 0.0) -> Any:
        turn = self.types["geometry_msgs/msg/Quaternion"](x=0.0, y=0.0, z=np.sin(heading / 2), w=np.cos(heading / 2))
        pose = self.types["geometry_msgs/msg/Pose"](position=self.point(x, y), orientation=turn)
        twist = self.types["geometry_msgs/msg/Twist"](linear=self.vector(speed), angular=self.vector())
        none = np.zeros(36)
        return self.types["nav_msgs/msg/Odometry"](
            header=self.header(time, "odom"),
            child_frame_id="base_link",
            pose=self.types["geometry_msgs/msg/PoseWithCovariance"](pose=pose, covariance=none),
            twist=self.types["geometry_msgs/msg/TwistWithCovariance"](twist=twist, covariance=none),
        )

    def twist(self, speed: float) -> Any:
        return self.types["geometry_msgs/msg/Twist"](linear=self.vector(speed), angular=self.vector())

    def people(self, time: float, places: Mapping[str, tuple[float, float]], frame: str = "odom") -> Any:
        person = self.types["people_msgs/msg/Person"]
        people = [person(name=name, position=self.point(*place), reliability=1.0) for name, place in places.items()]
        return self.types[PEOPLE](header=self.header(time, frame), people=people)

    def marker(self, time: float, frame: str) -> Any:
        """A list with one marker. The marker has its own header, as in visualization_msgs."""
        marker = self.types["people_msgs/msg/Marker"]
        return self.types[MARKERS](markers=[marker(header=self.header(time, frame), id=1, position=self.point(1, 1))])

    def number(self, value: float) -> Any:
        return self.types["std_msgs/msg/Float32"](data=value)

    def word(self, value: str) -> Any:
        return self.types["std_msgs/msg/String"](data=value)

    def fix(self, time: float, lon: float, lat: float, status: int = 0) -> Any:
        return self.types["sensor_msgs/msg/NavSatFix"](
            header=self.header(time, "gps"),
            status=self.types["sensor_msgs/msg/NavSatStatus"](status=status, service=1),
            latitude=lat,
            longitude=lon,
            altitude=0.0,
            position_covariance=np.zeros(9),
            position_covariance_type=0,
        )

    def compressed(self, time: float, pixels: np.ndarray) -> Any:
        data = np.frombuffer(png(pixels), dtype=np.uint8)
        return self.types["sensor_msgs/msg/CompressedImage"](
            header=self.header(time, "camera"), format="png", data=data
        )

    def image(self, time: float, pixels: np.ndarray, encoding: str = "rgb8") -> Any:
        height, width, channels = pixels.shape
        return self.types["sensor_msgs/msg/Image"](
            header=self.header(time, "camera"),
            height=height,
            width=width,
            encoding=encoding,
            is_bigendian=0,
            step=width * channels,
            data=pixels.reshape(-1),
        )


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="PNG")
    return file.getvalue()


def write_bag(path: Path, messages: Iterable[Recorded]) -> Path:
    """Write a bag: of ROS 1 if the name ends in ``.bag``, of MCAP if in ``.mcap``, and else of SQLite, a folder."""
    if path.suffix == ".bag":
        with Writer1(path) as writer:
            connections: dict[str, Any] = {}
            for topic, time, message in messages:
                kind = message.__msgtype__
                if topic not in connections:
                    connections[topic] = writer.add_connection(topic, kind, typestore=ROS1)
                writer.write(connections[topic], round(time * 1e9), ROS1.serialize_ros1(message, kind))
        return path
    mcap = path.suffix == ".mcap"
    folder = path.with_name(f"{path.stem}-bag") if mcap else path
    plugin = StoragePlugin.MCAP if mcap else StoragePlugin.SQLITE3
    with Writer2(folder, version=9, storage_plugin=plugin) as writer2:
        connections = {}
        for topic, time, message in messages:
            kind = message.__msgtype__
            if topic not in connections:
                connections[topic] = writer2.add_connection(topic, kind, typestore=ROS2)
            writer2.write(connections[topic], round(time * 1e9), ROS2.serialize_cdr(message, kind))
    if mcap:
        (written,) = folder.glob("*.mcap")
        written.replace(path)
        for rest in folder.iterdir():
            rest.unlink()
        folder.rmdir()
        return path
    return folder


def write_lerobot(folder: Path, episodes: Iterable[Mapping[str, Any]], fps: int = 10, *, videos: bool = False) -> Path:
    """Write a data set of format 2.1. An episode has ``state`` ``[T, d]``, ``action`` ``[T, d]`` and perhaps ``images``
    ``[T, H, W, 3]``, which are videos if asked for.
    """
    names = {"observation.state": "state", "action": "action"}
    features: dict[str, Any] = {name: datasets.Sequence(datasets.Value("float32")) for name in names}
    features |= {"timestamp": datasets.Value("float32"), "episode_index": datasets.Value("int64")}
    info: dict[str, Any] = {name: {"dtype": "float32"} for name in names}
    for number, episode in enumerate(episodes):
        count = len(episode["state"])
        columns = {name: episode[key].tolist() for name, key in names.items()}
        columns |= {"timestamp": [row / fps for row in range(count)], "episode_index": [number] * count}
        if "images" in episode and videos:
            info["observation.image"] = {"dtype": "video"}
            path = folder / "videos" / "chunk-000" / "observation.image" / f"episode_{number:06d}.mp4"
            path.parent.mkdir(parents=True, exist_ok=True)
            _write_video(path, episode["images"], fps)
        elif "images" in episode:
            info["observation.image"] = {"dtype": "image"}
            columns["observation.image"] = [Image.fromarray(pixels) for pixels in episode["images"]]
            features["observation.image"] = datasets.Image()
        path = folder / "data" / "chunk-000" / f"episode_{number:06d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        datasets.Dataset.from_dict(columns, features=datasets.Features(features)).to_parquet(str(path))
    (folder / "meta").mkdir(exist_ok=True)
    (folder / "meta" / "info.json").write_text(json.dumps({"codebase_version": "v2.1", "fps": fps, "features": info}))
    return folder


def _write_video(path: Path, frames: np.ndarray, fps: int) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=fps)
        stream.width, stream.height, stream.pix_fmt = frames.shape[2], frames.shape[1], "yuv420p"
        for pixels in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
