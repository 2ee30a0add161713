"""The ledger of a node: a line for each update that leaves it with noise, over all runs of its state folder.

A line is on the disk before its update leaves, and is never rewritten, so a node that is killed has counted at least
what the server got. A node without the file has spent nothing: keep it with the node's data.
"""

import fcntl
import json
import sys
from contextlib import suppress
from dataclasses import dataclass
from math import inf, sqrt
from pathlib import Path
from typing import Any, Self

from fedapps.base.atomic import append_line, naming_errors, synced
from fedapps.clients.rules import NodeRules, RulesError
from fedapps.runs.lines import ledger_lines
from fedapps.strategies import epsilon

#: The file in the node's state folder.
LEDGER = "releases.jsonl"
#: More updates than can have left a node.
_MOST_UPDATES = 10**15


@dataclass(frozen=True)
class Spent:
    """What has left a node.

    Parameters
    ----------
    count : int
        The number of updates.
    squares : float
        Σ 1/z² over their noise multipliers z; infinite if one had no noise.
    """

    count: int = 0
    squares: float = 0.0

    def plus(self, noise: float, count: int = 1) -> Self:
        """With further updates of one noise multiplier."""
        further = count / noise / noise if noise > 0 else inf
        return type(self)(self.count + count, self.squares + (further if count else 0.0))

    def epsilon(self, delta: float) -> float:
        """The ε of all updates together, where neighbouring runs differ in the updates that the node sends."""
        if not self.squares:
            return 0.0
        # Updates with noise z_k are together one with μ = √(Σ μ_k²), μ_k = 2/z_k: Dong, Roth and Su 2022, Cor. 3.3.
        return epsilon(1 / sqrt(self.squares), 1, delta, sensitivity=2.0)


class NodeLedger:
    """The updates that left a node, and the budget of its operator.

    A line that cannot be read, and lines that are missing before one that was counted, count as updates with the least
    noise that the rules allow.

    Parameters
    ----------
    folder : Path
        The node's state folder.
    rules : NodeRules
    """

    def __init__(self, folder: Path, rules: NodeRules) -> None:
        self.path = folder / LEDGER
        self.rules = rules

    def spent(self) -> Spent:
        """What has left; nothing without a file. Raises ``UnwritableError`` if there is one that cannot be read."""
        with naming_errors(self.path):
            return self._read(self.path.read_bytes()) if self.path.exists() else Spent()

    def check(self, noise: float, count: int = 1) -> None:
        """Check that the budget has room for ``count`` ≥ 0 further updates with a noise multiplier above 0.

        Raises
        ------
        RulesError
            They exceed ``max-releases`` or ``max-epsilon``.
        """
        self._check(self.spent(), noise, count)

    def add(self, noise: float, **what: Any) -> None:
        """Write an update to the disk, together with ``what`` it belongs to. Call it before the update leaves.

        Workers of the same node take turns.

        Raises
        ------
        RulesError
            The update exceeds the budget, and nothing was written.
        UnwritableError
            The file cannot be written.
        """
        with naming_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab+") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                file.seek(0)
                spent = self._read(file.read())
                self._check(spent, noise, 1)
                append_line(file, json.dumps({**what, "noise": noise, "number": spent.count + 1}).encode())
            if not spent.count:
                with suppress(OSError):  # some network shares cannot sync a folder
                    synced(self.path.parent)

    def _check(self, spent: Spent, noise: float, count: int) -> None:
        most, limit, delta = self.rules.max_releases, self.rules.max_epsilon, self.rules.dp_delta
        if most and spent.count + count > most:
            raise RulesError(
                f"node config max-releases = {most}: {spent.count} updates have left this node, and {count} more would "
                "be too many"
            )
        if limit and (total := spent.plus(noise, count).epsilon(delta)) > limit:
            raise RulesError(
                f"node config max-epsilon = {limit:g}: {spent.count} updates have left this node, and after {count} "
                f"more with dp-noise = {noise:g} epsilon would be {total:.3g} at delta = {delta:g}"
            )

    def _read(self, content: bytes) -> Spent:
        rows, missing = ledger_lines(content, _is_update)
        spent = Spent()
        for row in rows:
            spent = spent.plus(float(row["noise"]))
        return spent.plus(self.rules.dp_noise, missing)


def _is_update(row: Any) -> bool:
    if not isinstance(row, dict) or not isinstance(row.get("noise"), float | int) or type(row.get("number")) is not int:
        return False
    return not (abs(row["noise"]) > sys.float_info.max or row["number"] > _MOST_UPDATES)
