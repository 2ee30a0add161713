"""Private arrays of a node between rounds. They stay on the node, and a repeated round starts from the same arrays.

A server that goes back repeats rounds. What a node kept of the first time must not be read by a node that misses the
repetition: each version belongs to an attempt of the run.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save

from fedapps.base.atomic import path_name, remove_leftovers, whole_folder, write_whole

from .arrays import Arrays

logger = logging.getLogger(__name__)
_VERSION = re.compile(r"round-(\d{6})")
_VERSION_FILE = re.compile(_VERSION.pattern + r"\.safetensors")
_ATTEMPT = "attempt"
_KNOWN = "known-words"
_ATTEMPT_WORD = re.compile(r"(\d+):([0-9a-z]*)", re.ASCII)


@dataclass(frozen=True)
class Attempts:
    """The attempts that the rounds of a run belong to, as the key ``attempts`` of a message gives them.

    An attempt is the time between a start of the server and its end. It begins after the round that the server resumed
    after, 0 for a new run; the next attempt replaces its rounds from there on.

    Parameters
    ----------
    begun : tuple of (int, str)
        The round after which each attempt begins, ascending, and its identifier. Without attempts, as under the
        strategies of Flower, the rounds of a run belong to the attempt ``""``, and every version counts.
    """

    begun: tuple[tuple[int, str], ...] = ()

    @classmethod
    def read(cls, text: str) -> Attempts:
        """Read ``"0:5f0c2a11 3:77e0b4d9"``: two attempts, the second of which repeats the rounds after round 3.

        Raises
        ------
        ValueError
            The text has another form, or the rounds do not ascend.
        """
        matches = [_ATTEMPT_WORD.fullmatch(word) for word in text.split()]
        begun = tuple((int(match[1]), match[2]) for match in matches if match)
        rounds = [after for after, _ in begun]
        if len(begun) < len(matches) or rounds != sorted(set(rounds)):
            raise ValueError(f"config attempts = {text!r}: must be ascending rounds with identifiers, such as '0:5f0c'")
        return cls(begun)

    def of(self, server_round: int) -> str:
        """The identifier of the attempt that a round belongs to; empty if it is unknown."""
        return next((attempt for after, attempt in reversed(self.begun) if after < server_round), "")

    def counts(self, version: int, attempt: str) -> bool:
        """Whether a version that was kept in a round of an attempt is still one of this run."""
        return not self.begun or self.of(version) == attempt


#: The attempts of a run whose server never goes back: every version counts.
ALL_ROUNDS = Attempts()


class PrivateState(Protocol):
    """Versions of a node's private arrays, one per round, and named extras (collected data, traces)."""

    def load(self, before: int, attempts: Attempts = ALL_ROUNDS) -> Arrays | None:
        """Return the newest version of a round before round ``before``; ``None`` if there is none.

        Versions of rounds that the server went back behind, which are not among its ``attempts``, are deleted.
        """

    def save(
        self,
        server_round: int,
        arrays: Mapping[str, np.ndarray],
        durable_round: int,
        attempts: Attempts = ALL_ROUNDS,
        *,
        best_round: int = 0,
    ) -> None:
        """Keep the version of a round, and delete those that nobody can need again.

        ``durable_round`` is the last round that the server can go back to. The newest version up to this round stays,
        and so do all later ones, and the newest version up to ``best_round``, which belongs to the best model. The
        version belongs to the attempt of its round.
        """

    def load_extra(self, name: str) -> Arrays | None:
        """Return the arrays kept under a name; ``None`` if there are none."""

    def save_extra(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Keep arrays under a name. They replace older ones."""

    def siblings(self) -> Sequence[PrivateState]:
        """Return the states of all nodes of the run, for the pooled baseline.

        Raises
        ------
        ValueError
            The states of other nodes are out of reach.
        """


def known_words(state: PrivateState) -> tuple[str, ...]:
    """What the first rows of a node's private parameters stand for (:meth:`fedapps.tasks.base.Task.words`)."""
    kept = state.load_extra(_KNOWN)
    return tuple(json.loads(kept["words"].tobytes())) if kept else ()


def keep_words(state: PrivateState, words: tuple[str, ...]) -> None:
    """Keep what all rows stand for; to be called before the rows are kept."""
    if words and words != known_words(state):
        state.save_extra(_KNOWN, {"words": np.frombuffer(json.dumps(words).encode(), np.uint8)})


class DiskState:
    """Safetensors files in a folder of the node. Each file is written completely or not at all, and what a killed
    process left unfinished is removed when a version is loaded.

    A file that cannot be written raises :class:`~fedapps.base.atomic.UnwritableError`, and no version is deleted. A
    damaged file is renamed with the suffix ``.corrupt``, with a warning; the node then continues from the next older
    version, or from the initial private parameters if there is none.

    Parameters
    ----------
    folder : Path
        Of this node alone. It is created when it is needed.
    durable : bool
        Whether what is saved is on the disk (``fsync``) before older versions are deleted, so that a power failure
        leaves one that counts. A simulation goes without it; see :class:`~fedapps.runs.run_folder.RunFolder`.
    """

    def __init__(self, folder: Path, *, durable: bool = True) -> None:
        self.folder, self._durable = folder, durable

    @classmethod
    def of(cls, root: Path, *names: str, durable: bool = True) -> Self:
        """The state in the folder ``root / names[0] / names[1] ...``, below ``root`` whatever the names are."""
        return cls(root.joinpath(*map(path_name, names)), durable=durable)

    def begin_from(self, earlier: Iterable[Path]) -> None:
        """Begin as a copy of the first of these folders that exists, unless there is something already.

        Attempts tell apart which of its versions count. Raises :class:`~fedapps.base.atomic.UnwritableError`.
        """
        source = None if self.folder.exists() else next(filter(Path.is_dir, earlier), None)
        if source is not None:
            with whole_folder(self.folder) as copy:
                shutil.copytree(source, copy, ignore=shutil.ignore_patterns(".*"), dirs_exist_ok=True)

    def load(self, before: int, attempts: Attempts = ALL_ROUNDS) -> Arrays | None:
        names = os.listdir(self.folder) if os.path.isdir(self.folder) else []
        if any(name.startswith(".") for name in names):  # those of no array
            remove_leftovers(self.folder)
        versions = sorted(_versions_among(names), reverse=True)
        for version in list(versions) if attempts.begun else ():
            attempt = _attempt_in(self._path(version))
            if attempt is not None and not attempts.counts(version, attempt):
                self._path(version).unlink(missing_ok=True)
                versions.remove(version)
        for version in versions:
            if version < before and (arrays := self._read(self._path(version))) is not None:
                return arrays
        return None

    def save(
        self,
        server_round: int,
        arrays: Mapping[str, np.ndarray],
        durable_round: int,
        attempts: Attempts = ALL_ROUNDS,
        *,
        best_round: int = 0,
    ) -> None:
        attempt = attempts.of(server_round)
        self._write(self._path(server_round), arrays, {_ATTEMPT: attempt} if attempt else None)
        forgettable = _forgettable(self._versions(), durable_round, best_round)
        for version in forgettable:
            self._path(version).unlink(missing_ok=True)

    def load_extra(self, name: str) -> Arrays | None:
        path = self.folder / f"{path_name(name)}.safetensors"
        return self._read(path) if path.exists() else None

    def save_extra(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        self._write(self.folder / f"{path_name(name)}.safetensors", arrays)

    def siblings(self) -> list[DiskState]:
        folders = sorted(filter(Path.is_dir, self.folder.parent.glob("*")))
        return [DiskState(folder, durable=self._durable) for folder in folders]

    def _path(self, version: int) -> Path:
        return self.folder / f"round-{version:06d}.safetensors"

    def _versions(self) -> list[int]:
        return _versions_among(os.listdir(self.folder) if os.path.isdir(self.folder) else ())

    def _read(self, path: Path) -> Arrays | None:
        try:
            return dict(load_file(path))
        except SafetensorError as error:
            aside = path.with_name(path.name + ".corrupt")
            path.replace(aside)
            logger.warning("state file %s is damaged (%s): renamed to %s", path, error, aside.name)
            return None

    def _write(self, path: Path, arrays: Mapping[str, np.ndarray], facts: dict[str, str] | None = None) -> None:
        content = save({name: np.asarray(array, order="C") for name, array in arrays.items()}, facts)
        write_whole(path, content, sync=self._durable)


class StoredState(DiskState):
    """The state that a run has left, to be read only: nothing is written, renamed or deleted."""

    def load(self, before: int, attempts: Attempts = ALL_ROUNDS) -> Arrays | None:
        """As in :class:`DiskState`. Raise ``ValueError`` if the file is damaged."""
        version = self.newest(before, attempts)
        return None if version is None else self._read(self._path(version))

    def newest(self, before: int, attempts: Attempts = ALL_ROUNDS) -> int | None:
        """The newest round before round ``before`` that has a version; ``None`` if there is none."""
        found = {version: _attempt_in(self._path(version)) for version in self._versions() if version < before}
        return max((v for v, attempt in found.items() if attempt is None or attempts.counts(v, attempt)), default=None)

    def _read(self, path: Path) -> Arrays:
        try:
            return dict(load_file(path))
        except SafetensorError as error:
            raise ValueError(
                f"the private state {path} is damaged ({error}): load another round, or train again"
            ) from error

    def _write(self, path: Path, arrays: Mapping[str, np.ndarray], facts: dict[str, str] | None = None) -> None:
        raise ValueError(f"{path} is not written: the state of a run is only read here")


class ContextState:
    """Private arrays in Flower's ``Context.state``, for nodes without a disk.

    Flower sends the context to the worker and back with every message, so this is for small private models.

    Parameters
    ----------
    records : RecordDict
        ``Context.state``.
    scope : str
        Prefix of the records, which separates the methods of a run.
    """

    def __init__(self, records: RecordDict, scope: str = "private") -> None:
        self.records = records
        self.scope = scope

    def load(self, before: int, attempts: Attempts = ALL_ROUNDS) -> Arrays | None:
        kept = self._attempts()
        for version in self._versions():
            if not attempts.counts(version, str(kept.get(str(version), ""))):
                self._forget(version)
        versions = [version for version in self._versions() if version < before]
        return _arrays(self.records[self._name(max(versions))]) if versions else None

    def save(
        self,
        server_round: int,
        arrays: Mapping[str, np.ndarray],
        durable_round: int,
        attempts: Attempts = ALL_ROUNDS,
        *,
        best_round: int = 0,
    ) -> None:
        self.records[self._name(server_round)] = _record(arrays)
        if attempt := attempts.of(server_round):
            self.records[self._attempts_name] = ConfigRecord({**self._attempts(), str(server_round): attempt})
        for version in _forgettable(self._versions(), durable_round, best_round):
            self._forget(version)

    def load_extra(self, name: str) -> Arrays | None:
        key = f"{self.scope}.{name}"
        return _arrays(self.records[key]) if key in self.records else None

    def save_extra(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        self.records[f"{self.scope}.{name}"] = _record(arrays)

    def siblings(self) -> list[ContextState]:
        raise ValueError("the pooled baseline needs state-backend = 'disk': a context holds one node's state")

    @property
    def _attempts_name(self) -> str:
        return f"{self.scope}.attempts"

    def _attempts(self) -> ConfigRecord:
        """The attempts of the versions, by round."""
        record = self.records.get(self._attempts_name)
        return record if isinstance(record, ConfigRecord) else ConfigRecord()

    def _name(self, version: int) -> str:
        return f"{self.scope}.round-{version:06d}"

    def _forget(self, version: int) -> None:
        del self.records[self._name(version)]
        self._attempts().pop(str(version), None)

    def _versions(self) -> list[int]:
        found = (re.fullmatch(rf"{re.escape(self.scope)}\.{_VERSION.pattern}", name) for name in self.records)
        return [int(match[1]) for match in found if match]


def _versions_among(names: Iterable[str]) -> list[int]:
    """The versions whose files are among the names of those in a folder."""
    return [int(match[1]) for match in map(_VERSION_FILE.fullmatch, names) if match]


def _forgettable(versions: list[int], durable_round: int, best_round: int) -> list[int]:
    """Versions that neither a server going back to ``durable_round`` nor the model of the best round would need."""
    needed, best = (max((v for v in versions if v <= last), default=0) for last in (durable_round, best_round))
    return [version for version in versions if version < needed and version != best]


def _attempt_in(path: Path) -> str | None:
    """The attempt that the version in a file belongs to; ``None`` if the file is damaged."""
    try:
        with safe_open(path, framework="numpy") as stored:
            return str((stored.metadata() or {}).get(_ATTEMPT, ""))
    except SafetensorError:
        return None


def _record(arrays: Mapping[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(array, order="C")) for name, array in arrays.items()})


def _arrays(record: object) -> Arrays:
    assert isinstance(record, ArrayRecord)
    return {name: array.numpy() for name, array in record.items()}
