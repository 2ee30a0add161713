"""Files of JSON lines that a run appends to, and the ledger of releases, which is one.

Whole lines are read, damaged ones are named, and nothing is deleted.
"""

import json
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedapps.base.atomic import append_line, naming_errors, synced, write_whole
from fedapps.strategies import Callback, Run

#: How many numbers of lines or rounds a message lists.
SHOWN = 5
#: What to do about damaged lines of ``metrics.jsonl`` or ``nodes.jsonl``.
REMEDY = "resume the run, which leaves such lines out and keeps a copy of the file, or restore the file from a backup"


class ReleaseLedger(Callback):
    """The ledger of the releases of one method: a line for each time that the messages of a round left the server.

    A server that is killed repeats a round, and the nodes send their updates once more. The checkpoints go back, the
    ledger does not: a line is on the disk before the messages leave, and is never rewritten.

    A line that cannot be read, such as one that was being written when the power failed, counts as a release of every
    method. So do lines that are missing before one that was counted.

    Parameters
    ----------
    path : Path
        The file, which the methods of a run share; it need not exist.
    method : str
        The label of the method.
    """

    def __init__(self, path: Path, method: str) -> None:
        self.path = path
        self.method = method
        self._number: int | None = None  # of the last release

    def before_training(self, run: Run, server_round: int) -> None:
        """Write the release of a round to the disk, before its messages leave. Raises as :meth:`add`."""
        self.add(server_round, run.attempts[-1][1])

    def add(self, server_round: int, attempt: str) -> None:
        """Write a release to the disk.

        Raises
        ------
        UnwritableError
            The file cannot be written.
        """
        if self._number is None:
            self._number = sum(self.by_round().values())
        row = {"method": self.method, "round": server_round, "attempt": attempt, "number": self._number + 1}
        with naming_errors(self.path), self.path.open("ab+") as file:
            append_line(file, json.dumps(row).encode())
            if not self._number:
                with suppress(OSError):  # some network shares cannot sync a folder
                    synced(self.path.parent)
        self._number += 1

    def by_round(self) -> dict[int, int]:
        """The number of releases of each round, ascending; empty without a file.

        Releases of unknown rounds count for the round with the most, for which the guarantee is the weakest.
        """
        content = self.path.read_bytes() if self.path.exists() else b""
        rows, missing = ledger_lines(content, _is_release, lambda row: row["method"] == self.method)
        releases = Counter(row["round"] for row in rows)
        if missing:
            releases[releases.most_common(1)[0][0] if releases else 1] += missing
        return dict(sorted(releases.items()))

    def check(self, rounds: int) -> None:
        """Check that the ledger covers the rounds up to that of a checkpoint.

        Raises
        ------
        ValueError
            It has fewer releases, so it is not the ledger of this run or not all of it.
        """
        if (releases := sum(self.by_round().values())) < rounds:
            raise ValueError(
                f"{self.path} has {releases} releases of {self.method}, which trained {rounds} rounds: restore the "
                "file, without which the privacy of this run is unknown, or start a new run with another name"
            )


def _is_release(value: Any) -> bool:
    kinds = {"method": str, "round": int, "number": int}
    return isinstance(value, dict) and all(type(value.get(key)) is kind for key, kind in kinds.items())


def ledger_lines(
    content: bytes, is_row: Callable[[Any], bool], counts: Callable[[Any], bool] = lambda row: True
) -> tuple[list[Any], int]:
    """The values of the lines of a ledger that count, and how many more there were: damaged or missing ones.

    Parameters
    ----------
    content : bytes
    is_row : callable
        Whether a JSON value has the form of a line, with its ``number`` among those that count, from 1.
    counts : callable
        Whether such a line counts. Each damaged one does.
    """
    rows, unknown, behind, last = [], 0, 0, 0
    for line in content.splitlines():
        value = _value(line)
        if not is_row(value):
            damaged = bool(line.strip(b" \0"))
            unknown, behind = unknown + damaged, behind + damaged
        elif counts(value):
            rows.append(value)
            last, behind = max(last, value["number"]), 0
    # Damaged lines behind the last number are no part of the gaps before it.
    return rows, max(last + behind - len(rows), unknown)


def _value(line: bytes) -> Any:
    """The JSON value of a line; ``None`` if it is damaged."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def whole_lines(path: Path, is_row: Callable[[Any], bool]) -> tuple[list[Any], list[int]]:
    """The values of the whole lines of a file in their order, and the numbers of its damaged lines, from 1.

    An incomplete last line, which has no line break, is neither.

    Parameters
    ----------
    path : Path
        Empty if it does not exist.
    is_row : callable
        Whether a JSON value has the form of a line. A complete line that is no JSON or has another form is damaged.
    """
    content = path.read_bytes() if path.exists() else b""
    rows, damaged = [], []
    for number, line in enumerate(content[: content.rfind(b"\n") + 1].split(b"\n")[:-1], start=1):
        value = _value(line)
        if value is not None and is_row(value):
            rows.append(value)
        else:
            damaged.append(number)
    return rows, damaged


def is_record(value: Any) -> bool:
    """Whether a line of ``metrics.jsonl`` or ``nodes.jsonl`` names its method and round."""
    return isinstance(value, dict) and isinstance(value.get("method"), str) and type(value.get("round")) is int


def keep_copy(path: Path) -> Path:
    """Copy a damaged file to ``<name>.damaged-<number>``, a file that does not exist yet, and return its path."""
    count = 1
    while (copy := path.with_name(f"{path.name}.damaged-{count}")).exists():
        count += 1
    write_whole(copy, path.read_bytes(), sync=True)
    return copy
