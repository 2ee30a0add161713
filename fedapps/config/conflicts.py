"""Settings that cannot work together, each with a message; without these checks a run would fail rounds later."""

from collections.abc import Iterator, Mapping

from fedapps.clients.local_part import composed
from fedapps.methods.base import Conflict, Method
from fedapps.strategies.wire import LAST_ROUND
from fedapps.tasks.base import Task, missing

from .clock import clock_conflicts
from .pace_conflicts import pace_conflicts, refusals
from .run_config import (
    RunConfig,
    check_name,
    held_out_of,
    read_allowed_groups,
    read_limits,
    robust_aggregation,
    secure_aggregation_of,
)


def conflicts(
    run: RunConfig,
    task: Task,
    methods: Mapping[str, Method],
    runs: Mapping[str, RunConfig],
    *,
    files_exist: bool = True,
) -> Iterator[Conflict]:
    """The fields of the run config that are in conflict, with the message, for the run, its task and its methods.

    ``runs`` has the run config of each method, in which its own keys replace those of ``run``. Unless the files that
    options name exist already (``files_exist``), the task's model is not built.
    """
    try:
        held_out_of(run)
    except ValueError as error:
        yield {"held_out_nodes", "num_nodes"}, str(error)
        return
    general = list(_run_conflicts(run))
    yield from general
    for own in runs.values():
        yield from (conflict for conflict in _run_conflicts(own) if conflict not in general)
    for label, own in runs.items():
        if run.total_steps and own.training.steps != run.training.steps:
            yield (
                {"total_steps", "methods"},
                f"methods: {label!r}: steps must be {run.training.steps}, those of the run, with total-steps = "
                f"{run.total_steps}, from which the number of rounds follows",
            )
    if run.collect_after:
        yield from _collection_conflicts(run)
    yield from _privacy_conflicts(run, methods, runs)
    yield from _aggregation_conflicts(run, methods)
    yield from _secrecy_conflicts(run, methods, runs)
    compressed = {label: own.compression for label, own in runs.items() if own.compression != "none"}
    refusals = {label: (name, methods[label].compression_conflict()) for label, name in compressed.items()}
    yield from _refused_by_methods("compression", "none", refusals)
    pooled = [label for label, method in methods.items() if method.pools_data]
    if run.held_out_nodes and pooled:
        yield (
            {"held_out_nodes", "methods"},
            f"held-out-nodes = {run.held_out_nodes!r}: leave out of methods {', '.join(pooled)}, which trains on the "
            "data of all nodes",
        )
    for label, method in methods.items():
        if method.task not in ("", run.task):
            yield {"methods", "task"}, f"methods: {label!r} is for task {method.task!r}, not {run.task!r}: leave it out"
            return
    lacking = [conflict for label, method in methods.items() for conflict in _lacks(label, method, task, files_exist)]
    if lacking:
        yield from lacking
        return
    try:
        stages = task.num_stages
        for method in methods.values():
            if files_exist or not method.needs_model:
                task.under(method.private(task))
            composed(method.local_parts())
    except ValueError as error:
        yield {"task", "methods"}, str(error)
        return
    for label, method in methods.items():
        yield from method.conflicts(runs[label], task)
    of_pace: list[Conflict] = []
    for label, method in methods.items():
        of_pace += [c for c in pace_conflicts(runs[label], label, method, stages) if c not in of_pace]
    yield from of_pace
    if run.training.linear_decay and not run.training.steps and not task.roles.examples:
        yield (
            {"linear_decay", "steps"},
            "linear-decay = true: needs steps, the local steps of a round, because the model in training chooses its "
            f"examples in task {task.name!r}, so that the length of an epoch is not known before",
        )
    if run.held_back and not task.in_order:
        yield (
            {"held_back", "task"},
            f"held-back = {run.held_back}: must be 0, because the examples of task {task.name!r} have no order of time",
        )
    if run.gate and not run.registry:
        yield {"gate", "registry"}, f"gate = {run.gate!r}: needs registry, the folder of the champions on the server"
    if run.gate and run.dp == "local":
        yield {"gate", "dp"}, f"gate = {run.gate!r}: needs the metrics of nodes, which dp = 'local' lets not leave"
    if run.gate_method and run.gate_method not in methods:
        known = ", ".join(methods)
        yield {"gate_method", "methods"}, f"gate-method = {run.gate_method!r}: must be one of {known}"
    if run.compares and not (run.track_metric and run.start):
        yield (
            {"gate", "track_metric", "start"},
            f"gate = {run.gate!r}: needs start, the run of the challenger, and track-metric, by which it is compared: "
            "--set track-metric=METRIC, one of those in the report of the run",
        )
    if run.newest != "all" and not task.in_order:
        yield (
            {"newest", "task"},
            f"newest = {run.newest!r}: must be 'all', because the examples of task {task.name!r} have no order of time",
        )
    if run.collect_after and not task.can_collect:
        yield (
            {"collect_after"},
            f"collect-after = {run.collect_after}: must be 0, because this only learns from given data",
        )
    yield from _stage_conflicts(run, methods, stages)


