"""Snapshots from which a run resumes, the names of the arrays in them, and the attempts of a run.

An attempt is the time from a start of the server to its end. A server that is killed and resumes after round 3 repeats
round 4. A node that took part in the first round 4 but not in the second has private state of a round that no longer
exists. Messages therefore say which attempt each round belongs to, so that nodes can tell.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import quote, unquote

from numpy.typing import NDArray

from ..arrays import Arrays

Attempts = tuple[tuple[int, str], ...]
"""The round after which each attempt begins, ascending, and its random identifier."""
#: Metrics by the name of a field of Flower's ``Result``, by round and by name.
History = Mapping[str, Mapping[int, Mapping[str, Any]]]


@dataclass(frozen=True)
class Snapshot:
    """The state from which a run resumes after ``round``: named arrays, and facts that can be stored as JSON.

    ``history`` has the metrics of Flower's ``Result`` by the names of its fields and by round. It is the run's own and
    grows with it, so that a snapshot costs the same in every round: store the rounds that are new since the last
    snapshot, and restore those up to ``round``.

    ``attempts`` are the starts of the server that led to it (:data:`Attempts`). They differ between runs with the same
    results.
    """

    round: int
    arrays: Arrays
    facts: Mapping[str, Any]
    attempts: Attempts = ()
    history: History = field(default_factory=dict)


class Checkpoints(Protocol):
    """A store of snapshots. ``save`` must be atomic: after a crash the last complete snapshot must be readable."""

    def save(self, snapshot: Snapshot, *, best: bool) -> None:
        """Store a snapshot as the newest one, and as the best one if ``best`` is true."""

    def oldest_round(self) -> int:
        """The oldest round that a run can resume after, 0 if there is none."""

    def latest(self) -> Snapshot | None:
        """The newest snapshot, ``None`` if there is none.

        Raises
        ------
        ValueError
            The snapshot is damaged.
        """


def under(prefix: str, state: Mapping[str, NDArray[Any]]) -> Arrays:
    """The arrays whose names start with ``prefix``, by the rest of their names."""
    return {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}


def flat_by_key(prefix: str, key: str, **parts: Arrays) -> Arrays:
    """Flatten the arrays of a node for a snapshot: ``<prefix><key>.<part>.<name>`` -> array.

    Dots and other special characters of the key are escaped; :func:`nested_by_key` is the inverse.
    """
    escaped = quote(key, safe="").replace(".", "%2E")
    return {f"{prefix}{escaped}.{part}.{name}": a for part, arrays in parts.items() for name, a in arrays.items()}


def nested_by_key(prefix: str, state: Arrays) -> dict[str, dict[str, Arrays]]:
    """Key -> part -> named arrays, from all arrays of ``state`` whose names start with ``prefix``."""
    found: dict[str, dict[str, Arrays]] = {}
    for full, array in under(prefix, state).items():
        escaped, part, name = full.split(".", 2)
        found.setdefault(unquote(escaped), {}).setdefault(part, {})[name] = array
    return found


def next_attempts(attempts: Attempts, resumed_after: int) -> Attempts:
    """The attempts with a new one that begins after a round; attempts that would begin there or later are dropped.

    Parameters
    ----------
    attempts : tuple of (int, str)
        Those of the snapshot that the run resumes from; empty for a new run.
    resumed_after : int
        ≥ 0, the round of the snapshot; 0 for a new run.
    """
    kept = ((after, name) for after, name in attempts if after < resumed_after)
    return (*kept, (resumed_after, secrets.token_hex(4)))


def to_text(attempts: Attempts) -> str:
    """The value of the config key ``attempts``, such as ``"0:5f0c2a11 3:77e0b4d9"``."""
    return " ".join(f"{after}:{name}" for after, name in attempts)
