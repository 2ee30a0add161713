"""What is tuned: the methods of a recipe, each with the same number of trials on validation data."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from fedapps.base.options import key_of
from fedapps.base.report.metrics import describe
from fedapps.config.parsing import Config, parse
from fedapps.config.recipe_files import Value
from fedapps.launch.plan import JobPlan
from fedapps.runs.continual import measure_names

from .ranges import GivenRange, Space, search_spaces


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
    """

    command = "tune"
    kind = "tuning"

    trial_keys: Mapping[str, Value]
    trials: int
    ranges: tuple[str, ...]
    finalists: int = 0
    final_seeds: tuple[int, ...] = ()

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
