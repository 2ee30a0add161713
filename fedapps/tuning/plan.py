"""What is tuned: the methods of a recipe, each with as many trials on validation data, and the search space of each."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

from fedapps.base.options import Choices, Range, key_of, option_fields, option_values, parse_options, range_at
from fedapps.base.report.metrics import describe
from fedapps.config.parsing import Config, parse
from fedapps.config.recipe_files import Value
from fedapps.config.run_config import METHOD_KEYS, RunConfig
from fedapps.launch.plan import JobPlan, check_key
from fedapps.methods.base import Method
from fedapps.registry.expressions import Expression, read_expression
from fedapps.registry.methods import RUN_PREFIX, method_class, method_names, resolved, typed_argument
from fedapps.runs.continual import measure_names

Domain: TypeAlias = Range | Choices
#: Domains by argument of the method, such as ``mu`` or ``run.learning-rate``.
Space: TypeAlias = Mapping[str, Domain]
#: Values by argument of the method.
Settings: TypeAlias = Mapping[str, bool | int | float | str]
_FORM = "write KEY=LOW..HIGH, KEY=LOW..HIGH,log or KEY=VALUE,VALUE,..."
_RANGE = re.compile(r"(?P<low>[^,]+?)\.\.(?P<high>[^,]+?)(?P<log>\s*,\s*log)?")


@dataclass(frozen=True)
class GivenRange:
    """A range of the command line.

    Attributes
    ----------
    method : str
        Name of the method whose option it is; empty for a key of the run.
    key : str
        The key without the method's name.
    domain : Range or Choices
    """

    method: str
    key: str
    domain: Domain

    @classmethod
    def read(cls, text: str) -> "GivenRange":
        """Parse ``fedprox.mu=0.001..1,log``, ``epochs=1..5`` or ``apfl.granularity=tensor,parameter``.

        Raises
        ------
        ValueError
            The text has another form, the key cannot be tuned, or a value is not allowed.
        """
        key, equals, values = (part.strip() for part in text.partition("="))
        if not equals or not key or not values.strip(", "):
            raise ValueError(f"--range {text!r}: {_FORM}")
        method, _, bare = key.rpartition(".")
        if not method and bare not in METHOD_KEYS:
            raise ValueError(
                f"--range {text!r}: {bare} is neither an option of a method, such as fedprox.mu, nor a key that a "
                f"method can set for itself: {', '.join(METHOD_KEYS)}"
            )
        if method and method not in method_names():
            raise ValueError(f"--range {text!r}: {method!r} is no method; known methods: {', '.join(method_names())}")
        options = method_class(method).Options if method else RunConfig
        try:
            return cls(method, bare, _domain(options, bare, values, f"{method}." if method else ""))
        except ValueError as error:
            raise ValueError(f"--range {text!r}: {error}") from None


def search_spaces(config: Config, ranges: Sequence[GivenRange] = ()) -> dict[str, Space]:
    """The search space of each method, by label.

    An argument in the label is fixed: ``fedprox(mu=0.1)`` does not tune ``mu``. Given ranges replace declared ones.

    Raises
    ------
    ValueError
        A given range belongs to no method of the config, or to an argument that each of them fixes.
    """
    used: set[GivenRange] = set()
    spaces = {label: _space(config, label, ranges, used) for label in config.methods}
    if idle := [one for one in ranges if one not in used]:
        key = f"{idle[0].method}.{idle[0].key}".lstrip(".")
        raise ValueError(
            f"--range {key}: no method of this recipe tunes it ({', '.join(config.methods)}); an argument in the name "
            "of a method is fixed"
        )
    return spaces


def current_settings(config: Config, label: str, space: Space) -> Settings:
    """The present values of the arguments of a search space."""
    return {argument: _present(config, label, argument) for argument in space}


def tuned_label(label: str, settings: Settings) -> str:
    """The label with these settings as further arguments, such as ``fedprox(mu=0.1,run.learning-rate=0.01)``."""
    expression = read_expression(label)
    added = tuple((argument, setting_text(value)) for argument, value in settings.items())
    return Expression(expression.name, expression.arguments + added).label


def setting_text(value: bool | int | float | str) -> str:
    """A value as it is written in the arguments of a method; four digits of a number."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _space(config: Config, label: str, ranges: Sequence[GivenRange], used: set[GivenRange]) -> Space:
    method = config.methods[label]
    fixed = resolved(read_expression(label)).arguments
    space: dict[str, Domain] = {}
    for argument, setting in _arguments(method).items():
        search = setting.metadata.get("search")
        if search is None or argument in fixed:
            continue
        domain = range_at(search, _present(config, label, argument), setting.metadata)
        if domain is not None:
            space[argument] = _rounded(domain, setting.default)
    for override in ranges:
        argument = override.key if override.method else RUN_PREFIX + override.key
        if argument not in fixed and (override.method == method.name if override.method else method.tuned_keys):
            space[argument] = _rounded(override.domain, _present(config, label, argument))
            used.add(override)
    return space


def _arguments(method: Method) -> dict[str, Field[Any]]:
    """The fields that a method can tune, by argument: the keys of the run before its own options."""
    of_run = option_fields(RunConfig)
    return {RUN_PREFIX + key: of_run[key] for key in method.tuned_keys} | option_fields(method.Options)


def _present(config: Config, label: str, argument: str) -> Any:
    holder: Any = config.run_of(label) if argument.startswith(RUN_PREFIX) else config.methods[label].options
    return option_values(holder)[argument.removeprefix(RUN_PREFIX)]


