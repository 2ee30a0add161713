"""The run config: typed, validated, with all its errors at once."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from fedapps.base.options import key_of, matches, option_values, parse_options, under_prefix, with_values
from fedapps.methods.base import Conflict, Method
from fedapps.registry import TRACKERS, did_you_mean_or_install
from fedapps.registry.expressions import read_expressions, shown_names
from fedapps.registry.methods import (
    RUN_PREFIX,
    build_method,
    method_class,
    method_names,
    options_of,
    resolved,
    typed_argument,
)
from fedapps.registry.tasks import task_class, task_names
from fedapps.tasks.base import Task
from fedapps.trackers import Tracker

from .conflicts import conflicts
from .keys import read_trackers, split_keys, tracker_keys, with_extra
from .run_config import METHOD_KEYS, RunConfig, with_source


class ConfigError(ValueError):
    """The run config cannot be used; the message lists every error in it."""


@dataclass(frozen=True)
class Config:
    """A validated run config.

    Parameters
    ----------
    run : RunConfig
    options : Options
        The options of the task.
    methods : mapping of str to Method
        By the labels under which they run, in their order.
    blocks : mapping
        The keys of the named methods' options, such as ``fedprox.mu``; arguments go before them.
    own_keys : mapping of str to mapping
        By label, the fields of the run that a method sets for itself, as in ``fedavg(run.learning-rate=0.01)``.
    trackers : mapping of str to Tracker
        What records the run, by name; empty on nodes, which do not need the trackers' packages.
    begun : mapping of str to int
        By label, the rounds that came before those of this run; empty unless it starts from another one.
    lineage : tuple of str
        The labels of the runs before this one, from the last one on, under which nodes have private state.
    champions : tuple of tuples of str
        For each champion in the registry: the label of its run, then the labels of the runs that it started from.
    registry_label : str
        The label of the registry; empty without one that has a champion.
    """

    run: RunConfig
    options: Any
    methods: Mapping[str, Method]
    blocks: Mapping[str, Any]
    own_keys: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    trackers: Mapping[str, Tracker] = field(default_factory=dict)
    begun: Mapping[str, int] = field(default_factory=dict)
    lineage: tuple[str, ...] = ()
    champions: tuple[tuple[str, ...], ...] = ()
    registry_label: str = ""

    def last_round(self, label: str) -> int:
        """The last round of a method."""
        return self.begun.get(label, 0) + self.run.rounds

    def run_of(self, label: str) -> RunConfig:
        """The run as the method of this label sees it."""
        own = self.own_keys.get(label)
        return with_values(self.run, own) if own else self.run

    def check_real_nodes(self) -> None:
        """Check the keys of every method for nodes that are no simulation; raises as :class:`RunConfig` does."""
        for label in self.methods:
            self.run_of(label).check_real_nodes()

    def unreported(self, folder: Path) -> str:
        """The tracked metric, if a node with data of its own in ``folder`` does not report it; empty if it does."""
        tracked = self.run.track_metric
        needs_common = matches(tracked, self.task.common_metrics)
        return tracked if needs_common and not self.task.has_common_test(folder) else ""

    @property
    def own_metric(self) -> str:
        """What nodes without a test in common can track in place of ``track-metric``: the first main metric that does
        not need it; empty if there is none.
        """
        return next((name for name in self.task.headline if not matches(name, self.task.common_metrics)), "")

    @property
    def unreported_text(self) -> str:
        """That no node reports the tracked metric, and what to do."""
        other = f'set track-metric = "{self.own_metric}"' + (', or "" to track nothing' if self.own_metric else "")
        return (
            f"track-metric = {self.run.track_metric!r}: nodes with data of their own report it only with a test that "
            f"is common to all of them; {other}"
        )

    @cached_property
    def task(self) -> Task:
        """The task with its options, before a method leaves parameters to the nodes."""
        return task_class(self.run.task)(self.options)

    def task_of(self, method: Method) -> Task:
        """The task as the nodes of a method see it."""
        return self.task.under(method.private(self.task))

    @property
    def num_stages(self) -> int:
        """How many stages of data the nodes meet one after another."""
        return self.task.num_stages

    def conflicts(self, *, files_exist: bool) -> list[Conflict]:
        """The combinations that cannot work; see :func:`~fedapps.config.conflicts.conflicts`."""
        runs = {label: self.run_of(label) for label in self.methods}
        return list(conflicts(self.run, self.task, self.methods, runs, files_exist=files_exist))

    @cached_property
    def checked(self) -> Self:
        """This config, whose combinations are checked once. Raises :class:`ConfigError` for one that cannot work."""
        if conflicting := self.conflicts(files_exist=True):
            raise _config_error([message for _, message in conflicting])
        return self

    def flat(self) -> dict[str, Any]:
        """The keys of the run, its task and its methods with their values, as in a run-config file."""
        flat = option_values(self.run)
        options = {f"{self.run.task}.{key}": value for key, value in option_values(self.options).items()}
        return flat | options | dict(self.blocks) | tracker_keys(self.trackers)


def parse(keys: Mapping[str, Any], *, files_exist: bool = True, on_node: bool = False) -> Config:
    """Check a flat run config and fill in the defaults.

    Parameters
    ----------
    keys : mapping
    files_exist : bool
        Whether the files that options name exist already. If not, no model is built, because that may read them.
    on_node : bool
        Whether this is a node, which ignores the keys of trackers.

    Raises
    ------
    ConfigError
        With one line per error: unknown keys, wrong types, values out of range, unknown tasks and methods, and
        combinations that cannot work.
    """
    config, errors, refused = _read(keys, others=True, tracked=not on_node)
    if config is not None:
        conflicting = config.conflicts(files_exist=files_exist)
        errors += [message for settings, message in conflicting if not {key_of(s) for s in settings} & refused]
    if config is None or errors:
        raise _config_error(errors)
    return config


def read(keys: Mapping[str, Any]) -> Config:
    """As :func:`parse`, without checks of combinations (:attr:`Config.checked`) and keys of trackers and other tasks.

    A node reads its run config so: it need not import other tasks, nor have the packages of trackers.
    """
    config, errors, _ = _read(keys, others=False, tracked=False)
    if config is None or errors:
        raise _config_error(errors)
    return config


def _read(keys: Mapping[str, Any], *, others: bool, tracked: bool) -> tuple[Config | None, list[str], set[str]]:
    """The config as far as it can be read, errors, and the keys of the run that were refused."""
    try:
        flat, of_trackers = split_keys(with_extra(keys))
    except ValueError as error:
        return None, [str(error)], set()
    general, of_tasks, of_methods, errors = _sorted_keys(flat)
    arguments, bad = parse_options(RunConfig, general)
    refused = set(general) - {key_of(name) for name in arguments}
    run = _with_rounds(with_values(RunConfig(), {**arguments, "extra": ""}))  # its keys stand beside the others
    options, bad_options = _task_options(run, of_tasks, others=others)
    methods, own_keys, bad_methods = _methods(run, of_methods)
    trackers, bad_trackers = read_trackers(run.trackers, of_trackers) if tracked else ({}, [])
    errors += bad + bad_options + bad_methods + bad_trackers
    if options is None or bad_options:
        return None, errors, refused
    used = {} if bad_methods else methods
    return Config(run, options, used, _blocks(methods, of_methods), own_keys, trackers), errors, refused


def _config_error(errors: list[str]) -> ConfigError:
    count = f"{len(errors)} errors" if len(errors) > 1 else "an error"
    return ConfigError(f"the run config has {count}:\n  " + "\n  ".join(errors))


def _sorted_keys(flat: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], list[str]]:
    """The keys of the run, of tasks and of methods, and a message for each key that is none."""
    general: dict[str, Any] = {}
    of_tasks: dict[str, Any] = {}
    of_methods: dict[str, Any] = {}
    errors = []
    for key, value in flat.items():
        owner, dot, _ = key.partition(".")
        if not dot:
            general[key] = value
        elif owner in task_names():
            of_tasks[key] = value
        elif owner in method_names():
            of_methods[key] = value
        else:
            others = ", ".join([*task_names(), *method_names(), *TRACKERS.names()])
            meant = did_you_mean_or_install(owner, [*task_names(), *method_names()])
            errors.append(
                f"{key}: unknown key; {owner!r} is neither a task, a method nor a tracker; they are {others}{meant}"
            )
    return general, of_tasks, of_methods, errors


def _task_options(run: RunConfig, of_tasks: Mapping[str, Any], *, others: bool) -> tuple[Any, list[str]]:
    """The options of the run's task, ``None`` for an unknown task, and what is wrong with them, or with all keys."""
    options: Any = None
    errors: list[str] = []
    known = run.task in task_names()
    if not known:
        names = ", ".join(task_names())
        errors.append(f"task = {run.task!r}: must be one of {names}{did_you_mean_or_install(run.task, task_names())}")
    named = [key.partition(".")[0] for key in of_tasks] if others else []
    for name in dict.fromkeys([*([run.task] if known else []), *named]):
        try:
            kind = task_class(name).Options
        except ValueError as error:
            errors.append(str(error))
            known = known and name != run.task
            continue
        arguments, bad = parse_options(kind, under_prefix(f"{name}.", of_tasks), f"{name}.")
        errors += bad
        if name == run.task:
            options = kind(**arguments)
    return with_source(options, run) if known else None, errors


