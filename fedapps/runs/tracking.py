"""What is kept of each round of a running method: its records in the run folder, and those of the trackers.

Trackers get every round once, and none of them can stop the run.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from logging import WARNING
from pathlib import Path
from typing import Any

from flwr.common import log

from fedapps.config.parsing import Config
from fedapps.config.run_config import RunConfig
from fedapps.strategies import Callback, RoundReport, Run
from fedapps.strategies.checks import truncate
from fedapps.trackers import TrackedRecord, TrackedRun, Tracker

from .run_folder import RunFolder

_LONGEST = 60
_COSTS = ("replies", "bytes_down", "bytes_up", "clock", "seconds")


STAGES = ("given data", "collected data")


def stage_of(run: RunConfig, server_round: int, num_stages: int = 1, begun: int = 0) -> int:
    """The stage of a round, counted from 0.

    Stages of the data share the rounds of the run equally, which come after ``begun`` others; without them stage 1
    begins after nodes have collected data.
    """
    if num_stages > 1:
        return (server_round - begun - 1) * num_stages // run.rounds
    return int(0 < run.collect_after < server_round)


@dataclass
class Recorder(Callback):
    """Records each round in the run folder, if no other server has taken it over.

    Parameters
    ----------
    folder : RunFolder
    config : Config
    method : str
        The label of the method.
    num_stages : int
        ≥ 1, of the run.
    """

    folder: RunFolder
    config: Config
    method: str
    num_stages: int

    def before_training(self, run: Run, server_round: int) -> None:
        self.folder.check_owner()

    def after_round(self, run: Run, report: RoundReport) -> None:
        row = report if self.config.run.timings else replace(report, timings={})
        stage = stage_of(self.config.run, report.round, self.num_stages, self.config.begun.get(self.method, 0))
        label = f"stage {stage + 1} of {self.num_stages}" if self.num_stages > 1 else STAGES[stage]
        self.folder.record(self.method, label, row)


class Tracking(Callback):
    """The records that the trackers of a run keep of one method.

    A tracker that fails is reported in the log, and gets all rounds that it misses when it works again: in the next
    round, or when the run is resumed.

    Parameters
    ----------
    config : Config
    folder : RunFolder
        Its records are the source of the rounds that a tracker misses.
    method : str
        The label of the method.
    """

    def __init__(self, config: Config, folder: RunFolder, method: str) -> None:
        self.method = method
        self._folder = folder
        run_id = hashlib.sha256(f"{folder.label} {method}".encode()).hexdigest()[:16]
        flat = config.flat() | {"name": folder.path.name}
        run = TrackedRun(folder.path.name, method, config.run.task, run_id, flat, folder.path)
        self._trackers = [_Followed(tracker, run) for tracker in config.trackers.values()]

    def begin(self, run: Run) -> None:
        """Open the records and add the rounds that they miss: those of a run that is resumed."""
        self._each(self._catch_up)

    def after_round(self, run: Run, report: RoundReport) -> None:
        """Add a round that the folder has recorded."""
        if not self._trackers:
            return
        row = asdict(report)
        values = round_values(row, row["nodes"])

        def add(tracker: "_Followed") -> None:
            if tracker.record.last_round == report.round - 1:
                tracker.record.log(report.round, values)
            else:
                self._catch_up(tracker)

        self._each(add)

    def finish(self, final: Mapping[str, Any]) -> None:
        """Add the final metrics of the method."""
        values = dict(_numbers(final.items(), ""))

        def end(tracker: "_Followed") -> None:
            self._catch_up(tracker)
            tracker.record.finish(values)

        self._each(end)

    def register(self, registry: str, alias: str, server_round: int) -> None:
        """Give the model after a round an alias in the registries of models; see :meth:`TrackedRecord.register`."""
        model = self._folder.checkpoints(self.method).file_of(server_round)
        self._each(lambda tracker: tracker.record.register(plain(registry), alias, server_round, model))

    def report(self, path: Path) -> None:
        """Add the report of the run."""
        self._each(lambda tracker: tracker.record.add_report(path))

    def close(self) -> None:
        """Close the records."""
        self._each(_Followed.close)

    def _catch_up(self, tracker: "_Followed") -> None:
        """Add all recorded rounds that a tracker does not have."""
        last = tracker.record.last_round
        missing = [
            row for row in self._folder.lines("metrics.jsonl") if row["method"] == self.method and row["round"] > last
        ]
        if not missing:
            return
        nodes: dict[int, list[dict[str, Any]]] = {}
        for row in self._folder.lines("nodes.jsonl"):
            if row["method"] == self.method:
                nodes.setdefault(row["round"], []).append(row)
        for row in missing:
            tracker.record.log(row["round"], round_values(row, nodes.get(row["round"], ())))

    def _each(self, action: "Callable[[_Followed], None]") -> None:
        for tracker in self._trackers:
            try:
                action(tracker)
            except Exception as error:  # whatever a service raises, the run is worth more than its record
                reason = truncate(f"{type(error).__name__}: {error}", 500)
                log(
                    WARNING,
                    "tracker %s, %s: %s; the run goes on, and the tracker is tried again",
                    tracker.name,
                    self.method,
                    reason,
                )


class _Followed:
    """A tracker with its record, which is opened when it is first needed."""

    def __init__(self, tracker: Tracker, run: TrackedRun) -> None:
        self.name = tracker.name
        self._tracker, self._run = tracker, run
        self._record: TrackedRecord | None = None

    @property
    def record(self) -> TrackedRecord:
        self._record = self._record or self._tracker.open(self._run)
        return self._record

    def close(self) -> None:
        if self._record:
            self._record.close()


def round_values(row: Mapping[str, Any], nodes: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """The numbers of a round by the names that trackers get.

    Parameters
    ----------
    row : mapping
        A line of ``metrics.jsonl``.
    nodes : iterable of mappings
        The lines of ``nodes.jsonl`` of this round.

    Returns
    -------
    dict
        ``train/METRIC`` and ``evaluate/METRIC``, ``nodes/NODE/PHASE/METRIC``, and the costs of the round as
        ``round/refused``, ``round/replies``, ``round/bytes_down``, ``round/bytes_up``, in simulated time
        ``round/clock``, and last ``round/seconds``. Values that are no single number are left out.
    """
    values = {**dict(_numbers(row["train"].items(), "train/")), **dict(_numbers(row["evaluate"].items(), "evaluate/"))}
    for node in nodes:
        values |= _numbers(node["metrics"].items(), f"nodes/{plain(node['node'])}/{plain(node['phase'])}/")
    values["round/refused"] = float(len(row["refused"]))
    return values | {f"round/{cost}": float(row[cost]) for cost in _COSTS if row.get(cost) is not None}


def plain(name: str) -> str:
    """A name without the characters that some tracker refuses or replaces.

    Letters of ASCII, digits and ``_ - .`` stay. A name with others, or of more than 60 characters, is changed and ends
    in eight digits of its SHA-256, so that different names stay different.
    """
    changed = re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:_LONGEST]
    if changed == name and name.strip("."):
        return name
    return f"{changed}-{hashlib.sha256(name.encode(errors='surrogatepass')).hexdigest()[:8]}"


def _numbers(metrics: Iterable[tuple[str, Any]], prefix: str) -> Iterator[tuple[str, float]]:
    """The single numbers among metrics."""
    for name, value in metrics:
        if isinstance(value, (int, float)):
            yield prefix + plain(name), float(value)
