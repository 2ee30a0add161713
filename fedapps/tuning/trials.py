"""The trials of one method: each suggests settings, runs with every seed and stores its result."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isfinite, nan
from pathlib import Path
from statistics import mean
from typing import Any

from fedapps.base.atomic import path_name
from fedapps.base.errors import RunFailedError
from fedapps.comparison.compare import run_cell
from fedapps.config.parsing import ConfigError, parse
from fedapps.config.run_config import written_limits
from fedapps.runs.run_folder import RunFolder
from fedapps.sim.matrix import Chain
from fedapps.strategies import TrackedMetric

from .plan import Settings, TuningPlan, current_settings, tuned_label
from .study import Final, Study, Trial, finalists, median_limits

#: What a run leaves that no one needs once its trial is stored: models and the private state of nodes.
_LARGE = ("checkpoints", "nodes")


def run_trial(method: str, seed: int, trial: str, config: dict[str, Any], engine: str) -> dict[str, Any]:
    """Execute the run of a trial with one seed, unless it has finished.

    Parameters
    ----------
    method : str
        Label of the method with the settings of the trial.
    seed : int
    trial : str
        The number of the trial, for messages.
    config : dict
        The flat run config.
    engine : "inline" or "ray"

    Returns
    -------
    dict
        ``metrics``, those of the last evaluation; and ``error``, which is empty unless training failed.
    """
    try:
        return {"metrics": run_cell(method, seed, config, engine)["metrics"], "error": ""}
    except RunFailedError as error:
        return {"metrics": {}, "error": str(error)}


@dataclass(frozen=True)
class MethodTrials:
    """The trials of one method.

    Parameters
    ----------
    plan : TuningPlan
    method : str
        One of the plan's methods.
    folder : Path
        The folder of the tuning.
    study : Study
    finals : list of Final
        The finalists with all their seeds, once :meth:`chain` has ended.
    """

    plan: TuningPlan
    method: str
    folder: Path
    study: Study
    finals: list[Final] = field(default_factory=list)

    def chain(self) -> Chain[Mapping[str, Any]]:
        """Yield the arguments of :func:`run_trial` for each run: first all trials that are not stored yet, one after
        another, then the finalists with further seeds.
        """
        space, count = self.plan.spaces[self.method], self.plan.trials_of(self.method)
        done = self.study.trials()
        for number in range(len(done), count):
            if number:
                settings = self.study.suggest(space)
                label = tuned_label(self.method, settings)
            else:
                settings, label = current_settings(self.plan.trial_config, self.method, space), self.method
            runs = self._runs(number, label, done)
            results: list[Mapping[str, Any]] = []
            error = runs.conflict()
            for seed in self.plan.seeds:
                if error or runs.pruned():
                    break
                cell = {"method": label, "seed": seed, "trial": f"{number + 1} of {count}"}
                result = yield cell | {"config": runs.config(seed), "engine": self.plan.engine}
                results.append(result["metrics"])
                error = result["error"]
            trial = runs.outcome(settings, results, error)
            self.study.add(trial, space)
            done.append(trial)
            runs.delete_models()
        for number in finalists(done, self.plan.mode, self.plan.finals_of(self.method)):
            yield from self._final(number, done[number])

    def _final(self, number: int, trial: Trial) -> Chain[Mapping[str, Any]]:
        """The runs of a finalist with further seeds. Those that have finished are only read again."""
        runs, results, error = self._runs(number, trial.label, ()), [], ""
        for seed in self.plan.final_seeds:
            cell = {"method": trial.label, "seed": seed, "trial": f"{number + 1}, a finalist"}
            result = yield cell | {"config": runs.config(seed), "engine": self.plan.engine}
            results.append(result["metrics"])
            error = error or result["error"]
        further = runs.outcome(trial.settings, results, error)
        runs.delete_models()
        seeds = len(self.plan.seeds), len(self.plan.final_seeds)
        both = None
        if trial.value is not None and further.value is not None:
            both = (trial.value * seeds[0] + further.value * seeds[1]) / sum(seeds)
        self.finals.append(Final(number, both, further.error))

    def _runs(self, number: int, label: str, earlier: Sequence[Trial]) -> "Runs":
        return Runs(self.plan, self.folder / "trials", path_name(f"{self.method}-trial-{number + 1}"), label, earlier)


@dataclass(frozen=True)
class Runs:
    """The runs of one trial, one per seed.

    Parameters
    ----------
    plan : TuningPlan
    folder : Path
        The folder of all run folders.
    name : str
        The start of the names of the run folders.
    label : str
        The method with the settings of the trial.
    earlier : sequence of Trial
        The trials of the method before this one, which decide when its first run is pruned. The runs of the other seeds
        go to their ends.
    """

    plan: TuningPlan
    folder: Path
    name: str
    label: str
    earlier: Sequence[Trial]

    def config(self, seed: int) -> dict[str, Any]:
        """The flat run config with one seed."""
        limits = written_limits(self._limits) if seed == self.plan.seeds[0] else ""
        own = {"output-dir": str(self.folder), "name": f"{self.name}-seed-{seed}", "methods": self.label}
        return self.plan.trial_config.flat() | own | self.plan.at_seed(seed) | {"stop-beyond": limits}

    def conflict(self) -> str:
        """Why the settings cannot work; empty if they can."""
        try:
            parse(self.config(self.plan.seeds[0]))
        except ConfigError as error:
            return str(error)
        return ""

    def by_round(self) -> dict[int, float]:
        """The tracked metric of the first seed by evaluated round."""
        rows = self._run_folder(self.plan.seeds[0]).lines("metrics.jsonl")
        by_number = {row["round"]: row["evaluate"].get(self._tracked.metric) for row in rows if row["evaluate"]}
        return {number: float(value) for number, value in by_number.items() if value is not None}

    def pruned(self) -> bool:
        """Whether the first seed's run ended beyond its limit; false before it begins."""
        values = self.by_round()
        last = max(values, default=0)
        tracked = replace(self._tracked, limits=self._limits)
        return last in values and tracked.beyond_limit(last, values[last])

    def outcome(self, settings: Settings, metrics: Sequence[Mapping[str, float]], error: str) -> Trial:
        """The trial, from the final metrics of each run or the error of the last one."""
        by_round = self.by_round()
        if error:
            return Trial(settings, "failed", self.label, by_round=by_round, error=error)
        if self.pruned():
            return Trial(settings, "pruned", self.label, by_round=by_round)
        values = [float(of_run.get(self.plan.metric, nan)) for of_run in metrics]
        if not all(map(isfinite, values)):
            error = f"{self.plan.metric} is {', '.join(map(str, values))}"
            return Trial(settings, "failed", self.label, by_round=by_round, error=error)
        return Trial(settings, "complete", self.label, mean(values), by_round)

    def delete_models(self) -> None:
        """Delete checkpoints and the private state of nodes."""
        for seed in (*self.plan.seeds, *self.plan.final_seeds):
            for name in _LARGE:
                shutil.rmtree(self._run_folder(seed).path / name, ignore_errors=True)

    @property
    def _tracked(self) -> TrackedMetric:
        return TrackedMetric(self.plan.trial_config.run.track_metric, self.plan.mode)

    @cached_property
    def _limits(self) -> dict[int, float]:
        complete = [trial.by_round for trial in self.earlier if trial.state == "complete"]
        return median_limits(complete, self.plan.trial_config.run.rounds)

    def _run_folder(self, seed: int) -> RunFolder:
        return RunFolder(self.folder / f"{self.name}-seed-{seed}", "")
