"""What papers claim in words about methods, held against a comparison: for papers whose tables are not at hand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Means = Mapping[str, Mapping[str, Mapping[str, float]]]


@dataclass(frozen=True)
class Claim:
    """``method`` exceeds the best of ``than`` in the mean of a ``metric`` by at least ``by``, which may be negative.

    Where a key is varied the methods are named with its value, ``fedavg at random``.
    """

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

_RECALL = "recall_at_1"
_BOTH = (
    Claim("training together is better than the features as given", _RECALL, "fedavg", ("untrained",)),
    Claim("FedAvg comes within 5 points of centralised training", _RECALL, "fedavg", ("cloud",), -0.05),
    Claim("H-FL is below FedAvg of as many clients", _RECALL, "fedavg", ("h-fl",)),
    Claim("FedVC is above FedAvg", _RECALL, "fedvc", ("fedavg",)),
    Claim("AdaGrad is the best server optimizer", _RECALL, "fedadagrad", ("fedavg", "fedavgm", "fedadam")),
)
#: Dutto et al., FedVPR, sections 5.2 to 5.6 and appendix D.
_FEDVPR: Mapping[str, Sequence[Claim]] = {
    "fedvpr-nordland": _BOTH,
    "fedvpr-streets": _BOTH,
    "fedvpr-optimizers": _BOTH[-1:],
    "fedvpr-splits": (
        Claim("Random lags far behind Proximity", _RECALL, "fedavg at proximity", ("fedavg at random",), 0.05),
        Claim(
            "Proximity is a little better than Clustering", _RECALL, "fedavg at proximity", ("fedavg at clustering",)
        ),
    ),
    "fedvpr-augmentation": (
        Claim("jitter of one kind for all helps", _RECALL, "fedavg at jitter", ("fedavg at none",)),
        Claim("a random crop helps beside it", _RECALL, "fedavg at jitter-crop", ("fedavg at jitter",)),
        Claim("jitter of the client's own harms", _RECALL, "fedavg at none", ("fedavg at client-jitter",)),
    ),
    "fedvpr-steps": (
        *(
            Claim("FedVC is above FedAvg from an epoch's steps on", _RECALL, f"fedvc at {n}", (f"fedavg at {n}",))
            for n in (10, 20, 40, 80)
        ),
        Claim("and below with fewer", _RECALL, "fedavg at 2", ("fedvc at 2",)),
        Claim("many steps in few rounds end lower", _RECALL, "fedavg at 2", ("fedavg at 80",)),
    ),
    "fedvpr-hierarchy": tuple(
        Claim("H-FL is below FedAvg of as many clients", _RECALL, f"fedavg at {group}", (f"h-fl at {group}",))
        for group in ("city", "continent")
    ),
    "fedvpr-mining": (
        Claim("a moderate range is better than everywhere", _RECALL, "cloud at 60", ("cloud at 0",)),
        Claim("a narrow one is worse", _RECALL, "cloud at 0", ("cloud at 6",)),
    ),
    "fedvpr-pooling": (Claim("GeM is the best pooling", _RECALL, "cloud at gem", ("cloud at spoc", "cloud at mac")),),
}

CLAIMS: Mapping[str, Sequence[Claim]] = {
    **_FEDVPR,
    **{
        f"fedvocab-{size}": _FEDVOCAB
        for size in (
            "small",
            *(f"{model}{data}" for model in ("", "distilbert-") for data in ("agnews", "sst2", "20news")),
        )
    },
}


def checked_claims(recipe: str, table: Means) -> list[dict[str, Any]]:
    """The claims on a recipe that ``table`` (``compare.table_of``) can tell true or false."""
    found = [claim.against(table) for claim in CLAIMS.get(recipe, ())]
    return [facts for facts in found if facts is not None]
