"""Imports logs into the folder of a task: each once, what is new alone, and none in part.

``.imported.jsonl`` in the folder has a line for each log that is done: a log with the same content is not read again,
and one that has grown or gets another mapping replaces what came from it before. A log that begins in another way than
the one before under its path is a new one. What is written carries the name of its log, so that an import that was
killed leaves nothing that the next one does not replace.
"""

import hashlib
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedapps.base.atomic import append_line, write_whole
from fedapps.base.errors import DataError
from fedapps.base.options import option
from fedapps.base.text_files import found_in, from_json

from .mapping import Field, LogMapping, Signal, read_mapping
from .readers import Log, image_of, open_log, value_at
from .signals import ROUNDING, Gathered, Series, Session, at_time, gather, sessions, signal_messages

logger = logging.getLogger(__name__)

LEDGER = ".imported.jsonl"
_LOG = "log-"  # begins the name of a log
_KEYS = ("log", "path", "digest", "mapping")  # of a line of the ledger


@dataclass(frozen=True)
class ImportSettings:
    """Settings of every import."""

    gap: float = option(
        0.5, "Seconds of silence of a signal that end a session; nothing is filled in across them", above=0
    )


class Output:
    """The part of a folder that comes from one log."""

    def __init__(self, folder: Path, log: str) -> None:
        self.folder = folder
        #: Such as ``log-0123456789abcdef``; it stands in each line, or in the name of a file.
        self.log = log

    def clear(self) -> None:
        """Remove what an earlier import of the log wrote, perhaps with other names of files."""
        for path in self.folder.rglob(f"*{self.log}*"):
            path.unlink()
        for path in found_in(self.folder, "*.csv", "*.json"):
            if self.log.encode() not in (content := path.read_bytes()):  # perhaps a file of the user, in any encoding
                continue
            lines = content.decode().splitlines()
            kept = [line for line in lines if self.log not in line]
            if not any(_LOG in line for line in kept) and len(kept) < len(lines):
                path.unlink()
            elif len(kept) < len(lines):
                write_whole(path, "\n".join([*kept, ""]).encode())

    def file(self, name: str, content: bytes) -> None:
        """Write a file, whose name must have that of the log."""
        write_whole(self.folder / name, content)

    def lines(self, name: str, lines: Iterable[str], header: str = "") -> None:
        """Add lines, each with the name of the log, to a file, in place of those that it has of the log."""
        path = self.folder / name
        old = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        if header and old and old[0] != header:
            raise DataError(f"{path}: another header than that of an import; choose another output folder")
        kept = [line for line in old[bool(header) :] if self.log not in line]
        text = "\n".join([*([header] if header else []), *kept, *lines])
        write_whole(path, text.encode() + b"\n")

    def table(self, name: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Add rows to a CSV file, whose first column is the name of the log."""
        self.lines(name, (",".join([self.log, *map(_cell, row)]) for row in rows), ",".join(["log", *columns]))


def _cell(value: object) -> str:
    if isinstance(value, (float, np.floating)):
        return f"{value:.9g}"
    text = str(value)
    return '"' + text.replace('"', '""') + '"' if set(text) & set(',"\n') else text


#: A picture, which tasks of images need.
IMAGE = Signal("the images", {"image": Field("image", ("image", "path", "file", "format", "encoding"))})


class LogImport(ABC):
    """How a task takes its data from logs."""

    #: The signals by name that a mapping must have.
    signals: ClassVar[Mapping[str, Signal]]
    #: A dataclass of options, for the table ``settings`` of a mapping.
    Settings: ClassVar[type[ImportSettings]] = ImportSettings
    #: Lines of advice at the head of a draft.
    advice: ClassVar[str] = ""

    def __init__(self, mapping: LogMapping) -> None:
        self.mapping = mapping
        self.settings = mapping.settings
        self.check()

    def check(self) -> None:
        """Raise :class:`DataError` if settings or columns do not fit together."""
        return

    def refuse(self, problem: str) -> DataError:
        """The error about the mapping."""
        return DataError(f"{self.mapping.path}: {problem}")

    def sessions(self, *named: tuple[str, Series]) -> Iterator[Session]:
        """The sessions of some signals at the steps of the settings."""
        holds = [self.signals[name].holds for name, _ in named]
        return sessions([series for _, series in named], holds, self.settings.step, self.settings.gap)

    def at(self, name: str, series: Series, epoch: int, time: float) -> dict[str, Any] | None:
        """The values of a signal at one time; ``None`` if it is silent then."""
        return at_time(series, epoch, time, self.settings.gap, self.signals[name].holds)

    def images(self, log: Log, images: Series, numbers: Collection[int]) -> Iterator[tuple[int, bytes, str]]:
        """Yield the number, the file and its ending of those images of the signal ``image`` with these numbers."""
        column = self.mapping.sources["image"].fields["image"].column
        number = 0
        for _, message, time in signal_messages(log, self.mapping, ["image"], [column]):
            if number == len(images.time) or time != images.time[number]:
                continue  # left out when the signals were gathered
            if number in numbers:
                value = value_at(message.content, column, message.location)
                folder = log.path if log.path.is_dir() else log.path.parent
                yield number, *image_of(value, folder, f"{message.location}, column {column}")
            number += 1

    @abstractmethod
    def convert(self, log: Log, gathered: Gathered, output: Output) -> str:
        """Write the data of a log, and return what was written and what was left out, in a few words.

        Raises
        ------
        DataError
            The signals are not what the mapping says, or nothing is left.
        """


def import_logs(
    importer: type[LogImport], paths: Sequence[Path], mapping_path: Path, folder: Path
) -> Iterator[tuple[bool, str]]:
    """Import logs one after another.

    Yields
    ------
    bool and str
        Whether a log is in the folder now, and a line about it. A log that cannot be imported does not stop the others.

    Raises
    ------
    DataError
        The mapping is wrong.
    """
    task = importer(read_mapping(mapping_path, importer.signals, importer.Settings))
    mapping = hashlib.sha256(str(task.mapping).encode()).hexdigest()[:16]
    ledger = folder / LEDGER
    done = _read(ledger) if ledger.exists() else {}
    for path in paths:
        try:
            log = open_log(path)
            source_path, digest = str(path.resolve()), log.digest()
            same = [entry for entry in done.values() if entry["digest"] == digest]
            before = same or [
                entry
                for entry in done.values()
                if entry["path"] == source_path and log.continues(entry.get("beginning", {}))
            ]
            if same and same[0]["mapping"] == mapping:
                yield True, f"{path}: imported before"
                continue
            beginning = log.beginning()
            output = Output(folder, before[0]["log"] if before else f"{_LOG}{digest}")
            gathered = gather(log, task.mapping)
            if before:
                done[output.log] = _entered(
                    ledger, {**before[0], "digest": "", "mapping": ""}
                )  # not whole from here on
                output.clear()
            written = task.convert(log, gathered, output)
        except DataError as error:
            yield False, str(error)
            continue
        entry = {"log": output.log, "path": source_path, "digest": digest, "mapping": mapping, "written": written}
        done[output.log] = _entered(ledger, {**entry, "beginning": beginning})
        yield True, f"{path}: {written}{_cuts(gathered, task.settings.gap)}"


def _read(ledger: Path) -> dict[str, dict[str, Any]]:
    """The last entry of each log by name. A log with a damaged line alone is imported again, under the same name."""
    done = {}
    for number, line in enumerate(ledger.read_bytes().splitlines(), start=1):
        try:
            entry = from_json(line)
        except ValueError:
            entry = None
        if isinstance(entry, dict) and all(isinstance(entry.get(key), str) for key in _KEYS):
            done[entry["log"]] = entry
        elif line.strip():
            logger.warning("%s, line %d: damaged; its log is imported again if no other line has it", ledger, number)
    return done


def _entered(ledger: Path, entry: dict[str, Any]) -> dict[str, Any]:
    with ledger.open("ab+") as file:
        append_line(file, json.dumps(entry).encode())
    return entry


def _cuts(gathered: Gathered, gap: float) -> str:
    """What is known of the times of a log."""
    silences = [
        np.diff(series.time)[np.diff(series.epoch) == 0]
        for by_id in gathered.series.values()
        for series in by_id.values()
    ]
    long = np.concatenate([silence[silence > gap + ROUNDING] for silence in silences])
    parts = [f"{len(long)} gaps of up to {long.max():.3g} s"] if len(long) else []
    parts += [f"the clock went back {gathered.jumps} times"] if gathered.jumps else []
    parts += [f"{gathered.invalid} messages left out as not valid"] if gathered.invalid else []
    return "".join(f"; {part}" for part in parts)
