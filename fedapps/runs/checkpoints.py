"""Snapshots of a run on disk: one safetensors file per round with the facts as JSON in its header."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from clients.files import write_whole
from strategies.round_records import Snapshot

#: How many of the newest rounds a run can go back to.
KEPT_SNAPSHOTS = 2


class DiskCheckpoints:
    """Snapshots in ``folder``: the two newest and the best. Each is there in full or not at all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, snapshot: Snapshot, *, best: bool) -> None:
        """Write a snapshot; see :class:`strategies.round_records.Checkpoints`."""
        self._write(self._path(snapshot.round), snapshot)
        if best:
            self._write(self.folder / "best.safetensors", snapshot)
        for version in sorted(self._rounds())[:-KEPT_SNAPSHOTS]:
            self._path(version).unlink()

    def latest(self) -> Snapshot | None:
        """The newest snapshot. Raises ``ValueError`` naming the file when it is damaged."""
        rounds = self._rounds()
        return read_snapshot(self._path(max(rounds))) if rounds else None

    def oldest_round(self) -> int:
        """The older of the two rounds that are kept."""
        return min(self._rounds(), default=0)

    def _path(self, server_round: int) -> Path:
        return self.folder / f"round-{server_round:06d}.safetensors"

    def _rounds(self) -> list[int]:
        found = (re.fullmatch(r"round-(\d{6})", p.stem) for p in self.folder.glob("round-*.safetensors"))
        return [int(match[1]) for match in found if match]

    def _write(self, path: Path, snapshot: Snapshot) -> None:
        header = {"round": str(snapshot.round), "facts": json.dumps(snapshot.facts)}
        arrays = {name: np.asarray(array, order="C") for name, array in snapshot.arrays.items()}
        write_whole(path, save(arrays, metadata=header), sync=True)


def read_snapshot(path: Path) -> Snapshot:
    """Read a snapshot back. Raises ``ValueError`` naming the file when it is cut off or not ours."""
    try:
        with safe_open(path, framework="numpy") as stored:
            header: dict[str, Any] = stored.metadata() or {}
            arrays = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 (not a dict)
            return Snapshot(int(header["round"]), arrays, json.loads(header["facts"]))
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise ValueError(
            f"checkpoint {path} is damaged ({error}): remove this file to resume from the round before it, "
            "or start a new run under another name"
        ) from error
