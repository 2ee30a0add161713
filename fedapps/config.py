"""The run config: typed, validated, all errors at once."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from tasks.options import allowed, key_of, parse_options

from .catalogue import METHOD_LINES, METHODS, TASKS, profiles_class, task_class
from .conflicts import conflicts, task_conflicts
from .run_config import RunConfig, with_source


class ConfigError(ValueError):
    """The run config cannot be used; the message lists every error in it."""


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
    run = _rounds_of(RunConfig(**arguments))
    errors += _method_errors(run)
    options, bad_options = _parse_options(given, run.task)
    options = with_source(options, run)
    errors += bad_options
    found = [*conflicts(run), *([] if bad_options else task_conflicts(run, options))]
    refused = {key.replace("-", "_") for key in general} - arguments.keys()
    errors += [message for settings, message in found if not refused & settings]
    if errors:
        count = f"{len(errors)} errors" if len(errors) > 1 else "an error"
        raise ConfigError(f"the run config has {count}:\n  " + "\n  ".join(errors))
    return Config(run, options)


def described_keys() -> dict[str, str]:
    """Every key of every task with what it means, its default and what it allows."""
    settings = {key_of(setting.name): setting for setting in fields(RunConfig)}
    for task in TASKS:
        settings |= {f"{task}.{key_of(o.name)}": o for o in fields(profiles_class(task).Options)}
    return {
        key: f"{o.metadata['doc']} ({o.default!r}; {allowed(o.metadata, type(o.default))})"
        for key, o in settings.items()
    }


def defaults() -> dict[str, Any]:
    """Every key of every task with its default, flat: what ``[tool.flwr.app.config]`` must hold."""
    flat = {key_of(setting.name): setting.default for setting in fields(RunConfig)}
    for task in TASKS:
        flat |= {f"{task}.{key_of(o.name)}": o.default for o in fields(profiles_class(task).Options)}
    return flat


def path_keys() -> set[str]:
    """The options of tasks that name files or folders."""
    return {
        f"{task}.{key_of(o.name)}" for task in TASKS for o in fields(profiles_class(task).Options) if o.metadata["path"]
    }


def _parse_options(given: Mapping[str, Any], task: str) -> tuple[Any, list[str]]:
    """The options of a task, and what is wrong with those of any."""
    options: Any = None
    errors: list[str] = []
    for name in TASKS:
        prefix = f"{name}."
        own = {key.removeprefix(prefix): value for key, value in given.items() if key.startswith(prefix)}
        if own or name == task:
            cls = profiles_class(name).Options
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


def _rounds_of(run: RunConfig) -> RunConfig:
    """With the number of rounds that ``total_steps`` asks for."""
    return replace(run, rounds=max(1, round(run.total_steps / run.steps))) if run.total_steps and run.steps else run