def _lacks(label: str, method: Method, task: Task, files_exist: bool) -> Iterator[Conflict]:
    """What of the method's needs the task's model does not have."""
    if not method.needs or (method.needs_model and not files_exist):
        return
    for reason in filter(None, (missing(task, role) for role in method.needs)):
        yield (
            {"methods", "task"},
            f"methods: {label!r} has no meaning for task {task.name!r}, because {reason}: leave it out",
        )


def _run_conflicts(run: RunConfig) -> Iterator[Conflict]:
    try:
        check_name(run.name)
    except ValueError as error:
        yield {"name"}, str(error)
    try:
        read_allowed_groups(run.allowed_groups)
    except ValueError as error:
        yield {"allowed_groups"}, str(error)
    yield from clock_conflicts(run.clock)
    if run.min_replies > run.training_nodes:
        yield (
            {"min_replies", "num_nodes", "fraction_train"},
            f"min-replies = {run.min_replies}: must be at most {run.training_nodes}, the nodes that train in a round "
            f"({_who_trains(run)})",
        )
    if run.node_batch > 1 and run.timings:
        yield (
            {"node_batch", "timings"},
            f"node-batch = {run.node_batch}: must be 1 with timings = true, because the time of a node cannot be "
            "measured while nodes train at once",
        )
    if run.start and run.state_backend != "disk":
        yield (
            {"start", "state_backend"},
            f"state-backend = {run.state_backend!r}: must be 'disk' with start, the only one that the next run finds",
        )
    if run.newest not in ("all", "new") and not (run.newest.isdecimal() and int(run.newest)):
        yield {"newest"}, f"newest = {run.newest!r}: must be 'all', 'new' or a number above 0, such as '1000'"
    if run.drop_nodes and run.fraction_train < 1:
        yield (
            {"drop_nodes", "fraction_train"},
            f"fraction-train = {run.fraction_train:g}: must be 1 with drop-nodes = true, which trains all but one",
        )
    if run.drop_nodes and run.sampling != "fixed":
        yield (
            {"drop_nodes", "sampling"},
            f"drop-nodes = true: must be false with sampling = {run.sampling!r}, which draws the nodes itself",
        )
    if run.dp != "none" and run.sampling in ("tiers", "utility"):
        yield (
            {"dp", "sampling"},
            f"sampling = {run.sampling!r}: must be 'fixed' or 'poisson' with dp = {run.dp!r}, because it chooses nodes "
            "by what they report, which dp does not protect",
        )
    try:
        read_limits(run.stop_beyond)
    except ValueError as error:
        yield {"stop_beyond"}, str(error)
    if run.stop_beyond and not run.track_metric:
        yield (
            {"stop_beyond", "track_metric"},
            f"stop-beyond = {run.stop_beyond!r}: needs a track-metric, to say which metric stops the run",
        )
    if run.total_steps and not run.training.steps:
        yield ({"total_steps", "steps"}, f"total-steps = {run.total_steps}: needs steps, the local steps of a round")
    elif run.total_steps and run.total_steps % run.training.steps:
        yield (
            {"total_steps", "steps"},
            f"total-steps = {run.total_steps}: must be a multiple of steps = {run.training.steps}, so that a whole "
            "number of rounds makes them",
        )
    elif run.rounds > LAST_ROUND:
        yield (
            {"total_steps", "steps"},
            f"total-steps = {run.total_steps}: would be {run.rounds} rounds of steps = {run.training.steps}, but there "
            f"can be at most {LAST_ROUND}; take more steps in each",
        )
    if run.patience and not run.track_metric:
        yield (
            {"patience", "track_metric"},
            f"patience = {run.patience}: needs a track-metric, whose lack of improvement stops the run",
        )
    if run.training.momentum and run.training.optimizer != "sgd":
        yield (
            {"momentum", "optimizer"},
            f"momentum = {run.training.momentum:g}: must be 0 with optimizer = {run.training.optimizer!r}; only 'sgd' "
            "has it",
        )
    patience = run.training.plateau_patience
    if patience and run.training.linear_decay:
        yield (
            {"linear_decay", "plateau_patience"},
            f"linear-decay = true: must be false with plateau-patience = {patience}, which sets the "
            "learning rate of each node",
        )
    if patience and run.learning_rate_schedule != "constant":
        yield (
            {"learning_rate_schedule", "plateau_patience"},
            f"learning-rate-schedule = {run.learning_rate_schedule!r}: must be 'constant' with plateau-patience = "
            f"{patience}, which sets the learning rate of each node",
        )
    if run.target and not run.track_metric:
        yield (
            {"target", "track_metric"},
            f"target = {run.target:g}: needs a track-metric, to say which metric is to reach it",
        )