def _methods(
    run: RunConfig, of_methods: Mapping[str, Any]
) -> tuple[dict[str, Method], dict[str, dict[str, Any]], list[str]]:
    """The run's methods and their own keys of the run by their labels, and what is wrong with them or with the options
    of any method.
    """
    expressions, errors = read_expressions(run.methods)
    if not expressions and not errors:
        errors.append(f"methods = {run.methods!r}: names no method; known methods: {', '.join(method_names())}")
    of_blocks: list[str] = []
    for name in dict.fromkeys(key.partition(".")[0] for key in of_methods):
        block = under_prefix(f"{name}.", of_methods)
        try:
            of_blocks += parse_options(method_class(name).Options, block, f"{name}.")[1]
        except ValueError as error:  # a package that cannot be imported
            errors.append(f"methods: {error}")
    if not errors:
        try:
            shown_names(run.methods)
        except ValueError as error:
            errors.append(str(error))
    methods: dict[str, Method] = {}
    own_keys: dict[str, dict[str, Any]] = {}
    for expression in expressions:
        if expression.label in methods:
            errors.append(f"methods: {expression.label!r} is given twice")
            continue
        try:
            methods[expression.label] = build_method(expression, of_methods)
            own_keys[expression.label] = read_own_keys(resolved(expression).run)
        except ValueError as error:
            errors += [f"methods: {line}" for line in str(error).splitlines() if line not in of_blocks]
        if set(expression.label) & set("/\\"):
            errors.append(f"methods: {expression.label!r}: must not contain / or \\, because it names folders")
    return methods, own_keys, list(dict.fromkeys([*errors, *of_blocks]))


