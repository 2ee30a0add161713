"""What the operator of a node demands of a run, and the limits of its work: keys of the node config.

No server changes them. A server decides how long a node trains and how large its model is; the limits say how much of
it the node gives: optimizer steps, seconds of training, and memory. Simulated nodes have no limits but those that are
set.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Self

from fedapps.base.options import matches, option, option_fields, parse_options, split_names

try:
    import resource
except ImportError:  # not a Unix system: memory cannot be limited
    resource = None  # type: ignore[assignment]

#: Key of the node config: glob patterns of parameters that never leave the node, separated by commas.
PRIVATE = "private"
#: Key of the node config: whether the node keeps its personal models.
KEEP_MODEL = "keep-model"
#: Key of the node config: a command that is given a model folder, and whose exit status above 0 refuses the model.
ACCEPT_MODEL = "accept-model"
#: Key of the node config: a developer's switch, which sends the details of errors to the server.
SEND_ERRORS = "send-errors"
#: Keys of the node config.
MAX_STEPS, MAX_SECONDS, MAX_MEMORY, MAX_RANK = "max-steps", "max-seconds", "max-memory", "max-rank"
#: The limits of a deployed node whose config does not say otherwise.
DEFAULT_STEPS, DEFAULT_SECONDS = 1_000_000, 86_400.0
_MB = 10**6
#: No limit is larger, so that bytes of memory are a number of 64 bits.
_MOST = 10**12
#: Seconds after which a command that says whether the node may work is killed.
_SECONDS_OF_ELIGIBLE = 60


def is_simulated(node_config: Mapping[str, Any]) -> bool:
    """Whether a node with this config has a part of the server's data, and no folder for its own."""
    return "partition-id" in node_config and not node_config.get("data-dir")


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
            A limit is no number above 0 and at most 10**12, or below 1 for memory and rank, or memory cannot be limited
            on this system.
        """
        simulated = is_simulated(node_config)
        limits = cls(
            _limit(node_config, MAX_STEPS, inf if simulated else DEFAULT_STEPS),
            _limit(node_config, MAX_SECONDS, inf if simulated else DEFAULT_SECONDS),
            int(_limit(node_config, MAX_MEMORY, 0, least=1)),
            int(_limit(node_config, MAX_RANK, 0, least=1)),
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


def _limit(node_config: Mapping[str, Any], key: str, default: float, least: int = 0) -> float:
    value = node_config.get(key, default)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if key in node_config and not (number and 0 < value <= _MOST and value >= least):
        bound = f"of at least {least}" if least else "above 0"
        raise ValueError(
            f"node config {key} = {value!r}: must be a number {bound} and at most {_MOST:g}, without quotes"
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


#: Two hours of the day, such as 22-6.
_HOURS = re.compile(r"([01]?\d|2[0-4])-([01]?\d|2[0-4])")
#: The mechanism that an operator demands, and its limits.
PRIVACY_KEYS = ("dp", "dp-noise", "dp-clip", "dp-delta", "max-epsilon", "max-releases")


class RulesError(RuntimeError):
    """A run asks for more than the node's operator allows. The text has keys and limits, and no data of the node."""


