"""The run config: typed, validated, all errors at once."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from math import floor
from typing import Any

from tasks.options import allowed, key_of, option, parse_options

from .catalogue import METHOD_LINES, METHODS, TASKS, privacy_of, task_class


class ConfigError(ValueError):
    """The run config cannot be used; the message lists every error in it."""


@dataclass(frozen=True)
class RunConfig:
    """What one run does. Each field is a key of Flower's run config, written with hyphens.

    Options of a task are further keys that start with the task's name (``driving.scenario``).
    """

    name: str = option("", "name of the run's folder; empty: task and Flower's run id")
    task: str = option("driving", "what is learned", choices=sorted(TASKS))
    methods: str = option("local,sfl,spfl,apfl", "methods to run one after the other, separated by commas; see `list`")
    seed: int = option(0, "seed of every random draw", minimum=0)
    rounds: int = option(10, "communication rounds", minimum=1)
    num_nodes: int = option(7, "nodes that the run waits for, at most node-wait seconds", minimum=1)
    output_dir: str = option("", "folder of the run folders; empty: ~/fedapps/runs")
    data_dir: str = option("", "folder with the data of all nodes; empty: a simulated world")
    cache_dir: str = option("", "folder of simulated worlds; empty: ~/fedapps/worlds")
    resume: bool = option(False, "go on from the last checkpoint of the run of this name")
    device: str = option("auto", "where nodes train: a GPU when there is one", choices=["auto", "cpu", "cuda"])
    node_cpus: int = option(1, "torch threads of a node; same number, same bits", minimum=1)
    state_backend: str = option("disk", "where nodes keep private parameters", choices=["disk", "context"])

    epochs: int = option(10, "local epochs per round", minimum=1)
    learning_rate: float = option(0.001, "local learning rate", above=0)
    batch_size: int = option(128, "examples per local step", minimum=1)
    optimizer: str = option("adam", "local optimizer", choices=["adam", "adamw", "sgd"])
    weight_decay: float = option(0.0, "the local optimizer's weight decay", minimum=0)
    clip_norm: float = option(0.0, "largest norm of a local gradient; 0: any", minimum=0)
    linear_decay: bool = option(False, "let the local learning rate fall to 0 within each round, step by step")
    plateau_patience: int = option(
        0, "epochs without a lower validation loss before the local learning rate falls; 0: never", minimum=0
    )
    plateau_factor: float = option(0.5, "what it is multiplied by then", above=0, maximum=1)
    min_learning_rate: float = option(1e-5, "the local learning rate never falls below this", above=0)
    personal_epochs: int = option(10, "epochs of personalisation before an evaluation", minimum=1)
    personal_learning_rate: float = option(0.001, "learning rate L of personalisation", above=0)
    collect_after: int = option(6, "round after which nodes collect new data with their model; 0: never", minimum=0)

    fraction_train: float = option(1.0, "fraction of the nodes that train in a round", above=0, maximum=1)
    fraction_evaluate: float = option(1.0, "fraction of the nodes that evaluate", above=0, maximum=1)
    evaluate_every: int = option(2, "rounds from one evaluation to the next; the last is evaluated", minimum=1)
    min_replies: int = option(1, "usable replies below which a round fails", minimum=1)
    weighting: str = option("uniform", "weight of a node in means", choices=["num-examples", "uniform"])
    server_optimizer: str = option("sgd", "server optimizer", choices=["sgd", "momentum", "adam", "adagrad", "yogi"])
    server_learning_rate: float = option(1.0, "server learning rate; 1 with sgd is FedAvg", above=0)
    rate_granularity: str = option("tensor", "adaptive rates per", choices=["tensor", "parameter"])
    drop_nodes: bool = option(False, "leave a node, drawn anew each round, out of training: the same for every method")
    fedprox_mu: float = option(0.05, "mu of the methods fedprox*; 0 is FedAvg", minimum=0)
    adapt_epochs: int = option(1, "epochs of the methods fedvocab* with the shared parameters frozen", minimum=1)
    reconstruct_epochs: int = option(1, "epochs in which fedrecon's nodes train their private parameters", minimum=1)
    support_share: float = option(
        0.5, "share of a node's examples that they do it on; the rest trains the shared ones", above=0, maximum=0.99
    )
    fisher_estimator: str = option(
        "per-sample",
        "Fisher information from the gradients of single examples or of batches (scaled: times the batch size)",
        choices=["per-sample", "per-batch", "per-batch-scaled"],
    )
    ewc_lambda: float = option(0.05, "weight of a node's earlier stages in the methods *-ewc", minimum=0)
    ewc_anchors: str = option(
        "separate",
        "earlier stages: each held at its own solution, or all at the newest (Online-EWC)",
        choices=["separate", "online"],
    )
    l2t_lambda: float = option(0.05, "weight of the pull to the last stage in the methods *-l2t", minimum=0)
    fedcurv_lambda: float = option(0.5, "fedcurv's weight, with the 1/2 of a quadratic penalty before it", minimum=0)
    elastic_own_past: float = option(0.0, "elastic-transfer's lambda 1: a node's own earlier stages", minimum=0)
    elastic_others_past: float = option(0.5, "its lambda 2: other nodes' earlier stages", minimum=0)
    elastic_others_now: float = option(0.0, "its lambda 3: other nodes' last round", minimum=0)
    elastic_anchors: str = option(
        "online", "elastic-transfer's earlier stages, as in ewc-anchors", choices=["online", "separate"]
    )
    apd_l1: float = option(1e-4, "weight of the adaptive parameters' absolute values in the methods *-apd", minimum=0)
    apd_drift: float = option(1e-4, "weight of changes to earlier stages' parameters in *-apd", minimum=0)
    fedweit_l1_mask: float = option(1e-2, "fedweit's lambda 1 on masks", minimum=0)
    fedweit_l1_adaptive: float = option(
        1e-4, "its lambda 1 on adaptive parameters, and the absolute value up to which they are not sent", minimum=0
    )
    fedweit_drift: float = option(1e-4, "its lambda 2: weight of changes to earlier stages' parameters", minimum=0)
    fedweit_mask_share: float = option(0.7, "share of a layer's units that a fedweit node sends", above=0, maximum=1)
    track_metric: str = option("", "evaluation metric of the best round and of early stopping; empty: none")
    track_mode: str = option("min", "whether the tracked metric is better smaller", choices=["min", "max"])
    patience: int = option(0, "evaluations without improvement before stopping; 0: never stop", minimum=0)
    target: float = option(0.0, "value of the tracked metric whose first round is reported; 0: none", minimum=0)
    timeout: float = option(3600.0, "seconds to wait for the replies of a round", above=0)
    node_wait: float = option(60.0, "seconds to wait for num-nodes to connect", minimum=0)

    def method_names(self) -> list[str]:
        """The methods in the order given."""
        return [name.strip() for name in self.methods.split(",") if name.strip()]


@dataclass(frozen=True)
class Config:
    """A run config and the options of its task."""

    run: RunConfig
    options: Any

    @property
    def num_stages(self) -> int:
        """How many stages of data the nodes meet one after another."""
        return task_class(self.run.task)(self.options).num_stages

    def flat(self) -> dict[str, Any]:
        """All keys and values, as in a run-config file."""
        flat = {key_of(name): value for name, value in asdict(self.run).items()}
        options = {f"{self.run.task}.{key_of(n)}": value for n, value in asdict(self.options).items()}
        return flat | options


def parse(given: Mapping[str, Any]) -> Config:
    """Check a flat run config and fill in the defaults.

    Raises :class:`ConfigError` with one line per error: unknown keys, wrong types, values out of range, unknown
    tasks and methods, and combinations that cannot work.
    """
    prefixes = tuple(f"{task}." for task in TASKS)
    general = {key: value for key, value in given.items() if not key.startswith(prefixes)}
    arguments, errors = parse_options(RunConfig, general)
    run = RunConfig(**arguments)
    errors += _method_errors(run)
    options, bad_options = _parse_options(given, run.task)
    errors += bad_options
    conflicts = [*_conflicts(run), *([] if bad_options else _task_conflicts(run, options))]
    refused = {key.replace("-", "_") for key in general} - arguments.keys()
    errors += [message for settings, message in conflicts if not refused & settings]
    if errors:
        count = f"{len(errors)} errors" if len(errors) > 1 else "an error"
        raise ConfigError(f"the run config has {count}:\n  " + "\n  ".join(errors))
    return Config(run, options)


def described_keys() -> dict[str, str]:
    """Every key of every task with what it means, its default and what it allows."""
    settings = {key_of(setting.name): setting for setting in fields(RunConfig)}
    for task in TASKS:
        settings |= {f"{task}.{key_of(o.name)}": o for o in fields(task_class(task).Options)}
    return {
        key: f"{o.metadata['doc']} ({o.default!r}; {allowed(o.metadata, type(o.default))})"
        for key, o in settings.items()
    }


def defaults() -> dict[str, Any]:
    """Every key of every task with its default, flat: what ``[tool.flwr.app.config]`` must hold."""
    flat = {key_of(setting.name): setting.default for setting in fields(RunConfig)}
    for task in TASKS:
        flat |= {f"{task}.{key_of(o.name)}": o.default for o in fields(task_class(task).Options)}
    return flat


def path_keys() -> set[str]:
    """The options of tasks that name files or folders."""
    return {
        f"{task}.{key_of(o.name)}" for task in TASKS for o in fields(task_class(task).Options) if o.metadata["path"]
    }


def _parse_options(given: Mapping[str, Any], task: str) -> tuple[Any, list[str]]:
    """The options of a task, and what is wrong with those of any."""
    options: Any = None
    errors: list[str] = []
    for name in TASKS:
        prefix = f"{name}."
        own = {key.removeprefix(prefix): value for key, value in given.items() if key.startswith(prefix)}
        if own or name == task:
            cls = task_class(name).Options
            arguments, bad = parse_options(cls, own, prefix)
            errors += bad
            if name == task:
                options = cls(**arguments)
    return options, errors


def _method_errors(run: RunConfig) -> list[str]:
    names = run.method_names()
    known = ", ".join(METHOD_LINES)
    errors = [f"methods: {name!r} is unknown; known methods: {known}" for name in names if name not in METHODS]
    if not names:
        errors.append(f"methods = {run.methods!r}: names no method; known methods: {known}")
    errors += [f"methods: {name!r} is given twice" for name in sorted({n for n in names if names.count(n) > 1})]
    return errors


def _task_conflicts(run: RunConfig, options: Any) -> Iterator[tuple[set[str], str]]:
    """Like :func:`_conflicts`, with what the task can do and has data for."""
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


def _conflicts(run: RunConfig) -> Iterator[tuple[set[str], str]]:
    """Settings that cannot work together, with the message: what would only fail rounds later."""
    if run.collect_after:
        yield from _collection_conflicts(run)
    training = max(1, floor(run.fraction_train * run.num_nodes + 0.5))
    if run.min_replies > training:
        yield (
            {"min_replies", "num_nodes", "fraction_train"},
            f"min-replies = {run.min_replies}: must be at most {training}, the nodes that train in a round "
            f"(fraction-train = {run.fraction_train:g} of num-nodes = {run.num_nodes})",
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
