"""Reads the logs of robots: ROS bags, LeRobot data sets and tables, all as messages of topics in the recorded order.

ROS 1 bags (``.bag``) and ROS 2 bags (a folder with ``metadata.yaml``, ``.mcap``, ``.db3``) are read by rosbags. A
LeRobot data set (a folder with ``meta/info.json``, formats 2 and 3) has one topic, ``frames``, and a part for each
episode. A table (CSV, TSV or JSON lines) is a log with one topic, the name of its file; a folder of tables is a log
with one topic for each table.
"""

import hashlib
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedapps.base.errors import DataError, listed, need
from fedapps.base.rows import FORMATS, format_of, lines_of, rows_of
from fedapps.base.text_files import COMPRESSIONS, found_in, read_json, shown

#: The topic of a LeRobot data set.
FRAMES = "frames"
#: What stands for values in the list of columns of a message.
IMAGES, QUATERNION = ("an image", "a frame of a video"), "a quaternion"
TABLES = tuple(ending + compression for ending in FORMATS for compression in COMPRESSIONS)
_END = 1 << 16  # bytes at an end of a file that identify it: a bag can have many gigabytes
_TRIED = 100  # messages of a topic, to find one with all columns
_FIRST = 100  # messages that tell a bag from another one in its place
_LATE = 0.005  # seconds by which a frame of a video is another one than that of its row
_ELEMENTS = 16  # of a list of numbers, named one by one
_STARTS = {b"\xff\xd8\xff": ".jpg", b"\x89PNG": ".png"}
#: How the pixels of ROS images are stored, and the mode and the raw mode of Pillow.
_ENCODINGS = {"rgb8": "RGB", "bgr8": "BGR", "rgba8": "RGBX", "bgra8": "BGRX", "mono8": "L"}
#: What rosbags raises for damaged bags beside its own errors.
_DAMAGED = (OSError, ValueError, AssertionError, LookupError, OverflowError, TypeError, struct.error)


class Message(NamedTuple):
    """One message: its topic, the seconds at which it was recorded (NaN if unknown), its content, the part of the log
    to which it belongs, and where it stands, for errors.
    """

    topic: str
    recorded: float
    content: Any
    part: int
    location: str


@dataclass(frozen=True)
class Topic:
    """The type of the messages of a topic, and the content of one of the first."""

    kind: str
    example: Any


class Log(ABC):
    """One log.

    Attributes
    ----------
    path : Path
        Its file or folder.
    ordered : bool
        Whether messages of different topics come in the order in which they were recorded.
    """

    ordered = True

    def __init__(self, path: Path) -> None:
        self.path = path

    @abstractmethod
    def topics(self) -> Mapping[str, Topic]:
        """The topics by name. Raise :class:`DataError` if the log cannot be read."""

    @abstractmethod
    def messages(self, wanted: Mapping[str, Iterable[str]]) -> Iterator[Message]:
        """Yield the messages of some topics, with at least the columns that are wanted of each.

        Raises
        ------
        DataError
            The log cannot be read.
        """

    def digest(self) -> str:
        """What identifies the content: a hash of the names, sizes and both ends of its files, 16 hexadecimal digits."""
        digest = hashlib.sha256()
        folder = self.path.is_dir()
        for path in [path for path in found_in(self.path, "**/*") if path.is_file()] if folder else [self.path]:
            size = path.stat().st_size
            digest.update(f"{path.relative_to(self.path) if folder else ''}:{size}:".encode())
            with path.open("rb") as file:
                digest.update(file.read(_END))
                file.seek(max(0, size - _END))
                digest.update(file.read(_END))
        return digest.hexdigest()[:16]

    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """The size of each part that gets longer at its end alone when the log grows."""

    @abstractmethod
    def head(self, part: str, size: int) -> str:
        """A hash of the beginning of a part, of no more than the size that it has or had."""

    def beginning(self) -> dict[str, tuple[int, str]]:
        """What tells another log under the same path from this one when it has grown: see :meth:`continues`."""
        return {part: (size, self.head(part, size)) for part, size in self.sizes().items()}

    def continues(self, beginning: Mapping[str, tuple[int, str]]) -> bool:
        """Whether this is the log that had a :meth:`beginning`: no part is shorter now, or begins in another way."""
        sizes = self.sizes()
        return all(
            size <= sizes.get(part, -1) and head == self.head(part, size) for part, (size, head) in beginning.items()
        )


