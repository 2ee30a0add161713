"""The limits that a node sets to the work of a message, whatever the message asks for.

A server decides how long a node trains and how large its model is. The node config says how much of it the node gives:
optimizer steps, seconds of training, and memory. Simulated nodes have no limits but those that are set.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import inf
from typing import Any

from .data import is_simulated

try:
    import resource
except ImportError:  # not a Unix system: memory cannot be limited
    resource = None  # type: ignore[assignment]

#: Keys of the node config.
MAX_STEPS, MAX_SECONDS, MAX_MEMORY, MAX_RANK = "max-steps", "max-seconds", "max-memory", "max-rank"
#: The limits of a deployed node whose config does not say otherwise.
DEFAULT_STEPS, DEFAULT_SECONDS = 1_000_000, 86_400.0
_MB = 10**6
#: No limit is larger, so that bytes of memory are a number of 64 bits.
_MOST = 10**12


class LimitError(RuntimeError):
    """A message asks for more than the node gives. The text holds no data of the node."""


@dataclass(frozen=True)
class NodeLimits:
    """How much a node works for one message.

    Parameters
    ----------
    steps : float
        Optimizer steps, above 0.
    seconds : float
        Of the whole work, above 0; looked at before every optimizer step.
    memory : int
        Megabytes that the process may allocate, with its libraries; 0 = unlimited.
    rank : int
        The largest rank of adapters, where a method allows nodes to have different ranks; 0 = unlimited.
    """

    steps: float = inf
    seconds: float = inf
    memory: int = 0
    rank: int = 0

    @classmethod
    def of(cls, node_config: Mapping[str, Any]) -> "NodeLimits":
        """The limits in a node config.

        Raises
        ------
        ValueError
            A limit is no number above 0 and at most 10**12, or memory cannot be limited on this system.
        """
        simulated = is_simulated(node_config)
        limits = cls(
            _limit(node_config, MAX_STEPS, inf if simulated else DEFAULT_STEPS),
            _limit(node_config, MAX_SECONDS, inf if simulated else DEFAULT_SECONDS),
            int(_limit(node_config, MAX_MEMORY, 0)),
            int(_limit(node_config, MAX_RANK, 0)),
        )
        if limits.memory and resource is None:
            raise ValueError(
                f"node config {MAX_MEMORY} = {limits.memory}: this system cannot limit memory; leave it out"
            )
        return limits

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Apply the limits within this context: to :func:`spend_step`, and to what the process allocates."""
        token = _budget.set(_Budget(self, time.monotonic() + self.seconds))
        try:
            with _memory_limited(self.memory * _MB):
                yield
        finally:
            _budget.reset(token)


@dataclass
class _Budget:
    limits: NodeLimits
    deadline: float
    steps: int = 0


_budget: ContextVar[_Budget | None] = ContextVar("budget", default=None)


def limited_rank(rank: int) -> int:
    """The rank of the node's adapters where the method asks for ``rank``."""
    budget = _budget.get()
    return min(rank, budget.limits.rank) if budget and budget.limits.rank else rank


def check_length(key: str, length: int) -> None:
    """Check a number of steps or epochs before the first one; an epoch has at least one step.

    Raises
    ------
    LimitError
        The node does not take as many steps for the message.
    """
    budget = _budget.get()
    if budget and budget.steps + length > budget.limits.steps:
        raise _too_many(f"config {key} = {length}", budget.limits)


def spend_step() -> None:
    """Count an optimizer step that is about to be taken.

    Raises
    ------
    LimitError
        The steps or the time of the message are used up.
    """
    budget = _budget.get()
    if budget is None:
        return
    budget.steps += 1
    if budget.steps > budget.limits.steps:
        raise _too_many(f"step {budget.steps}", budget.limits)
    if time.monotonic() > budget.deadline:
        raise LimitError(
            f"step {budget.steps}: this node works at most {budget.limits.seconds:g} s for a message ({MAX_SECONDS} in "
            "its node config)"
        )


def _too_many(asked: str, limits: NodeLimits) -> LimitError:
    return LimitError(
        f"{asked}: this node takes at most {limits.steps:.0f} optimizer steps for a message ({MAX_STEPS} in its node "
        "config)"
    )


def _limit(node_config: Mapping[str, Any], key: str, default: float) -> float:
    value = node_config.get(key, default)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if key in node_config and not (number and 0 < value <= _MOST):
        raise ValueError(
            f"node config {key} = {value!r}: must be a number above 0 and at most {_MOST:g}, without quotes"
        )
    return float(value)


@contextmanager
def _memory_limited(size: int) -> Iterator[None]:
    if not size:
        yield
        return
    before, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (size if most == resource.RLIM_INFINITY else min(size, most), most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, most))
