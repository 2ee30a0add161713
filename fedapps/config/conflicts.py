"""What in a run config cannot work together, each with its message: what would only fail rounds later."""

from collections.abc import Iterator
from typing import Any

from fedapps.app.strategies import tiers_of, training_nodes
from fedapps.catalogue import METHODS, privacy_of, task_class

from .privacy_conflicts import privacy_conflicts
from .run_config import RunConfig


def task_conflicts(run: RunConfig, options: Any) -> Iterator[tuple[set[str], str]]:
    """Like :func:`conflicts`, with what the task can do and has data for."""
    names = [name for name in run.method_names() if name in METHODS]
    for name in names:
        if METHODS[name].task not in ("", run.task):
            only = METHODS[name].task
            yield {"methods", "task"}, f"methods: {name!r} is for task {only!r}, not {run.task!r}: leave it out"
            return
    try:
        task = task_class(run.task)(options)
        stages = task.num_stages
        for privacy in {privacy_of(name): None for name in names}:
            task.under(privacy)
    except ValueError as error:
        yield {"task", "methods"}, str(error)
        return
    cut = task.longest_epoch
    if 0 < cut < run.virtual_examples and not run.steps and "fedvc" in names:
        yield (
            {"methods", "virtual_examples", "steps"},
            f"virtual-examples = {run.virtual_examples}: must be at most {cut}, the most examples of an epoch of task "
            f"{run.task!r} (for vpr: raise vpr.queries-per-epoch, or set it to 0)",
        )
    if run.collect_after and not task.can_collect:
        given = f"collect-after = {run.collect_after}"
        yield {"collect_after"}, f"{given}: must be 0, because this only learns from given data"
    yield from _stage_conflicts(run, stages)


def _stage_conflicts(run: RunConfig, stages: int) -> Iterator[tuple[set[str], str]]:
    """What does not fit the stages of the task's data."""
    staged = [name for name in run.method_names() if name in METHODS and METHODS[name].memory != "nothing"]
    if stages == 1:
        if staged:
            yield (
                {"methods"},
                f"methods: {', '.join(staged)}: must have earlier stages to remember, but the data of task "
                f"{run.task!r} comes in one stage",
            )
    elif run.rounds % stages:
        yield (
            {"rounds"},
            f"rounds = {run.rounds}: must be a multiple of {stages}, the stages of the data, which share them equally",
        )
    elif run.rounds // stages % run.evaluate_every:
        yield (
            {"rounds", "evaluate_every"},
            f"evaluate-every = {run.evaluate_every}: must divide the {run.rounds // stages} rounds of a stage, because "
            "continual learning is measured at the end of each",
        )


def conflicts(run: RunConfig) -> Iterator[tuple[set[str], str]]:
    """Settings that cannot work together, with the message: what would only fail rounds later."""
    if run.collect_after:
        yield from _collection_conflicts(run)
    training = training_nodes(run)
    if run.min_replies > training:
        yield (
            {"min_replies", "num_nodes", "fraction_train"},
            f"min-replies = {run.min_replies}: must be at most {training}, the nodes that train in a round "
            f"(fraction-train = {run.fraction_train:g} of num-nodes = {run.num_nodes})",
        )
    yield from _federation_conflicts(run)
    yield from privacy_conflicts(run)
    if run.total_steps and not run.steps:
        yield (
            {"total_steps", "steps"},
            f"total-steps = {run.total_steps}: needs steps, the local steps of a round",
        )
    if run.patience and not run.track_metric:
        yield (
            {"patience", "track_metric"},
            f"patience = {run.patience}: needs a track-metric, whose lack of improvement stops the run",
        )
    if run.target and not run.track_metric:
        yield (
            {"target", "track_metric"},
            f"target = {run.target:g}: needs a track-metric, to say which metric is to reach it",
        )


def _federation_conflicts(run: RunConfig) -> Iterator[tuple[set[str], str]]:
    """Of methods that bring nodes together otherwise than as one."""
    federations = {METHODS[name].federation: name for name in run.method_names() if name in METHODS}
    if "tiers" in federations:
        try:
            tiers_of(run)
        except ValueError as error:
            yield {"methods", "cluster_groups", "cluster_intervals"}, str(error)
    if "clusters" in federations and run.num_clusters > run.num_nodes:
        yield (
            {"methods", "num_clusters", "num_nodes"},
            f"num-clusters = {run.num_clusters}: must be at most num-nodes = {run.num_nodes}",
        )
    own_draw = [
        name for kind, name in federations.items() if kind == "virtual" or (kind == "tiers" and run.cluster_cohort)
    ]
    if run.drop_nodes and own_draw:
        yield (
            {"methods", "drop_nodes", "cluster_cohort"},
            f"drop-nodes = true: must be false with methods = {', '.join(own_draw)!r}, which draws its own nodes",
        )


def _collection_conflicts(run: RunConfig) -> Iterator[tuple[set[str], str]]:
    given = f"collect-after = {run.collect_after}"
    if run.collect_after >= run.rounds:
        yield (
            {"collect_after", "rounds"},
            f"{given}: must be below rounds = {run.rounds}, or nothing is learned from what was collected",
        )
    if run.collect_after % run.evaluate_every:
        yield (
            {"collect_after", "evaluate_every"},
            f"evaluate-every = {run.evaluate_every}: must divide {given}, because nodes collect data when they "
            "evaluate",
        )
    if run.fraction_evaluate < 1:
        yield (
            {"collect_after", "fraction_evaluate"},
            f"fraction-evaluate = {run.fraction_evaluate:g}: must be 1 with {given}, because nodes collect data when "
            "they evaluate, and cannot train in the next stage without",
        )
    pooled = [name for name in run.method_names() if name in METHODS and METHODS[name].trains == "pooled"]
    if pooled and run.state_backend == "context":
        yield (
            {"collect_after", "methods", "state_backend"},
            f"state-backend = 'context': must be 'disk' with {given} and methods = {', '.join(pooled)!r}, which trains "
            "on what all nodes collected: a context holds one node's",
        )