def check_commands(node_config: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` if a command of a node config does not exist, which would refuse all work or all models."""
    for key in (ACCEPT_MODEL, "eligible"):
        command = str(node_config.get(key, ""))
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise ValueError(f"node config {key} = {command!r}: {error}; write a command as in a shell") from error
        if words and shutil.which(words[0]) is None:
            raise ValueError(f"node config {key}: {words[0]!r}: no such command; give the path of a program")


def exit_status(command: str, *arguments: str, seconds: float) -> int:
    """Run a command of the node config, and return its exit status.

    Raises
    ------
    RulesError
        It cannot be run, or takes more than ``seconds`` and is killed, with all that it has started. The text names no
        file of the node.
    """
    try:
        with subprocess.Popen([*shlex.split(command), *arguments], start_new_session=True) as process:
            try:
                return process.wait(seconds)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:  # ValueError: a quotation mark is not closed
        raise RulesError(f"the command gave no answer ({type(error).__name__})") from error


@dataclass(frozen=True)
class NodeRules:
    """The rules of a node's operator. Each field is a key of the node config.

    Parameters
    ----------
    dp : "none", "local" or "distributed"
        With another than "none", the node takes part in runs with this ``dp`` alone, and counts the updates that leave
        it, with the noise of the sum where it is "distributed".
    dp_noise, dp_clip : float
        The smallest noise multiplier and the largest clipping norm of such a run.
    dp_delta, max_epsilon, max_releases
        The budget of all updates that ever leave the node, over all runs (:mod:`fedapps.app.node_ledger`).
    may_leave : str
        Glob patterns, separated by commas, of what may leave beside the shared arrays: metrics, records, ``groups`` of
        the profile and ``num-examples``. Empty: what the method declares; under ``dp = "local"`` nothing.
    eligible : str
        A command whose exit status says whether the node may work now: 0 if it may.
    eligible_hours : str
        The hours of the day in which it may, in the local time of the node: ``22-6`` is from 22:00 to 5:59.
    min_count : int
        At least 1: the fewest examples that a mean over examples, such as a prototype, must have to leave the node. 3
        is the usual minimum frequency of disclosure control (Hundepool et al., Statistical Disclosure Control, 2012).
    """

    dp: str = option(
        "none", "the privacy mechanism that a run must have; none = any run", choices=["none", "local", "distributed"]
    )
    dp_noise: float = option(1.0, "the smallest dp-noise of a run", above=0)
    dp_clip: float = option(0.0, "the largest dp-clip of a run; 0 = any", minimum=0)
    dp_delta: float = option(1e-5, "the delta of max-epsilon", above=0, maximum=0.5)
    max_epsilon: float = option(0.0, "the largest epsilon of all updates that ever leave the node; 0 = any", minimum=0)
    max_releases: int = option(0, "the most updates that ever leave the node; 0 = any number", minimum=0)
    may_leave: str = option(
        "",
        "patterns of the metrics, records, groups and num-examples that may leave, exactly and without noise; empty = "
        "what the method declares, and under dp = local nothing",
    )
    eligible: str = option("", "a command: its exit status above 0 says that the node may not work now; empty = it may")
    eligible_hours: str = option("", "the hours in which the node may work, such as 22-6, in local time; empty = all")
    min_count: int = option(3, "the fewest examples of a mean, such as a prototype, that leaves the node", minimum=1)

    @classmethod
    def of(cls, node_config: Mapping[str, Any]) -> Self:
        """The rules in a node config. A simulated node may send a mean of one example unless its config says otherwise.

        Raises
        ------
        ValueError
            A value has another type or is out of range, or a limit of the mechanism is given without ``dp``.
        """
        values = {key: node_config[key] for key in option_fields(cls) if key in node_config}
        arguments, errors = parse_options(cls, values, "node config ")
        rules = cls(**arguments)
        if rules.dp == "none" and not errors and (limits := [key for key in PRIVACY_KEYS[1:] if key in values]):
            errors = [
                f'node config {", ".join(limits)}: needs dp = "local" or "distributed", the mechanism that it limits'
            ]
        if not errors and rules.eligible_hours and not _HOURS.fullmatch(rules.eligible_hours):
            errors = [
                f"node config eligible-hours = {rules.eligible_hours!r}: must be two hours of the day from 0 to 24, "
                "such as 22-6"
            ]
        if errors:
            raise ValueError("; ".join(errors))
        return replace(rules, min_count=1) if is_simulated(node_config) and "min-count" not in values else rules

    def ineligible(self) -> str | None:
        """Why the node may not work now; empty if it may, ``None`` without ``eligible`` and ``eligible_hours``."""
        if not self.eligible and not self.eligible_hours:
            return None
        if self.eligible_hours:
            begin, end = map(int, self.eligible_hours.split("-"))
            hour = time.localtime().tm_hour
            if not (begin <= hour < end if begin < end else hour >= begin or hour < end):
                return f"eligible-hours = {self.eligible_hours}: it is {hour} o'clock on the node"
        if not self.eligible:
            return ""
        try:
            status = exit_status(self.eligible, seconds=_SECONDS_OF_ELIGIBLE)
        except RulesError as error:
            return f"eligible: {error}"
        return f"eligible: the command ended with exit status {status}" if status else ""

    def check_eligible(self) -> None:
        """Check, before the work of a message, that the node may work now.

        Raises
        ------
        RulesError
            It may not.
        """
        if reason := self.ineligible():
            raise RulesError(f"{reason}, so that this node may not work now; ask it again later")

    def lets_out(self, name: str, *, otherwise: bool) -> bool:
        """Whether a metric, a record or a part of the profile may leave; ``otherwise`` where ``may_leave`` is empty."""
        if not self.may_leave:
            return otherwise
        patterns = split_names(self.may_leave)
        return matches(name, patterns) if patterns else otherwise

    def check_run(self, dp: str, noise: float, clip: float, *, seeded: bool) -> None:
        """Check the keys ``dp``, ``dp-noise``, ``dp-clip`` and ``dp-seeded`` of a run.

        Raises
        ------
        RulesError
            The run protects less than the operator demands.
        """
        if self.dp == "none":
            return
        wrong = []
        if dp != self.dp:
            wrong.append(f"dp = {dp!r}: must be {self.dp!r}")
        if noise < self.dp_noise:
            wrong.append(f"dp-noise = {noise:g}: must be at least {self.dp_noise:g}")
        if self.dp_clip and clip > self.dp_clip:
            wrong.append(f"dp-clip = {clip:g}: must be at most {self.dp_clip:g}")
        if seeded:
            wrong.append("dp-seeded = true: must be false, because the seed reveals the noise")
        if wrong:
            raise RulesError(f"the node config of this node demands more of the run: {'; '.join(wrong)}")
