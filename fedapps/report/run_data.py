"""Read a run folder as typed, immutable data. No other module of the report knows the names of its files."""

from __future__ import annotations

import csv
import math
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedapps.base.atomic import path_name
from fedapps.base.errors import ReportError
from fedapps.base.report.metrics import Metric, describe, main_metric
from fedapps.base.text_files import flattened, shown
from fedapps.registry.expressions import read_expressions
from fedapps.registry.tasks import task_class, task_names
from fedapps.runs.comparisons import Comparison
from fedapps.runs.records import (
    MethodSummary,
    Metrics,
    NodeRecord,
    RoundRecord,
    RunSummary,
    Started,
    read_json,
    read_lines,
)
from fedapps.runs.run_folder import STARTED

#: The file of a run in simulated time with the device of each node, in the form that the key clock-devices takes.
DEVICES = "devices.csv"
#: Parts of the fleet of equal size, by the speed of the devices.
PARTS = 10


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
    summary : mapping
        Results of the finished methods.
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
    labels : mapping of str to str
        The labels of methods with a display name, by this name, which stands in all other fields.
    begun : mapping of str to int
        The number of rounds before the run, with which those of ``rounds`` go on, by method; empty for a new run.
    since : mapping of str to float
        Simulated seconds before the run, by method; empty for a new run.
    """

    name: str
    task: str
    config: Mapping[str, Any]
    methods: tuple[str, ...]
    rounds: tuple[RoundRecord, ...]
    nodes: tuple[NodeRecord, ...]
    summary: Mapping[str, MethodSummary]
    comparison: Comparison | None
    references: Mapping[str, Metrics]
    traces: Mapping[tuple[str, str], Path]
    notes: tuple[str, ...]
    speeds: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    begun: Mapping[str, int] = field(default_factory=dict)
    since: Mapping[str, float] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Whether every method has finished. Comparisons contain only finished runs."""
        return bool(self.comparison) or (bool(self.summary) and set(self.methods) <= set(self.summary))

    def of(self, method: str) -> list[RoundRecord]:
        """The rounds of a method, in order."""
        return [record for record in self.rounds if record.method == method]

    def leading_metric(self) -> Metric | None:
        """The main metric of the run; None if nothing was evaluated."""
        names = [name for record in self.rounds for name in record.evaluate]
        names += [name for summary in self.summary.values() for name in summary.final]
        parts = self.comparison.parts.values() if self.comparison else ()
        names += [name for part in parts for row in part.table.values() for name in row]
        return _main(names)

    def leading_in_rounds(self) -> Metric | None:
        """The main metric among those evaluated in rounds. It differs if the main metric exists only in the summary."""
        return _main(name for record in self.rounds for name in record.evaluate)

    def main_metrics(self) -> list[str]:
        """The metrics that were evaluated in rounds and matter most: the main one, then those of the task."""
        leading = self.leading_in_rounds()
        evaluated = {name for record in self.rounds for name in record.evaluate}
        of_task = (name for name in self.headline if name in evaluated)
        return list(dict.fromkeys([*([leading.name] if leading else []), *of_task]))

    @property
    def headline(self) -> tuple[str, ...]:
        """The main metrics of the task; none for a task that is not installed."""
        return task_class(self.task).headline if self.task in task_names() else ()

    @property
    def seed_metrics(self) -> dict[str, dict[int, Metrics]]:
        """The final metrics of the runs of a comparison by method and seed; empty if a key is varied, and for a run."""
        return self.comparison.runs if self.comparison else {}

    def final_metrics(self) -> dict[str, Metrics]:
        """The final metrics of each method: from the summary, or else from the last evaluation."""
        final: dict[str, Metrics] = {}
        for method in self.methods:
            evaluated = [record.evaluate for record in self.of(method) if record.evaluate]
            summary = self.summary.get(method)
            values = summary.final if summary and summary.final else evaluated[-1] if evaluated else {}
            if values:
                final[method] = values
        return final

    def last_evaluations(self) -> dict[str, dict[str, NodeRecord]]:
        """The last evaluation of each node, by method and node."""
        last: dict[str, dict[str, NodeRecord]] = {}
        for record in self.nodes:
            if record.phase != "evaluate" or record.method not in self.methods:
                continue
            seen = last.setdefault(record.method, {})
            if record.node not in seen or seen[record.node].round <= record.round:
                seen[record.node] = record
        return {method: last[method] for method in self.methods if method in last}

    def curve(self, method: str, value: Callable[[RoundRecord], float | None]) -> tuple[list[int], list[float]]:
        """Rounds and values. Rounds without the value are skipped; values that are not finite become NaN."""
        points = [(record.round, number) for record in self.of(method) if (number := value(record)) is not None]
        return [x for x, _ in points], [y if math.isfinite(y) else math.nan for _, y in points]


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
    comparison = Comparison.read(folder)
    if comparison is None:
        for needed in ("config.toml", "metrics.jsonl"):
            if not (folder / needed).exists():
                raise ReportError(f"{folder}: no {needed}; a run folder contains config.toml and metrics.jsonl")
    config = _config(folder / "config.toml")
    summary = read_json(folder / "summary.json", RunSummary) or RunSummary()
    started = read_json(folder / STARTED, Started) or Started()
    rounds, is_torn = read_lines(folder / "metrics.jsonl", RoundRecord)
    nodes, are_torn = read_lines(folder / "nodes.jsonl", NodeRecord)
    _check_once(folder / "metrics.jsonl", rounds)
    names = {one.label: one.shown for one in read_expressions(str(config.get("methods", "")))[0] if one.display}
    rounds = [replace(record, method=names.get(record.method, record.method)) for record in rounds]
    nodes = [replace(record, method=names.get(record.method, record.method)) for record in nodes]
    summaries = {names.get(label, label): of for label, of in summary.methods.items()}
    torn = [name for name, flag in (("metrics.jsonl", is_torn), ("nodes.jsonl", are_torn)) if flag]
    copies = sorted(folder.glob("*.jsonl.damaged-*"))
    by_place = {  # in asynchronous runs, whose replies have seconds, a node can reply several times before a step
        (n.method, n.phase, n.round, n.node, index if math.isfinite(n.seconds) else 0): n
        for index, n in enumerate(nodes)
    }
    keys = {path_name(node.node): node.node for node in nodes}
    return RunData(
        name=str(config.get("name", "") or (comparison.recipe if comparison else "") or folder.name),
        task=comparison.task if comparison else str(config.get("task", "")),
        config=config,
        methods=_in_order(config, [r.method for r in rounds], summaries, comparison),
        rounds=tuple(rounds),
        nodes=tuple(by_place.values()),
        summary=summaries,
        comparison=comparison,
        references=read_json(folder / "references.json", dict[str, Metrics]) or {},
        traces={
            (names.get(label := path.parents[1].name, label), keys.get(path.parent.name, path.parent.name)): path
            for path in sorted((folder / "nodes").glob("*/*/*/traces.safetensors"))
        },
        notes=(
            *(f"The last line of {name} is incomplete and was skipped." for name in torn),
            *(f"Damaged lines were left out; {copy.name} has them." for copy in copies),
        ),
        speeds=read_speeds(folder / DEVICES),
        labels=comparison.labels if comparison else {name: label for label, name in names.items()},
        begun={names.get(label, label): count for label, count in started.rounds.items()},
        since={names.get(label, label): seconds for label, seconds in started.clock.items()},
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
        raise ReportError(f"{path}: not a CSV file with the columns device and speed: {error}") from error


def slowest(speeds: Mapping[str, float]) -> list[str]:
    """The tenth of the nodes, at least one, whose devices take most seconds for a step; the slowest first."""
    return by_speed(speeds)[::-1][: math.ceil(len(speeds) / PARTS)]


def by_speed(speeds: Mapping[str, float]) -> list[str]:
    """The nodes in the order of their devices' seconds for a step; the fastest first."""
    return sorted(speeds, key=lambda node: (speeds[node], node))


def configured_methods(config: Mapping[str, object]) -> list[str]:
    """The methods that a run config names, as reports show them; a malformed one is left out."""
    expressions, _ = read_expressions(str(config.get("methods", "")))
    return [expression.shown for expression in expressions]


def _check_once(path: Path, rounds: Iterable[RoundRecord]) -> None:
    for (method, number), count in Counter((record.method, record.round) for record in rounds).items():
        if count > 1:
            raise ReportError(
                f"{path}: round {number} of {method} is recorded {count} times, because several processes wrote to "
                "this folder at a time: its results cannot be trusted"
            )


def _in_order(
    config: Mapping[str, Any], ran: Iterable[str], summed: Iterable[str], comparison: Comparison | None
) -> tuple[str, ...]:
    """The methods with results: first those in the config, in its order, then the others."""
    compared = [method for part in (comparison.parts.values() if comparison else ()) for method in part.table]
    known = list(dict.fromkeys([*ran, *summed, *compared]))
    named = configured_methods(config)
    return tuple([name for name in named if name in known] + [name for name in known if name not in named])


def _config(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        config = flattened(tomllib.loads(path.read_text(encoding="utf-8")))
    except RecursionError:
        raise ReportError(f"{path}: not readable: nested too deeply") from None
    except ValueError as error:  # not TOML, not UTF-8, or a number with thousands of digits
        raise ReportError(f"{path}: not TOML: {error}") from error
    rounds = config.get("rounds", 1)
    if type(rounds) is not int or rounds < 1:
        raise ReportError(f"{path}: rounds = {shown(rounds)}: must be a whole number at least 1; restore the file")
    return config


def _main(names: Iterable[str]) -> Metric | None:
    name = main_metric(names)
    return describe(name) if name else None