def read_own_keys(keys: Mapping[str, str]) -> dict[str, Any]:
    """Read the keys of the run that a method sets for itself.

    Parameters
    ----------
    keys : mapping of str to str
        Texts by key, without the prefix ``run.``.

    Returns
    -------
    dict
        Values by field of the run config.

    Raises
    ------
    ValueError
        A key is none that a method can set, or a value is not allowed; the message has a line per error.
    """
    others = [
        f"{RUN_PREFIX}{key} = {text}: a method can set {', '.join(METHOD_KEYS)} for itself; set {key} for the whole run"
        for key, text in keys.items()
        if key not in METHOD_KEYS
    ]
    typed = {key: typed_argument(RunConfig, key, text) for key, text in keys.items() if key in METHOD_KEYS}
    values, errors = parse_options(RunConfig, typed, RUN_PREFIX)
    if others or errors:
        raise ValueError("\n".join([*others, *errors]))
    return values


def _blocks(methods: Mapping[str, Method], of_methods: Mapping[str, Any]) -> dict[str, Any]:
    names = dict.fromkeys(type(method).name for method in methods.values())
    known = {key: value for name in names for key, value in options_of(name).items()}
    return {key: of_methods.get(key, value) for key, value in known.items()}


def _with_rounds(run: RunConfig) -> RunConfig:
    """With the number of rounds that ``total_steps`` asks for."""
    steps = run.training.steps
    return replace(run, rounds=max(1, round(run.total_steps / steps))) if run.total_steps and steps else run