def open_log(path: Path) -> Log:
    """Return the log of a file or folder.

    Raises
    ------
    DataError
        It does not exist, or is of no known kind.
    """
    if path.exists() and ((path / "metadata.yaml").exists() or path.suffix in (".bag", ".mcap", ".db3")):
        return Bag(path)
    if (path / "meta" / "info.json").exists():
        return LeRobot(path)
    if (path.is_file() and path.name.endswith(TABLES)) or found_in(path, *(f"*{ending}" for ending in TABLES)):
        return Tables(path)
    raise DataError(
        f"{path}: {'no log of a known kind' if path.exists() else 'no such file or folder'}; expected a ROS bag (.bag, "
        ".mcap, .db3 or a folder with metadata.yaml), a LeRobot data set (a folder with meta/info.json), or a table or "
        f"a folder of tables ({', '.join(FORMATS)})"
    )


class Bag(Log):
    """A bag of ROS 1 or ROS 2. Messages come in the order in which they were recorded."""

    def topics(self) -> Mapping[str, Topic]:
        with self._opened() as reader:
            return {
                name: Topic(str(topic.msgtype), self._first(reader, topic.connections))
                for name, topic in sorted(reader.topics.items())
            }

    def _first(self, reader: Any, connections: Sequence[Any]) -> Any:
        """The fullest of the first messages, as lists can be empty; nothing without the definition of its type."""
        if any(connection.msgtype not in reader.typestore.fielddefs for connection in connections):
            return {}
        messages = islice(reader.messages(connections), _TRIED)
        first = (reader.deserialize(data, connection.msgtype) for connection, _, data in messages)
        return max(first, key=lambda message: len([*columns_of(message)]), default={})

    def messages(self, wanted: Mapping[str, Iterable[str]]) -> Iterator[Message]:
        with self._opened() as reader:
            connections = [connection for connection in reader.connections if connection.topic in wanted]
            for connection in connections:
                if connection.msgtype not in reader.typestore.fielddefs:
                    raise DataError(
                        f"{self.path}, topic {connection.topic}: the bag has no definition of {connection.msgtype}; "
                        "convert it where ROS knows the type (`ros2 bag convert` to mcap), or record with mcap"
                    )
            messages = reader.messages(connections) if connections else ()  # rosbags takes none as all
            for number, (connection, time, data) in enumerate(messages, start=1):
                location = f"{self.path}, topic {connection.topic}, message {number}"
                yield Message(connection.topic, time * 1e-9, reader.deserialize(data, connection.msgtype), 0, location)

    def sizes(self) -> dict[str, int]:
        """The number of messages: the first bytes of a file change when a bag grows."""
        with self._opened() as reader:
            return {"messages": reader.message_count}

    def head(self, part: str, size: int) -> str:
        digest = hashlib.sha256()
        with self._opened() as reader:
            for connection, time, data in islice(reader.messages(), min(size, _FIRST)):
                digest.update(f"{connection.topic}:{time}:".encode() + data)
        return digest.hexdigest()[:16]

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        purpose = str(self.path)
        anyreader, types = (need(f"rosbags.{name}", "robots", purpose) for name in ("highlevel.anyreader", "typesys"))
        errors = (need("apsw", "robots", purpose).Error, anyreader.AnyReaderError, *anyreader.ReaderErrors, *_DAMAGED)
        try:
            standard = types.get_typestore(types.Stores.LATEST)  # for bags of SQLite that define no types
            with anyreader.AnyReader([self.path], default_typestore=standard) as reader:
                yield reader
        except DataError:
            raise
        except errors as error:
            raise DataError(
                f"{self.path}: {error or type(error).__name__}; the bag is damaged or was not closed: repair it "
                "(`rosbag reindex`, `ros2 bag reindex` or `mcap recover`)"
            ) from error


