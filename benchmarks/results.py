"""Results of experiments: the files ``results/NAME.json``.

A file says what ran (``experiment``, ``command``, ``recipe``, ``keys``, ``seeds``, ``date``, ``minutes``, ``machine``,
``versions``) and what came out: for runs with seeds ``methods``, an estimate by method and metric, and ``differences``
of two methods, and ``failed`` runs; for measurements of speed ``rows``. Where a key is varied, its value follows the
method: ``fedavg at random``. What is not known is left out.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from scipy.stats import t

from fedapps.comparison.significance import half_width, paired_difference
from fedapps.registry.methods import canonical

FOLDER = Path(__file__).with_name("results")


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, of a metric or of a paired difference.

    Parameters
    ----------
    mean : float
    seeds : int
    sd : float or None
        Sample standard deviation over the seeds.
    low, high : float or None
        Limits of the 95 % confidence interval (Student's t).
    values : sequence of float
        The value of each seed, if they were kept.
    p, p_holm : float or None
        Of a difference: p-value of the sign-flip test, and its Holm correction within the comparison.
    widest : bool
        The interval of a difference is an upper bound: it follows from both standard deviations alone.
    """

    mean: float
    seeds: int = 1
    sd: float | None = None
    low: float | None = None
    high: float | None = None
    values: Sequence[float] = ()
    p: float | None = None
    p_holm: float | None = None
    widest: bool = False

    @classmethod
    def of(cls, values: Sequence[float]) -> "Estimate":
        """The estimate from one value per seed."""
        mean = fmean(values)
        if len(values) < 2:
            return cls(mean, values=tuple(values))
        half = half_width(values)
        return cls(mean, len(values), stdev(values), mean - half, mean + half, tuple(values))

    @property
    def half(self) -> float | None:
        """Half the width of the 95 % interval; ``None`` with one seed, or if no spread is known."""
        if self.low is not None and self.high is not None:
            return (self.high - self.low) / 2
        return None if self.sd is None or self.seeds < 2 else _student(self.seeds) * self.sd / sqrt(self.seeds)

    def minus(self, other: "Estimate") -> "Estimate":
        """The difference, paired by seed."""
        gap = paired_difference(self.values, other.values)
        return Estimate(gap.mean, self.seeds, low=gap.low, high=gap.high)

    def negated(self) -> "Estimate":
        """The difference the other way round."""
        low = None if self.high is None else -self.high
        high = None if self.low is None else -self.low
        values = tuple(-value for value in self.values)
        return Estimate(-self.mean, self.seeds, self.sd, low, high, values, self.p, self.p_holm, self.widest)


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
            there = ", ".join(self.methods.get(method, self.methods))
            raise KeyError(f"results/{self.experiment}.json has no {metric!r} of {method!r}, but {there}")
        return self.methods[method][metric]

    def difference(self, metric: str, a: str, b: str) -> Estimate:
        """The difference a - b, paired by seed.

        If neither it nor the values of the seeds are known, the interval is the widest that the standard deviations of
        both methods permit; if these are unknown, too, there is none.
        """
        a, b = self._label(a), self._label(b)
        for known in self.differences:
            if known["metric"] == metric and {known["a"], known["b"]} == {a, b}:
                found = Estimate(**{key: known[key] for key in known.keys() & _ESTIMATE})
                return found if known["a"] == a else found.negated()
        left, right = self.of(a, metric), self.of(b, metric)
        paired = not self.lacks_seeds(a) and not self.lacks_seeds(b)
        if paired and len(left.values) == len(right.values) > 0:
            return left.minus(right)
        mean, seeds = left.mean - right.mean, min(left.seeds, right.seeds)
        if seeds < 2 or left.sd is None or right.sd is None:
            return Estimate(mean, seeds)
        half = _student(seeds) * (left.sd + right.sd) / sqrt(seeds)
        return Estimate(mean, seeds, low=mean - half, high=mean + half, widest=True)

    def _label(self, method: str) -> str:
        return method if method in self.methods else stored_label(method)

    @classmethod
    def read(cls, path: Path) -> "Result":
        """Read a file."""
        content = json.loads(path.read_text(encoding="utf-8"))
        methods = {
            method: {metric: Estimate(**facts) for metric, facts in of_method.items()}
            for method, of_method in content.pop("methods", {}).items()
        }
        return cls(**content, methods=methods)

    def text(self) -> str:
        """The text of the file, without what is unknown or empty."""
        content = {key: value for key, value in asdict(self).items() if value not in ("", None, (), {}, [])}
        for of_method in content.get("methods", {}).values():
            for metric, facts in of_method.items():
                of_method[metric] = {key: value for key, value in facts.items() if value or isinstance(value, float)}
        text = json.dumps(_rounded(content), indent=1, ensure_ascii=False)
        for innermost in (r"\[[^][{}]*\]", r"\{[^{}]*\}"):  # on one line, which keeps the files short
            text = re.sub(innermost, lambda found: re.sub(r"\s*\n\s*", " ", found[0]), text)
        return text + "\n"


_ESTIMATE = {one.name for one in fields(Estimate)}


@cache
def result(name: str, folder: Path = FOLDER) -> Result:
    """The result of an experiment. Raises ``FileNotFoundError`` if it has none."""
    return Result.read(folder / f"{name}.json")


@cache
def _student(seeds: int) -> float:
    return float(t.ppf(0.975, seeds - 1))


def _rounded(content: Any) -> Any:
    """Numbers with seven significant digits."""
    if isinstance(content, float):
        return float(f"{content:.7g}")
    if isinstance(content, Mapping):
        return {key: _rounded(value) for key, value in content.items()}
    if isinstance(content, Iterable) and not isinstance(content, str):
        return [_rounded(value) for value in content]
    return content
