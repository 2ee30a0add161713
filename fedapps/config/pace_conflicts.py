"""What rounds that close early, and a server that waits for none, cannot be combined with."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from fedapps.methods.base import Conflict, Method, StrategyParts
from fedapps.strategies.closing import REPLACES

from .clock import Pace
from .run_config import RunConfig


def pace_conflicts(run: RunConfig, label: str, method: Method, stages: int) -> Iterator[Conflict]:
    """Yield the keys of a method's run config that do not go together; ``stages`` is how many the task's data have."""
    pace = run.pace
    if pace.mode == "async":
        yield from _asynchronous_conflicts(run, label, method, stages)
    elif pace.closing.early:
        settings = f"over-selection = {pace.over_selection:g}, deadline = {pace.deadline:g}"
        early = {
            "collect_after": (run.collect_after > 0, "0", "nodes that are late would not collect data"),
            "in_flight": (run.in_flight > 0, "0", "messages that leave when others have replied are late themselves"),
            "drop_nodes": (run.drop_nodes, "false", "the node that is left out would take the place of a late one"),
            "dp": (run.dp not in ("none", "local"), "'none' or 'local'", REPLACES),
        }
        yield from refusals(f"{settings}", "over_selection", early)
    if pace.mode == "sync" and pace.over_selection > 1:
        over = {
            "sampling": (run.sampling == "poisson", "'fixed'", "chance decides how many nodes take part"),
            "aggregation": (run.aggregation != "mean", "'mean'", "Byzantine nodes could be the first to reply"),
            "fraction_train": (run.training_nodes >= run.participants, "below 1", "no other node is left to ask"),
        }
        yield from refusals(f"over-selection = {pace.over_selection:g}", "over_selection", over)
    if pace.mode == "sync" and pace.late_replies == "fold":
        fold = {
            "aggregation": (run.aggregation != "mean", "'mean'", "it compares updates of one model"),
            "dp": (run.dp != "none", "'none'", "a late update would be a second one of its node in a step"),
        }
        yield from refusals("late-replies = 'fold'", "late_replies", fold)
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


def _asynchronous_conflicts(run: RunConfig, label: str, method: Method, stages: int) -> Iterator[Conflict]:
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
    yield from refusals("mode = 'async'", "mode", without)
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


def own_hooks(method: Method, run: RunConfig) -> list[str]:
    """Which hooks of the method's strategy take all updates of a step to come from one model."""
    parts = StrategyParts(replace(run, pace=Pace()), {"shared": ("*",)})
    try:
        return method.strategy(parts).own_hooks()
    except ValueError:  # options that cannot work, which the method's own conflicts name
        return []


def _one_version(hooks: list[str]) -> str:
    return f"whose strategy takes all updates of a step to come from one model ({', '.join(hooks)})"


def refusals(settings: str, field: str, cases: Mapping[str, tuple[bool, str, str]]) -> Iterator[Conflict]:
    """A conflict for each case that holds: by field, whether it does, what it must be with ``settings``, and why."""
    for name, (refused, allowed, reason) in cases.items():
        if refused:
            yield {field, name}, f"{name.replace('_', '-')}: must be {allowed} with {settings}, because {reason}"