class LeRobot(Log):
    """A LeRobot data set of format 2 or 3. Its times begin anew with each episode, which is a part."""

    def topics(self) -> Mapping[str, Topic]:
        features = read_json(self.path / "meta" / "info.json").get("features", {})
        videos = {name: IMAGES[1] for name, feature in features.items() if feature.get("dtype") == "video"}
        first = next(self.messages({FRAMES: [name for name in self._names() if name not in videos]}), None)
        return {FRAMES: Topic("LeRobot", {**(first.content if first else {}), **videos})}

    @property
    def _files(self) -> list[Path]:
        if not (files := found_in(self.path, "data/**/*.parquet")):
            raise DataError(f"{self.path}: no files data/**/*.parquet; copy the whole data set")
        return files

    def sizes(self) -> dict[str, int]:
        return {FRAMES: self._files[0].stat().st_size}

    def head(self, part: str, size: int) -> str:
        return _head(self._files[0], size)

    def _names(self) -> list[str]:
        return list(self._parquet(self._files[0]).schema_arrow.names)

    def _parquet(self, path: Path) -> Any:
        parquet = need("pyarrow.parquet", "robots", str(path))
        with _whole(path):
            return parquet.ParquetFile(path)

    def _rows(self, path: Path, names: Sequence[str]) -> Iterator[dict[str, Any]]:
        file = self._parquet(path)
        with _whole(path):
            for batch in file.iter_batches(columns=names, batch_size=64):
                yield from batch.to_pylist()

    def messages(self, wanted: Mapping[str, Iterable[str]]) -> Iterator[Message]:
        columns = {name.partition("[")[0] for name in wanted.get(FRAMES, ())}  # whole lists
        names = [name for name in self._names() if name in columns | {"timestamp", "episode_index"}]
        videos = {name: self._frames(name) for name in columns - set(names) if found_in(self.path, f"videos/**/{name}")}
        starts: dict[tuple[str, int], float] = {}  # of each episode in the time of its video
        for path in self._files if FRAMES in wanted else []:
            for number, row in enumerate(self._rows(path, names), start=1):
                location = f"{path}, row {number}"
                for name, frames in videos.items():
                    frame = row[name] = next(frames, None)
                    start = frame.time - row["timestamp"] if frame else np.inf
                    if abs(starts.setdefault((name, row["episode_index"]), start) - start) > _LATE or not frame:
                        raise DataError(f"{location}: the videos of {name} have other frames than the data set rows")
                yield Message(FRAMES, row["timestamp"], row, row["episode_index"], location)

    def _frames(self, name: str) -> Iterator[Any]:
        """The frames of all episodes; files and episodes stand in the same order."""
        av = need("av", "robots", f"{self.path}: the videos of {name}")
        for path in (path for path in found_in(self.path, "videos/**/*.mp4") if name in path.parts):
            try:
                with av.open(str(path)) as container:
                    yield from container.decode(video=0)
            except av.error.FFmpegError as error:
                raise DataError(f"{path}: {error}; copy or encode the video again") from error


class Tables(Log):
    """A table, or a folder of tables, of which only the columns of times say which rows belong together."""

    @property
    def _paths(self) -> dict[str, Path]:
        paths: dict[str, Path] = {}
        for path in found_in(self.path, *(f"*{ending}" for ending in TABLES)) if self.path.is_dir() else [self.path]:
            if (other := paths.setdefault(path.name.rpartition(format_of(path))[0], path)) != path:
                raise DataError(f"{other} and {path.name}: tables of one name; rename or remove one of them")
        return paths

    def sizes(self) -> dict[str, int]:
        return {name: path.stat().st_size for name, path in self._paths.items()}

    def head(self, part: str, size: int) -> str:
        return _head(self._paths[part], size)

    @property
    def ordered(self) -> bool:  # type: ignore[override]
        return len(self._paths) == 1

    def topics(self) -> Mapping[str, Topic]:
        rows = {name: next(self.messages({name: ()}), None) for name in self._paths}
        return {name: Topic(format_of(self._paths[name]), row.content if row else {}) for name, row in rows.items()}

    def messages(self, wanted: Mapping[str, Iterable[str]]) -> Iterator[Message]:
        for name, path in self._paths.items():
            if name not in wanted:
                continue
            with lines_of(path) as lines:
                for number, row in rows_of(path, lines, format_of(path), True, [*wanted[name]], (), ""):
                    yield Message(name, np.nan, row, 0, f"{path}, line {number}")


