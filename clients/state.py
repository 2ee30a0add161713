"""Private tensors of a node between rounds: they stay on the node, and a repeated round starts where it did."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from .files import write_whole

if TYPE_CHECKING:
    from .named_arrays import Arrays  # needs torch, and this module does not

logger = logging.getLogger(__name__)
_VERSION = re.compile(r"round-(\d{6})")


class PrivateState(Protocol):
    """Versions of a node's private arrays, one per round, and named extras (collected data, traces)."""

    def load(self, before: int) -> Arrays | None:
        """The newest version of a round smaller than ``before``; ``None`` when there is none."""

    def save(self, server_round: int, arrays: Mapping[str, np.ndarray], durable_round: int) -> None:
        """Keep the version of a round, and forget those that no server can ask for again.

        ``durable_round`` is the last round that the server can go back to: the newest version up to it and all
        later ones stay.
        """

    def load_extra(self, name: str) -> Arrays | None:
        """Arrays kept under a name, ``None`` when there are none."""

    def save_extra(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Keep arrays under a name, in place of any older ones."""

    def siblings(self) -> Sequence[PrivateState]:
        """The states of all nodes of the run, for the pooled baseline. Raises where they cannot be reached."""


class DiskState:
    """Safetensors files in a folder of the node, each there in full or not at all.

    What cannot be written raises :class:`~clients.files.UnwritableError`, and nothing is forgotten. A damaged file is
    put aside with the suffix ``.corrupt``, with a warning; the node then goes on from the next older version, or from
    the shared model where there is none.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, before: int) -> Arrays | None:
        for version in sorted(self._versions(), reverse=True):
            if version < before and (arrays := self._read(self._path(version))) is not None:
                return arrays
        return None

    def save(self, server_round: int, arrays: Mapping[str, np.ndarray], durable_round: int) -> None:
        self._write(self._path(server_round), arrays)
        for version in _forgettable(self._versions(), durable_round):
            self._path(version).unlink(missing_ok=True)

    def load_extra(self, name: str) -> Arrays | None:
        path = self.folder / f"{name}.safetensors"
        return self._read(path) if path.exists() else None

    def save_extra(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        self._write(self.folder / f"{name}.safetensors", arrays)

    def siblings(self) -> list[DiskState]:
        return [DiskState(folder) for folder in sorted(self.folder.parent.glob("*")) if folder.is_dir()]

    def _path(self, version: int) -> Path:
        return self.folder / f"round-{version:06d}.safetensors"

    def _versions(self) -> list[int]:
        found = (_VERSION.fullmatch(path.stem) for path in self.folder.glob("round-*.safetensors"))
        return [int(match[1]) for match in found if match]

    def _read(self, path: Path) -> Arrays | None:
        try:
            return dict(load_file(path))
        except SafetensorError as error:
            aside = path.with_name(path.name + ".corrupt")
            path.replace(aside)
            logger.warning("state file %s is damaged (%s): put aside as %s", path, error, aside.name)
            return None

    def _write(self, path: Path, arrays: Mapping[str, np.ndarray]) -> None:
        write_whole(path, save({name: np.asarray(array, order="C") for name, array in arrays.items()}))


class ContextState:
    """The same in Flower's ``Context.state``, for nodes without a disk.

    It travels to the worker and back with every message, so it suits small private parts. ``scope`` keeps the
    methods of one run apart.
    """

    def __init__(self, records: RecordDict, scope: str = "private") -> None:
        self.records = records
        self.scope = scope

    def load(self, before: int) -> Arrays | None:
        versions = [version for version in self._versions() if version < before]
        return _arrays(self.records[f"{self.scope}.round-{max(versions):06d}"]) if versions else None

    def save(self, server_round: int, arrays: Mapping[str, np.ndarray], durable_round: int) -> None:
        self.records[f"{self.scope}.round-{server_round:06d}"] = _record(arrays)
        for version in _forgettable(self._versions(), durable_round):
            del self.records[f"{self.scope}.round-{version:06d}"]

    def load_extra(self, name: str) -> Arrays | None:
        key = f"{self.scope}.{name}"
        return _arrays(self.records[key]) if key in self.records else None

    def save_extra(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        self.records[f"{self.scope}.{name}"] = _record(arrays)

    def siblings(self) -> list[ContextState]:
        raise ValueError("the pooled baseline needs state-backend = 'disk': a context holds one node's state")

    def _versions(self) -> list[int]:
        found = (re.fullmatch(rf"{re.escape(self.scope)}\.{_VERSION.pattern}", name) for name in self.records)
        return [int(match[1]) for match in found if match]


def _forgettable(versions: list[int], durable_round: int) -> list[int]:
    """Versions older than the newest one that a server going back to ``durable_round`` would need."""
    needed = max((version for version in versions if version <= durable_round), default=0)
    return [version for version in versions if version < needed]


def _record(arrays: Mapping[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(array, order="C")) for name, array in arrays.items()})


def _arrays(record: object) -> Arrays:
    assert isinstance(record, ArrayRecord)
    return {name: array.numpy() for name, array in record.items()}
