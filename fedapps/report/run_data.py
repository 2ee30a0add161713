"""A run folder as typed, immutable data: the one place that knows the names of its files."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .json_files import Entry, ReportError, read_lines, read_object
from .parsing import read_comparison, read_methods, read_node, read_round
from .records import Comparison, MethodSummary, NodeRecord, RoundRecord


@dataclass(frozen=True)
class RunData:
    """Everything a report can show.

    `summary` holds the methods that have finished, and is None before the first one; `traces` maps method and
    node to a file of paths; `notes` says what was left out while reading.
    """

    name: str
    task: str
    config: Mapping[str, Any]
    methods: tuple[str, ...]
    rounds: tuple[RoundRecord, ...]
    nodes: tuple[NodeRecord, ...]
    summary: Mapping[str, MethodSummary] | None
    comparison: Comparison | None
    traces: Mapping[tuple[str, str], Path]
    notes: tuple[str, ...]

    @property
    def finished(self) -> bool:
        """Whether every method has run to its end; a comparison is written by runs that have."""
        return bool(self.comparison) or (self.summary is not None and set(self.methods) <= set(self.summary))

    def of(self, method: str) -> list[RoundRecord]:
        """The rounds of a method in order."""
        return [record for record in self.rounds if record.method == method]


def read_run(folder: Path) -> RunData:
    """Read a run folder.

    Args:
        folder: holds `config.toml` and `metrics.jsonl`, or `compare.json`; all else is optional.

    Raises:
        ReportError: the folder or a needed file is missing, or a file is malformed.
    """
    if not folder.is_dir():
        raise ReportError(f"{folder}: no such run folder")
    comparison = read_comparison(read_object(folder / "compare.json"))
    if comparison is None:
        for needed in ("config.toml", "metrics.jsonl"):
            if not (folder / needed).exists():
                raise ReportError(f"{folder}: no {needed}; a run folder holds config.toml and metrics.jsonl")
    config = _config(folder / "config.toml")
    summary = read_object(folder / "summary.json")
    notes = []
    records: dict[str, list[Entry]] = {}
    for name in ("metrics.jsonl", "nodes.jsonl"):
        records[name], torn = read_lines(folder / name)
        if torn:
            notes.append(f"The last line of {name} was cut while it was written and is left out.")
    # A resumed run may write a round again: the newest line stands.
    rounds = {(r.method, r.stage, r.round): r for r in map(read_round, records["metrics.jsonl"])}
    nodes = {(n.method, n.phase, n.round, n.node): n for n in map(read_node, records["nodes.jsonl"])}
    methods = read_methods(summary) if summary else None
    return RunData(
        name=str(config.get("name", "") or (comparison.recipe if comparison else "") or folder.name),
        task=str(config.get("task", "")),
        config=config,
        methods=_in_order(config, [r.method for r in rounds.values()], methods or {}, comparison),
        rounds=tuple(rounds.values()),
        nodes=tuple(nodes.values()),
        summary=methods,
        comparison=comparison,
        traces={
            (path.parent.parent.name, path.parent.name): path
            for path in sorted((folder / "nodes").glob("*/*/*/traces.safetensors"))
        },
        notes=tuple(notes),
    )


def _in_order(
    config: Mapping[str, Any], ran: Iterable[str], summed: Iterable[str], comparison: Comparison | None
) -> tuple[str, ...]:
    """The methods that have something to show: in the order the config names them, then as they appear."""
    compared = [method for part in (comparison.parts.values() if comparison else ()) for method in part.table]
    found = list(dict.fromkeys([*ran, *summed, *compared]))
    named = [name.strip() for name in str(config.get("methods", "")).split(",")]
    return tuple([name for name in named if name in found] + [name for name in found if name not in named])


def _config(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        return _flat(tomllib.loads(path.read_text(encoding="utf-8")))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ReportError(f"{path.name}: not TOML: {error}") from error


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat
