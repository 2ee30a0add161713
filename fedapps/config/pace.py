"""The keys that decide for which nodes the server waits: rounds, rounds that close early, or none."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any

from fedapps.strategies import Closing, Staleness
from fedapps.tasks.options import option

if TYPE_CHECKING:
    from fedapps.methods.base import Conflict, Method

    from .run_config import RunConfig

#: a of the staleness functions in the papers.
_PUBLISHED_A = {"polynomial": 0.5, "constant": 1.0, "hinge": 10.0}


@dataclass(frozen=True)
class Pace:
    """For which nodes the server waits. Each field is a key of the run config, which a method can set for itself."""

    mode: str = option(
        "sync",
        "sync: a round waits for its nodes, up to over-selection, deadline or timeout; async: the server waits for no "
        "node and steps whenever buffer updates are in, which then count as a round (FedBuff)",
        choices=["sync", "async"],
    )
    concurrency: int = option(
        0, "nodes at work at a time with mode = async; 0 = the nodes that train in a round", minimum=0
    )
    buffer: int = option(
        0, "updates per step with mode = async; 0 = half of concurrency, rounded up; FedBuff uses 10", minimum=0
    )
    async_update: str = option(
        "difference",
        "with mode = async, add s (y - x) to the model for a node that received x and returned y (FedBuff), or mix the "
        "model w with the reply, (1 - s) w + s y (mix; FedAsync with buffer = 1 and its alpha as server-learning-rate)",
        choices=["difference", "mix"],
    )
    repeat_version: bool = option(
        True, "with mode = async, let a node train again before the next step; if false, it waits while others work"
    )
    max_staleness: int = option(
        0, "with mode = async, refuse updates from models of more steps ago; 0 = never", minimum=0
    )
    over_selection: float = option(
        1.0,
        "ask this number times as many nodes as fraction-train says, and close the round when as many have replied as "
        "would be asked without; 1.3 is usual",
        minimum=1,
        maximum=10,
    )
    deadline: float = option(
        0.0,
        "seconds after which a round closes with the replies that are in, if they are at least min-replies, and an "
        "evaluation by nodes; 0 = at timeout",
        minimum=0,
    )
    late_replies: str = option(
        "drop",
        "drop what arrives after its round has closed, or fold it into the next round with the weight s",
        choices=["drop", "fold"],
    )
    staleness: str = option(
        "polynomial",
        "weight s of an update from the model of t steps ago: (1 + t)^-a, 1 (constant), or 1 up to t = b and then "
        "1 / (a (t - b) + 1) (hinge)",
        choices=["polynomial", "constant", "hinge"],
    )
    staleness_a: float = option(0.0, "a of staleness; 0 = 0.5 for polynomial, 10 for hinge", minimum=0)
    staleness_b: int = option(4, "b of staleness = hinge", minimum=0)

    @property
    def closing(self) -> Closing:
        """When a round closes."""
        late: Any = self.late_replies
        return Closing(self.over_selection, self.deadline or inf, late, self.weights)

    @property
    def weights(self) -> Staleness:
        """The weights of stale updates."""
        kind: Any = self.staleness
        return Staleness(kind, self.staleness_a or _PUBLISHED_A[kind], self.staleness_b)

    def asynchronous(self, training_nodes: int) -> dict[str, Any]:
        """The parameters of :class:`~fedapps.strategies.BufferedAsync` where so many nodes train in a round."""
        concurrency = self.concurrency or training_nodes
        return {
            "concurrency": concurrency,
            "buffer": self.buffer or (concurrency + 1) // 2,
            "staleness": self.weights,
            "mixing": self.async_update == "mix",
            "repeat": self.repeat_version,
            "max_staleness": self.max_staleness or None,
        }


def pace_conflicts(run: "RunConfig", label: str, method: "Method", stages: int) -> "Iterator[Conflict]":
    """What a method, whose run config this is, cannot be combined with; ``stages`` are those of the task's data."""
    pace = run.pace
    if pace.mode == "async":
        yield from _asynchronous_conflicts(run, label, method, stages)
    elif pace.closing.early:
        given = f"over-selection = {pace.over_selection:g}, deadline = {pace.deadline:g}"
        early = {
            "collect_after": (run.collect_after > 0, "0", "nodes that are late would not collect data"),
            "in_flight": (run.in_flight > 0, "0", "messages that leave when others have replied are late themselves"),
            "drop_nodes": (run.drop_nodes, "false", "the node that is left out would take the place of a late one"),
        }
        yield from _refusals(f"{given}", "over_selection", early)
    if pace.mode == "sync" and pace.over_selection > 1:
        over = {
            "sampling": (run.sampling == "poisson", "'fixed'", "chance decides how many nodes take part"),
            "aggregation": (run.aggregation != "mean", "'mean'", "Byzantine nodes could be the first to reply"),
            "fraction_train": (run.training_nodes >= run.participants, "below 1", "no other node is left to ask"),
        }
        yield from _refusals(f"over-selection = {pace.over_selection:g}", "over_selection", over)
    if pace.mode == "sync" and pace.late_replies == "fold":
        fold = {
            "aggregation": (run.aggregation != "mean", "'mean'", "it compares updates of one model"),
            "dp": (run.dp != "none", "'none'", "a late update would be a second one of its node in a step"),
        }
        yield from _refusals("late-replies = 'fold'", "late_replies", fold)
        if stages > 1:
            yield (
                {"late_replies", "task"},
                f"late-replies = 'fold': must be 'drop' with data in {stages} stages, because updates of a stage would "
                "enter the next one",
            )
        if hooks := own_hooks(method, run):
            yield (
                {"late_replies", "methods"},
                f"late-replies = 'fold': must be 'drop' with {label!r}, {_one_version(hooks)}",
            )


def _asynchronous_conflicts(run: "RunConfig", label: str, method: "Method", stages: int) -> "Iterator[Conflict]":
    without = {
        "dp": (
            run.dp != "none",
            "'none'",
            "a fast node sends several updates in a step, but epsilon counts one of each node",
        ),
        "aggregation": (run.aggregation != "mean", "'mean'", "a fast Byzantine node can send most updates of a step"),
        "sampling": (run.sampling == "poisson", "'fixed'", "nodes are drawn when others have replied"),
        "drop_nodes": (run.drop_nodes, "false", "there are no rounds to leave a node out of"),
        "in_flight": (run.in_flight > 0, "0", "concurrency limits who works at a time"),
        "over_selection": (run.pace.over_selection > 1, "1", "no round waits for replies"),
        "late_replies": (run.pace.late_replies == "fold", "'drop'", "no reply is late"),
        "collect_after": (run.collect_after > 0, "0", "nodes collect data when all have finished a round"),
    }
    yield from _refusals("mode = 'async'", "mode", without)
    if method.role != "federated":
        yield {"mode", "methods"}, f"mode = 'async': leave out of methods {label!r}, whose nodes do not learn together"
    elif method.needs_stages or stages > 1:
        yield (
            {"mode", "methods", "task"},
            f"mode = 'async': must be 'sync' with {label!r} and data in {stages} stages, because updates of a stage "
            "would arrive in the next one",
        )
    elif hooks := own_hooks(method, run):
        yield {"mode", "methods"}, f"mode = 'async': leave out of methods {label!r}, {_one_version(hooks)}"


def own_hooks(method: "Method", run: "RunConfig") -> list[str]:
    """Which hooks of the method's strategy take all updates of a step to come from one model."""
    from fedapps.methods.strategy_parts import StrategyParts

    parts = StrategyParts(replace(run, pace=Pace()), {"shared": ("*",), "metric_means": {}})
    try:
        return method.strategy(parts).own_hooks()
    except ValueError:  # options that cannot work, which the method's own conflicts name
        return []


def _one_version(hooks: list[str]) -> str:
    return f"whose strategy takes all updates of a step to come from one model ({', '.join(hooks)})"


def _refusals(given: str, field: str, cases: "Mapping[str, tuple[bool, str, str]]") -> "Iterator[Conflict]":
    for name, (refused, allowed, reason) in cases.items():
        if refused:
            yield {field, name}, f"{name.replace('_', '-')}: must be {allowed} with {given}, because {reason}"
