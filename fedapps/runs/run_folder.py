"""The folder of a run: its config, a line per round, a line per node, checkpoints, a summary."""

import json
import os
import secrets
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tomli_w

from clients.files import told, write_whole
from strategies.round_records import RoundReport

from .checkpoints import DiskCheckpoints
from fedapps.config.keys import defaults
from fedapps.config.parsing import Config
from fedapps.config.run_config import RunConfig

#: Keys that may differ between a run and its resumption: they change nothing that is computed.
_FREE_KEYS = {"resume", "timeout", "in-flight", "node-wait", "output-dir", "cache-dir"}


def run_path(run: RunConfig, run_id: int) -> Path:
    """The folder of a run, the same on the server and on its simulated nodes."""
    parent = Path(run.output_dir or "~/fedapps/runs").expanduser().absolute()
    return parent / (run.name or f"{run.task}-{run_id}")


@dataclass
class RunFolder:
    """Everything a run leaves on disk. Create it with :meth:`open`."""

    path: Path
    label: str

    @classmethod
    def open(cls, config: Config, run_id: int) -> "RunFolder":
        """Make the folder of a new run, or open that of the run to resume. Raises what :meth:`check` raises."""
        path = cls.check(config, run_id)
        if config.run.resume:
            return cls(path, (path / "label").read_text())
        folder = cls(path, f"{path.name}-{secrets.token_hex(4)}")
        try:
            path.mkdir(parents=True)
            folder._write("label", folder.label)
            folder._write("config.toml", tomli_w.dumps(config.flat() | {"name": path.name}))  # last: now it can resume
        except OSError as error:
            raise _unwritable(path, error) from error
        return folder

    @classmethod
    def check(cls, config: Config, run_id: int) -> Path:
        """The folder that :meth:`open` would make or open; nothing is made yet.

        Raises ``ValueError`` when the folder exists and ``resume`` is not set, when there is nothing to resume, when
        the config differs from that of the run to resume or one of its checkpoints is damaged, and when the folder
        cannot be written.
        """
        path = run_path(config.run, run_id)
        if config.run.resume:
            _check_resumable(path, config)
            for method in config.methods:
                cls(path, "").checkpoints(method).latest()
        elif path.exists():
            raise ValueError(
                f"{path} exists: choose another name, remove the folder, or set resume = true to go on with it"
            )
        existing = next(folder for folder in (path, *path.parents) if folder.exists())
        if not existing.is_dir() or not os.access(existing, os.W_OK):
            raise _unwritable(path, f"{existing} is not a folder that can be written")
        return path

    def checkpoints(self, method: str) -> DiskCheckpoints:
        """Where the snapshots of one method are kept."""
        return DiskCheckpoints(self.path / "checkpoints" / method)

    def record(self, method: str, stage: str, report: RoundReport) -> None:
        """Append the lines of one round to ``metrics.jsonl`` and ``nodes.jsonl``."""
        facts = asdict(report)
        nodes = facts.pop("nodes")
        head = {"method": method, "round": report.round}
        self._append("nodes.jsonl", [head | node for node in nodes])
        self._append("metrics.jsonl", [{"method": method, "stage": stage} | facts])

    def drop_after(self, method: str, last_round: int) -> None:
        """Forget the lines of rounds after the last checkpoint: they are about to be written again."""
        for name in ("metrics.jsonl", "nodes.jsonl"):
            kept = [r for r in self.lines(name) if r["method"] != method or r["round"] <= last_round]
            if (self.path / name).exists():
                self._write(name, "".join(json.dumps(row) + "\n" for row in kept))

    def lines(self, name: str) -> list[dict[str, Any]]:
        """The complete lines of ``metrics.jsonl`` or ``nodes.jsonl``; a last line that was cut off is left out."""
        path = self.path / name
        if not path.exists():
            return []
        text = path.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def finished(self, method: str) -> bool:
        """Whether a method has run to its end."""
        return method in self.summary().get("methods", {})

    def summary(self) -> dict[str, Any]:
        """The summary so far, empty before the first method has ended."""
        path = self.path / "summary.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def finish(self, config: Config, method: str, facts: Mapping[str, Any]) -> None:
        """Add a method that has ended to ``summary.json``."""
        so_far = self.summary()
        methods = so_far.get("methods", {}) | {method: dict(facts)}
        head = {"name": self.path.name, "task": config.run.task, "seed": config.run.seed}
        self._write("summary.json", json.dumps(head | {"methods": methods}, indent=2) + "\n")

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
            f"resume = true, but there is no run in {path}: give the name and output-dir of the run to resume"
        )
    now = config.flat() | {"name": path.name}
    # What a key that is newer than the run would have said then is its default.
    newer = {key: value for key, value in defaults().items() if key in now}
    before = newer | tomllib.loads((path / "config.toml").read_text())
    changed = [
        f"{key}: was {before.get(key)!r}, is {now.get(key)!r}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key) and key not in _FREE_KEYS
    ]
    if changed:
        raise ValueError(
            f"the run in {path} has another config; resume it with its own, or choose another name:\n  "
            + "\n  ".join(changed)
        )


def _unwritable(path: Path, reason: object) -> ValueError:
    return ValueError(f"output-dir: {path} cannot be written ({reason}): choose another folder")
