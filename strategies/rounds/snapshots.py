"""Snapshots from which a run resumes, the state of the objects in them, and the attempts of a run.

An attempt is the time from a start of the server to its end. A server that is killed and resumes after round 3 repeats
round 4. A node that took part in the first round 4 but not in the second has private state of a round that no longer
exists. Messages therefore say which attempt each round belongs to, so that nodes can tell.
"""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
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


class Stateful:
    """A class that declares which of its attributes a snapshot has."""

    #: The names of these attributes; a subclass adds its own. Each is an object with ``state`` and ``load_state``, or
    #: consists of arrays, numbers, texts, ``None``, and of lists, sets and mappings of these.
    kept: ClassVar[tuple[str, ...]] = ()

    def state(self) -> Arrays:
        """The kept attributes as named arrays; :meth:`load_state` restores them."""
        values = {name: getattr(self, name) for name in _kept_names(type(self))}
        return flat({name: v.state() if hasattr(v, "load_state") else v for name, v in values.items()})

    def load_state(self, state: Arrays) -> None:
        """Restore what :meth:`state` returned.

        Raises
        ------
        ValueError
            An object of another class saved the state.
        """
        values, names = nested(state), _kept_names(type(self))
        if missing := [name for name in names if name not in values]:
            raise ValueError(
                f"the checkpoint has no {missing[0]!r} of {type(self).__name__}: another strategy saved it"
            )
        for name in names:
            if hasattr(kept := getattr(self, name), "load_state"):
                kept.load_state(values[name])
            else:
                setattr(self, name, values[name])


def _kept_names(kind: type) -> list[str]:
    return [name for base in reversed(kind.__mro__) for name in vars(base).get("kept", ())]


_FORM = "(form)"


def flat(values: Mapping[str, Any]) -> Arrays:
    """Named arrays that hold values; see :attr:`Stateful.kept`. An array that is there several times is stored once."""
    arrays: Arrays = {}
    names: dict[int, str] = {}

    def form_of(value: Any, name: str) -> Any:
        if isinstance(value, np.ndarray):
            if id(value) not in names:
                while name in arrays:  # keys can have dots
                    name += "_"
                names[id(value)] = name
                arrays[name] = value
            return {"array": names[id(value)]}
        if isinstance(value, Mapping):
            return {"mapping": [[key, form_of(each, f"{name}.{key}")] for key, each in value.items()]}
        if isinstance(value, set | frozenset):
            return {"set": sorted(value)}
        if isinstance(value, list | tuple):
            return {"list": [form_of(each, f"{name}.{number}") for number, each in enumerate(value)]}
        return value

    form = {name: form_of(value, name) for name, value in values.items()}
    return {**arrays, _FORM: np.frombuffer(json.dumps(form).encode(), np.uint8)}


def nested(state: Arrays) -> dict[str, Any]:
    """The values that :func:`flat` stored; tuples are lists. Empty for an empty state."""

    def value_of(form: Any) -> Any:
        if not isinstance(form, dict):
            return form
        ((kind, content),) = form.items()
        if kind == "array":
            return state[content]
        if kind == "mapping":
            return {key: value_of(each) for key, each in content}
        return set(content) if kind == "set" else [value_of(each) for each in content]

    form = json.loads(state[_FORM].tobytes()) if _FORM in state else {}
    return {name: value_of(each) for name, each in form.items()}


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
