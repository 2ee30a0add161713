"""Results of experiments: the files ``results/NAME.json``.

A file says what ran (``experiment``, ``command``, ``recipe``, ``keys``, ``seeds``, ``date``, ``minutes``, ``machine``,
``versions``) and what came out: for runs with seeds ``methods``, by method and metric the values of all seeds or an
estimate, ``failed`` runs, and ``differences`` of two methods that do not follow from the values; for measurements of
speed ``rows``. Where a key is varied, its value follows the method: ``fedavg at random``. What is unknown is left out.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from fedapps.base.report.numbers import Estimate, half_width
from fedapps.registry.methods import canonical

FOLDER = Path(__file__).with_name("results")


def stored_label(label: str) -> str:
    """The label under which results of a method are stored: without aliases and default arguments.

    What follows `` at `` is the value of a varied key; it stays.
    """
    method, at, value = label.partition(" at ")
    try:
        return canonical(method) + at + value
    except ValueError:  # a reference, such as the robot without a forecaster
        return label


@dataclass(frozen=True)
class Result:
    """The content of a file; see the module."""

    experiment: str
    command: str
    recipe: str = ""
    keys: Mapping[str, Any] = field(default_factory=dict)
    seeds: Sequence[int] = ()
    date: str = ""
    minutes: float | None = None
    machine: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    methods: Mapping[str, Mapping[str, Estimate]] = field(default_factory=dict)
    differences: Sequence[Mapping[str, Any]] = ()
    rows: Sequence[Mapping[str, Any]] = ()
    failed: Sequence[Mapping[str, Any]] = ()

    def lacks_seeds(self, method: str) -> bool:
        """Whether a run of a method failed. Its estimates are over the seeds that finished."""
        return any(one["method"] == method for one in self.failed)

    def of(self, method: str, metric: str) -> Estimate:
        """The estimate of a metric; raises ``KeyError`` with what there is."""
        method = self._label(method)
        if method not in self.methods or metric not in self.methods[method]:
            known = ", ".join(self.methods.get(method, self.methods))
            raise KeyError(f"results/{self.experiment}.json has no {metric!r} of {method!r}, but {known}")
        return self.methods[method][metric]

    def difference(self, metric: str, a: str, b: str) -> Estimate:
        """The difference a - b, paired by seed.

        If neither it nor the values of the seeds are known, the interval is the widest that the standard deviations of
        both methods permit; if these are unknown, too, there is none.
        """
        a, b = self._label(a), self._label(b)
        for known in self.differences:
            if known["metric"] == metric and {known["a"], known["b"]} == {a, b}:
                stored = Estimate(**{key: known[key] for key in known.keys() & _ESTIMATE})
                return stored if known["a"] == a else stored.negated()
        left, right = self.of(a, metric), self.of(b, metric)
        paired = not self.lacks_seeds(a) and not self.lacks_seeds(b)
        if paired and len(right.values) == 1 < len(left.values):  # a reference, which has no random draws
            right = Estimate.of([right.values[0]] * len(left.values))
        if paired and len(left.values) == len(right.values) > 0:
            return left.minus(right)
        mean, seeds = left.mean - right.mean, min(left.seeds, right.seeds)
        if seeds < 2 or left.sd is None or right.sd is None:
            return Estimate(mean, seeds)
        half = half_width(left.sd + right.sd, seeds)
        return Estimate(mean, seeds, low=mean - half, high=mean + half, widest=True)

    def mean_with(self, others: Sequence["Result"]) -> "Result":
        """The result whose values are the means of those of this one and others, seed by seed.

        It has the methods and metrics that all of them have for as many seeds.
        """
        methods: dict[str, dict[str, Estimate]] = {}
        for method, metrics in self.methods.items():
            for metric, known in metrics.items():
                every = [known, *(one.methods.get(method, {}).get(metric) for one in others)]
                values = [one.values for one in every if one and len(one.values) == len(known.values) > 0]
                if len(values) == len(every):
                    means = [fmean(of_seed) for of_seed in zip(*values, strict=True)]
                    methods.setdefault(method, {})[metric] = Estimate.of(means)
        return replace(self, methods=methods, differences=())

    def _label(self, method: str) -> str:
        return method if method in self.methods else stored_label(method)

    @classmethod
    def read(cls, path: Path) -> "Result":
        """Read a file."""
        content = json.loads(path.read_text(encoding="utf-8"))
        methods = {
            method: {
                metric: Estimate.of(facts) if isinstance(facts, list) else Estimate(**facts)
                for metric, facts in of_method.items()
            }
            for method, of_method in content.pop("methods", {}).items()
        }
        return cls(**content, methods=methods)

    def text(self) -> str:
        """The text of the file, without what is unknown or empty."""
        content = {key: value for key, value in asdict(self).items() if value not in ("", None, (), {}, [])}
        for of_method in content.get("methods", {}).values():
            for metric, facts in of_method.items():
                known = {key: value for key, value in facts.items() if value or isinstance(value, float)}
                of_method[metric] = facts["values"] or known
        text = json.dumps(_rounded(content), indent=1, ensure_ascii=False)
        for innermost in (r"\[[^][{}]*\]", r"\{[^{}]*\}"):  # on one line, which keeps the files short
            text = re.sub(innermost, lambda match: re.sub(r"\s*\n\s*", " ", match[0]), text)
        return text + "\n"


_ESTIMATE = {one.name for one in fields(Estimate)}


@cache
def result(name: str, folder: Path = FOLDER) -> Result:
    """The result of an experiment; of several, separated by commas, the mean. Raises ``FileNotFoundError`` without."""
    first, *others = [Result.read(folder / f"{one}.json") for one in name.split(",")]
    return first.mean_with(others) if others else first


def _rounded(content: Any) -> Any:
    """Numbers with seven significant digits."""
    if isinstance(content, float):
        return float(f"{content:.7g}")
    if isinstance(content, Mapping):
        return {key: _rounded(value) for key, value in content.items()}
    if isinstance(content, Iterable) and not isinstance(content, str):
        return [_rounded(value) for value in content]
    return content
