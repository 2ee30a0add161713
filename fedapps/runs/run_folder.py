"""The run folder: config, metrics of rounds and nodes, checkpoints and summary."""

import json
import os
import secrets
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from logging import WARNING
from pathlib import Path
from typing import Any

import tomli_w
from flwr.common import log

from fedapps.base.atomic import append_whole, entries, path_name, remove_folder, remove_leftovers, write_whole
from fedapps.base.errors import listed
from fedapps.config.keys import defaults
from fedapps.config.parsing import Config
from fedapps.registry import TRACKERS
from fedapps.strategies import RoundReport

from .checkpoints import DiskCheckpoints
from .lines import REMEDY, SHOWN, ReleaseLedger, is_record, keep_copy, whole_lines
from .owner import OWNER_FILE, Ownership, check_free, owned

#: The file in a run folder with the rounds and the simulated time before the run, by method, and the labels of the runs
#: before it.
STARTED = "started.json"
#: The file in the folder of a pipeline with the names of its stages, each of which is a run folder in it.
PIPELINE = "pipeline.json"
_RECORDS = ("metrics.jsonl", "nodes.jsonl")
#: What a run folder can have before its config is written.
_BEFORE_CONFIG = ("label", OWNER_FILE, "references.json")
#: Facts that a row leaves out where they have this value.
_ABSENT: dict[str, Any] = {
    "timings": {},
    "dropped": [],
    "ineligible": {},
    "clock": None,
    "seconds": None,
    "staleness": 0,
    "own_data": False,
}
#: Keys that may differ when a run is resumed, because they do not change the results.
_FREE_KEYS = {"resume", "timeout", "in-flight", "node-wait", "output-dir", "cache-dir", "trackers", "timings"} | {
    "max-failed-evaluations",
    "keep-runs",
    "device",  # a run that began on a GPU goes on where there is none
}


def begun(path: Path) -> bool:
    """Whether the run in a folder can be resumed.

    A run that was killed before it wrote its config has no trained model; its folder is deleted.

    Raises
    ------
    ValueError
        The folder has other files and no config, so it is no run; or another process owns it.
    """
    if (path / "config.toml").exists():
        return True
    if path.exists():
        check_free(path)
        remove_leftovers(path)
        names = entries(path)
        if others := [name for name in names if name not in _BEFORE_CONFIG]:
            raise ValueError(
                f"{path} has {others[0]} and no config.toml, so it is no run to resume: move it, or remove it"
            )
        for name in names:
            (path / name).unlink()
        path.rmdir()
    return False


