"""What is tuned: the methods of a recipe, each with the same number of trials on validation data."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from fedapps.base.options import key_of
from fedapps.comparison.matrix import check_key, check_seed_key
from fedapps.config.parsing import Config, parse
from fedapps.config.recipe_files import Value
from fedapps.report.metrics import describe
from fedapps.runs.continual import measure_names

from .ranges import GivenRange, Space, search_spaces


@dataclass(frozen=True)
class TuningPlan:
    """The trials of a tuning. The plan is saved in the folder of the tuning, so that it can be resumed.

    Parameters
    ----------
    recipe : str
        Name of the recipe: ``NAME`` or ``NAME:STAGE``.
    config : mapping
        The flat run config of the recipe with all overrides; its paths are absolute.
    trial_keys : mapping
        Keys that override ``config`` in the trials only.
    methods : tuple of str
        Labels of the methods.
    seeds : tuple of int
    trials : int
        The number of trials of each method, the first with its current settings.
    ranges : tuple of str
        Ranges that replace declared ones or are added (:meth:`GivenRange.read`).
    engine : "inline" or "ray"
    seed_keys : tuple of str
        Keys that take the value of the seed in each run, such as the seed of a partition.
    finalists : int
        The number of trials of each method that run again with ``final_seeds``: the one with the current settings and
        the best others. 0: the best trial wins as it is.
    final_seeds : tuple of int
        Further seeds.
    """

    recipe: str
    config: Mapping[str, Value]
    trial_keys: Mapping[str, Value]
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    trials: int
    ranges: tuple[str, ...]
    engine: str
    seed_keys: tuple[str, ...] = ()
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

    def at_seed(self, seed: int) -> dict[str, int]:
        """The keys that differ between seeds."""
        return dict.fromkeys(("seed", *self.seed_keys), seed)

    def check_seed_keys(self) -> None:
        """Raise ``ValueError`` if the runs do not read one of ``seed_keys``, or it cannot be a seed."""
        for key in self.seed_keys:
            check_seed_key(key)
            check_key("--seed-keys", key, self.trial_config)

    def save(self, folder: Path) -> None:
        """Write ``plan.json``."""
        (folder / "plan.json").write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> "TuningPlan":
        """Read the plan in the folder of a tuning. Raises ``ValueError`` if there is no valid plan."""
        path = folder / "plan.json"
        try:
            known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            given = {field.name: known[field.name] for field in fields(cls)}
        except FileNotFoundError:
            raise ValueError(f"--resume {folder}: not the folder of a tuning (it has no plan.json)") from None
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"--resume {folder}: plan.json is not the plan of a tuning ({error!r}); start a new one"
            ) from error
        lists = {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
        return cls(**(given | lists))

    def _flat(self) -> dict[str, Any]:
        return {**self.config, **self.trial_keys, "methods": ",".join(self.methods), **self.at_seed(self.seeds[0])}