def _head(path: Path, size: int) -> str:
    with path.open("rb") as file:
        return hashlib.sha256(file.read(min(size, _END))).hexdigest()[:16]


@contextmanager
def _whole(path: Path) -> Iterator[None]:
    """Name the file that cannot be read; the errors of pyarrow are subclasses of these."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: {error}; copy the file again") from error


def value_at(content: Any, column: str, location: str) -> Any:
    """The value of a column: ``.`` is the message itself, ``a.b`` a field of a field, ``a[0]`` an element.

    Raises
    ------
    DataError
        The message has no such field or element.
    """
    if column == ".":
        return content
    if isinstance(content, Mapping) and column in content:  # such as "x [m]"
        return content[column]
    name, *indices = column.replace("]", "").split("[")
    try:
        if isinstance(content, Mapping):
            value = content[name]
        else:
            value = content
            for part in name.split("."):
                value = getattr(value, part)
        for index in indices:
            value = value[int(index)]
    except (LookupError, AttributeError, TypeError, ValueError) as error:
        names = [other for other, _ in columns_of(content)]
        raise DataError(f"{location}: no column {column!r}; it has {listed(names, 40)}") from error
    return value


def columns_of(content: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the columns of a message and their values; those of the messages in a list as ``list[].column``."""
    items = (
        content.items()
        if isinstance(content, Mapping)
        else ((f.name, getattr(content, f.name)) for f in fields(content))
    )
    for name, value in items:
        path = f"{prefix}{name}"
        if name == "__msgtype__":
            continue
        if hasattr(value, "nanosec"):
            yield path, value.sec + 1e-9 * value.nanosec
        elif is_dataclass(value):
            if hasattr(value, "w"):
                yield path, QUATERNION
            yield from columns_of(value, f"{path}.")
        elif isinstance(value, (list, np.ndarray)):
            if len(value) and is_dataclass(value[0]):
                yield from columns_of(value[0], f"{path}[].")
            elif 0 < len(value) <= _ELEMENTS:
                yield from ((f"{path}[{index}]", element) for index, element in enumerate(value))
            else:
                yield path, f"{len(value)} values"
        else:
            yield path, IMAGES[0] if isinstance(value, Mapping) else value


def image_of(value: Any, folder: Path, location: str) -> tuple[bytes, str]:
    """Return an image as a file, and the ending of its name.

    Parameters
    ----------
    value : object
        A message ``Image`` or ``CompressedImage`` of ROS, an image or a frame of a LeRobot data set, or the path of a
        file.
    folder : Path
        What the path of a file is relative to.
    location : str
        Where the value stands, for errors.

    Raises
    ------
    DataError
        The value is no image, or one in an unknown format.
    """
    if isinstance(value, Mapping):  # as the library datasets stores images
        value = value.get("bytes") or value.get("path")
    if isinstance(value, str):
        try:
            value = (folder / value).read_bytes()
        except OSError as error:
            raise DataError(f"{location}: {folder / value}: {error.strerror}; correct the path of the image") from error
    if hasattr(value, "to_image"):
        return _png(value.to_image().save)
    if hasattr(value, "encoding"):
        if (mode := _ENCODINGS.get(value.encoding)) is None:
            raise DataError(f"{location}: encoding {value.encoding!r}; expected one of {', '.join(_ENCODINGS)}")
        image = need("PIL.Image", "robots", location)
        size = (value.width, value.height)
        return _png(
            image.frombytes("L" if mode == "L" else "RGB", size, bytes(value.data), "raw", mode, value.step).save
        )
    data = getattr(value, "data", value)
    content = bytes(data) if isinstance(data, (bytes, np.ndarray)) else b""
    for start, ending in _STARTS.items():
        if content.startswith(start):
            return content, ending
    raise DataError(f"{location}: {shown(value)}; expected an image in JPEG or PNG, or the path of one")


def _png(save: Callable[..., None]) -> tuple[bytes, str]:
    file = BytesIO()
    save(file, format="PNG")
    return file.getvalue(), ".png"
