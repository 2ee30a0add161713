"""The state of every run below a folder and of its nodes, as plain values for the page."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from fedapps.base.errors import headline_of
from fedapps.base.report.metrics import plot_styles
from fedapps.report import ReportError, RunData, read_run
from fedapps.report.evaluated import PairedCurve, notes, paired_curve
from fedapps.report.generations import is_registry
from fedapps.report.run_data import configured_methods
from fedapps.runs.owner import OWNER_FILE, has_owner
from fedapps.strategies.checks import LARGEST_COUNT

from .fleets import FleetStatus, read_fleet_status

_MOST_REASONS = 50
#: What the board reads of a run, and its report.
_FILES = (
    *("config.toml", "metrics.jsonl", "nodes.jsonl", "summary.json"),
    *("report.html", "compare.json", "references.json", "started.json"),
)
#: Levels of folders that are searched: a run, one of a comparison, one of a comparison in a folder of its own.
_LEVELS = 3
_MOST_POINTS = 400
_MOST_NODES = 200
#: A run counts as running until so many times as long as one of its last rounds have passed without a new one.
_PATIENCE = 5
_LEAST_PATIENCE = 60.0
_RECENT_ROUNDS = 5
#: Seconds that a process may take from writing the config to owning the folder.
_START = 3.0


@dataclass(frozen=True)
class NodeStatus:
    """What the server knows of a node: its last accepted reply, and its refused replies under all methods.

    Only the end of a round shows which nodes did not reply: a node that dies is seen to be missing after the next round
    that evaluates.

    Attributes
    ----------
    name : str
        The key of the node.
    method : str
        The method of its last reply; empty if there is none.
    round : int
        The round of its last reply; of the last refusal if there is no reply.
    examples : float
        The number of examples of its last reply.
    bytes : float
        The size of its last reply.
    seconds : float
        How long it worked on its last reply; 0 if the run does not record timings.
    since : float
        When the round of its last reply ended, in seconds since the epoch; 0 if there is no reply. It is the time of
        the last round less the seconds of those that followed.
    missed : int
        The number of rounds that have ended since without an accepted reply of it.
    missing : bool
        Whether one of these rounds evaluated all connected nodes, and no reply of it was refused since.
    refused : int
        The number of refused replies.
    """

    name: str
    method: str
    round: int
    examples: float
    bytes: float
    seconds: float
    since: float
    missed: int
    missing: bool
    refused: int


@dataclass(frozen=True)
class RefusalStatus:
    """Why replies were refused.

    Attributes
    ----------
    reason : str
        The line of the reason that says most.
    whole : str
        The whole reason, such as a traceback.
    count : int
        How often it was given.
    nodes : list of str
        To whose replies, the most frequent first.
    """

    reason: str
    whole: str
    count: int
    nodes: list[str]


def nodes_of(run: RunData, changed: float) -> list[NodeStatus]:
    """All nodes of a run whose last round ended at ``changed``, in seconds since the epoch; missing ones first."""
    counts = Counter(refusal.node for record in run.rounds for refusal in record.refused)
    refused_at = {refusal.node: index for index, record in enumerate(run.rounds) for refusal in record.refused}
    last = {record.node: record for record in run.nodes}
    # When each round ended: the last one has written the files, and the seconds of the later ones lie between.
    index_of = {(record.method, record.round): index for index, record in enumerate(run.rounds)}
    ends, end = [0.0] * len(run.rounds), changed
    for index in reversed(range(len(run.rounds))):
        ends[index] = end
        end -= finite(run.rounds[index].seconds)
    evaluated = [index_of.get((node.method, node.round), 0) for node in run.nodes if node.phase == "evaluate"]
    last_evaluated = max(evaluated, default=-1) if run.config.get("fraction-evaluate", 1) == 1 else -1
    statuses = []
    for name in sorted({*last, *counts}):
        refused = refused_at.get(name, -1)
        number, method, index = run.rounds[refused].round if refused >= 0 else 0, "", -1
        examples, size, seconds, since = 0.0, 0.0, 0.0, 0.0
        if record := last.get(name):
            method, number = record.method, record.round
            examples, size, seconds = map(finite, (record.num_examples, record.bytes_up, sum(record.timings.values())))
            index = index_of.get((method, number), len(run.rounds) - 1)
            since = ends[index] if ends else changed
        missed = len(run.rounds) - 1 - index
        missing = last_evaluated > max(index, refused)
        statuses.append(NodeStatus(name, method, number, examples, size, seconds, since, missed, missing, counts[name]))
    return sorted(statuses, key=lambda node: (not node.missing, -node.refused))


def refusals_of(run: RunData) -> list[RefusalStatus]:
    """Why replies were refused, the most frequent reasons first."""
    by_reason: dict[str, Counter[str]] = {}
    whole: dict[str, str] = {}
    for record in run.rounds:
        for refusal in record.refused:
            reason = headline_of(refusal.reason)
            by_reason.setdefault(reason, Counter())[refusal.node] += 1
            whole[reason] = refusal.reason.strip()
    statuses = [
        RefusalStatus(reason, whole[reason], of.total(), [node for node, _ in of.most_common()])
        for reason, of in by_reason.items()
    ]
    return sorted(statuses, key=lambda refusal: -refusal.count)[:_MOST_REASONS]


def finite(value: float) -> float:
    """The value, or 0 if it is not finite."""
    return value if math.isfinite(value) else 0.0


@dataclass(frozen=True)
class MethodStatus:
    """How far a method is.

    Attributes
    ----------
    name, colour : str
        Its label, and its colour as ``#rrggbb``.
    rounds, of : int
        Finished rounds of this run, and the ``rounds`` of its config; 0 if unknown.
    value : float or None
        The last value of the run's metric.
    points : list of (int, float)
        Rounds and values of the metric, at most 400.
    changed : list of int
        The rounds that were evaluated on other nodes than before.
    paired : list of (int, float)
        The mean over the nodes of every evaluation, if there are such rounds and nodes; at most 400 points.
    """

    name: str
    colour: str
    rounds: int
    of: int
    value: float | None
    points: list[tuple[int, float]]
    changed: list[int] = field(default_factory=list)
    paired: list[tuple[int, float]] = field(default_factory=list)


@dataclass(frozen=True)
class RunStatus:
    """The state of a run.

    Attributes
    ----------
    path : str
        Its folder, relative to the folder of the board, with ``/``.
    changed : float
        When the last round ended, in seconds since the epoch.
    report : bool
        Whether there is a report.
    state : str
        "finished"; "running"; "quiet", if it runs and no round has ended for long; "stopped", if its process has ended
        before the last round; "unreadable".
    problem : str
        Why it is unreadable.
    task : str
        Its task.
    metric : str
        Title of the metric; empty before the first evaluation.
    methods : list of MethodStatus
        In the order of the run config.
    nodes : list of NodeStatus
        At most 200; missing nodes first, then those with refused replies.
    hidden_nodes : int
        How many further nodes there are.
    notes : list of str
        On rounds that were evaluated on other nodes than before.
    refusals : list of RefusalStatus
        The most frequent reasons, at most 50.
    seconds_per_round, bytes_per_round : float
        Means over the last rounds; 0 before the first one.
    seconds_left : float or None
        An estimate; None if nothing is left or nothing is known.
    simulated : float or None
        Simulated time of the method that runs or ran last, in seconds; None without simulated time.
    """

    path: str
    changed: float
    report: bool
    state: str = "running"
    problem: str = ""
    task: str = ""
    metric: str = ""
    methods: list[MethodStatus] = field(default_factory=list)
    nodes: list[NodeStatus] = field(default_factory=list)
    hidden_nodes: int = 0
    notes: list[str] = field(default_factory=list)
    refusals: list[RefusalStatus] = field(default_factory=list)
    seconds_per_round: float = 0.0
    bytes_per_round: float = 0.0
    seconds_left: float | None = None
    simulated: float | None = None


class Board:
    """The runs below a folder. A run is read again only after its files have changed.

    Parameters
    ----------
    folder : Path
        The folder that contains the run folders.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[Path, tuple[tuple[object, ...], RunStatus]] = {}
        self._fleets: dict[Path, tuple[tuple[int, ...], FleetStatus]] = {}

    def runs(self, now: float | None = None) -> list[RunStatus]:
        """The state of all runs at a time in seconds since the epoch (default now), the last changed first."""
        now = time.time() if now is None else now
        statuses = [self._readable(path, now) for path in filter(_is_run, folders(self.folder))]
        return sorted(statuses, key=lambda run: (-run.changed, run.path))

    def report(self, path: str) -> Path | None:
        """The report of the run or comparison in the folder ``path``; None if there is none."""
        return self._reports().get(path)

    def values(self) -> dict[str, object]:
        """The state as JSON values: ``runs``, registries as ``fleets``, and the paths of folders with ``reports``."""
        runs, fleets = [asdict(run) for run in self.runs()], [asdict(fleet) for fleet in self.fleets()]
        return {"runs": runs, "fleets": fleets, "reports": sorted(self._reports())}

    def fleets(self) -> list[FleetStatus]:
        """The registries of champions below the folder; one is read again only after its files have changed."""
        for path in filter(is_registry, folders(self.folder)):
            files = [path / name for name in ("registry.json", "decisions") if (path / name).exists()]
            state = tuple(file.stat().st_mtime_ns for file in files)
            if path not in self._fleets or self._fleets[path][0] != state:
                read = [path / "registry.json", *(path / "decisions").glob("*")]
                foreign = [file.name for file in read if not is_inside(file, self.folder)]
                self._fleets[path] = (state, read_fleet_status(path, relative(path, self.folder), foreign))
        known = {path: status for path, (_, status) in self._fleets.items() if is_registry(path)}
        return sorted(known.values(), key=lambda fleet: fleet.path)

    def _reports(self) -> dict[str, Path]:
        reports = {relative(path, self.folder): path / "report.html" for path in folders(self.folder)}
        return {name: report for name, report in reports.items() if is_inside(report, self.folder)}

    def _readable(self, path: Path, now: float) -> RunStatus:
        """The state of a run; a run whose files cannot be read does not keep the others from being shown."""
        try:
            return self._status(path, now)
        except OSError as error:  # no permission, or removed meanwhile
            problem = f"{error.strerror or error}"
            return RunStatus(relative(path, self.folder), 0.0, False, state="unreadable", problem=problem)

    def _status(self, path: Path, now: float) -> RunStatus:
        files = [path / name for name in _FILES]
        stats = [file.stat() if file.exists() else None for file in files]
        state = tuple(stat and (stat.st_mtime_ns, stat.st_size) for stat in stats)
        if path not in self._known or self._known[path][0] != state:
            changed = max(stat.st_mtime for stat in stats[:4] if stat)
            self._known[path] = (state, read_status(path, self.folder, changed))
        status = self._known[path][1]
        if status.state != "running":
            return status
        foreign = (path / OWNER_FILE).exists() and not is_inside(path / OWNER_FILE, self.folder)
        if now - status.changed > _START and (foreign or not has_owner(path, now)):
            return replace(status, state="stopped", seconds_left=None)
        patience = max(_LEAST_PATIENCE, _PATIENCE * status.seconds_per_round)
        return replace(status, state="quiet", seconds_left=None) if now - status.changed > patience else status


