"""The numbers that the papers print, and what they claim in words: the files in ``paper_numbers``."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from fedapps.config.recipe_files import Value
from fedapps.registry.methods import canonical

FOLDER = Path(__file__).with_name("paper_numbers")
Table = Mapping[str, Mapping[str, float]]
Means = Mapping[str, Mapping[str, Mapping[str, float]]]


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
    """A claim: in the mean of ``metric``, ``method`` exceeds the best of ``than`` by at least ``by``.

    ``by`` may be negative. Where a key is varied, the methods have its value after their names: ``fedavg at random``.
    """

    claim: str
    recipes: Sequence[str]
    metric: str
    method: str
    than: Sequence[str]
    by: float = 0.0

    def against(self, table: Means) -> dict[str, Any] | None:
        """The claim with what ``table`` says of it; ``None`` where a method or its metric is missing."""
        found = {name: table.get(name, {}).get(self.metric) for name in (self.method, *self.than)}
        means = {name: cell["mean"] for name, cell in found.items() if cell is not None}
        if len(means) < len(found):
            return None
        rival = max(self.than, key=lambda name: means[name])
        margin = means[self.method] - means[rival]
        facts = {"metric": self.metric, "method": self.method, "rival": rival, "margin": margin}
        return {"claim": self.claim, "holds": margin >= self.by, **facts}


@cache
def paper_tables() -> Sequence[PaperTable]:
    """All tables of all papers."""
    return [PaperTable(**table) for paper in _files() for table in paper.get("tables", [])]


@cache
def paper_claims() -> Sequence[Claim]:
    """All claims of all papers."""
    return [Claim(**claim) for paper in _files() for claim in paper.get("claims", [])]


def paper_of(recipe: str, labels: Sequence[str], key: str = "", value: Value = "") -> Table:
    """What a paper prints for the methods of a comparison, by their labels; where ``key`` is varied, at ``value``."""
    numbers = {
        canonical(method): row
        for table in paper_tables()
        if (table.key, table.value) == (key, value) and any(fnmatchcase(recipe, pattern) for pattern in table.recipes)
        for method, row in table.numbers.items()
    }
    return {label: numbers[canonical(label)] for label in labels if canonical(label) in numbers}


def checked_claims(recipe: str, table: Means) -> list[dict[str, Any]]:
    """The claims on a recipe about which ``table``, the means of a comparison, can decide."""
    by_canonical = {_at(label): row for label, row in table.items()}
    found = [claim.against(by_canonical) for claim in _claims_on(recipe)]
    return [facts for facts in found if facts is not None]


def _claims_on(recipe: str) -> list[Claim]:
    return [
        Claim(c.claim, c.recipes, c.metric, _at(c.method), [_at(name) for name in c.than], c.by)
        for c in paper_claims()
        if any(fnmatchcase(recipe, pattern) for pattern in c.recipes)
    ]


def _at(label: str) -> str:
    """The canonical form of a method's label with the value of a varied key behind it."""
    method, at, value = label.partition(" at ")
    return canonical(method) + at + value


def _files() -> list[dict[str, Any]]:
    return [tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.toml"))]
