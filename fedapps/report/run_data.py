"""Read a run folder as typed, immutable data. No other module of the report knows the names of its files."""

from __future__ import annotations

import csv
import math
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedapps.base.atomic import path_name
from fedapps.base.text_files import flattened
from fedapps.registry.expressions import read_expressions

from .json_files import Entry, ReportError, read_lines, read_object
from .parsing import read_comparison, read_methods, read_node, read_round, read_tables
from .records import Comparison, MethodSummary, Metrics, NodeRecord, RoundRecord

#: The file of a run in simulated time with the device of each node, in the form that the key clock-devices takes.
DEVICES = "devices.csv"


@dataclass(frozen=True)
class RunData:
    """The content of a run folder.

    Attributes
    ----------
    name, task : str
        Name and task of the run.
    config : mapping
        The flat run config.
    methods : tuple of str
        Methods with results, in the order of the config.
    rounds : tuple of RoundRecord
        Rounds of all methods.
    nodes : tuple of NodeRecord
        Reports of the nodes.
    summary : mapping or None
        Results of the finished methods; None before the first one has finished.
    comparison : Comparison or None
        The comparison, if the folder holds one.
    references : mapping
        Metrics of floors and ceilings by their names; empty for most tasks.
    traces : mapping of (method, node) to Path
        The ``traces.safetensors`` files.
    notes : tuple of str
        Notes on skipped content.
    speeds : mapping of str to float
        Seconds of a local step on each node's device; empty without simulated time.
    """

    name: str
    task: str
    config: Mapping[str, Any]
    methods: tuple[str, ...]
    rounds: tuple[RoundRecord, ...]
    nodes: tuple[NodeRecord, ...]
    summary: Mapping[str, MethodSummary] | None
    comparison: Comparison | None
    references: Mapping[str, Metrics]
    traces: Mapping[tuple[str, str], Path]
    notes: tuple[str, ...]
    speeds: Mapping[str, float] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Whether every method has finished. Comparisons contain only finished runs."""
        return bool(self.comparison) or (self.summary is not None and set(self.methods) <= set(self.summary))

    def of(self, method: str) -> list[RoundRecord]:
        """The rounds of a method, in order."""
        return [record for record in self.rounds if record.method == method]


def read_run(folder: Path) -> RunData:
    """Read a run folder.

    Parameters
    ----------
    folder : Path
        Contains ``config.toml`` and ``metrics.jsonl``, or ``compare.json``; all other files are optional.

    Raises
    ------
    ReportError
        If the folder or a required file is missing, or a file is malformed.
    """
    if not folder.is_dir():
        raise ReportError(f"{folder}: no such run folder")
    compared = read_object(folder / "compare.json")
    comparison = read_comparison(compared)
    if comparison is None:
        for needed in ("config.toml", "metrics.jsonl"):
            if not (folder / needed).exists():
                raise ReportError(f"{folder}: no {needed}; a run folder contains config.toml and metrics.jsonl")
    config = _config(folder / "config.toml")
    summary = read_object(folder / "summary.json")
    references = read_object(folder / "references.json")
    notes = []
    records: dict[str, list[Entry]] = {}
    for name in ("metrics.jsonl", "nodes.jsonl"):
        records[name], torn = read_lines(folder / name)
        if torn:
            notes.append(f"The last line of {name} is incomplete and was skipped.")
    notes += [
        f"Damaged lines were left out; {copy.name} has them." for copy in sorted(folder.glob("*.jsonl.damaged-*"))
    ]
    rounds = [read_round(entry) for entry in records["metrics.jsonl"]]
    _check_once(rounds)
    nodes = {  # in asynchronous runs, whose replies have seconds, a node can reply several times before a step
        (n.method, n.phase, n.round, n.node, place if math.isfinite(n.seconds) else 0): n
        for place, n in enumerate(map(read_node, records["nodes.jsonl"]))
    }
    methods = read_methods(summary) if summary else None
    node_of = {path_name(key): key for _, _, _, key, _ in nodes}
    return RunData(
        name=str(config.get("name", "") or (comparison.recipe if comparison else "") or folder.name),
        task=compared.text("task", "") if compared else str(config.get("task", "")),
        config=config,
        methods=_in_order(config, [r.method for r in rounds], methods or {}, comparison),
        rounds=tuple(rounds),
        nodes=tuple(nodes.values()),
        summary=methods,
        comparison=comparison,
        references=read_tables(references) if references else {},
        traces={
            (path.parent.parent.name, node_of.get(path.parent.name, path.parent.name)): path
            for path in sorted((folder / "nodes").glob("*/*/*/traces.safetensors"))
        },
        notes=tuple(notes),
        speeds=read_speeds(folder / DEVICES),
    )


def read_speeds(path: Path) -> dict[str, float]:
    """Seconds of a local step by node, from the file of devices; empty without the file.

    Raises
    ------
    ReportError
        The file is malformed.
    """
    if not path.exists():
        return {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return {row["device"]: float(row["speed"]) for row in csv.DictReader(file)}
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise ReportError(f"{path.name}: not a CSV file with the columns device and speed: {error}") from error


def _check_once(rounds: Iterable[RoundRecord]) -> None:
    for (method, number), count in Counter((record.method, record.round) for record in rounds).items():
        if count > 1:
            raise ReportError(
                f"metrics.jsonl: round {number} of {method} is recorded {count} times, because several processes wrote "
                "to this folder at a time: its results cannot be trusted"
            )


def _in_order(
    config: Mapping[str, Any], ran: Iterable[str], summed: Iterable[str], comparison: Comparison | None
) -> tuple[str, ...]:
    """The methods with results: first those in the config, in its order, then the others."""
    compared = [method for part in (comparison.parts.values() if comparison else ()) for method in part.table]
    found = list(dict.fromkeys([*ran, *summed, *compared]))
    named = configured_methods(config)
    return tuple([name for name in named if name in found] + [name for name in found if name not in named])


def _config(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        return flattened(tomllib.loads(path.read_text(encoding="utf-8")))
    except RecursionError:
        raise ReportError(f"{path.name}: not readable: nested too deeply") from None
    except ValueError as error:  # not TOML, not UTF-8, or a number with thousands of digits
        raise ReportError(f"{path.name}: not TOML: {error}") from error


def configured_methods(config: Mapping[str, object]) -> list[str]:
    """The labels of the methods that a run config names; a malformed one is left out."""
    expressions, _ = read_expressions(str(config.get("methods", "")))
    return [expression.label for expression in expressions]