def folders(folder: Path) -> Iterator[Path]:
    """The folders in a folder, in those and in theirs; links are not followed."""
    levels = [folder]
    for _ in range(_LEVELS):
        levels = sorted(path for level in levels for path in _folders_in(level))
        yield from levels
        levels = [path for path in levels if not _is_run(path)]


def _folders_in(folder: Path) -> list[Path]:
    """The folders in a folder; none if it cannot be read."""
    try:
        return [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()]
    except OSError:
        return []


def is_inside(path: Path, folder: Path) -> bool:
    """Whether a path is a regular file in a folder, also after links are followed: a run must not show other files."""
    try:
        return path.is_file() and path.resolve(strict=True).is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # a loop of links is a RuntimeError in older versions of Python
        return False


def _is_run(path: Path) -> bool:
    try:
        return (path / "config.toml").is_file() and (path / "label").is_file()
    except OSError:
        return False


def relative(path: Path, folder: Path) -> str:
    """The path of a run folder as the board names it."""
    return path.relative_to(folder).as_posix()


def read_status(path: Path, folder: Path, changed: float) -> RunStatus:
    """Read the state of the run in ``path``; it is "running" unless it has finished."""
    status = RunStatus(relative(path, folder), changed, is_inside(path / "report.html", folder))
    foreign = [file for file in _FILES if (path / file).exists() and not is_inside(path / file, folder)]
    if foreign:
        problem = f"{', '.join(foreign)}: no regular file of this folder"
        return replace(status, state="unreadable", problem=problem)
    if not (path / "metrics.jsonl").exists():
        return status
    try:
        run = read_run(path)
    except (ReportError, OSError) as error:
        return replace(status, state="unreadable", problem=str(error).removeprefix(f"{path}{os.sep}"))
    metric, recent = run.leading_in_rounds(), run.rounds[-_RECENT_ROUNDS:]
    pairs = {name: paired for name in run.methods if metric and (paired := paired_curve(run, name, metric.name))}
    methods, nodes = _methods(run, pairs), nodes_of(run, changed)
    done = set(run.summary)
    seconds = _mean(record.seconds for record in recent)
    left = sum(max(0, method.of - method.rounds) for method in methods if method.name not in done)
    seconds_left = left * seconds
    return replace(
        status,
        state="finished" if {method.name for method in methods} <= done else "running",
        task=run.task,
        metric=metric.title if metric else "",
        methods=methods,
        nodes=nodes[:_MOST_NODES],
        hidden_nodes=max(0, len(nodes) - _MOST_NODES),
        notes=notes(pairs, len(methods)),
        refusals=refusals_of(run),
        seconds_per_round=seconds,
        bytes_per_round=_mean(record.bytes_up + record.bytes_down for record in recent),
        seconds_left=seconds_left if left and recent and math.isfinite(seconds_left) else None,
        simulated=_simulated(run),
    )


