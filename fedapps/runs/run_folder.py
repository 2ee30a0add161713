"""The run folder: config, metrics of rounds and nodes, checkpoints and summary."""

import json
import os
import secrets
import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tomli_w

from fedapps.config.keys import defaults
from fedapps.config.parsing import Config
from fedapps.config.trackers import TRACKERS
from fedapps.sim.files import path_name, told, write_whole
from fedapps.strategies import RoundReport

from .checkpoints import DiskCheckpoints
from .releases import ReleaseLedger

#: Keys that may differ when a run is resumed, because they do not change the results.
_FREE_KEYS = {"resume", "timeout", "in-flight", "node-wait", "output-dir", "cache-dir", "trackers", "timings"}


def begun(path: Path) -> bool:
    """Whether the run in a folder can be resumed. A folder without a config has no trained model and is deleted."""
    resumable = (path / "config.toml").exists()
    if path.exists() and not resumable:
        shutil.rmtree(path)
    return resumable


@dataclass
class RunFolder:
    """The folder of a run. Create it with :meth:`open`.

    Attributes
    ----------
    path : Path
        The folder.
    label : str
        Unique name of the run; nodes store their private state under it.
    """

    path: Path
    label: str

    @classmethod
    def open(cls, config: Config, run_id: int) -> "RunFolder":
        """Create the folder of a new run, or open the folder of the run to resume.

        Raises
        ------
        ValueError
            As :meth:`check`.
        """
        path = cls.check(config, run_id)
        if config.run.resume:
            return cls(path, (path / "label").read_text())
        folder = cls(path, f"{path.name}-{secrets.token_hex(4)}")
        try:
            path.mkdir(parents=True)
            folder._write("label", folder.label)
            folder._write("config.toml", tomli_w.dumps(config.flat() | {"name": path.name}))  # last: makes it resumable
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
            If the folder is not writable; if it exists and ``resume`` is false; or if ``resume`` is true and there is
            no run to resume, its config differs, a checkpoint is damaged, or the ledger of releases is incomplete.
        """
        path = config.run.folder(run_id)
        if config.run.resume:
            _check_resumable(path, config)
            for method in config.methods:
                latest = cls(path, "").checkpoints(method).latest()
                if latest and config.run.dp != "none":
                    cls(path, "").releases(method).check(latest.round)
        elif path.exists():
            raise ValueError(
                f"{path} exists: choose another name, remove the folder, or set resume = true to continue the run"
            )
        existing = next(folder for folder in (path, *path.parents) if folder.exists())
        if not existing.is_dir() or not os.access(existing, os.W_OK):
            raise _unwritable(path, f"{existing} is not a writable folder")
        return path

    def checkpoints(self, method: str) -> DiskCheckpoints:
        """The checkpoints of one method."""
        return DiskCheckpoints(self.path / "checkpoints" / path_name(method))

    def releases(self, method: str) -> ReleaseLedger:
        """What the nodes were asked to release for one method, of which privacy accounting counts every line."""
        return ReleaseLedger(self.path / "releases.jsonl", method)

    def record(self, method: str, stage: str, report: RoundReport) -> None:
        """Append one round to ``metrics.jsonl`` and ``nodes.jsonl``."""
        facts = asdict(report)
        nodes = facts.pop("nodes")
        for timed in (facts, *nodes):
            if not timed["timings"]:
                del timed["timings"]
        head = {"method": method, "round": report.round}
        self._append("nodes.jsonl", [head | node for node in nodes])
        self._append("metrics.jsonl", [{"method": method, "stage": stage} | facts])

    def drop_after(self, method: str, last_round: int) -> None:
        """Delete the lines of all rounds after ``last_round``: a resumed run repeats these rounds."""
        for name in ("metrics.jsonl", "nodes.jsonl"):
            kept = [r for r in self.lines(name) if r["method"] != method or r["round"] <= last_round]
            if (self.path / name).exists():
                self._write(name, "".join(json.dumps(row) + "\n" for row in kept))

    def lines(self, name: str) -> list[dict[str, Any]]:
        """The rows of ``metrics.jsonl`` or ``nodes.jsonl``, without an incomplete last line."""
        path = self.path / name
        if not path.exists():
            return []
        text = path.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def finished(self, method: str) -> bool:
        """Whether a method has completed all rounds."""
        return method in self.summary().get("methods", {})

    def summary(self) -> dict[str, Any]:
        """The content of ``summary.json``; empty before the first method has finished."""
        path = self.path / "summary.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def finish(self, config: Config, method: str, facts: Mapping[str, Any]) -> None:
        """Add a finished method to ``summary.json``."""
        so_far = self.summary()
        methods = so_far.get("methods", {}) | {method: dict(facts)}
        head = {"name": self.path.name, "task": config.run.task, "seed": config.run.seed}
        self._write("summary.json", json.dumps(head | {"methods": methods}, indent=2) + "\n")

    def references(self) -> dict[str, dict[str, float]]:
        """The metrics of floors and ceilings by their names, from ``references.json``; empty without the file."""
        path = self.path / "references.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def save_references(self, references: Mapping[str, Mapping[str, float]]) -> None:
        """Write ``references.json``."""
        self._write("references.json", json.dumps(references, indent=2) + "\n")

    def _append(self, name: str, rows: list[dict[str, Any]]) -> None:
        path = self.path / name
        with told(path), path.open("a") as lines:
            lines.write("".join(json.dumps(row) + "\n" for row in rows))
            lines.flush()
            os.fsync(lines.fileno())

    def _write(self, name: str, text: str) -> None:
        write_whole(self.path / name, text.encode())


def _check_resumable(path: Path, config: Config) -> None:
    if not (path / "config.toml").exists():
        raise ValueError(
            f"resume = true, but there is no run in {path}: set name and output-dir to those of the run to resume"
        )
    now = config.flat() | {"name": path.name}
    # Keys that did not exist when the run was started had their default value.
    default = {key: value for key, value in defaults().items() if key in now}
    before = default | tomllib.loads((path / "config.toml").read_text())
    changed = [
        f"{key}: was {before.get(key)!r}, is {now.get(key)!r}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key) and key not in _FREE_KEYS and key.partition(".")[0] not in TRACKERS.names()
    ]
    if changed:
        raise ValueError(
            f"the run in {path} has a different config; resume it with the same config, or choose another name:\n  "
            + "\n  ".join(changed)
        )


def _unwritable(path: Path, reason: object) -> ValueError:
    return ValueError(f"output-dir: {path} cannot be written ({reason}): choose another folder")