def _who_trains(run: RunConfig) -> str:
    held_out = f" without held-out-nodes = {run.held_out_nodes}" if run.held_out_nodes else ""
    who = "all but one, drop-nodes = true," if run.drop_nodes else f"fraction-train = {run.fraction_train:g}"
    return f"{who} of num-nodes = {run.num_nodes}{held_out}"


def _stage_conflicts(run: RunConfig, methods: Mapping[str, Method], stages: int) -> Iterator[Conflict]:
    """What does not fit the stages of the task's data."""
    staged = [label for label, method in methods.items() if method.needs_stages]
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


def _collection_conflicts(run: RunConfig) -> Iterator[Conflict]:
    setting = f"collect-after = {run.collect_after}"
    if run.collect_after >= run.rounds and not run.start:  # earlier rounds count, too
        yield (
            {"collect_after", "rounds"},
            f"{setting}: must be below rounds = {run.rounds}, or nothing is learned from what was collected",
        )
    if run.collect_after % run.evaluate_every:
        yield (
            {"collect_after", "evaluate_every"},
            f"evaluate-every = {run.evaluate_every}: must divide {setting}, because nodes collect data when they "
            "evaluate",
        )
    if run.fraction_evaluate < 1:
        yield (
            {"collect_after", "fraction_evaluate"},
            f"fraction-evaluate = {run.fraction_evaluate:g}: must be 1 with {setting}, because nodes collect data when "
            "they evaluate, and cannot train in the next stage without",
        )


def _privacy_conflicts(
    run: RunConfig, methods: Mapping[str, Method], runs: Mapping[str, RunConfig]
) -> Iterator[Conflict]:
    """What :func:`conflicts` yields for ``dp``."""
    if run.dp == "none":
        return
    yield from _refused_by_methods(
        "dp", "none", {label: (run.dp, method.privacy_conflict(run.dp)) for label, method in methods.items()}
    )
    why = "under which nodes do not tell how many examples they have"
    if run.dp.startswith("central"):
        why = "which divides the sum of the updates by the expected number of nodes"
    for weighting in dict.fromkeys(own.weighting for own in runs.values()):
        if weighting != "uniform":
            yield {"dp", "weighting"}, f"weighting = {weighting!r}: must be 'uniform' with dp = {run.dp!r}, {why}"


def _aggregation_conflicts(run: RunConfig, methods: Mapping[str, Method]) -> Iterator[Conflict]:
    """What :func:`conflicts` yields for ``aggregation`` and ``byzantine-fraction``."""
    aggregation = robust_aggregation(run)
    if aggregation is None:
        return
    yield from _refused_by_methods(
        "aggregation",
        "mean",
        {label: (run.aggregation, method.robustness_conflict()) for label, method in methods.items()},
    )
    if run.dp.startswith("central"):
        yield (
            {"aggregation", "dp"},
            f"aggregation = {run.aggregation!r}: must be 'mean' with dp = {run.dp!r}, whose noise is that of a mean",
        )
    sampling = {
        "tiers": "Byzantine nodes could reply all at the same speed, and be most of a tier",
        "utility": "Byzantine nodes could report large losses, and be most of a round",
        "poisson": "by chance it draws too few nodes, which ends the run" if aggregation.required(1) > 1 else "",
    }
    if reason := sampling.get(run.sampling):
        yield (
            {"aggregation", "sampling"},
            f"sampling = {run.sampling!r}: must be 'fixed' with aggregation = {run.aggregation!r}: {reason}",
        )
    if (needed := aggregation.required(run.training_nodes)) > run.training_nodes:
        yield (
            {"aggregation", "byzantine_fraction", "num_nodes", "fraction_train"},
            f"aggregation = {run.aggregation!r}: needs at least {needed} replies with byzantine-fraction = "
            f"{run.byzantine_fraction:g}, but {run.training_nodes} nodes train in a round ({_who_trains(run)})",
        )


