"""What papers claim in words about methods, held against a comparison: for papers whose tables are not at hand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Means = Mapping[str, Mapping[str, Mapping[str, float]]]


@dataclass(frozen=True)
class Claim:
    """``method`` exceeds the best of ``than`` in the mean of a ``metric`` by at least ``by``, which may be negative."""

    line: str
    metric: str
    method: str
    than: tuple[str, ...]
    by: float = 0.0

    def against(self, table: Means) -> dict[str, Any] | None:
        """The claim with what was found; ``None`` where a method or its metric is missing."""
        found = {name: table.get(name, {}).get(self.metric) for name in (self.method, *self.than)}
        means = {name: cell["mean"] for name, cell in found.items() if cell is not None}
        if len(means) < len(found):
            return None
        rival = max(self.than, key=lambda name: means[name])
        margin = means[self.method] - means[rival]
        facts = {"metric": self.metric, "method": self.method, "rival": rival, "margin": margin}
        return {"claim": self.line, "holds": margin >= self.by, **facts}


_BASELINES = ("fedavg", "fedprox", "lg-fedavg", "fedrecon")
#: Zhang et al., FedVocab, Section 4.3 and Appendix B: the tables themselves are not in the text that we have.
_FEDVOCAB = tuple(
    claim
    for test in ("global_accuracy", "local_accuracy")
    for claim in (
        Claim("FedVocab is within one point of the best baseline", test, "fedvocab", _BASELINES, -0.01),
        Claim("adaptive updating is better than none", test, "fedvocab", ("fedvocab-no-adapt",)),
        Claim("LG-FedAvg performs poorly: below FedAvg", test, "fedavg", ("lg-fedavg",)),
        Claim("every node alone is far below", test, "fedvocab", ("local",), 0.05),
    )
)

CLAIMS: Mapping[str, Sequence[Claim]] = {
    f"fedvocab-{size}": _FEDVOCAB
    for size in ("small", *(f"{model}{data}" for model in ("", "distilbert-") for data in ("agnews", "sst2", "20news")))
}


def checked_claims(recipe: str, table: Means) -> list[dict[str, Any]]:
    """The claims on a recipe that ``table`` (``compare.table_of``) can tell true or false."""
    found = [claim.against(table) for claim in CLAIMS.get(recipe, ())]
    return [facts for facts in found if facts is not None]