@dataclass
class RunFolder:
    """The folder of a run. Create it with :meth:`open`.

    Attributes
    ----------
    path : Path
        The folder.
    label : str
        Unique name of the run; nodes store their private state under it.
    durable : bool
        Whether each round is on the disk before the next one begins (``fsync``), so that a run survives a power
        failure. Nodes with a disk of their own need it: they forget the private state of rounds to which the server
        can no longer go back. A simulation goes without it. Its nodes do not have their private state on the disk at
        that time either, so a round that a power failure takes is repeated, or the run begins anew. A killed process
        loses nothing in both cases.
    """

    path: Path
    label: str
    durable: bool = True
    _ownership: Ownership | None = field(default=None, repr=False, compare=False)

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Own the folder within this context, so that no other process can write to it.

        Raises
        ------
        FolderInUseError
            Another process owns it.
        """
        with owned(self.path) as self._ownership:
            for folder in (self.path, *(self.path / "checkpoints").glob("*")):
                remove_leftovers(folder)
            try:
                yield
            finally:
                self._ownership = None

    def check_owner(self) -> None:
        """Raise ``FolderInUseError`` if another process has taken the folder over from this one."""
        if self._ownership:
            self._ownership.check()

    @classmethod
    def open(cls, config: Config, run_id: int, *, durable: bool = True) -> "RunFolder":
        """Create the folder of a new run, which may exist if it is empty or has only references, or open the folder of
        the run to resume.

        Raises
        ------
        ValueError
            As :meth:`check`.
        """
        path = cls.check(config, run_id)
        if config.run.resume:
            return cls(path, read_label(path / "label"), durable)
        folder = cls(path, f"{path.name}-{secrets.token_hex(4)}", durable)
        try:
            path.mkdir(parents=True, exist_ok=True)
            with (path / "label").open("x", encoding="utf-8") as file:  # one job alone creates it
                file.write(folder.label)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
        except FileExistsError:
            raise _exists(path) from None
        except OSError as error:
            raise _unwritable(path, error) from error
        try:
            keys = config.flat() | {"name": path.name}
            write_whole(path / "config.toml", tomli_w.dumps(keys).encode(), sync=durable)  # last: makes it resumable
        except OSError as error:
            raise _unwritable(path, error) from error
        return folder

    @classmethod
    def check(cls, config: Config, run_id: int) -> Path:
        """Check that :meth:`open` will succeed, without creating anything.

        Returns
        -------
        Path
            The folder of the run.

        Raises
        ------
        ValueError
            If the folder is not writable, or another process owns it; if it exists and ``resume`` is false; or if
            ``resume`` is true and there is no run to resume, its config differs, a file that cannot be left out is
            damaged, or the ledger of releases is incomplete.
        """
        path = config.run.folder(run_id)
        check_free(path)
        if config.run.resume:
            _check_resumable(path, config)
            for method in config.methods:
                latest = cls(path, "").checkpoints(method).latest()
                if latest and config.run.dp != "none":
                    cls(path, "").releases(method).check(latest.round)
        elif path.exists() and not (path.is_dir() and set(entries(path)) <= {"references.json"}):
            raise _exists(path)
        existing = next(folder for folder in (path, *path.parents) if folder.exists())
        if not existing.is_dir() or not os.access(existing, os.W_OK):
            raise _unwritable(path, f"{existing} is not a writable folder")
        return path

    def checkpoints(self, method: str) -> DiskCheckpoints:
        """The checkpoints of one method."""
        return DiskCheckpoints(self.path / "checkpoints" / path_name(method), durable=self.durable)

    def releases(self, method: str) -> ReleaseLedger:
        """What the nodes were asked to release for one method, of which privacy accounting counts every line."""
        return ReleaseLedger(self.path / "releases.jsonl", method)

    def record(self, method: str, stage: str, report: RoundReport) -> None:
        """Append one round to ``metrics.jsonl`` and ``nodes.jsonl``."""
        self.check_owner()
        facts = asdict(report)
        nodes = facts.pop("nodes")
        for row in (facts, *nodes):
            for name, absent in _ABSENT.items():
                if row.get(name, ...) == absent:
                    del row[name]
        head = {"method": method, "round": report.round}
        for name, rows in (
            ("nodes.jsonl", [head | node for node in nodes]),
            ("metrics.jsonl", [{"method": method, "stage": stage} | facts]),
        ):
            append_whole(self.path / name, _as_lines(rows), sync=self.durable)

    def drop_after(self, method: str, last_round: int) -> None:
        """Delete the lines of all rounds after ``last_round``: a resumed run repeats these rounds."""
        for name in _RECORDS:
            kept = [row for row in self.lines(name) if row["method"] != method or row["round"] <= last_round]
            if (self.path / name).exists():
                self._write_rows(name, kept)

    def leave_out_damage(self) -> None:
        """Leave out damaged lines of the records, with a warning; a copy of the damaged file is kept."""
        for name in _RECORDS:
            path = self.path / name
            rows, damaged = whole_lines(path, is_record)
            if damaged:
                copy, lines = keep_copy(path), listed(damaged, SHOWN)
                log(WARNING, "%s, line %s: damaged and left out; %s is a copy", path, lines, copy.name)
                self._write_rows(name, rows)

    def warn_of_gaps(self, method: str, last_round: int) -> None:
        """Warn of the rounds of a method, from the first of this run to ``last_round``, that no line records."""
        recorded = {row["round"] for row in self.lines("metrics.jsonl") if row["method"] == method}
        rounds = range(self.rounds_before(method) + 1, last_round + 1)
        if missing := [number for number in rounds if number not in recorded]:
            path, numbers = self.path / "metrics.jsonl", listed(missing, SHOWN)
            log(WARNING, "%s lacks round %s of %s: bytes, seconds and curves leave them out", path, numbers, method)

    def lines(self, name: str) -> list[dict[str, Any]]:
        """The rows of ``metrics.jsonl`` or ``nodes.jsonl``, without an incomplete last line.

        Raises
        ------
        ValueError
            A line is damaged, or ``metrics.jsonl`` has a round of a method twice; the message names the file and line.
        """
        path = self.path / name
        rows, damaged = whole_lines(path, is_record)
        if damaged:
            raise ValueError(f"{path}, line {listed(damaged, SHOWN)}: damaged; {REMEDY}")
        if name == "metrics.jsonl":
            _check_once(path, rows)
        return rows

    def last_evaluation(self) -> list[dict[str, Any]]:
        """The rows of the nodes in the last evaluation; errors are those of :meth:`lines`."""
        evaluated = [row for row in self.lines("nodes.jsonl") if row["phase"] == "evaluate"]
        last = max((row["round"] for row in evaluated), default=0)
        return [row for row in evaluated if row["round"] == last]

    def rounds_before(self, method: str) -> int:
        """The number of rounds before the run, with which those of a run with ``start`` go on."""
        return int(read_object(self.path / STARTED).get("rounds", {}).get(method, 0))

    def time_before(self, method: str) -> float:
        """Simulated seconds before the run, with which the clock of a run with ``start`` goes on."""
        return float(read_object(self.path / STARTED).get("clock", {}).get(method, 0.0))

    def finished(self, method: str) -> bool:
        """Whether a method has completed all rounds."""
        return method in self.summary().get("methods", {})

    def summary(self) -> dict[str, Any]:
        """The content of ``summary.json``; empty before the first method has finished."""
        return read_object(self.path / "summary.json")

    def finish(self, config: Config, method: str, facts: Mapping[str, Any]) -> None:
        """Add a finished method to ``summary.json``."""
        so_far = self.summary()
        methods = so_far.get("methods", {}) | {method: dict(facts)}
        head = {"name": self.path.name, "task": config.run.task, "seed": config.run.seed}
        self._write("summary.json", json.dumps(head | {"methods": methods}, indent=2) + "\n")

    def begin_again(self) -> None:
        """Remove what came out of a finished run, so that it can be repeated; the ledger of releases stays."""
        for name in ("checkpoints", "nodes"):
            remove_folder(self.path / name)
        for name in (*_RECORDS, STARTED, "summary.json"):  # at last what says that the run has finished
            (self.path / name).unlink(missing_ok=True)

    def references(self) -> dict[str, dict[str, float]]:
        """The metrics of floors and ceilings by their names, from ``references.json``; empty without the file."""
        return read_object(self.path / "references.json")

    def save_references(self, references: Mapping[str, Mapping[str, float]]) -> None:
        """Write ``references.json``; the folder may be that of a run that is to begin."""
        self._write("references.json", json.dumps(references, indent=2) + "\n")

    def drop_references_without_run(self) -> None:
        """Delete ``references.json`` of a run that did not begin."""
        if not (self.path / "config.toml").exists():
            (self.path / "references.json").unlink(missing_ok=True)

    def _write_rows(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        write_whole(self.path / name, _as_lines(rows), sync=self.durable)

    def _write(self, name: str, text: str) -> None:
        write_whole(self.path / name, text.encode(), sync=self.durable)


def _check_resumable(path: Path, config: Config) -> None:
    if not (path / "config.toml").exists():
        raise ValueError(
            f"resume = true, but there is no run in {path}: set name and output-dir to those of the run to resume"
        )
    if changed := changed_keys(path, config):
        raise ValueError(
            f"the run in {path} has a different config; resume it with the same config, or choose another name and go "
            f"on from the finished run with start = {str(path)!r}, whose rounds come after it:\n  "
            + "\n  ".join(changed)
        )


def changed_keys(path: Path, config: Config) -> list[str]:
    """The keys in which a config differs from that of the run in a folder, each with both values.

    Keys that do not change the results are left out. Raises ``ValueError`` for a damaged ``config.toml``.
    """
    now = config.flat() | {"name": path.name}
    # Keys that did not exist when the run was started had their default value.
    before = defaults(now) | read_config(path)
    return [
        f"{key}: was {before.get(key)!r}, is {now.get(key)!r}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key) and key not in _FREE_KEYS and key.partition(".")[0] not in TRACKERS.names()
    ]


def _check_once(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    counts = Counter((row["method"], row["round"]) for row in rows)
    if twice := [key for key, count in counts.items() if count > 1]:
        rounds = listed((number for method, number in twice if method == twice[0][0]), SHOWN)
        raise ValueError(
            f"{path}: round {rounds} of {twice[0][0]} is recorded more than once, because two processes wrote to this "
            "folder at a time: its results cannot be trusted; start a new run with another name"
        )


def _as_lines(rows: Sequence[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty without the file. Raises ``ValueError`` with its name if it is damaged."""
    if not path.exists():
        return {}
    try:
        return dict(json.loads(path.read_bytes()))
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{path} is damaged ({error}): rename it and resume the run, which writes it again, or restore it"
        ) from error


def read_config(folder: Path) -> dict[str, Any]:
    """The content of ``config.toml``. Raises ``ValueError`` with the name of the file if it is damaged."""
    path = folder / "config.toml"
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} is damaged ({error}): restore the file, or start a new run with another name"
        ) from error


def read_label(path: Path) -> str:
    """The content of ``label``. Raises ``ValueError`` with the name of the file if it is missing, empty or damaged."""
    label = path.read_bytes().decode(errors="replace") if path.is_file() else ""
    if not label or "\N{REPLACEMENT CHARACTER}" in label:
        raise ValueError(
            f"{path} is missing or empty, or no text in UTF-8, and nodes keep their private state under its text: "
            "restore the file, or start a new run with another name"
        )
    return label


def _exists(path: Path) -> ValueError:
    return ValueError(
        f"{path} exists: choose another name, remove the folder, or set resume = true to continue the run"
    )


def _unwritable(path: Path, reason: object) -> ValueError:
    return ValueError(f"output-dir: {path} cannot be written ({reason}): choose another folder")