def _rounded(domain: Domain, value: Any) -> Domain:
    """With bounds of the type of ``value``. Floats have four digits, so that values of four digits stay inside."""
    if isinstance(domain, Choices):
        return domain
    if isinstance(value, int):
        return Range(int(domain.low), int(domain.high), domain.log)
    return Range(float(f"{domain.low:.4g}"), float(f"{domain.high:.4g}"), domain.log)


def _domain(options: type, key: str, values: str, prefix: str) -> Domain:
    """The domain that a text describes; its values are allowed for the option."""

    def value_of(text: str) -> Any:
        arguments, errors = parse_options(options, {key: typed_argument(options, key, text.strip())}, prefix)
        if errors:
            raise ValueError("; ".join(errors))
        (value,) = arguments.values()
        return value

    between = _RANGE.fullmatch(values)
    if not between:
        return Choices(tuple(dict.fromkeys(value_of(text) for text in values.split(",") if text.strip())))
    low, high = value_of(between["low"]), value_of(between["high"])
    if isinstance(low, (bool, str)):
        raise ValueError(f"{prefix}{key} is not a number; list its values, separated by commas")
    return Range(low, high, bool(between["log"]))


@dataclass(frozen=True)
class TuningPlan(JobPlan):
    """The trials of a tuning.

    Parameters
    ----------
    trial_keys : mapping
        Keys that override ``config`` in the trials only.
    trials : int
        The number of trials of each method, the first with its current settings.
    ranges : tuple of str
        Ranges that replace declared ones or are added (:meth:`GivenRange.read`).
    finalists : int
        The number of trials of each method that run again with ``final_seeds``: the one with the current settings and
        the best others. 0: the best trial wins as it is.
    final_seeds : tuple of int
        Further seeds.
    vary : str
        The varied keys of the recipe, which the tuned recipe has, too.
    """

    command = "tune"
    kind = "tuning"

    trial_keys: Mapping[str, Value]
    trials: int
    ranges: tuple[str, ...]
    finalists: int = 0
    final_seeds: tuple[int, ...] = ()
    vary: str = ""

    def __post_init__(self) -> None:
        """Raise ``ValueError`` if a number is out of range."""
        if self.trials < 2:
            raise ValueError(
                f"--trials {self.trials}: must be at least 2, the current settings of a method and others to compare"
            )
        if not self.seeds:
            raise ValueError("--seeds 0: must be at least 1")
        if self.finalists and not 2 <= self.finalists <= self.trials:
            raise ValueError(
                f"--finalists {self.finalists}: must be 0, or from 2, the current settings and the best others, to "
                f"--trials = {self.trials}"
            )
        if self.finalists and not self.final_seeds:
            raise ValueError("--finalist-seeds 0: must be at least 1, the seeds with which finalists run again")

    def at_seed(self, seed: int) -> dict[str, int]:
        """The keys that differ between seeds, without those that ``trial_keys`` set."""
        return {key: value for key, value in super().at_seed(seed).items() if key not in self.trial_keys}

    def check_trial_keys(self) -> None:
        """Raise ``ValueError`` if ``trial_keys`` set what this command sets, or what it tunes."""
        for key in self.trial_keys:
            check_key("--set-trials", key, self.trial_config)
            for label, space in self.spaces.items():
                name = type(self.trial_config.methods[label]).name
                tuned = [a.removeprefix(RUN_PREFIX) if a.startswith(RUN_PREFIX) else f"{name}.{a}" for a in space]
                if key in tuned:
                    raise ValueError(f"--set-trials {key}: is tuned for {label}; use --range, or --set")

    @cached_property
    def trial_config(self) -> Config:
        """The validated config of the trials, without test data.

        Raises
        ------
        ValueError
            The config is invalid, or the task has no validation data.
        """
        plain = parse(self._flat())
        of_task = {f"{plain.run.task}.{key_of(name)}": v for name, v in plain.task.validation_options.items()}
        options = {key: value for key, value in of_task.items() if key not in {**self.config, **self.trial_keys}}
        metric = parse(self._flat() | options).task.validation_metric
        better = describe(metric).better
        if not better:
            raise ValueError(
                f"{metric}: its name must say whether lower or higher values are better, by a word such as loss, error "
                "or accuracy"
            )
        tracked = {"track-metric": metric, "track-mode": "min" if better < 0 else "max", "target": 0.0}
        return parse(self._flat() | options | tracked | {"withhold-test": True})

    @property
    def mode(self) -> Literal["min", "max"]:
        """Whether lower or higher values of the metric are better."""
        return "min" if self.trial_config.run.track_mode == "min" else "max"

    @property
    def metric(self) -> str:
        """The metric that decides, after the last round; in a task with stages its average over the stages."""
        metric = self.trial_config.run.track_metric
        return measure_names(metric)[0] if self.trial_config.num_stages > 1 else metric

    @cached_property
    def spaces(self) -> dict[str, Space]:
        """The search space of each method. Raises ``ValueError`` if a given range is invalid."""
        return search_spaces(self.trial_config, [GivenRange.read(text) for text in self.ranges])

    def trials_of(self, method: str) -> int:
        """The number of trials of a method: one if there is nothing to tune."""
        return self.trials if self.spaces[method] else 1

    def finals_of(self, method: str) -> int:
        """The number of finalists of a method: none if there is nothing to tune."""
        return self.finalists if self.spaces[method] else 0

    def _flat(self) -> dict[str, Any]:
        return {**self.config, **self.trial_keys, "methods": ",".join(self.methods), **self.at_seed(self.seeds[0])}