def _simulated(run: RunData) -> float | None:
    last = run.rounds[-1] if run.rounds else None
    return last.clock - run.since.get(last.method, 0.0) if last and math.isfinite(last.clock) else None


def _mean(values: Iterable[float]) -> float:
    numbers = [value for value in values if math.isfinite(value)]
    return finite(sum(value / len(numbers) for value in numbers))


def _methods(run: RunData, changed: Mapping[str, PairedCurve]) -> list[MethodStatus]:
    names = list(dict.fromkeys([*configured_methods(run.config), *run.methods]))
    styles, metric = plot_styles(names), run.leading_in_rounds()
    wanted = run.config.get("rounds")
    of = wanted if isinstance(wanted, int) and 0 <= wanted <= LARGEST_COUNT else 0
    statuses = []
    for name in names:
        records = run.of(name)
        points = [(r.round, r.evaluate[metric.name]) for r in records if metric and metric.name in r.evaluate]
        points = _thinned([(number, value) for number, value in points if math.isfinite(value)])
        last = points[-1][1] if points else None
        done = max((record.round - run.begun.get(name, 0) for record in records), default=0)
        status = MethodStatus(name, styles[name].colour, done, of, last, points)
        if name in changed:
            same = _thinned(list(zip(changed[name].rounds, changed[name].values, strict=True)))
            status = replace(status, changed=[change.round for change in changed[name].changes], paired=same)
        statuses.append(status)
    return statuses


def _thinned(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Every k-th point and the last one."""
    step = -(-len(points) // _MOST_POINTS) or 1
    return [*points[:-1:step], *points[-1:]]
