"""The studies of a tuning in a SQLite file, one per method, with Optuna's sampler of promising settings.

Akiba et al., Optuna: A Next-generation Hyperparameter Optimization Framework, KDD 2019. The sampler is the
tree-structured Parzen estimator of Bergstra et al., Algorithms for Hyper-Parameter Optimization, NIPS 2011.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import isfinite
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from fedapps.base.options import Choices
from fedapps.base.seeding import derive_seed

from .plan import Domain, Settings, Space

if TYPE_CHECKING:
    import optuna

#: The number of trials, the current settings included, before settings follow from results; until then they are random.
RANDOM_TRIALS = 5
#: The number of complete trials from which trials are pruned.
FEWEST = 5

State = Literal["complete", "pruned", "failed"]


@dataclass(frozen=True)
class Trial:
    """A trial of a method.

    Attributes
    ----------
    settings : mapping
        Values by argument of the method.
    state : "complete", "pruned" or "failed"
        Failed: training diverged, or the settings do not go together.
    value : float or None
        The mean of the metric over the seeds after the last round; ``None`` unless the trial is complete.
    by_round : mapping of int to float
        The metric of the first seed by evaluated round.
    label : str
        The method with the settings as arguments.
    error : str
        Why the trial failed.
    """

    settings: Settings
    state: State
    label: str
    value: float | None = None
    by_round: Mapping[int, float] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True)
class Final:
    """A trial that ran again with further seeds.

    Attributes
    ----------
    trial : int
        The number of the trial, from 0.
    value : float or None
        The mean of the metric over all its seeds; ``None`` if a further run failed.
    error : str
        Why a run failed.
    """

    trial: int
    value: float | None
    error: str = ""


class Study:
    """The trials of one method.

    Finished trials only are stored, one after another. The settings of a trial depend on them, its number and the seed,
    so that an interrupted study continues exactly as if it had not been.

    Parameters
    ----------
    path : Path
        The SQLite file; it is created if missing.
    label : str
        The method; the name of the study.
    mode : "min" or "max"
        Whether lower or higher values are better.
    seed : int
        Seed of the sampler. It does not depend on the method: equal search spaces get the same random settings.

    Raises
    ------
    ValueError
        The file is damaged, or cannot be opened.
    """

    def __init__(self, path: Path, label: str, *, mode: str, seed: int) -> None:
        self.optuna = optuna_module()
        self.direction = {"min": "minimize", "max": "maximize"}[mode]
        self.seed = seed
        from sqlalchemy.exc import DatabaseError  # Optuna brings it

        try:
            # Not by a URL, in which some characters of a path have a meaning.
            connect = partial(sqlite3.connect, path)
            storage = self.optuna.storages.RDBStorage("sqlite://", engine_kwargs={"creator": connect})
            self._stored = self.optuna.create_study(
                study_name=label, storage=storage, direction=self.direction, load_if_exists=True
            )
        except DatabaseError as error:
            raise ValueError(
                f"{path} cannot be read ({error.orig}): restore the file from a backup, or start a new tuning; the "
                f"runs of the trials are in {path.parent / 'trials'}"
            ) from error

    def trials(self) -> list[Trial]:
        """The finished trials in their order."""
        return [
            Trial(
                settings=stored.user_attrs["settings"],
                state=stored.user_attrs["state"],
                label=stored.user_attrs["label"],
                value=stored.value if stored.user_attrs["state"] == "complete" else None,
                by_round=dict(stored.intermediate_values),
                error=stored.user_attrs["error"],
            )
            for stored in self._stored.get_trials(deepcopy=False)
        ]

    def suggest(self, space: Space) -> Settings:
        """The settings of the next trial: random at first, later promising ones by the finished trials."""
        done = self._stored.get_trials(deepcopy=False)
        seed = derive_seed(self.seed, "tuning", len(done)) % 2**32
        sampler = self.optuna.samplers.TPESampler(n_startup_trials=RANDOM_TRIALS, seed=seed)
        memory = self.optuna.create_study(sampler=sampler, direction=self.direction)
        memory.add_trials(done)
        asked = memory.ask(self._distributions(space))
        return {key: _rounded(asked.params[key]) for key in space}

    def add(self, trial: Trial, space: Space) -> None:
        """Store a finished trial. Settings outside the search space, which only the current ones can be, are not for
        the sampler.
        """
        within = {key: value for key, value in trial.settings.items() if key in space and value in space[key]}
        states = self.optuna.trial.TrialState
        frozen = self.optuna.trial.create_trial(
            # A pruned trial without values is the worst for the sampler; it ignores one in the state FAIL.
            state=states.COMPLETE if trial.state == "complete" else states.PRUNED,
            value=trial.value,
            params=within,
            distributions=self._distributions({key: space[key] for key in within}),
            intermediate_values={} if trial.state == "failed" else dict(trial.by_round),
            user_attrs={
                "settings": dict(trial.settings), "state": trial.state, "label": trial.label, "error": trial.error
            },
        )  # fmt: skip
        self._stored.add_trial(frozen)

    def _distributions(self, space: Space) -> "dict[str, optuna.distributions.BaseDistribution]":
        return {key: self._distribution(domain) for key, domain in space.items()}

    def _distribution(self, domain: Domain) -> "optuna.distributions.BaseDistribution":
        of = self.optuna.distributions
        made: optuna.distributions.BaseDistribution
        if isinstance(domain, Choices):
            made = of.CategoricalDistribution(domain.values)
        elif isinstance(domain.low, int) and isinstance(domain.high, int):
            made = of.IntDistribution(domain.low, domain.high, log=domain.log)
        else:
            made = of.FloatDistribution(domain.low, domain.high, log=domain.log)
        return made


def optuna_module() -> Any:
    """Optuna, without its log of every trial.

    Raises
    ------
    ValueError
        It is not installed.
    """
    try:
        import optuna
    except ImportError:
        raise ValueError("tuning needs the package optuna: install it with pip install 'fedapps[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def ranked(trials: Sequence[Trial], mode: str) -> list[int]:
    """The numbers of the complete trials, the best first; equal ones in their order."""
    sign = 1 if mode == "min" else -1
    values = {number: sign * trial.value for number, trial in enumerate(trials) if trial.value is not None}
    return sorted(values, key=values.__getitem__)


def finalists(trials: Sequence[Trial], mode: str, count: int) -> list[int]:
    """The numbers of the trials that run again: the first one, with the current settings, if it is complete, and the
    best others.
    """
    best = ranked(trials, mode)
    first = [number for number in best if number == 0]
    return [*first, *(number for number in best if number)][:count]


def best_trial(trials: Sequence[Trial], finals: Sequence[Final], mode: str) -> int | None:
    """The number of the best trial.

    Parameters
    ----------
    trials : sequence of Trial
    finals : sequence of Final
        Only they count, unless all of them failed.
    mode : "min" or "max"

    Returns
    -------
    int or None
        The first of several; ``None`` if no trial is complete.
    """
    sign = 1 if mode == "min" else -1
    values = {final.trial: sign * final.value for final in finals if final.value is not None}
    return min(values, key=values.__getitem__) if values else next(iter(ranked(trials, mode)), None)


def _rounded(value: Any) -> Any:
    """A float with four digits, as it is written in the arguments of a method."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


def median_limits(complete: Sequence[Mapping[int, float]], rounds: int) -> dict[int, float]:
    """The limits of the next trial: it ends once it is worse than half of the complete trials at the same round.

    This is the median stopping rule (Golovin et al., Google Vizier: A Service for Black-Box Optimization, KDD 2017,
    Section 3.2) on the values of single rounds. A run receives its limits before it starts, so that it needs no
    connection to the study, on any engine.

    Parameters
    ----------
    complete : sequence of mapping of int to float
        The values of each complete trial by evaluated round. Values that are not finite do not count.
    rounds : int
        The number of rounds of a run; a limit of the last round would stop nothing.

    Returns
    -------
    dict of int to float
        The median value of each round that at least ``FEWEST`` complete trials evaluated, by round.
    """
    limits = {}
    for server_round in sorted({number for values in complete for number in values if number < rounds}):
        of_round = [values[server_round] for values in complete if server_round in values]
        finite = [value for value in of_round if isfinite(value)]
        if len(finite) >= FEWEST:
            limits[server_round] = median(finite)
    return limits
