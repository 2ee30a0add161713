"""The numbers that the papers print, and what they claim in words: the files in ``paper_numbers``."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any

from fedapps.base.options import matches
from fedapps.base.report.numbers import Estimate
from fedapps.config.keys import defaults, options_by_key
from fedapps.config.recipe_files import Value, packaged_keys, recipes
from fedapps.registry.methods import canonical
from fedapps.registry.tasks import task_class
from fedapps.runs.comparisons import CheckedClaim

from .significance import Values

FOLDER = Path(__file__).with_name("paper_numbers")
Table = Mapping[str, Mapping[str, float]]

#: Largest probability that a verdict is wrong.
_ERROR = 0.05


@dataclass(frozen=True)
class PaperTable:
    """A table of a paper: the numbers of its methods, by our names of the metrics.

    Parameters
    ----------
    source : str
        Where the paper prints it.
    recipes : sequence of str
        Glob patterns of the recipes that repeat it.
    numbers : mapping
        By method, such as ``fedprox(mu=0.1)``, and metric.
    key, value
        Where a study varies a key: the value that these numbers hold for; empty elsewhere.
    """

    source: str
    recipes: Sequence[str]
    numbers: Table
    key: str = ""
    value: Value = ""


@dataclass(frozen=True)
class Claim:
    """A claim: in the mean of ``metric``, ``method`` exceeds each of ``than`` by more than ``by``.

    ``by`` may be negative. Where a key is varied, the methods have its value after their names: ``fedavg at random``.
    """

    claim: str
    recipes: Sequence[str]
    metric: str
    method: str
    than: Sequence[str]
    by: float = 0.0

    def against(self, values: Values) -> CheckedClaim | None:
        """The claim with the verdict of ``values``; ``None`` if a method lacks the metric, or a finite value of it.

        The verdict uses confidence intervals of the paired differences over seeds, one for each of ``than``, with a
        joint confidence of 95 % (Bonferroni): "holds" if all are above ``by``, "fails" if one is below ``by``,
        otherwise "within noise". With one seed there are no intervals, and the verdict is "one seed". ``rival`` is the
        method that decides the verdict.
        """
        of_names = {name: values.get(name, {}).get(self.metric) for name in (self.method, *self.than)}
        known = {name: Estimate.of(one) for name, one in of_names.items() if one and all(map(isfinite, one))}
        if len(known) < len(of_names):
            return None
        confidence = 1 - _ERROR / len(self.than)
        rivals = {name: known[self.method].minus(known[name], confidence) for name in self.than}
        rival, verdict = self._verdict(rivals)
        return CheckedClaim(
            claim=self.claim,
            metric=self.metric,
            method=self.method,
            rival=rival,
            by=self.by,
            verdict=verdict,
            difference=replace(rivals[rival], values=()),
        )

    def _verdict(self, rivals: Mapping[str, Estimate]) -> tuple[str, str]:
        """The deciding rival and the verdict."""
        lows = {name: one.low for name, one in rivals.items() if one.low is not None}
        highs = {name: one.high for name, one in rivals.items() if one.high is not None}
        if not lows:
            return min(rivals, key=lambda name: rivals[name].mean), "one seed"
        above, below = min(lows, key=lows.__getitem__), min(highs, key=highs.__getitem__)
        if highs[below] < self.by:
            return below, "fails"
        return above, "holds" if lows[above] > self.by else "within noise"


@dataclass(frozen=True)
class Exhibit:
    """Tables and figures of a paper that belong together, and what answers them.

    Parameters
    ----------
    of : sequence of str
        Such as ``Table 1`` and ``Figure 2``.
    what : str
        What they show.
    experiments : sequence of str
        The benchmarks that answer them.
    claim : str
        What they are to show.
    compared : sequence of str
        A benchmark, a metric, and the two methods of the claim, the better one first; empty if there is none.
    missing : str
        What is not there, and why. A verdict or this must be there.
    rerun : sequence of str
        The benchmarks that would give it.
    """

    of: Sequence[str]
    what: str
    experiments: Sequence[str] = ()
    claim: str = ""
    compared: Sequence[str] = ()
    missing: str = ""
    rerun: Sequence[str] = ()


@dataclass(frozen=True)
class Setting:
    """What decides whether a paper's numbers and claims can stand beside a comparison: the data, and their nodes.

    Parameters
    ----------
    recipe : str
        Name of the recipe.
    keys : mapping
        The flat run config of the comparison.
    simulates : bool
        Whether the task can simulate data with these keys, as the recipe does.
    varied : tuple of str
        The varied keys, which are not compared.
    """

    recipe: str
    keys: Mapping[str, Value]
    simulates: bool
    varied: tuple[str, ...] = ()

    def fits(self, patterns: Sequence[str]) -> bool:
        """Whether the data are those of a recipe of this package whose name matches, and the nodes as many as the
        recipe has."""
        known = [name for name in recipes() if matches(name, patterns)]
        return not self._departures(self.recipe, ("num-nodes",)) and any(
            not self._departures(name, ()) for name in dict.fromkeys([self.recipe, *known])
        )

    def departures(self) -> list[str]:
        """The keys with which the comparison departs from its recipe; ``recipe`` if it is no recipe of this package."""
        departures = [*self._departures(self.recipe, ()), *self._departures(self.recipe, ("num-nodes",))]
        return list(dict.fromkeys(departures))

    def _departures(self, recipe: str, nodes: Sequence[str]) -> list[str]:
        """The keys that differ from a recipe: ``nodes``, or without them those of the data."""
        packaged = packaged_keys(recipe)
        if packaged is None:
            return ["recipe"]
        theirs, ours = ({**defaults(), **keys} for keys in (packaged, self.keys))
        compared = nodes or ("task", *_data_keys(str(theirs["task"])))
        departures = [key for key in compared if theirs.get(key) != ours.get(key) and key not in self.varied]
        if not nodes and not departures and self.simulates and ours["data-dir"]:
            return ["data-dir"]
        return departures


@cache
def _data_keys(task: str) -> tuple[str, ...]:
    """The keys that decide which data the nodes have."""
    options = options_by_key(f"{task}.", task_class(task).Options)
    return tuple(key for key, setting in options.items() if setting.metadata.get("data"))


@cache
def paper_tables() -> Sequence[PaperTable]:
    """All tables of all papers."""
    return [one for paper in _files() for table in paper.get("tables", []) for one in _tables(**table)]


def _tables(
    source: str,
    recipes: Sequence[str],
    metrics: Sequence[str],
    numbers: Mapping[str, Sequence[float | Sequence[float]]],
    key: str = "",
    values: Sequence[Value] = ("",),
) -> list[PaperTable]:
    """A table for each value of the key; a method has a number for each metric, or a list with one for each value."""
    return [
        PaperTable(source, recipes, {method: _row(metrics, cells, at) for method, cells in numbers.items()}, key, value)
        for at, value in enumerate(values)
    ]


def _row(metrics: Sequence[str], cells: Sequence[float | Sequence[float]], at: int) -> dict[str, float]:
    numbers = [cell if isinstance(cell, int | float) else cell[at] for cell in cells]
    return dict(zip(metrics, numbers, strict=True))


@cache
def paper_claims() -> Sequence[Claim]:
    """All claims of all papers; one that the file makes for several metrics is several claims."""
    return [
        Claim(**{name: value for name, value in claim.items() if name != "metrics"}, metric=metric)
        for paper in _files()
        for claim in paper.get("claims", [])
        for metric in claim["metrics"]
    ]


def paper_exhibits(paper: str) -> Sequence[Exhibit]:
    """All tables and figures of the paper that the file ``paper_numbers/PAPER.toml`` is about."""
    content = tomllib.loads((FOLDER / f"{paper}.toml").read_text(encoding="utf-8"))
    return [Exhibit(**exhibit) for exhibit in content["exhibits"]]


def paper_of(
    recipe: str, labels: Sequence[str], key: str = "", value: Value = "", setting: Setting | None = None
) -> Table:
    """What a paper prints for the methods of a comparison, by their labels; where ``key`` is varied, at ``value``.

    With a ``setting``, only what holds for it.
    """
    numbers = {
        canonical(method): row
        for table in paper_tables()
        if (table.key, table.value) == (key, value) and _on(recipe, table.recipes, setting)
        for method, row in table.numbers.items()
    }
    return {label: numbers[canonical(label)] for label in labels if canonical(label) in numbers}


def checked_claims(recipe: str, values: Values, setting: Setting | None = None) -> list[CheckedClaim]:
    """The claims on a recipe with their verdicts, if ``values`` has all their methods; see :meth:`Claim.against`.

    With a ``setting``, only those that hold for it.
    """
    by_canonical = {_at(label): of_label for label, of_label in values.items()}
    checked = [claim.against(by_canonical) for claim in _claims_on(recipe, setting)]
    return [claim for claim in checked if claim is not None]


def _claims_on(recipe: str, setting: Setting | None) -> list[Claim]:
    return [
        Claim(c.claim, c.recipes, c.metric, _at(c.method), [_at(name) for name in c.than], c.by)
        for c in paper_claims()
        if _on(recipe, c.recipes, setting)
    ]


def _on(recipe: str, patterns: Sequence[str], setting: Setting | None) -> bool:
    """Whether the recipes with these names include this one, and their data those of the setting."""
    named = matches(recipe, patterns)
    return named and (setting is None or setting.fits(patterns))


def _at(label: str) -> str:
    """The canonical form of a method's label with the value of a varied key behind it."""
    method, at, value = label.partition(" at ")
    return canonical(method) + at + value


def _files() -> list[dict[str, Any]]:
    return [tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.toml"))]