def _secrecy_conflicts(
    run: RunConfig, methods: Mapping[str, Method], runs: Mapping[str, RunConfig]
) -> Iterator[Conflict]:
    """What :func:`conflicts` yields for ``secure-aggregation``."""
    if not run.secure_aggregation:
        if run.dp == "distributed":
            yield (
                {"dp", "secure_aggregation"},
                "dp = 'distributed': needs secure-aggregation = true, which adds the noise up",
            )
        return
    pooled = {label: "one node has all data" for label, method in methods.items() if method.pools_data}
    reasons = {label: pooled.get(label) or method.secrecy_conflict() for label, method in methods.items()}
    yield from _refused_by_methods(
        "secure-aggregation", "false", {name: ("true", why) for name, why in reasons.items()}
    )
    seen: list[Conflict] = []
    for run_of_method in dict.fromkeys(runs.values()):
        seen += [conflict for conflict in _sum_conflicts(run_of_method) if conflict not in seen]
    yield from seen


def _sum_conflicts(run: RunConfig) -> Iterator[Conflict]:
    """What needs more than the sum of the updates."""
    alone = {
        "dp": (run.dp not in ("none", "distributed"), "'none' or 'distributed'", "a node clips before the sum"),
        "dp_seeded": (run.dp == "distributed" and run.dp_seeded, "false", "nodes draw the noise, each for itself"),
        "aggregation": (run.aggregation != "mean", "'mean'", "it compares single updates"),
        "compression": (run.compression != "none", "'none'", "the updates are integers already"),
        "sampling": (run.sampling in ("tiers", "utility"), "'fixed' or 'poisson'", "it learns from what nodes report"),
        "mode": (run.pace.mode == "async", "'sync'", "a sum needs nodes that train at the same time"),
        "late_replies": (run.pace.late_replies == "fold", "'drop'", "an update that is late is in no sum"),
        "max_examples": (
            run.weighting == "num-examples" and not run.max_examples,
            "above 0",
            "weighting = 'num-examples' needs a largest weight",
        ),
        "num_nodes": (run.training_nodes < 3, "at least 3 that train", "the sum of two shows one of them the other"),
    }
    yield from refusals("secure-aggregation = true", "secure_aggregation", alone)
    if run.dp == "distributed" and run.secure_aggregation_metrics:
        yield (
            {"dp", "secure_aggregation_metrics"},
            f"secure-aggregation-metrics = {run.secure_aggregation_metrics!r}: must be empty with dp = 'distributed', "
            "whose noise does not cover them",
        )
    elif not any(refused for refused, _, _ in alone.values()):
        try:
            secure_aggregation_of(run)
        except ValueError as error:
            yield {"secure_aggregation", "secure_aggregation_bits"}, f"secure-aggregation: {error}"


def _refused_by_methods(key: str, off: str, reasons: Mapping[str, tuple[str, str]]) -> Iterator[Conflict]:
    """One conflict for all methods that refuse the same value of a key for the same reason.

    ``reasons`` has the value of the key and the reason by the label of the method; an empty reason is none. ``off`` is
    the value that no method refuses.
    """
    together: dict[tuple[str, str], list[str]] = {}
    for label, (value, reason) in reasons.items():
        if reason:
            together.setdefault((value, reason), []).append(label)
    for (value, reason), labels in together.items():
        yield (
            {key.replace("-", "_"), "methods"},
            f"{key} = {_toml(value)}: leave out of methods {', '.join(labels)}, or set {key} = {_toml(off)}: {reason}",
        )


def _toml(value: str) -> str:
    return value if value in ("true", "false") else repr(value)
