"""Checkpoints of a run: one safetensors file per round; its header holds the round and JSON facts.

The metrics of all rounds are in ``history.jsonl`` beside them, a line per round, so that a snapshot does not grow with
the number of rounds.
"""

import json
import re
from functools import cache
from logging import WARNING
from pathlib import Path
from typing import Any

import numpy as np
from flwr.common import log
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fedapps.base.atomic import append_whole, write_whole
from fedapps.base.errors import listed
from fedapps.strategies import Snapshot
from fedapps.strategies.records import History

from .lines import SHOWN, keep_copy, whole_lines

#: Number of most recent rounds that are kept.
KEPT_SNAPSHOTS = 2
_HISTORY = "history.jsonl"


class DiskCheckpoints:
    """The snapshots of a method: of the last two rounds, and of the best round.

    Files are replaced atomically, so a snapshot is either complete or absent.

    Parameters
    ----------
    folder : Path
        Where the snapshots are stored.
    durable : bool
        Whether a snapshot is on the disk when :meth:`save` returns; see :class:`~fedapps.runs.run_folder.RunFolder`.
    """

    def __init__(self, folder: Path, *, durable: bool = True) -> None:
        self.folder = folder
        self._durable = durable
        self._recorded: int | None = None  # the last round in the history; None before the first snapshot

    def save(self, snapshot: Snapshot, *, best: bool) -> int:
        """Store a snapshot; see :class:`fedapps.strategies.records.Checkpoints`."""
        rounds = sorted({*self.rounds(), snapshot.round})
        self._record(snapshot)
        self._write(self._path(snapshot.round), snapshot)
        if best:
            self._write(self.folder / "best.safetensors", snapshot)
        for version in rounds[:-KEPT_SNAPSHOTS]:
            self._path(version).unlink()
        return rounds[-KEPT_SNAPSHOTS:][0]

    def last(self) -> Snapshot | None:
        """The snapshot of the last round, for those who read results; None if there is none.

        Raises
        ------
        ValueError
            The file is damaged; the message names it and what there is instead.
        """
        *earlier, last = [0, *self.rounds()]
        if not last:
            return None
        try:
            return read_snapshot(self._path(last))
        except ValueError as error:
            kept = f"choose round {earlier[-1]}, or " if len(earlier) > 1 else ""
            remedy = f"{kept}resume the run, which repeats the rounds after the newest whole one"
            raise ValueError(f"{error}: {remedy}") from error

    def latest(self) -> Snapshot | None:
        """The newest snapshot that is whole, to resume from; None if there is none. Damaged ones give a warning.

        Raises
        ------
        ValueError
            Every snapshot is damaged; the message names the files.
        """
        faults = []
        for server_round in reversed(self.rounds()):
            try:
                snapshot = read_snapshot(self._path(server_round))
            except ValueError as error:
                faults.append(str(error))
                continue
            for fault in faults:
                _warn_once(f"{fault}: it is left out, and the run goes on after round {server_round}")
            return snapshot
        if faults:
            raise ValueError(
                "; ".join(faults)
                + ": no state is left to resume from. Restore one of these files from a backup, or start "
                "a new run with another name"
            )
        return None

    def last_is_whole(self) -> bool:
        """Whether the snapshot of the last round can be read, or there is none."""
        try:
            self.last()
        except ValueError:
            return False
        return True

    def best(self) -> Snapshot | None:
        """The snapshot of the best round by the tracked metric; None if there is none. Raises as :meth:`latest`."""
        path = self.folder / "best.safetensors"
        return read_snapshot(path) if path.exists() else None

    def of_round(self, server_round: int) -> Snapshot | None:
        """The snapshot of a round; None if it is not kept. Raises as :meth:`latest`."""
        path = self.file_of(server_round)
        snapshot = read_snapshot(path) if path.exists() else None
        return snapshot if snapshot and snapshot.round == server_round else None

    def file_of(self, server_round: int) -> Path:
        """The file that has the snapshot of a round if it is kept: that of the round, or else of the best round."""
        path = self._path(server_round)
        return path if path.exists() else self.folder / "best.safetensors"

    def rounds(self) -> list[int]:
        """The rounds whose snapshots are kept, without that of the best round, ascending."""
        matches = (re.fullmatch(r"round-(\d{6})", path.stem) for path in self.folder.glob("round-*.safetensors"))
        return sorted(int(match[1]) for match in matches if match)

    def oldest_round(self) -> int:
        """The oldest round that is kept; 0 without snapshots."""
        return min(self.rounds(), default=0)

    def _path(self, server_round: int) -> Path:
        return self.folder / f"round-{server_round:06d}.safetensors"

    def _record(self, snapshot: Snapshot) -> None:
        """Add the new rounds to the history. The first call replaces the file, which may have later rounds."""
        new = range(0 if self._recorded is None else self._recorded + 1, snapshot.round + 1)
        rows = [(r, {name: dict(of[r]) for name, of in snapshot.history.items() if r in of}) for r in new]
        lines = "".join(json.dumps(row) + "\n" for row in rows if row[1]).encode()
        path = self.folder / _HISTORY
        if self._recorded is None and (lines or path.exists()):
            if whole_lines(path, _history_row)[1]:
                keep_copy(path)
            write_whole(path, lines, sync=self._durable)
        elif lines:
            append_whole(path, lines, sync=self._durable)
        self._recorded = snapshot.round

    def _write(self, path: Path, snapshot: Snapshot) -> None:
        facts, attempts = json.dumps(snapshot.facts), json.dumps(snapshot.attempts)
        header = {"round": str(snapshot.round), "facts": facts, "attempts": attempts}
        arrays = {name: np.asarray(array, order="C") for name, array in snapshot.arrays.items()}
        write_whole(path, save(arrays, metadata=header), sync=self._durable)


def read_snapshot(path: Path) -> Snapshot:
    """Read a snapshot.

    Raises
    ------
    ValueError
        If the file is truncated or not a snapshot; the message names it.
    """
    try:
        with safe_open(path, framework="numpy") as stored:
            header: dict[str, Any] = stored.metadata() or {}
            arrays = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 (not a dict)
            attempts = tuple((int(after), str(name)) for after, name in json.loads(header.get("attempts", "[]")))
            last, facts = int(header["round"]), json.loads(header["facts"])
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"checkpoint {path} is damaged ({error})") from error
    return Snapshot(last, arrays, facts, attempts, _history(path.with_name(_HISTORY), last))


def _history(path: Path, last: int) -> History:
    """The rounds up to ``last``; without damaged lines, with a warning, and without an incomplete last one."""
    rows, damaged = whole_lines(path, _history_row)
    if damaged:
        _warn_once(
            f"{path}, line {listed(damaged, SHOWN)}: damaged and left out; the result lacks the metrics of these rounds"
        )
    history: dict[str, dict[int, dict[str, Any]]] = {}
    for server_round, metrics in rows:
        if server_round <= last:
            for name, of_round in metrics.items():
                history.setdefault(name, {})[server_round] = of_round
    return history


def _history_row(value: Any) -> bool:
    """Whether a line of the history has its form: the round, and metrics by field."""
    if not (isinstance(value, list) and len(value) == 2 and type(value[0]) is int and isinstance(value[1], dict)):
        return False
    return all(isinstance(metrics, dict) for metrics in value[1].values())


@cache
def _warn_once(text: str) -> None:
    log(WARNING, "%s", text)
